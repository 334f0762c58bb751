package mcpproxy

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
)

// models runs f with a rig whose chain asks the providers, in a bubble. The
// upstream is called fake.
func models[P llm.Provider](t *testing.T, o llm.Options, providers []P, f func(t *testing.T, r *rig), edit ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var p atomic.Pointer[Proxy]
		o.OnEvent = func(e llm.Event) { p.Load().LLMEvent(e) }
		o.OnTrace = func(tr *llm.Trace) { p.Load().LLMTrace(tr) }
		if o.SystemNote == nil {
			o.SystemNote = func() string { return p.Load().SystemNote() }
		}
		var entries []llm.Entry
		for _, provider := range providers {
			entries = append(entries, llm.Entry{Provider: provider})
		}
		chain, err := llm.New(entries, o)
		if err != nil {
			t.Fatal(err)
		}
		r := one(t, newLegacyServer(), append(edit, func(c *Config) { c.LLM = chain })...)
		p.Store(r.p)
		f(t, r)
		r.end()
		if err := chain.Close(); err != nil {
			t.Error(err)
		}
	})
}

// quick gives up at once when nobody can be asked.
var quick = llm.Options{Attempts: 1, Queue: llm.Queue{Size: -1}}

// complete is a call of llm.complete with arguments and more members of params.
func complete(id, arguments, more string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"llm.complete","arguments":` + arguments + more + `}}`
}

// completed is what llm.complete answers.
type completed struct {
	Content           []struct{ Type, Text string }
	IsError           bool
	StructuredContent struct {
		Text, Provider, Model, Note string
		Degraded                    bool
		FinishReason                string `json:"finish_reason"`
		Usage                       *llm.Usage
		NotBefore                   *time.Time `json:"not_before"`
		Error                       *struct {
			Class, Provider, Partial string
			Status                   int
		}
		Trace *llm.Trace
	}
	ResultType string
}

// completedOf reads an answer and checks what holds for each: one text, which
// structuredContent has too.
func completedOf(t *testing.T, answer string) completed {
	t.Helper()
	var m struct{ Result completed }
	if err := json.Unmarshal([]byte(answer), &m); err != nil {
		t.Fatalf("%v in %s", err, answer)
	}
	c := m.Result
	if len(c.Content) != 1 || c.Content[0].Type != "text" || c.Content[0].Text != c.StructuredContent.Text || c.Content[0].Text == "" {
		t.Fatalf("not one text, the same twice: %s", answer)
	}
	if c.IsError != (c.StructuredContent.Degraded || c.StructuredContent.Error != nil) {
		t.Errorf("isError does not fit: %s", answer)
	}
	return c
}

func TestCompleteAnswers(t *testing.T) {
	gemini := llm.NewFake("gemini", llm.Step{Status: 503})
	groq := llm.NewFake("groq", llm.Step{Response: &llm.Response{
		Text: "Blue \u00e9 <b>", Model: "groq-model-2", FinishReason: llm.FinishStop, Usage: llm.Usage{Input: 3, Output: 4, Total: 7}, Status: 200,
	}})
	models(t, quick, []*llm.Fake{gemini, groq}, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		for _, name := range []string{"llm.complete", "llm_complete"} {
			answer := c.send(strings.Replace(complete("1", `{"prompt":"Sky?","system":"Be brief","temperature":0.5,"max_tokens":9,"stop":["\n"],"timeout":5}`, ""), "llm.complete", name, 1)).text()
			got := completedOf(t, answer).StructuredContent
			if got.Text != "Blue é <b>" || got.Provider != "groq" || got.Model != "groq-model-2" || got.FinishReason != "stop" || got.Usage.Total != 7 || got.Degraded {
				t.Error(answer)
			}
			if a := got.Trace.Attempts; len(a) != 2 || a[0].Class != llm.ClassOverloaded || a[0].Status != 503 || a[0].Next != "asks groq" || a[1].Class != llm.ClassOK {
				t.Errorf("%+v", a)
			}
		}
		want := &llm.Request{
			Messages: []llm.Message{llm.System("Be brief"), llm.User("Sky?")}, Temperature: new(0.5), MaxTokens: 9, Stop: []string{"\n"}, Timeout: 5 * time.Second,
		}
		if diff := cmp.Diff(want, groq.Requests()[0]); diff != "" {
			t.Error(diff)
		}
	})
}

func TestCompleteForModernClients(t *testing.T) {
	models(t, quick, []*llm.Fake{llm.NewFake("gemini", llm.Step{Text: "hi"})}, func(t *testing.T, r *rig) {
		answer := r.modern("", complete("1", `{"prompt":"p"}`, `,`+askingMeta)).text()
		if got := completedOf(t, answer); got.ResultType != "complete" || got.StructuredContent.Text != "hi" {
			t.Error(answer)
		}
		wantPart(t, answer, `"io.modelcontextprotocol/serverInfo":`)
	})
}

// The text arrives by progress under the client's own token, in order and
// before the answer, from the provider that answers alone.
func TestCompleteTellsProgress(t *testing.T) {
	pieces := llm.Step{Chunks: []string{"a", "b\n", `"c`}, Pause: time.Second}
	fakes := []*llm.Fake{llm.NewFake("gemini", llm.Step{Status: 429}), llm.NewFake("groq", pieces)}
	notes := func(token string) (want []string) {
		for i, text := range []string{`"a"`, `"b\n"`, `"\"c"`} {
			want = append(want, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"message":%s}}`, token, i+1, text))
		}
		return want
	}
	models(t, quick, fakes, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		for _, token := range []string{`7`, `"t\u00e9"`} {
			st := c.send(complete("1", `{"prompt":"p"}`, `,"_meta":{"progressToken":`+token+`}`))
			settle(10 * time.Second)
			got := c.take()
			if diff := cmp.Diff(append(notes(token), st.text()), withoutLogs(got)); diff != "" {
				t.Error(diff)
			}
			if text := completedOf(t, st.text()).StructuredContent.Text; text != "ab\n\"c" {
				t.Error(text)
			}
		}
		st := r.modern("", complete("1", `{"prompt":"p"}`, `,`+strings.Replace(askingMeta, "{", `{"progressToken":"m",`, 1)))
		settle(10 * time.Second)
		if diff := cmp.Diff(append(notes(`"m"`), st.text()), st.c.take()); diff != "" {
			t.Error(diff)
		}
		c.send(complete("1", `{"prompt":"p"}`, ""))
		settle(10 * time.Second)
		if got := withoutLogs(c.take()); len(got) != 1 {
			t.Errorf("progress that nobody asked for: %q", got)
		}
	})
}

// An answer that must match a schema is shown when it is known to.
func TestCompleteChecksSchemaFirst(t *testing.T) {
	fakes := []*llm.Fake{llm.NewFake("gemini", llm.Step{Text: `{"n":"x"}`}), llm.NewFake("groq", llm.Step{Text: `{"n":1}`})}
	models(t, quick, fakes, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		const args = `{"prompt":"p","response_schema":{"type":"object","properties":{"n":{"type":"integer"}}}}`
		st := c.send(complete("1", args, `,"_meta":{"progressToken":7}`))
		if got := completedOf(t, st.text()).StructuredContent; got.Provider != "groq" || got.Text != `{"n":1}` {
			t.Error(st.text())
		}
		if got := withoutLogs(c.take()); len(got) != 1 {
			t.Errorf("text of another answer was shown: %q", got)
		}
		wantPart(t, string(fakes[1].Requests()[0].Schema), `"type":"integer"`)
	})
}

// A client that leaves stops the request to the provider at once.
func TestCompleteIsCancelled(t *testing.T) {
	ways := map[string]func(c *testClient, st *testStream){
		"cancelled": func(c *testClient, _ *testStream) {
			c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		},
		"stream closed":  func(_ *testClient, st *testStream) { st.leave() },
		"session closed": func(c *testClient, _ *testStream) { c.close() },
	}
	for name, leave := range ways {
		t.Run(name, func(t *testing.T) {
			gemini := llm.NewFake("gemini", llm.Step{Hang: true})
			models(t, quick, []*llm.Fake{gemini}, func(t *testing.T, r *rig) {
				c := r.client(`{}`)
				st := c.send(complete("1", `{"prompt":"p"}`, `,"_meta":{"progressToken":7}`))
				synctest.Wait()
				if now, _ := gemini.Running(); now != 1 {
					t.Fatal("the provider is not asked")
				}
				leave(c, st)
				synctest.Wait() // no time passes
				if now, _ := gemini.Running(); now != 0 {
					t.Error("the provider still works")
				}
				if got := c.take(); len(got) > 0 && name != "session closed" {
					t.Errorf("an answer to nobody: %q", got)
				}
				if name == "cancelled" { // the id is free again
					if got := c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"armor.status"}}`).text(); !strings.Contains(got, `"result"`) {
						t.Error(got)
					}
				}
			})
		})
	}
}

