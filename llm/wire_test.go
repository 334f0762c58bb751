package llm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/fixtures/fakellm"
)

// Streams that go wrong: class, and what had arrived before.
func TestBrokenStreams(t *testing.T) {
	text := fakellm.Reply{Text: "a b c d e"}
	with := func(change func(*fakellm.Reply)) fakellm.Reply {
		r := text
		change(&r)
		return r
	}
	event := func(data string) string {
		return `data: {"choices":[{"index":0,"delta":{"content":"a "}}]}` + "\n\n" + data
	}
	const element = `[{"candidates":[{"content":{"parts":[{"text":"a "}]}}]}`
	stop := `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	for _, c := range []struct {
		name           string
		only           string
		reply          fakellm.Reply
		class          Class
		code, received string
	}{
		{"429 before the first byte", "", fakellm.Reply{Status: 429, Header: http.Header{"Retry-After": {"5"}}}, ClassThrottled, "-", ""},
		{"cut after 3 chunks", "", with(func(r *fakellm.Reply) { r.Cut = &fakellm.Cut{Chunks: 3} }), ClassLost, "", "a b c "},
		{"ended after 3 chunks", "", with(func(r *fakellm.Reply) { r.Cut = &fakellm.Cut{Chunks: 3, Clean: true} }), ClassLost, "", "a b c "},
		{"ended within a chunk", "", with(func(r *fakellm.Reply) { r.Cut = &fakellm.Cut{Bytes: 280, Clean: true} }), ClassLost, "", "-"},
		{"cut at once", "", with(func(r *fakellm.Reply) { r.Cut = &fakellm.Cut{} }), ClassLost, "", ""},
		{"dropped", "", fakellm.Reply{Drop: true}, ClassLost, "", ""},
		{"no finish reason", "", with(func(r *fakellm.Reply) { r.Finish = "-" }), ClassLost, "", "a b c d e"},
		{"a page", "", fakellm.Reply{Body: "<html>", Header: http.Header{"Content-Type": {"text/html; charset=utf-8"}}}, ClassMalformed, "", ""},

		{"error in mid-stream", "openai", fakellm.Reply{Body: event(`data: {"error":{"message":"over","type":"server_error","code":"capacity_exceeded"}}` + "\n\n")}, ClassOverloaded, "capacity_exceeded", "a "},
		{"error event in mid-stream", "openai", fakellm.Reply{Body: event("event: error\ndata: {\"error\":{\"message\":\"bad\",\"code\":503}}\n\n")}, ClassOverloaded, "", "a "},
		{"not JSON in mid-stream", "openai", fakellm.Reply{Body: event("data: {oops\n\n")}, ClassMalformed, "", "a "},
		{"no stream but an error", "openai", fakellm.Reply{Body: openAIError("over", "server_error", "capacity_exceeded")}, ClassOverloaded, "capacity_exceeded", ""},
		{"done without a reason", "openai", fakellm.Reply{Body: event("data: [DONE]\n\n")}, ClassLost, "", "a "},

		{"error in mid-stream", "gemini", fakellm.Reply{Body: element + "," + geminiError(503, "UNAVAILABLE", "overloaded", "") + "]"}, ClassOverloaded, "UNAVAILABLE", "a "},
		{"not JSON in mid-stream", "gemini", fakellm.Reply{Body: element + ",{oops"}, ClassMalformed, "", "a "},
		{"no stream but an error", "gemini", fakellm.Reply{Body: geminiError(503, "UNAVAILABLE", "overloaded", "")}, ClassOverloaded, "UNAVAILABLE", ""},
		{"ended after a comma", "gemini", fakellm.Reply{Body: element + ","}, ClassLost, "", "a "},

		{"comments by the thousand", "openai", fakellm.Reply{Body: strings.Repeat(": keep-alive\n\n", 2000) + event(stop) + "data: [DONE]\n"}, ClassOK, "", "a "},
		{"reason but no end", "openai", fakellm.Reply{Body: event(stop)}, ClassOK, "", "a "},
		{"reason but no end", "gemini", fakellm.Reply{Body: strings.Replace(element, `]}}]}`, `]},"finishReason":1}]}`, 1)}, ClassOK, "", "a "},
		{"nothing in it", "gemini", fakellm.Reply{Body: `[{"usageMetadata":{"promptTokenCount":4}}]`}, ClassOK, "", ""},
		{"no elements", "gemini", fakellm.Reply{Body: `[]`}, ClassOK, "", ""},
		{"blocked prompt", "gemini", fakellm.Reply{Body: `[{"promptFeedback":{"blockReason":1}}]`}, ClassOK, "", ""},
	} {
		both(t, func(t *testing.T, a api) {
			if c.only != "" && c.only != a.name {
				return
			}
			p, s := a.start(t, "m", fakellm.Options{})
			s.Script(c.reply)
			resp, emitted, err := ask(t, p, Prompt("x"), true)
			if err == nil {
				if c.class != ClassOK || resp.Text != c.received || emitted != c.received {
					t.Fatalf("%s: %+v", c.name, resp)
				}
				return
			}
			if err.Class != c.class || c.code != "-" && err.Code != c.code {
				t.Errorf("%s: class %s, code %q: %v", c.name, err.Class, err.Code, err)
			}
			if c.received != "-" && (err.Partial != c.received || emitted != c.received) {
				t.Errorf("%s: received %q, emitted %q", c.name, err.Partial, emitted)
			}
			if n := len(s.Requests()); n != 1 {
				t.Errorf("%s: %d requests", c.name, n)
			}
		})
	}
}

// A caller that leaves is gone within 50 ms, and the provider sees it go.
func TestTheCallerLeaves(t *testing.T) {
	both(t, func(t *testing.T, a api) {
		for name, reply := range map[string]fakellm.Reply{
			"before the answer": {Hang: true},
			"within the stream": {Text: "a b c", ChunkLatency: time.Hour},
		} {
			p, s := a.start(t, "m", fakellm.Options{Reply: reply})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
			_, err := p.Generate(ctx, Prompt("x"), func(string) {})
			if e, ok := err.(*Error); !ok || !errors.Is(e, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
			for deadline := time.Now().Add(5 * time.Second); s.Open() > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%s: the provider still answers", name)
				}
			}
			if q := s.Requests(); !q[0].Left {
				t.Errorf("%s: the provider did not see the caller leave", name)
			}
		}
	})
}

// The status of an error says enough: its body may hang or break off.
func TestErrorsWithoutTheirBody(t *testing.T) {
	both(t, func(t *testing.T, a api) {
		t.Parallel() // it waits for real
		released := make(chan struct{})
		ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(503)
			fmt.Fprint(w, `{"error":`)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-released:
			}
		}))
		defer ts.Close()
		defer close(released)
		p, err := a.build(ProviderOptions{Model: "m", BaseURL: ts.URL, Transport: &http.Transport{}})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := ask(t, p, Prompt("x"), false); err == nil || err.Class != ClassOverloaded || err.Status != 503 {
			t.Error(err)
		}
	})
}

func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	both(t, func(t *testing.T, a api) {
		p, err := a.build(ProviderOptions{Model: "m", APIKey: testKey, BaseURL: "http://" + l.Addr().String()})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := ask(t, p, Prompt("x"), true); err == nil || err.Class != ClassNotSent {
			t.Error(err)
		}
	})
}

// echo is a provider that tells the key to everybody, the worst there is.
func echo(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") + r.Header.Get("x-goog-api-key")
	w.Header().Set("X-Echo", key)
	status := 400
	if strings.Contains(r.URL.String(), "stream") || strings.HasSuffix(r.URL.Path, "7") {
		status = 200
	}
	w.WriteHeader(status)
	// The cut of long messages must not leave the half of a key.
	fmt.Fprintf(w, `{"error":{"message":%q,"code":%q}}`, strings.Repeat("x", maxMessage-10)+key, "key "+key)
}

// The key is in no error, event, trace or status, whatever a provider says.
func TestKeysStaySecret(t *testing.T) {
	ts := httptest.NewServer(http.HandlerFunc(echo))
	defer ts.Close()
	var entries []Entry
	for _, a := range apis {
		for i, base := range []string{ts.URL, "http://127.0.0.1:1", "http://" + strings.Repeat("x", 300) + ".invalid"} {
			p, err := a.build(ProviderOptions{Name: fmt.Sprint(a.name, i), Model: "m", APIKey: testKey, BaseURL: base, Transport: &http.Transport{DisableKeepAlives: true}})
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, Entry{Provider: p})
		}
	}
	said := tell(t, entries, Prompt("x"), &Request{Messages: []Message{User("a"), Assistant("b"), User("c")}})
	noKey(t, said)
	if !strings.Contains(said, "[redacted]") {
		t.Error("the echo was not heard")
	}
}

// tell returns everything that a chain and its providers say about requests.
func tell(t *testing.T, entries []Entry, requests ...*Request) string {
	t.Helper()
	var said strings.Builder
	note := func(v any) {
		if e, ok := v.(*Error); ok {
			fmt.Fprintf(&said, "%v %+v %#v %s %v %v\n", e, *e, *e, e.Body, e.Header, e.Err)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&said, "%s %+v\n", b, v)
	}
	c, err := New(entries, Options{Attempts: 1, Queue: Queue{Size: -1},
		OnEvent: func(e Event) { note(e) }, OnTrace: func(tr *Trace) { note(tr) }})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range requests {
		resp, err := c.Complete(t.Context(), r)
		note(resp)
		note(err)
		for _, e := range entries {
			_, err := e.Provider.Generate(t.Context(), r, func(string) {})
			note(err)
		}
	}
	note(c.Status())
	note(c.Traces(10))
	return said.String()
}

func noKey(t *testing.T, said string) {
	t.Helper()
	for _, part := range []string{testKey, testKey[:12], "AIza"} {
		if i := strings.Index(said, part); i >= 0 {
			t.Fatalf("%q in …%s", part, said[max(0, i-300):min(len(said), i+40)])
		}
	}
}

// The libraries work in a bubble, so that days of outages can be tested.
func TestProvidersInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, a := range apis {
			s := a.fake(fakellm.Options{Reply: fakellm.Reply{Latency: time.Hour, ChunkLatency: time.Minute, Text: "a b c"}})
			transport, done := fakellm.Pipe(s)
			p, err := a.build(ProviderOptions{Model: "m", BaseURL: "http://fake", Transport: transport})
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if _, err := p.Generate(t.Context(), Prompt("x"), nil); err == nil {
				t.Errorf("%s: a call without a deadline went on for an hour", a.name)
			}
			if took := time.Since(start); took != longest {
				t.Errorf("%s: it took %v", a.name, took)
			}
			s.Script(fakellm.Reply{Latency: time.Minute, ChunkLatency: time.Minute, Text: "a b c"})
			if _, err := p.Generate(t.Context(), Prompt("x"), func(string) {}); err != nil {
				t.Error(err)
			}
			if took := time.Since(start); took < longest+3*time.Minute || took > longest+5*time.Minute { // five events are four pauses
				t.Errorf("%s: it took %v", a.name, took)
			}
			done()
		}
	})
}

// roundTrip is a transport that answers by itself.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Whatever a provider answers: an answer or an *Error, and never a panic.
func FuzzAnswers(f *testing.F) {
	for _, list := range [][]fault{geminiFaults, openAIFaults} {
		for _, one := range list {
			f.Add(one.status, one.body)
			f.Add(one.status, "["+one.body+","+one.body+"]")
			f.Add(one.status, "data: "+one.body+"\n\ndata: [DONE]\n\n")
		}
	}
	f.Fuzz(func(t *testing.T, status int, body string) {
		answer := roundTrip(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		})
		for _, a := range apis {
			p, err := a.build(ProviderOptions{Model: "m", APIKey: testKey, Transport: answer})
			if err != nil {
				t.Fatal(err)
			}
			for _, stream := range []bool{false, true} {
				if resp, emitted, err := ask(t, p, Prompt("x"), stream); err == nil && stream && emitted != resp.Text {
					t.Errorf("%s: emitted %q of %q", a.name, emitted, resp.Text)
				} else if err != nil && (err.Class == ClassOK || err.Class == "") {
					t.Errorf("%s: class %q", a.name, err.Class)
				}
			}
		}
	})
}
