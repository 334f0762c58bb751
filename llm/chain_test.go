package llm_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
)

// chain returns a chain of fakes with the default options, or those given.
func chain(t testing.TB, o llm.Options, fakes ...*llm.Fake) *llm.Chain {
	t.Helper()
	var entries []llm.Entry
	for _, f := range fakes {
		entries = append(entries, llm.Entry{Provider: f})
	}
	c, err := llm.New(entries, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// story is a trace in words: "gemini:overloaded groq:ok".
func story(tr *llm.Trace) string {
	var words []string
	for _, a := range tr.Attempts {
		words = append(words, a.Provider+":"+string(a.Class)+string(a.Skipped))
	}
	return strings.Join(words, " ")
}

func retryAfter(s string) http.Header { return http.Header{"Retry-After": {s}} }

func message(code string) string { return fmt.Sprintf(`{"error":{"message":"m","code":%q}}`, code) }

// TestAfterEachClass holds what follows from a failure of the first of two
// entries: in the same call, and in the one after it.
func TestAfterEachClass(t *testing.T) {
	status := func(n int) llm.Step { return llm.Step{Status: n, Body: `{"error":{"message":"m"}}`} }
	finish := func(f llm.FinishReason, text string) llm.Step {
		return llm.Step{Response: &llm.Response{Text: text, FinishReason: f, Status: 200}}
	}
	for _, tt := range []struct {
		name  string
		step  llm.Step
		class llm.Class
		then  string // the first entry's part in the next call
		took  time.Duration
	}{
		{name: "408", step: status(408), class: llm.ClassOverloaded, then: "overloaded"},
		{name: "498", step: status(498), class: llm.ClassOverloaded, then: "overloaded"},
		{name: "500", step: status(500), class: llm.ClassOverloaded, then: "overloaded"},
		{name: "503", step: status(503), class: llm.ClassOverloaded, then: "overloaded"},
		{name: "503 that says how long", step: llm.Step{Status: 503, Header: retryAfter("9")}, class: llm.ClassOverloaded, then: "throttled"},
		{name: "529", step: status(529), class: llm.ClassOverloaded, then: "overloaded"},
		{name: "429", step: llm.Step{Status: 429, Header: retryAfter("3")}, class: llm.ClassThrottled, then: "throttled"},
		{name: "402", step: status(402), class: llm.ClassQuota, then: "quota"},
		{name: "400", step: status(400), class: llm.ClassRejected, then: "rejected"},
		{name: "413", step: status(413), class: llm.ClassRejected, then: "rejected"},
		{name: "422", step: status(422), class: llm.ClassRejected, then: "rejected"},
		{name: "404", step: status(404), class: llm.ClassRejected, then: "rejected"},
		{name: "401", step: status(401), class: llm.ClassAuth, then: "auth"},
		{name: "403", step: status(403), class: llm.ClassAuth, then: "auth"},
		{name: "gone", step: llm.Step{Status: 404, Body: message("model_not_found")}, class: llm.ClassGone, then: "gone"},
		{name: "broken", step: llm.Step{Err: errors.New("reset by peer")}, class: llm.ClassLost, then: "lost"},
		{name: "no answer of the API", step: llm.Step{Err: llm.HTTPError(200, nil, []byte("<html>"))}, class: llm.ClassMalformed, then: "malformed"},
		{name: "empty", step: finish(llm.FinishStop, " \n"), class: llm.ClassEmpty, then: "empty"},
		{name: "cut", step: finish(llm.FinishLength, "half an ans"), class: llm.ClassCut, then: "cut"},
		{name: "blocked", step: finish(llm.FinishBlocked, ""), class: llm.ClassBlocked, then: "blocked"},
		{name: "hang", step: llm.Step{Hang: true}, class: llm.ClassTimeout, then: "timeout", took: 20 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, second := llm.NewFake("gemini", tt.step), llm.NewFake("groq")
				c := chain(t, llm.Options{}, first, second)
				start := time.Now()
				resp, err := c.Complete(t.Context(), llm.Prompt("hi"))
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took != tt.took {
					t.Errorf("the fallback came after %s, want %s", took, tt.took)
				}
				if want := "gemini:" + string(tt.class) + " groq:ok"; story(resp.Trace) != want || resp.Text != "ok" || resp.Degraded {
					t.Errorf("%s (%q), want %s", story(resp.Trace), resp.Text, want)
				}
				resp, err = c.Complete(t.Context(), llm.Prompt("hi"))
				if want := "gemini:" + tt.then + " groq:ok"; err != nil || story(resp.Trace) != want {
					t.Errorf("then %s, %v, want %s", story(resp.Trace), err, want)
				}
			})
		})
	}
}