// The end of the endpoint ends calls, too.
func TestCompleteEndsWithTheEndpoint(t *testing.T) {
	gemini := llm.NewFake("gemini", llm.Step{Hang: true})
	models(t, quick, []*llm.Fake{gemini}, func(t *testing.T, r *rig) {
		r.client(`{}`).send(complete("1", `{"prompt":"p"}`, ""))
		synctest.Wait()
	})
	if now, _ := gemini.Running(); now != 0 {
		t.Error("the provider still works")
	}
}

func TestCompleteInAnOutage(t *testing.T) {
	gemini := llm.NewFake("gemini", llm.Step{Status: 429, Header: map[string][]string{"Retry-After": {"40"}}})
	models(t, quick, []*llm.Fake{gemini, llm.NewFake("groq", llm.Step{Status: 503})}, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		answer := c.send(complete("1", `{"prompt":"p"}`, "")).text()
		got := completedOf(t, answer)
		at := got.StructuredContent.NotBefore
		if !got.IsError || !got.StructuredContent.Degraded || at == nil || !at.After(time.Now()) || got.StructuredContent.Provider != "" {
			t.Fatal(answer)
		}
		wantPart(t, got.StructuredContent.Text, "I cannot reach a language model", "(gemini: throttled, groq: overloaded)", "Do not retry before "+at.Format(time.RFC3339)+".")
		if len(got.StructuredContent.Text) > 300 {
			t.Errorf("%d bytes", len(got.StructuredContent.Text))
		}
	})
}

