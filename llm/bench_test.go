package llm_test

import (
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/llm"
)

// BenchmarkDirect is the floor of the others: a provider without the chain.
func BenchmarkDirect(b *testing.B) {
	f, r := llm.NewFake("groq"), llm.Prompt("hi")
	for b.Loop() {
		if _, err := f.Generate(b.Context(), r, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFailover is what the chain adds to the answer of a fake that takes no time.
func BenchmarkFailover(b *testing.B) {
	for _, bb := range []struct {
		name    string
		primary llm.Step
		breaker int // failures
	}{
		{"healthy", llm.Step{}, 2},
		{"open", llm.Step{Status: 503}, 2},
		{"failing fast", llm.Step{Status: 503}, 1 << 30},
		{"hedged", llm.Step{Hang: true}, 2},
	} {
		b.Run(bb.name, func(b *testing.B) {
			o := llm.Options{}
			o.Breaker.Failures, o.Breaker.MinCalls, o.Breaker.OpenFor = bb.breaker, 1<<30, time.Hour
			if bb.primary.Hang {
				o.HedgeAfter = time.Millisecond
			}
			c, r := chain(b, o, llm.NewFake("gemini", bb.primary), llm.NewFake("groq")), llm.Prompt("hi")
			for range 4 {
				_, _ = c.Complete(b.Context(), r)
			}
			for b.Loop() {
				resp, err := c.Complete(b.Context(), r)
				if err != nil || resp.Degraded {
					b.Fatal(resp, err)
				}
			}
		})
	}
}