// TestRetries holds the attempts and delays at a single entry.
func TestRetries(t *testing.T) {
	exact := llm.Backoff{Jitter: -1}
	for _, tt := range []struct {
		name string
		step llm.Step
		want string
		took time.Duration
	}{
		// The breaker opens with the second failure; its 15 s are waited for in the queue.
		{"throttled", llm.Step{Status: 429}, "p:throttled p:throttled p:throttled p:throttled", 800*time.Millisecond + 1600*time.Millisecond + 3200*time.Millisecond},
		{"throttled for a time", llm.Step{Status: 429, Header: retryAfter("2")}, "p:throttled p:throttled p:throttled p:throttled", 6 * time.Second},
		{"throttled beyond the budget", llm.Step{Status: 429, Header: retryAfter("51")}, "p:throttled", 0},
		{"quota of the day", llm.Step{Status: 429, Header: retryAfter("2"), Body: `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}]}}`}, "p:quota", 0},
		{"malformed", llm.Step{Err: llm.HTTPError(200, nil, nil)}, "p:malformed", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := chain(t, llm.Options{Backoff: exact}, llm.NewFake("p", tt.step))
				start := time.Now()
				resp, err := c.Complete(t.Context(), llm.Prompt("hi"))
				if err != nil || !resp.Degraded || resp.Text == "" {
					t.Fatalf("%+v, %v; want the degraded answer", resp, err)
				}
				if took := time.Since(start); took != tt.took || story(trimSkips(resp.Trace)) != tt.want {
					t.Errorf("%s in %s, want %s in %s", story(resp.Trace), took, tt.want, tt.took)
				}
				if !resp.NotBefore.After(time.Now()) {
					t.Errorf("do not retry before %s", resp.NotBefore)
				}
			})
		})
	}
}

// trimSkips leaves the attempts that were sent.
func trimSkips(tr *llm.Trace) *llm.Trace {
	sent := *tr
	sent.Attempts = nil
	for _, a := range tr.Attempts {
		if a.Skipped == "" {
			sent.Attempts = append(sent.Attempts, a)
		}
	}
	return &sent
}

func TestNobodyWaitsWhileAnotherCanBeAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := llm.Step{Status: 503}
		first, second := llm.NewFake("gemini", down, llm.Step{}), llm.NewFake("groq", down, down)
		c := chain(t, llm.Options{Backoff: llm.Backoff{Jitter: -1}}, first, second)
		start := time.Now()
		resp, err := c.Complete(t.Context(), llm.Prompt("hi"))
		if err != nil || story(resp.Trace) != "gemini:overloaded groq:overloaded gemini:ok" {
			t.Fatalf("%s, %v", story(resp.Trace), err)
		}
		if took := time.Since(start); took != 800*time.Millisecond {
			t.Errorf("took %s", took)
		}
	})
}