// Each answer that is none says what to do.
func TestCompleteRefuses(t *testing.T) {
	step := func(s llm.Step) []*llm.Fake { return []*llm.Fake{llm.NewFake("gemini", s)} }
	for name, tt := range map[string]struct {
		fakes []*llm.Fake
		args  string
		want  []string
	}{
		"no chain":     {nil, `{"prompt":"p"}`, []string{"set GEMINI_API_KEY or GROQ_API_KEY", `"class":"no_entry"`}},
		"bad argument": {step(llm.Step{}), `{"prompt":7}`, []string{"prompt must be a string", `"class":"rejected"`}},
		"rejected":     {step(llm.Step{Status: 400, Body: `{"error":{"message":"too odd"}}`}), `{"prompt":"p"}`, []string{"No answer: gemini: rejected (HTTP 400)", "too odd", "Change the request", `"status":400`}},
		"bad schema":   {step(llm.Step{}), `{"prompt":"p","response_schema":{"type":7}}`, []string{"the response schema", "Change the request"}},
		"refused key":  {step(llm.Step{Status: 401}), `{"prompt":"p"}`, []string{"only the user can mend that", `"class":"auth"`}},
		"empty":        {step(llm.Step{Text: " "}), `{"prompt":"p"}`, []string{"the answer is empty", "Say it in other words"}},
		"cut stream": {step(llm.Step{Chunks: []string{"one ", "two ", "three "}, Err: llm.TransportError(fmt.Errorf("reset"))}), `{"prompt":"p"}`,
			[]string{"The answer broke off (gemini: lost: reset)", "Received until then: one two three ", `"partial":"one two three "`, `"class":"lost"`}},
		"unknown model": {step(llm.Step{}), `{"prompt":"p","model":"gpt-x"}`, []string{`"text":"ok"`, `"note":"No model called gpt-x is configured`, `"provider":"gemini"`}},
	} {
		t.Run(name, func(t *testing.T) {
			models(t, quick, tt.fakes, func(t *testing.T, r *rig) {
				st := r.client(`{}`).send(complete("1", tt.args, `,"_meta":{"progressToken":1}`))
				completedOf(t, st.text())
				wantPart(t, st.text(), tt.want...)
			})
		})
	}
}

