package llm_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/llm"
)

// asked returns the entries that one call asks, in order; all of them fail for
// good, so that none is left out.
func asked(t *testing.T, c *llm.Chain, r *llm.Request) string {
	t.Helper()
	_, err := c.Complete(t.Context(), r)
	e, ok := err.(*llm.Error)
	if !ok {
		t.Fatalf("an answer, or %v", err)
	}
	var names []string
	for _, a := range e.Trace.Attempts {
		names = append(names, a.Provider)
	}
	return strings.Join(names, " ")
}

// TestStrategies gives three entries a history and then asks for their order.
func TestStrategies(t *testing.T) {
	price := map[string]llm.Price{"fast": {Input: 5, Output: 9}, "slow": {Input: 1, Output: 1}, "shaky": {Input: 2, Output: 3}}
	took := map[string]time.Duration{"fast": 100 * time.Millisecond, "slow": 900 * time.Millisecond, "shaky": 300 * time.Millisecond}
	for _, tt := range []struct {
		strategy llm.Strategy
		prefer   []string
		want     string
	}{
		{llm.ByPriority, nil, "slow shaky fast"},
		{llm.ByPriority, []string{"fast"}, "fast slow shaky"},
		{llm.ByPriority, []string{"shaky-model", "fast"}, "shaky fast slow"},
		{llm.ByPriority, []string{"unheard of"}, "slow shaky fast"},
		{llm.ByHealth, nil, "fast slow shaky"},
		{llm.ByLatency, nil, "fast shaky slow"},
		{llm.ByCost, nil, "slow shaky fast"},
		{llm.ByCost, []string{"fake/fast-model"}, "fast slow shaky"},
	} {
		other := llm.ByLatency
		if tt.strategy == other {
			other = llm.ByCost
		}
		for name, of := range map[string]struct{ chain, request llm.Strategy }{"chain": {tt.strategy, ""}, "request": {other, tt.strategy}} {
			t.Run(fmt.Sprint(name, " ", tt.strategy, " ", tt.prefer), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					over := false
					var entries []llm.Entry
					for _, name := range []string{"slow", "shaky", "fast"} {
						f := llm.NewFake(name).Script(func(n int, _ *llm.Request) llm.Step {
							s := llm.Step{Delay: took[name]}
							if over {
								s.Status = 400
							} else if name == "shaky" && n%4 == 0 {
								s.Status = 500
							}
							return s
						})
						entries = append(entries, llm.Entry{Provider: f, Price: price[name]})
					}
					c, err := llm.New(entries, llm.Options{Strategy: of.chain})
					if err != nil {
						t.Fatal(err)
					}
					for range 10 {
						for _, e := range entries {
							r := llm.Prompt("hi")
							r.Prefer = []string{e.Provider.Info().Name}
							if _, err := c.Complete(t.Context(), r); err != nil {
								t.Fatal(err)
							}
						}
					}
					over = true
					r := llm.Prompt("hi")
					r.Prefer, r.Strategy = tt.prefer, of.request
					if got := asked(t, c, r); got != tt.want {
						t.Errorf("order %s, want %s", got, tt.want)
					}
					if got := c.Traces(1)[0].Strategy; got != tt.strategy {
						t.Errorf("the trace says %s", got)
					}
				})
			})
		}
	}
}

// TestHealthForgets holds that an entry is tried again when its errors are older
// than the window.
func TestHealthForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := llm.NewFake("first", llm.Step{Status: 500}, llm.Step{})
		c := chain(t, llm.Options{Strategy: llm.ByHealth}, first, llm.NewFake("second"))
		for i, want := range []string{"second", "second", "first"} {
			if i == 2 {
				time.Sleep(6 * time.Minute)
			}
			if resp, err := c.Complete(t.Context(), llm.Prompt("hi")); err != nil || resp.Provider != want {
				t.Errorf("call %d: %v, %v; want %s", i, resp, err, want)
			}
		}
		if first.Calls() != 2 {
			t.Errorf("the first was asked %d times", first.Calls())
		}
	})
}

