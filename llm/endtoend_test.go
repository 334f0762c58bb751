package llm_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/fixtures/fakellm"
	"github.com/agentarmor/agentarmor/llm"
)

// servers are fakes on connections in memory, with a chain before them that
// speaks through the client libraries.
func servers(t *testing.T, o llm.Options, first, second fakellm.Reply) (c *llm.Chain, gemini, groq *fakellm.Server) {
	t.Helper()
	gemini, groq = fakellm.NewGemini(fakellm.Options{Reply: first}), fakellm.NewOpenAI(fakellm.Options{Reply: second})
	var entries []llm.Entry
	for i, s := range []*fakellm.Server{gemini, groq} {
		transport, done := fakellm.Pipe(s)
		t.Cleanup(done)
		build := []func(llm.ProviderOptions) (llm.Provider, error){llm.NewGemini, llm.NewOpenAI}[i]
		p, err := build(llm.ProviderOptions{Name: []string{"gemini", "groq"}[i], Model: "m", BaseURL: "http://fake", Transport: transport})
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, llm.Entry{Provider: p})
	}
	c, err := llm.New(entries, o)
	if err != nil {
		t.Fatal(err)
	}
	return c, gemini, groq
}

// TestStreamsEndToEnd holds what a stream does when its provider refuses it,
// hangs, or breaks off in the middle.
func TestStreamsEndToEnd(t *testing.T) {
	for _, tt := range []struct {
		name     string
		first    fakellm.Reply
		emitted  string
		story    string
		class    llm.Class // of the error
		fallback int       // requests that reach it
		took     time.Duration
	}{
		{"answers", fakellm.Reply{Text: "a b c d"}, "a b c d", "gemini:ok", "", 0, 0},
		{"429 before the first byte", fakellm.Reply{Status: 429}, "from groq", "gemini:throttled groq:ok", "", 1, 0},
		{"hangs before the first byte", fakellm.Reply{Hang: true}, "from groq", "gemini:timeout groq:ok", "", 1, 20 * time.Second},
		{"cut after 3 chunks", fakellm.Reply{Text: "a b c d", Cut: &fakellm.Cut{Chunks: 3}}, "a b c ", "gemini:lost", llm.ClassLost, 0, 0},
		{"ended after 3 chunks", fakellm.Reply{Text: "a b c d", Cut: &fakellm.Cut{Chunks: 3, Clean: true}}, "a b c ", "gemini:lost", llm.ClassLost, 0, 0},
		{"stalls after the first", fakellm.Reply{Text: "a b", ChunkLatency: time.Hour}, "a ", "gemini:timeout", llm.ClassTimeout, 0, 20 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, gemini, groq := servers(t, llm.Options{}, tt.first, fakellm.Reply{Text: "from groq"})
				start := time.Now()
				emitted, resp, err := stream(t.Context(), c)
				if took := time.Since(start); emitted != tt.emitted || took != tt.took {
					t.Errorf("%q in %s", emitted, took)
				}
				var tr *llm.Trace
				if e, ok := errors.AsType[*llm.Error](err); ok {
					tr = e.Trace
					if e.Class != tt.class || e.Partial != tt.emitted {
						t.Errorf("%v with %q", e, e.Partial)
					}
				} else if tr = resp.Trace; tt.class != "" || resp.Text != tt.emitted {
					t.Errorf("no error but %+v", resp)
				}
				if story(tr) != tt.story || len(gemini.Requests()) != 1 || len(groq.Requests()) != tt.fallback {
					t.Errorf("%s; %d and %d requests", story(tr), len(gemini.Requests()), len(groq.Requests()))
				}
			})
		})
	}
}

// TestTheCallerLeavesEndToEnd holds that a call ends at once with its caller and
// takes its connections with it, whatever it is doing.
func TestTheCallerLeavesEndToEnd(t *testing.T) {
	for name, reply := range map[string]fakellm.Reply{
		"in a hang":     {Hang: true},
		"in a stream":   {Text: "a b c", ChunkLatency: time.Hour},
		"in a wait":     {Status: 503},
		"in the queue":  {Status: 429, Header: map[string][]string{"Retry-After": {"25"}}},
		"in error body": {Status: 503, Body: "{}", Cut: &fakellm.Cut{Bytes: 1}},
	} {
		for _, hedge := range []time.Duration{0, 100 * time.Millisecond} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c, gemini, groq := servers(t, llm.Options{HedgeAfter: hedge}, reply, reply)
					ctx, cancel := context.WithCancel(t.Context())
					const leaves = 300 * time.Millisecond
					time.AfterFunc(leaves, cancel)
					start := time.Now()
					_, _, err := stream(ctx, c)
					if took := time.Since(start); took > leaves+50*time.Millisecond {
						t.Errorf("it took %s", took)
					}
					if e, ok := errors.AsType[*llm.Error](err); !ok || e.Class != llm.ClassCancelled {
						t.Error(err)
					}
					synctest.Wait()
					if n := gemini.Open() + groq.Open(); n > 0 {
						t.Errorf("%d requests go on", n)
					}
				})
			})
		}
	}
}

// instant is a provider that keeps nothing.
type instant struct{ err error }

func (i instant) Info() llm.Info {
	return llm.Info{Name: map[bool]string{true: "good", false: "bad"}[i.err == nil]}
}

func (i instant) Generate(context.Context, *llm.Request, func(string)) (*llm.Response, error) {
	if i.err != nil {
		return nil, i.err
	}
	return &llm.Response{Text: "ok", FinishReason: llm.FinishStop}, nil
}

// TestMemoryIsFlat holds that calls leave nothing behind but their last 1,000 traces.
func TestMemoryIsFlat(t *testing.T) {
	bad := instant{llm.HTTPError(429, nil, []byte(`{"error":{"message":"m"}}`))}
	c, err := llm.New([]llm.Entry{{Provider: bad}, {Provider: instant{}}}, llm.Options{Backoff: llm.Backoff{Base: 1, Max: 1}})
	if err != nil {
		t.Fatal(err)
	}
	crowd := func(each int) (heap uint64, goroutines int) {
		var wg sync.WaitGroup
		for range 500 {
			wg.Go(func() {
				for range each {
					if resp, err := c.Complete(t.Context(), llm.Prompt("hi")); err != nil || resp.Degraded {
						t.Error(resp, err)
					}
				}
			})
		}
		wg.Wait()
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc, runtime.NumGoroutine()
	}
	before, n := crowd(10)
	after, m := crowd(60)
	if after > before+(1<<20) {
		t.Errorf("%d kB before 30,000 calls, %d kB after", before>>10, after>>10)
	}
	if m > n+5 {
		t.Errorf("%d goroutines before, %d after", n, m)
	}
	t.Logf("%d kB before 30,000 calls, %d kB after", before>>10, after>>10)
}