// Without a chain the tool is listed and says what is missing, and the resource too.
func TestNoModelConfigured(t *testing.T) {
	bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		wantPart(t, c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).text(), `"llm.complete"`)
		wantPart(t, c.send(complete("1", `{"prompt":"p"}`, "")).text(), `"isError":true`, "GEMINI_API_KEY or GROQ_API_KEY")
		wantPart(t, c.send(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"agentarmor://llm"}}`).text(), "GEMINI_API_KEY", `\"healthy\": 0`)
		wantPart(t, c.status("traces", ""), `"traces":[]`)
		if s := r.p.Status(); s.LLM != nil {
			t.Errorf("%+v", s.LLM)
		}
		if got := r.scrape(); strings.Contains(got, "agentarmor_llm") {
			t.Errorf("metrics of nothing: %s", got)
		}
	})
}

// status asks armor.status for a section.
func (c *testClient) status(section, more string) string {
	return c.send(`{"jsonrpc":"2.0","id":"status","method":"tools/call","params":{"name":"armor.status","arguments":{"section":"` + section + `"` + more + `}}}`).text()
}

func (r *rig) scrape() string {
	w := httptest.NewRecorder()
	r.p.metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

// Traces can be read by the id that a result gives, the last 1,000 of them.
func TestTraces(t *testing.T) {
	models(t, quick, []*llm.Fake{llm.NewFake("gemini")}, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		var ids []string
		for range 1001 {
			answer := c.send(complete("1", `{"prompt":"p","include_trace":false}`, "")).text()
			trace := completedOf(t, answer).StructuredContent.Trace
			if trace.ID == "" || trace.Attempts != nil {
				t.Fatal(answer)
			}
			ids = append(ids, trace.ID)
		}
		read := func(id string) string {
			return c.send(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"agentarmor://traces/` + id + `"}}`).text()
		}
		wantPart(t, read(ids[0]), `"code":-32002`)
		for _, id := range []string{ids[1], ids[1000]} {
			wantPart(t, read(id), `\"id\": \"`+id+`\"`, `\"outcome\": \"ok\"`, `\"attempts\": [`)
			wantPart(t, c.status("traces", `,"trace":"`+id+`"`), `"id":"`+id+`"`, `"outcome":"ok"`, `"attempts":[{"provider":"gemini"`)
		}
		wantPart(t, c.status("traces", `,"trace":"`+ids[0]+`"`), `"isError":true`, "no trace")
		list := c.status("traces", `,"limit":2`)
		if strings.Index(list, ids[1000]) > strings.Index(list, ids[999]) || strings.Contains(list, ids[998]) {
			t.Errorf("not the newest two, newest first: %s", list)
		}
		wantPart(t, c.status("traces", `,"limit":0`), "limit must be a whole number from 1 to 1000")
		wantPart(t, r.modern("", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"agentarmor://traces/x",`+askingMeta+`}}`).text(), `"code":-32602`)
	})
}

func TestConcurrentCompletions(t *testing.T) {
	gemini := llm.NewFake("gemini").Script(func(_ int, r *llm.Request) llm.Step {
		return llm.Step{Chunks: []string{"to ", r.Messages[0].Text()}, Pause: time.Second}
	})
	models(t, quick, []*llm.Fake{gemini}, func(t *testing.T, r *rig) {
		var streams []*testStream
		for i := range 20 {
			streams = append(streams, r.client(`{}`).send(complete("1", fmt.Sprintf(`{"prompt":"q%d"}`, i), fmt.Sprintf(`,"_meta":{"progressToken":%d}`, i))))
		}
		settle(time.Minute)
		for i, st := range streams {
			if got := completedOf(t, st.text()).StructuredContent.Text; got != fmt.Sprintf("to q%d", i) {
				t.Errorf("%d got %q", i, got)
			}
			if got := st.c.take(); len(got) != 3 || !strings.Contains(got[0], fmt.Sprintf(`"progressToken":%d,"progress":1,"message":"to "`, i)) {
				t.Errorf("%d: %q", i, got)
			}
		}
		if _, most := gemini.Running(); most < 2 {
			t.Error("one after the other")
		}
	})
}

// The status tells how the models do, and so do its short form, the resource
// and its subscribers.
func TestModelsInTheStatus(t *testing.T) {
	fakes := []*llm.Fake{llm.NewFake("gemini", llm.Step{Status: 503}), llm.NewFake("groq")}
	models(t, quick, fakes, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		c.subscribe(t, "subscribe", "agentarmor://llm")
		c.send(complete("1", `{"prompt":"p"}`, ""))
		c.send(complete("2", `{"prompt":"p"}`, ""))
		settle(2 * time.Second)
		if got := withoutLogs(c.take()); !strings.Contains(strings.Join(got, " "), `"uri":"agentarmor://llm"`) {
			t.Errorf("subscribers hear nothing: %q", got)
		}
		const down = `"healthy":1,"providers":{"gemini":"down","groq":"ready"}`
		wantPart(t, c.status("summary", ""), down)
		wantPart(t, c.status("upstreams", ""), `"llm":{"strategy":"priority","chain":["gemini","groq"]`)
		wantPart(t, c.status("llm", ""), `"chain":["gemini","groq"]`, `"gemini":{"state":"down"`, `"failovers_last_hour":2`, `"healthy":1`)
		wantPart(t, c.send(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"agentarmor://llm"}}`).text(), `\"state\": \"down\"`)
	})
}