// TestErrors holds when a call has an error instead of a degraded answer: asking
// again would not help.
func TestErrors(t *testing.T) {
	bad := llm.Step{Status: 400, Body: `{"error":{"message":"bad image"}}`}
	c := chain(t, llm.Options{}, llm.NewFake("gemini", bad), llm.NewFake("groq", bad))
	_, err := c.Complete(t.Context(), llm.Prompt("hi"))
	e, ok := errors.AsType[*llm.Error](err)
	if !ok || e.Class != llm.ClassRejected || e.Provider != "gemini" || e.Status != 400 || story(e.Trace) != "gemini:rejected groq:rejected" {
		t.Errorf("%v", err)
	}
	if want := "llm: gemini: rejected (HTTP 400): bad image"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}

	// A wrong key is an error, also while it is remembered; beside an outage it is none.
	noKey := llm.Step{Status: 401, Body: `{"error":{"message":"Invalid API Key"}}`}
	locked := chain(t, llm.Options{}, llm.NewFake("gemini", noKey))
	for _, want := range []string{"gemini:auth", "gemini:auth"} {
		_, err := locked.Complete(t.Context(), llm.Prompt("hi"))
		e, ok := errors.AsType[*llm.Error](err)
		if !ok || story(e.Trace) != want || err.Error() != "llm: gemini: auth (HTTP 401): Invalid API Key" {
			t.Errorf("%v", err)
		}
	}
	half := chain(t, llm.Options{Queue: llm.Queue{Size: -1}}, llm.NewFake("gemini", noKey), llm.NewFake("groq", llm.Step{Status: 429, Header: retryAfter("90")}))
	for range 2 {
		if resp, err := half.Complete(t.Context(), llm.Prompt("hi")); err != nil || !resp.Degraded {
			t.Errorf("%+v, %v", resp, err)
		}
	}

	_, err = chain(t, llm.Options{}).Complete(t.Context(), llm.Prompt("hi"))
	if e, ok := errors.AsType[*llm.Error](err); !ok || e.Class != llm.ClassNone || !strings.Contains(e.Message, "GEMINI_API_KEY") {
		t.Errorf("an empty chain: %v", err)
	}
	var none *llm.Chain
	for _, emit := range []func(string){nil, func(string) {}} {
		_, err = none.Stream(t.Context(), llm.Prompt("hi"), emit)
		if want := "no model is configured: set GEMINI_API_KEY (or GOOGLE_API_KEY) or GROQ_API_KEY"; err == nil || !strings.HasSuffix(err.Error(), want) || none.Close() != nil {
			t.Errorf("a nil chain: %v", err)
		}
	}
	if _, err = c.Complete(t.Context(), nil); err == nil {
		t.Error("a nil request is answered")
	}
	blind := llm.NewFake("blind")
	blind.About.Limits.NoVision = true
	_, err = chain(t, llm.Options{}, blind).Complete(t.Context(), &llm.Request{Messages: []llm.Message{llm.User("what?", llm.Image{URL: "http://x/y.png"})}})
	if e, ok := errors.AsType[*llm.Error](err); !ok || e.Class != llm.ClassRejected || !strings.Contains(e.Message, "unfit: images") {
		t.Errorf("an image for the blind: %v", err)
	}
	x := []llm.Message{llm.User("x")}
	for want, r := range map[string]*llm.Request{
		"response schema":  {Messages: x, Schema: []byte(`{"type":12}`)},
		"no message":       {},
		"5 stop texts":     {Messages: x, Stop: []string{"a", "b", "c", "d", "e"}},
		"unknown role":     {Messages: append(x, llm.Message{Role: "developer"})},
		"unknown strategy": {Messages: x, Strategy: "best"},
		"parameters are":   {Messages: x, Tools: []llm.Tool{{Name: "t", Parameters: []byte(`{`)}}},
		"arguments for":    {Messages: append(x, llm.Assistant("", llm.ToolCall{Name: "t", Arguments: []byte(`7`)}))},
		"an image without": {Messages: []llm.Message{llm.User("x", llm.Image{})}},
	} {
		_, err = c.Complete(t.Context(), r)
		if e, ok := errors.AsType[*llm.Error](err); !ok || e.Class != llm.ClassRejected || !strings.Contains(e.Message, want) || len(e.Trace.Attempts) > 0 {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestNew(t *testing.T) {
	twice := []llm.Entry{{Provider: llm.NewFake("a")}, {Provider: llm.NewFake("a")}}
	if _, err := llm.New(twice, llm.Options{}); err == nil {
		t.Error("two entries of one name")
	}
	for _, o := range []llm.Options{
		{Strategy: "best"}, {Timeout: -1}, {Attempts: -1}, {Breaker: health.BreakerOptions{OpenFor: -1}}, {Breaker: health.BreakerOptions{Failures: -1}},
	} {
		if _, err := llm.New(nil, o); err == nil {
			t.Errorf("%+v", o)
		}
	}
	for _, e := range []llm.Entry{{Name: "x"}, {Provider: llm.NewFake("x"), Timeout: -1}, {Provider: llm.NewFake("x"), TPM: -1}} {
		if _, err := llm.New([]llm.Entry{e}, llm.Options{}); err == nil {
			t.Errorf("%+v", e)
		}
	}
}

func TestCancel(t *testing.T) {
	steps := map[string]llm.Step{
		"in an attempt": {Hang: true},
		"in a wait":     {Status: 503},
		"in the queue":  {Status: 429, Header: retryAfter("20")},
	}
	for name, step := range steps {
		for _, hedge := range []time.Duration{0, 10 * time.Millisecond} {
			t.Run(fmt.Sprint(name, " ", hedge), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := chain(t, llm.Options{HedgeAfter: hedge}, llm.NewFake("gemini", step), llm.NewFake("groq", step))
					ctx, cancel := context.WithCancel(t.Context())
					left := time.Now().Add(300 * time.Millisecond)
					time.AfterFunc(300*time.Millisecond, cancel)
					_, err := c.Complete(ctx, llm.Prompt("hi"))
					e, ok := errors.AsType[*llm.Error](err)
					if !ok || e.Class != llm.ClassCancelled || !errors.Is(err, context.Canceled) || e.Trace == nil {
						t.Errorf("%v", err)
					}
					if d := time.Since(left); d > 50*time.Millisecond {
						t.Errorf("returned %s after the caller had left", d)
					}
					for name, p := range c.Status().Providers {
						if step.Hang && p.Breaker.ConsecutiveFailures != 0 {
							t.Errorf("%s is blamed for a caller that left", name)
						}
					}
				})
			})
		}
	}
}

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := llm.Step{Hang: true}
		c := chain(t, llm.Options{}, llm.NewFake("a", hang), llm.NewFake("b", hang), llm.NewFake("c", hang))
		start := time.Now()
		resp, err := c.Complete(t.Context(), llm.Prompt("hi"))
		if err != nil || !resp.Degraded {
			t.Fatalf("%+v, %v", resp, err)
		}
		if took := time.Since(start); took != 50*time.Second || story(resp.Trace) != "a:timeout b:timeout c:budget" {
			t.Errorf("%s in %s", story(resp.Trace), took)
		}
		start = time.Now()
		resp, err = c.Complete(t.Context(), &llm.Request{Messages: []llm.Message{llm.User("hi")}, Timeout: 2 * time.Second})
		if took := time.Since(start); err != nil || !resp.Degraded || took != 2*time.Second {
			t.Errorf("took %s of 2 s, %v", took, err)
		}
	})
}