// TestRefusingIsNotFast holds that an entry is not the first by latency for
// refusing everything at once.
func TestRefusingIsNotFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		empty := llm.Step{Response: &llm.Response{FinishReason: llm.FinishStop}}
		c := chain(t, llm.Options{Strategy: llm.ByLatency}, llm.NewFake("first", empty), llm.NewFake("second", llm.Step{Delay: time.Second}))
		for _, want := range []string{"first:empty second:ok", "second:ok", "second:ok"} {
			if resp, err := c.Complete(t.Context(), llm.Prompt("hi")); err != nil || story(resp.Trace) != want {
				t.Errorf("%s, %v, want %s", story(resp.Trace), err, want)
			}
		}
	})
}

// TestSkips holds who is passed over without being asked.
func TestSkips(t *testing.T) {
	image := llm.User("what?", llm.Image{MIMEType: "image/png", Data: []byte{1}})
	for _, tt := range []struct {
		name   string
		limits llm.Limits
		entry  llm.Entry
		r      *llm.Request
		want   llm.Skip
	}{
		{"images", llm.Limits{NoVision: true}, llm.Entry{}, &llm.Request{Messages: []llm.Message{image}}, llm.SkipVision},
		{"tools", llm.Limits{NoTools: true}, llm.Entry{}, &llm.Request{Messages: []llm.Message{llm.User("x")}, Tools: []llm.Tool{{Name: "t"}}}, llm.SkipTools},
		{"length", llm.Limits{Context: 100}, llm.Entry{}, llm.Prompt(strings.Repeat("word ", 100)), llm.SkipContext},
		{"length of the answer", llm.Limits{Context: 100}, llm.Entry{}, &llm.Request{Messages: []llm.Message{llm.User("x")}, MaxTokens: 100}, llm.SkipContext},
		{"more than a minute's", llm.Limits{}, llm.Entry{TPM: 50}, llm.Prompt(strings.Repeat("word ", 100)), llm.SkipTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := llm.NewFake("first")
			f.About.Limits = tt.limits
			tt.entry.Provider = f
			c, err := llm.New([]llm.Entry{tt.entry, {Provider: llm.NewFake("second")}}, llm.Options{})
			if err != nil {
				t.Fatal(err)
			}
			resp, err := c.Complete(t.Context(), tt.r)
			if err != nil || story(resp.Trace) != "first:"+string(tt.want)+" second:ok" || f.Calls() != 0 {
				t.Errorf("%v, %v", resp, err)
			}
		})
	}
}

// TestExhausted holds that an entry whose limit is used up is passed over
// before it says 429, and asked again when its limit is whole.
func TestExhausted(t *testing.T) {
	spent := func(what, reset string) http.Header {
		return http.Header{"X-Ratelimit-Limit-" + what: {"30"}, "X-Ratelimit-Remaining-" + what: {"0"}, "X-Ratelimit-Reset-" + what: {reset}}
	}
	for _, tt := range []struct {
		name    string
		entry   llm.Entry
		first   http.Header
		free    int // calls that the entry takes before
		recover time.Duration
	}{
		{"requests by header", llm.Entry{}, spent("Requests", "2m59.56s"), 1, 180 * time.Second},
		{"tokens by header", llm.Entry{}, spent("Tokens", "7.66s"), 1, 8 * time.Second},
		{"rpm", llm.Entry{RPM: 3}, nil, 3, 61 * time.Second},
		{"tpm", llm.Entry{TPM: 50}, nil, 2, 61 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := llm.NewFake("first", llm.Step{Response: &llm.Response{
					Text: "ok", FinishReason: llm.FinishStop, Header: tt.first, Usage: llm.Usage{Input: 20, Output: 5},
				}})
				tt.entry.Provider = f
				c, err := llm.New([]llm.Entry{tt.entry, {Provider: llm.NewFake("second")}}, llm.Options{})
				if err != nil {
					t.Fatal(err)
				}
				ask := func() string {
					resp, err := c.Complete(t.Context(), llm.Prompt("hello"))
					if err != nil {
						t.Fatal(err)
					}
					return story(resp.Trace)
				}
				for range tt.free {
					if got := ask(); got != "first:ok" {
						t.Errorf("%s", got)
					}
				}
				if got := ask(); got != "first:exhausted second:ok" {
					t.Errorf("%s", got)
				}
				if s := c.Status(); s.Healthy != 1 || s.Providers["first"].State != "exhausted" || s.FailoversLastHour != 1 {
					t.Errorf("%+v", s)
				}
				time.Sleep(tt.recover)
				if got := ask(); got != "first:ok" {
					t.Errorf("after %s %s", tt.recover, got)
				}
			})
		})
	}
}