// Transitions are events, log lines and messages to clients, once; a crowd does
// not repeat them.
func TestModelEvents(t *testing.T) {
	var logs syncBuffer
	gone := llm.Step{Status: 404, Body: `{"error":{"message":"gone","code":"model_not_found"}}`}
	fakes := []*llm.Fake{llm.NewFake("old", gone), llm.NewFake("gemini", llm.Step{Status: 503}), llm.NewFake("groq", llm.Step{}, llm.Step{Status: 503})}
	models(t, quick, fakes, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		for range 10 {
			c.send(complete("1", `{"prompt":"p"}`, ""))
			synctest.Wait()
		}
		count := map[event.Kind]int{}
		var got []string
		for _, e := range r.p.events.Recent(event.History) {
			if e.Kind != event.Alert && (e.Provider != "" || e.Kind == event.LLMOutage) {
				count[e.Kind]++
				got = append(got, fmt.Sprintf("%s %s %s→%s %v", e.Kind, e.Provider, e.From, e.To, e.NextAttempt != nil))
			}
		}
		want := []string{
			"llm.rest old →gone true", "llm.failover groq old→groq false",
			"llm.breaker gemini closed→open true", "llm.outage  → true", "llm.breaker groq closed→open true",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		wantPart(t, strings.Join(c.take(), "\n"),
			`{"event":"llm.rest","provider":"old","to":"gone"`, `{"event":"llm.breaker","provider":"gemini","from":"closed","to":"open"`, `{"event":"llm.outage"`)
		wantPart(t, logs.String(), `level=WARN msg="provider is left alone" provider=old to=gone`, `level=INFO msg="another provider has answered" provider=groq from=old to=groq`,
			`level=WARN msg="no provider has answered"`)
		wantPart(t, c.status("events", `,"kind":"llm.rest"`), `"provider":"old"`)
		time.Sleep(2 * llmNewsEvery)
		c.send(complete("1", `{"prompt":"p"}`, "")).text()
		if n := len(r.p.events.Find(event.Filter{Kind: event.LLMOutage}).Events); n != 2 {
			t.Errorf("%d outages are told", n)
		}
	}, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&logs, nil)) })
}

