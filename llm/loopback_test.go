package llm_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/generative-ai-go/genai"
	"github.com/sashabaranov/go-openai"
	"google.golang.org/api/option"

	"github.com/agentarmor/agentarmor/fixtures/fakellm"
	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
)

// The benchmarks of this file go through the client libraries and loopback
// sockets to fakes that take as long as a fast model.
const modelTime = 20 * time.Millisecond

// serve returns the address of a fake that answers every request in one way.
func serve(tb testing.TB, fake func(fakellm.Options) *fakellm.Server, r fakellm.Reply) string {
	tb.Helper()
	ts := httptest.NewServer(fake(fakellm.Options{Reply: r}))
	tb.Cleanup(ts.Close)
	return ts.URL
}

// loopback returns a chain of Gemini, in a hurry, and Groq, as far as there are addresses.
func loopback(tb testing.TB, o llm.Options, gemini, groq string) *llm.Chain {
	tb.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 1000}
	tb.Cleanup(transport.CloseIdleConnections)
	var entries []llm.Entry
	for _, one := range []struct {
		name, url string
		build     func(llm.ProviderOptions) (llm.Provider, error)
		timeout   time.Duration
	}{{"gemini", gemini, llm.NewGemini, 100 * time.Millisecond}, {"groq", groq, llm.NewOpenAI, 0}} {
		if one.url == "" {
			continue
		}
		p, err := one.build(llm.ProviderOptions{Name: one.name, Model: "m", APIKey: "k", BaseURL: one.url, Transport: transport})
		if err != nil {
			tb.Fatal(err)
		}
		entries = append(entries, llm.Entry{Provider: p, Timeout: one.timeout})
	}
	c, err := llm.New(entries, o)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func complete(tb testing.TB, c *llm.Chain) func() {
	r := llm.Prompt("hi")
	return func() {
		if resp, err := c.Complete(tb.Context(), r); err != nil || resp.Degraded {
			tb.Error(resp, err)
		}
	}
}

// compare calls both in turn and reports what the second takes beyond the first.
func compare(b *testing.B, base, subject func()) {
	var times [2][]float64
	for b.Loop() {
		for i, f := range []func(){base, subject} {
			start := time.Now()
			f()
			times[i] = append(times[i], float64(time.Since(start).Microseconds()))
		}
	}
	for _, t := range times {
		slices.Sort(t)
	}
	median := func(i int) float64 { return times[i][len(times[i])/2] }
	b.ReportMetric(median(0), "base-µs")
	b.ReportMetric(median(1)-median(0), "added-µs")
	b.ReportMetric(100*(median(1)/median(0)-1), "added-%")
}

// BenchmarkOverhead is a chain that works against the client library alone.
func BenchmarkOverhead(b *testing.B) {
	for name, took := range map[string]time.Duration{"": modelTime, " at once": -1} {
		b.Run("groq"+name, func(b *testing.B) {
			url := serve(b, fakellm.NewOpenAI, fakellm.Reply{Latency: took})
			config := openai.DefaultConfig("k")
			config.BaseURL = url
			direct := openai.NewClientWithConfig(config)
			compare(b, func() {
				if _, err := direct.CreateChatCompletion(b.Context(), openai.ChatCompletionRequest{
					Model: "m", Messages: []openai.ChatCompletionMessage{{Role: "user", Content: "hi"}}}); err != nil {
					b.Error(err)
				}
			}, complete(b, loopback(b, llm.Options{}, "", url)))
		})
		b.Run("gemini"+name, func(b *testing.B) {
			url := serve(b, fakellm.NewGemini, fakellm.Reply{Latency: took})
			client, err := genai.NewClient(b.Context(), option.WithAPIKey("k"), option.WithEndpoint(url), option.WithGRPCConnectionPool(-1))
			if err != nil {
				b.Fatal(err)
			}
			model := client.GenerativeModel("m")
			compare(b, func() {
				if _, err := model.GenerateContent(b.Context(), genai.Text("hi")); err != nil {
					b.Error(err)
				}
			}, complete(b, loopback(b, llm.Options{}, url, "")))
		})
	}
}

// BenchmarkFailoverCost is a chain whose primary is down against one of the
// fallback alone.
func BenchmarkFailoverCost(b *testing.B) {
	never := health.BreakerOptions{Failures: 1 << 30, MinCalls: 1 << 30}
	for _, bb := range []struct {
		name    string
		primary fakellm.Reply
		o       llm.Options
	}{
		{"open", fakellm.Reply{Status: 503}, llm.Options{Breaker: health.BreakerOptions{OpenFor: time.Hour}}},
		{"503", fakellm.Reply{Status: 503}, llm.Options{Breaker: never}},
		{"429", fakellm.Reply{Status: 429, Header: http.Header{"Retry-After": {"0"}}}, llm.Options{Breaker: never}},
		{"hangs for its timeout of 100 ms", fakellm.Reply{Hang: true}, llm.Options{Breaker: never}},
		{"hangs, hedged after 50 ms", fakellm.Reply{Hang: true}, llm.Options{Breaker: never, HedgeAfter: 50 * time.Millisecond}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			groq := serve(b, fakellm.NewOpenAI, fakellm.Reply{Latency: modelTime})
			c := loopback(b, bb.o, serve(b, fakellm.NewGemini, bb.primary), groq)
			call := complete(b, c)
			for range 3 {
				call()
			}
			compare(b, complete(b, loopback(b, llm.Options{}, "", groq)), call)
		})
	}
}

// BenchmarkCrowdOnLoopback is 500 callers at once: with the fallback alone, and
// before a dead primary. One iteration is a call of each of them, to both.
func BenchmarkCrowdOnLoopback(b *testing.B) {
	groq := serve(b, fakellm.NewOpenAI, fakellm.Reply{Latency: time.Second})
	crowd := func(c *llm.Chain) []float64 {
		call, times := complete(b, c), make([]float64, 500)
		var wg sync.WaitGroup
		for i := range times {
			wg.Go(func() {
				start := time.Now()
				call()
				times[i] = float64(time.Since(start).Microseconds()) / 1000
			})
		}
		wg.Wait()
		return times
	}
	for name, primary := range map[string]fakellm.Reply{"refuses": {Status: 503}, "hangs": {Hang: true}} {
		b.Run(name, func(b *testing.B) {
			alone, dead := loopback(b, llm.Options{}, "", groq), loopback(b, llm.Options{}, serve(b, fakellm.NewGemini, primary), groq)
			var times [2][]float64
			crowd(alone) // connects
			crowd(dead)
			for b.Loop() {
				times[0] = append(times[0], crowd(alone)...)
				times[1] = append(times[1], crowd(dead)...)
			}
			p95 := func(i int) float64 {
				slices.Sort(times[i])
				return times[i][len(times[i])*95/100]
			}
			b.ReportMetric(p95(0), "base-p95-ms")
			b.ReportMetric(p95(1), "p95-ms")
			b.ReportMetric(p95(1)/p95(0), "ratio")
		})
	}
}