// TestShortBudgetLeavesRoom holds that a hanging entry does not use up what the
// next one needs, and is not blamed for what was no timeout of its own.
func TestShortBudgetLeavesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chain(t, llm.Options{}, llm.NewFake("gemini", llm.Step{Hang: true}), llm.NewFake("groq", llm.Step{Delay: 400 * time.Millisecond}))
		resp, err := c.Complete(t.Context(), &llm.Request{Messages: []llm.Message{llm.User("hi")}, Timeout: time.Second})
		if err != nil || story(resp.Trace) != "gemini:timeout groq:ok" {
			t.Fatalf("%v, %v", resp, err)
		}
		if n := c.Status().Providers["gemini"].Breaker.ConsecutiveFailures; n != 0 {
			t.Errorf("%d failures for a caller in a hurry", n)
		}
	})
}

// TestHangWithinAShortChain holds that a provider that hangs is found out
// although the chain's own budget is too short for two of its timeouts.
func TestHangWithinAShortChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chain(t, llm.Options{Timeout: 30 * time.Second}, llm.NewFake("gemini", llm.Step{Hang: true}), llm.NewFake("groq"))
		for _, want := range []string{"gemini:timeout groq:ok", "gemini:timeout groq:ok", "gemini:open groq:ok"} {
			if resp, err := c.Complete(t.Context(), llm.Prompt("hi")); err != nil || story(resp.Trace) != want {
				t.Errorf("%s, %v, want %s", story(resp.Trace), err, want)
			}
		}
	})
}

// TestAbsurdRequests holds that numbers without sense neither block an entry
// nor get round its limits.
func TestAbsurdRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := llm.NewFake("p")
		c, err := llm.New([]llm.Entry{{Provider: f, RPM: 100, TPM: 10}}, llm.Options{
			Backoff: llm.Backoff{Base: math.MaxInt64, Max: math.MaxInt64}, Queue: llm.Queue{Size: -1}})
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range []int{-1 << 62, math.MaxInt, math.MaxInt, 0, -1} {
			r := llm.Prompt("hi")
			r.MaxTokens, r.Timeout = n, -1
			_, err := c.Complete(t.Context(), r)
			if (err != nil) != (n > 0) {
				t.Errorf("request %d: %v", i, err)
			}
		}
		if n := f.Calls(); n != 3 {
			t.Errorf("%d requests were sent", n)
		}
		down := chain(t, llm.Options{Backoff: llm.Backoff{Base: 1 << 60, Max: math.MaxInt64}}, llm.NewFake("p", llm.Step{Status: 429}))
		if resp, err := down.Complete(t.Context(), llm.Prompt("hi")); err != nil || len(resp.Trace.Attempts) != 1 {
			t.Errorf("%+v, %v", resp, err)
		}
	})
}

// TestUnsentIsNoSuccess holds that a request which a provider refuses by itself
// says nothing about whether its API works.
func TestUnsentIsNoSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := llm.NewFake("p").Script(func(_ int, r *llm.Request) llm.Step {
			if r.Messages[0].Text() == "odd" {
				return llm.Step{Err: &llm.Error{Class: llm.ClassRejected, Message: "only inline data can be sent"}}
			}
			return llm.Step{Status: 503}
		})
		c := chain(t, llm.Options{Queue: llm.Queue{Size: -1}}, f)
		for _, text := range []string{"x", "odd", "x"} {
			_, _ = c.Complete(t.Context(), &llm.Request{Messages: []llm.Message{llm.User(text)}, Timeout: 100 * time.Millisecond})
		}
		if p := c.Status().Providers["p"]; p.Breaker.State != health.BreakerOpen || p.Window.Calls != 2 {
			t.Errorf("%+v", p)
		}
	})
}