// syncBuffer is a log that many may write.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestModelMetrics(t *testing.T) {
	groq := llm.Step{Response: &llm.Response{Text: "x", FinishReason: llm.FinishStop, Usage: llm.Usage{Input: 3, Output: 4, Total: 7}}}
	fakes := []*llm.Fake{llm.NewFake("gemini", llm.Step{Status: 503}), llm.NewFake("groq", groq, groq, groq, llm.Step{Status: 400})}
	models(t, quick, fakes, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		for range 4 {
			c.send(complete("1", `{"prompt":"p"}`, ""))
			synctest.Wait()
		}
		wantPart(t, r.scrape(),
			`agentarmor_llm_calls_total{injected="false",outcome="ok",provider="groq"} 3`,
			`agentarmor_llm_calls_total{injected="false",outcome="degraded",provider="-"} 1`,
			`agentarmor_llm_call_duration_seconds_count{injected="false",provider="groq"} 3`,
			`agentarmor_llm_requests_total{injected="false",outcome="overloaded",provider="gemini"} 2`,
			`agentarmor_llm_requests_total{injected="false",outcome="rejected",provider="groq"} 1`,
			`agentarmor_llm_tokens_total{kind="input",provider="groq"} 9`,
			`agentarmor_llm_tokens_total{kind="output",provider="groq"} 12`,
			`agentarmor_llm_failovers_total{from="gemini",injected="false",to="groq"} 3`,
			`agentarmor_llm_breaker_state{provider="gemini"} 2`,
			`agentarmor_llm_healthy_providers 1`,
			`agentarmor_llm_queued 0`)
	})
}

// echo is a provider's server that refuses each request with all that was sent.
type echo struct{}

func (echo) RoundTrip(r *http.Request) (*http.Response, error) {
	var all strings.Builder
	fmt.Fprint(&all, r.URL)
	for name, values := range r.Header {
		fmt.Fprint(&all, " ", name, values)
	}
	message, _ := json.Marshal(all.String())
	return &http.Response{
		StatusCode: 400, Status: "400 Bad Request", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}, "X-Echo": {all.String()}},
		Body:   io.NopCloser(strings.NewReader(`{"error":{"code":400,"status":"INVALID_ARGUMENT","message":` + string(message) + `}}`)),
	}, nil
}

// What providers repeat of their keys turns up nowhere.
func TestKeysTurnUpNowhere(t *testing.T) {
	const key = "sk-test-5f1e9b7c2d"
	gemini, err := llm.NewGemini(llm.ProviderOptions{Model: "m", APIKey: key, Transport: echo{}})
	if err != nil {
		t.Fatal(err)
	}
	groq, err := llm.NewOpenAI(llm.ProviderOptions{Name: "groq", Model: "m", APIKey: key, BaseURL: "https://127.0.0.1/v1", Transport: echo{}})
	if err != nil {
		t.Fatal(err)
	}
	var logs syncBuffer
	models(t, quick, []llm.Provider{gemini, groq}, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		for i, more := range []string{"", `,"_meta":{"progressToken":1}`} {
			wantPart(t, c.send(complete(strconv.Itoa(i), `{"prompt":"p"}`, more)).text(), `"isError":true`, "[redacted]")
		}
		for _, section := range []string{"summary", "upstreams", "events", "llm", "traces"} {
			c.status(section, "")
		}
		for _, trace := range r.p.cfg.LLM.Traces(9) {
			wantPart(t, c.status("traces", `,"trace":"`+trace.ID+`"`), "[redacted]")
		}
		everything := strings.Join(r.hops(), "\n") + logs.String() + r.scrape()
		if strings.Contains(everything, key) {
			t.Errorf("the key is in %s", everything)
		}
	}, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
}
