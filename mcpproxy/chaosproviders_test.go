package mcpproxy

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/fixtures/fakellm"
	"github.com/agentarmor/agentarmor/llm"
)

// modelStory is what can be seen of an outage of the first of two providers.
type modelStory struct {
	Attempts []string // at the first provider, each kind once
	Answered []string // by whom, each once
	Events   []string // of the chain, each kind once
	Injected bool     // some attempt is marked
	Marked   []bool   // whether events are, until it is over
	After    string   // who answers when it is over
	State    string   // of the first provider then
}

// fakeAPI is one of the two kinds of providers, and its fake.
type fakeAPI struct {
	name  string
	fake  func(fakellm.Options) *fakellm.Server
	build func(llm.ProviderOptions) (llm.Provider, error)
}

var fakeAPIs = []fakeAPI{{"gemini", fakellm.NewGemini, llm.NewGemini}, {"openai", fakellm.NewOpenAI, llm.NewOpenAI}}

var goodReply = fakellm.Reply{Text: "first, and long enough that something can be cut off in its midst"}

// spoils is a provider that sends what spoil makes of its answers. n counts them.
func (a fakeAPI) spoils(spoil func(n int, answer string) string) func(*fakellm.Request) fakellm.Reply {
	var answers atomic.Int64
	return func(q *fakellm.Request) fakellm.Reply {
		w := httptest.NewRecorder()
		a.fake(fakellm.Options{Reply: goodReply}).ServeHTTP(w, httptest.NewRequest(q.Method, q.Path+"?"+q.Query, bytes.NewReader(q.Body)))
		header := http.Header{"Content-Type": w.Header()["Content-Type"]}
		return fakellm.Reply{Header: header, Body: spoil(int(answers.Add(1)), w.Body.String())}
	}
}

// liveModels is what callers of llm.complete live through while the first
// provider fails: by itself, by what is before it, or by chaos.
func liveModels(t *testing.T, a fakeAPI, stream bool, fails func(*fakellm.Request) fakellm.Reply, before func(http.RoundTripper) http.RoundTripper, spec *chaos.Spec) (out modelStory) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var failing atomic.Bool
		inj := chaos.New(chaos.Options{Enabled: true, Seed: 1, MaxTTL: 24 * time.Hour})
		s := a.fake(fakellm.Options{Respond: func(r *fakellm.Request) fakellm.Reply {
			if fails != nil && failing.Load() {
				return fails(r)
			}
			return goodReply
		}})
		pipe, done := fakellm.Pipe(s)
		defer done()
		var transport http.RoundTripper = pipe
		if before != nil {
			transport = sometimes{&failing, before(pipe), pipe}
		}
		p, err := a.build(llm.ProviderOptions{Name: "first", Model: "m", BaseURL: "http://fake", Transport: inj.Transport(chaos.Provider("first"), transport)})
		if err != nil {
			t.Fatal(err)
		}
		var proxy atomic.Pointer[Proxy]
		chain, err := llm.New([]llm.Entry{{Provider: p}, {Provider: llm.NewFake("second", llm.Step{Text: "second"})}}, llm.Options{
			Attempts: 2, OnTrace: func(tr *llm.Trace) { proxy.Load().LLMTrace(tr) },
			OnEvent: func(e llm.Event) {
				if failing.Load() { // its end is heard of at once, that of a real failure is found out
					out.Events = append(out.Events, fmt.Sprint(e.Kind, " ", e.Provider, " ", e.From, "→", e.To))
					out.Marked = append(out.Marked, e.Injected != "")
				}
				proxy.Load().LLMEvent(e)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		r := one(t, newLegacyServer(), func(c *Config) { c.LLM, c.Chaos = chain, inj })
		proxy.Store(r.p)
		defer chain.Close()
		defer r.end()
		defer inj.Close()
		c := r.client(`{}`)
		more := ""
		if stream {
			more = `,"_meta":{"progressToken":1}`
		}
		answeredBy := func(n int) llm.Trace {
			st := c.send(complete(fmt.Sprint(n), `{"prompt":"p"}`, more))
			settle(time.Minute)
			tr := completedOf(t, st.text()).StructuredContent.Trace
			if marked, _ := accountOf(t, st.text())["injected"].(string); marked != tr.Injected() {
				t.Errorf("the result is marked with %q, its trace with %q", marked, tr.Injected())
			}
			return *tr
		}
		answeredBy(1)
		failing.Store(true)
		if spec != nil {
			if _, err := inj.Inject(*spec); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 12 {
			tr := answeredBy(10 + n)
			out.Answered = append(out.Answered, tr.Provider)
			for _, a := range tr.Attempts {
				if a.Provider == "first" {
					out.Attempts = append(out.Attempts, fmt.Sprint(a.Class, " ", a.Status, " ", a.Skipped, " retry after ", a.RetryAfterMS, " ms"))
					out.Injected = out.Injected || a.Injected != ""
				}
			}
		}
		failing.Store(false)
		if spec != nil {
			if _, err := inj.Clear("all"); err != nil {
				t.Fatal(err)
			}
		}
		settle(2 * time.Hour)
		for n := range 3 {
			out.After = answeredBy(30 + n).Provider
		}
		out.State = chain.Status().Providers["first"].State
	})
	for _, list := range []*[]string{&out.Attempts, &out.Answered, &out.Events} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return out
}

// sometimes is another transport while something fails.
type sometimes struct {
	failing     *atomic.Bool
	then, usual http.RoundTripper
}

func (s sometimes) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.failing.Load() {
		return s.then.RoundTrip(r)
	}
	return s.usual.RoundTrip(r)
}