// TestTheCauseOfARest holds that a later failure of another kind does not take
// the place of why an entry is left alone.
func TestTheCauseOfARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := llm.NewFake("p", llm.Step{Delay: time.Second, Status: 400, Body: `{"error":{"message":"bad"}}`}, llm.Step{Status: 401, Body: `{"error":{"message":"no such key"}}`})
		c := chain(t, llm.Options{}, f)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { _, _ = c.Complete(t.Context(), llm.Prompt("hi")) })
			synctest.Wait()
		}
		wg.Wait()
		if _, err := c.Complete(t.Context(), llm.Prompt("hi")); err == nil || err.Error() != "llm: p: auth (HTTP 401): no such key" {
			t.Error(err)
		}
	})
}

func TestTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := llm.NewFake("gemini", llm.Step{Delay: 30 * time.Millisecond, Status: 429, Header: retryAfter("7"), Body: message("rate_limit_exceeded")})
		second := llm.NewFake("groq", llm.Step{Delay: 20 * time.Millisecond, Response: &llm.Response{
			Text: "blue", FinishReason: llm.FinishStop, Status: 200, Model: "groq-real", Usage: llm.Usage{Input: 3, Output: 4, Total: 7},
		}})
		var told *llm.Trace
		c := chain(t, llm.Options{OnTrace: func(tr *llm.Trace) { told = tr }}, first, second)
		at := time.Now().UTC()
		resp, err := c.Complete(t.Context(), llm.Prompt("hi"))
		if err != nil {
			t.Fatal(err)
		}
		want := &llm.Trace{
			ID: resp.Trace.ID, Started: at, LatencyMS: 50, Strategy: llm.ByPriority, Provider: "groq", Model: "groq-real", Outcome: llm.ClassOK,
			Attempts: []llm.Attempt{
				{
					Provider: "gemini", Model: "gemini-model", Number: 1, Class: llm.ClassThrottled, Status: 429, Code: "rate_limit_exceeded", Error: "m",
					BreakerBefore: "closed", BreakerAfter: "closed", LatencyMS: 30, RetryAfterMS: 7000, Next: "asks groq",
				}, {
					Provider: "groq", Model: "groq-real", Number: 1, Class: llm.ClassOK, Status: 200,
					BreakerBefore: "closed", BreakerAfter: "closed", LatencyMS: 20, Usage: &llm.Usage{Input: 3, Output: 4, Total: 7}, Next: "answered",
				},
			},
		}
		if diff := cmp.Diff(want, resp.Trace); diff != "" {
			t.Error(diff)
		}
		if resp.Provider != "groq" || resp.Model != "groq-real" || resp.Latency != 50*time.Millisecond {
			t.Errorf("%+v", resp)
		}
		if told != resp.Trace || c.Trace(told.ID) != told || c.Trace("x") != nil {
			t.Error("the trace is not kept")
		}
		oldest := told
		for range 1000 {
			if _, err := c.Complete(t.Context(), llm.Prompt("hi")); err != nil {
				t.Fatal(err)
			}
		}
		if c.Trace(oldest.ID) != nil || len(c.Traces(2000)) != 1000 || c.Traces(1)[0].ID != told.ID {
			t.Error("not the last 1,000 traces, newest first, are kept")
		}
	})
}

func TestSystemNote(t *testing.T) {
	f, note := llm.NewFake("p"), "tool x is down"
	c := chain(t, llm.Options{SystemNote: func() string { return note }}, f)
	own := &llm.Request{Messages: []llm.Message{llm.System("be kind"), llm.User("hi")}}
	for _, r := range []*llm.Request{llm.Prompt("hi"), own} {
		if _, err := c.Complete(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	note = ""
	if _, err := c.Complete(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	note = "tool x is down"
	if _, err := c.Complete(t.Context(), &llm.Request{Messages: own.Messages, Bare: true}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range f.Requests() {
		for _, m := range r.Messages {
			got = append(got, string(m.Role)+" "+m.Text())
		}
	}
	want := []string{"system tool x is down", "user hi", "system be kind\n\ntool x is down", "user hi",
		"system be kind", "user hi", "system be kind", "user hi"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