// unreachable is a server that is not there.
func unreachable(http.RoundTripper) http.RoundTripper {
	return roundTrip(func(*http.Request) (*http.Response, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	})
}

// unreachableByTurns is one that is not there for a while, then is, and so on,
// from its first request.
func unreachableByTurns(down, up time.Duration) func(http.RoundTripper) http.RoundTripper {
	return func(base http.RoundTripper) http.RoundTripper {
		began := sync.OnceValue(time.Now)
		gone := unreachable(base)
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if time.Since(began())%(up+down) < down {
				return gone.RoundTrip(r)
			}
			return base.RoundTrip(r)
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Each fault of a provider is for the chain, and for who asks it, what the
// failure is that it stands for; and once it is over all recovers.
func TestFaultsOfProvidersAreLikeFailures(t *testing.T) {
	reply := func(r fakellm.Reply) func(*fakellm.Request) fakellm.Reply {
		return func(*fakellm.Request) fakellm.Reply { return r }
	}
	const (
		down = 150 * time.Second
		up   = 210 * time.Second
	)
	const ttl = chaos.Duration(12 * time.Hour)
	fiveSeconds := http.Header{"Retry-After": {"5"}}
	for _, c := range []struct {
		spec   chaos.Spec
		fails  func(*fakellm.Request) fakellm.Reply
		before func(http.RoundTripper) http.RoundTripper
		spoil  func(n int, answer string) string // fails, by what it sends
	}{
		{spec: chaos.Spec{Fault: chaos.Kill}, before: unreachable},
		{spec: chaos.Spec{Fault: chaos.Flap, Down: ttl, Up: 1}, before: unreachable},
		{spec: chaos.Spec{Fault: chaos.Flap, Down: chaos.Duration(down), Up: chaos.Duration(up)}, before: unreachableByTurns(down, up)},
		{spec: chaos.Spec{Fault: chaos.Error}, fails: reply(fakellm.Reply{Status: 503})},
		{spec: chaos.Spec{Fault: chaos.Error, Status: 401}, fails: reply(fakellm.Reply{Status: 401})},
		{spec: chaos.Spec{Fault: chaos.Error, Status: 529, RetryAfter: chaos.Duration(5 * time.Second)}, fails: reply(fakellm.Reply{Status: 529, Header: fiveSeconds})},
		{spec: chaos.Spec{Fault: chaos.RateLimit, RetryAfter: chaos.Duration(5 * time.Second)}, fails: reply(fakellm.Reply{Status: 429, Header: fiveSeconds})},
		{spec: chaos.Spec{Fault: chaos.Latency, Delay: chaos.Duration(3 * time.Second)}, fails: reply(fakellm.Reply{Latency: 3 * time.Second})},
		{spec: chaos.Spec{Fault: chaos.Hang}, fails: reply(fakellm.Reply{Hang: true})},
		{spec: chaos.Spec{Fault: chaos.Drop}, fails: reply(fakellm.Reply{Cut: &fakellm.Cut{Bytes: 20}, Body: `{"choices":[{"candidates":[{"x":"y"}]}]}`})},
		{spec: chaos.Spec{Fault: chaos.ToolError}, fails: reply(fakellm.Reply{Status: 400, Body: `{"error":{"message":"no","type":"invalid_request_error","code":"tool_use_failed"}}`})},
		{spec: chaos.Spec{Fault: chaos.Corrupt}, spoil: func(n int, answer string) string {
			b := []byte(answer)
			for at := strings.IndexByte(answer, '{') + n; at < len(b); at += 20 + n {
				b[at] = 0
			}
			return string(b)
		}},
		{spec: chaos.Spec{Fault: chaos.Truncate}, spoil: func(n int, answer string) string {
			whole, _, _ := strings.Cut(answer, "\n\n") // of a stream the first event: what follows a text that was seen has no fallback
			whole, _, _ = strings.Cut(whole, ",\r\n")
			return whole[:len(whole)*(5+n%5)/10]
		}},
		{spec: chaos.Spec{Fault: chaos.SchemaDrift}, spoil: func(_ int, answer string) string {
			return strings.NewReplacer(`"candidates":`, `"outputs":`, `"choices":`, `"outputs":`).Replace(answer)
		}},
	} {
		for _, a := range fakeAPIs {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprint(c.spec.Fault, " ", c.spec.Status, " ", c.spec.Up, " ", a.name, " stream ", stream), func(t *testing.T) {
					fails := c.fails
					if c.spoil != nil {
						fails = a.spoils(c.spoil)
					}
					want := liveModels(t, a, stream, fails, c.before, nil)
					spec := c.spec
					spec.Target, spec.TTL = "llm/fir*", ttl
					got := liveModels(t, a, stream, nil, nil, &spec)
					if !got.Injected {
						t.Error("no attempt is marked as injected")
					}
					if slices.Contains(want.Marked, true) || slices.Contains(got.Marked, false) {
						t.Errorf("events marked: real %v, injected %v", want.Marked, got.Marked)
					}
					got.Injected, got.Marked, want.Marked = false, nil, nil
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("-real +injected: %s", diff)
					}
					if got.After != "first" || got.State != "ready" {
						t.Errorf("not recovered: %+v", got)
					}
					if c.spoil != nil && slices.Contains(got.Answered, "first") {
						t.Error("what is spoilt has counted as an answer")
					}
					if c.spec.Up > 1 && len(got.Answered) != 2 {
						t.Errorf("no turns: %v", got.Answered)
					}
				})
			}
		}
	}
}
