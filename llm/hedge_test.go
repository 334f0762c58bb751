package llm_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/llm"
)

func TestHedge(t *testing.T) {
	slow := func(d time.Duration) llm.Step { return llm.Step{Delay: d} }
	for _, tt := range []struct {
		name          string
		first, second llm.Step
		story         string
		took          time.Duration
	}{
		{"not needed", slow(time.Second), slow(0), "gemini:ok", time.Second},
		{"the second is faster", slow(9 * time.Second), slow(time.Second), "gemini:cancelled groq:ok", 3 * time.Second},
		{"the first is faster after all", slow(3 * time.Second), slow(5 * time.Second), "gemini:ok groq:cancelled", 3 * time.Second},
		{"the first hangs", llm.Step{Hang: true}, slow(time.Second), "gemini:cancelled groq:ok", 3 * time.Second},
		{"the first fails", llm.Step{Status: 500}, slow(time.Second), "gemini:overloaded groq:ok", time.Second},
		{"the second fails", slow(5 * time.Second), llm.Step{Status: 500}, "gemini:ok groq:overloaded", 5 * time.Second},
		{"the first fails late", llm.Step{Delay: 3 * time.Second, Status: 500}, slow(4 * time.Second), "gemini:overloaded groq:ok", 6 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, second := llm.NewFake("gemini", tt.first), llm.NewFake("groq", tt.second)
				c := chain(t, llm.Options{HedgeAfter: 2 * time.Second}, first, second)
				start := time.Now()
				resp, err := c.Complete(t.Context(), llm.Prompt("hi"))
				if took := time.Since(start); err != nil || took != tt.took || story(resp.Trace) != tt.story {
					t.Errorf("%s in %s, %v; want %s in %s", story(resp.Trace), took, err, tt.story, tt.took)
				}
				for _, f := range []*llm.Fake{first, second} {
					if n, _ := f.Running(); n != 0 {
						t.Error("a lost request goes on")
					}
				}
				for name, p := range c.Status().Providers {
					if p.Breaker.ConsecutiveFailures > 0 && tt.first.Status+tt.second.Status == 0 {
						t.Errorf("%s is blamed for being slower", name)
					}
				}
			})
		})
	}
}

// TestHedgedStream holds that only one entry's text reaches the caller, however
// the two interleave.
func TestHedgedStream(t *testing.T) {
	text := func(s string, first, pause time.Duration) llm.Step {
		return llm.Step{Delay: first, Chunks: []string{s, s, s}, Pause: pause}
	}
	for _, tt := range []struct {
		name          string
		first, second llm.Step
		want          string
		story         string
	}{
		{"the first begins in time", text("a", 0, time.Second), text("b", 0, 0), "aaa", "gemini:ok"},
		{"the second begins first", text("a", 4*time.Second, time.Second), text("b", 0, time.Second), "bbb", "gemini:cancelled groq:ok"},
		{"the first begins late", text("a", 2*time.Second, time.Second), text("b", 5*time.Second, time.Second), "aaa", "gemini:ok groq:cancelled"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := chain(t, llm.Options{HedgeAfter: 2 * time.Second}, llm.NewFake("gemini", tt.first), llm.NewFake("groq", tt.second))
				emitted, resp, err := stream(t.Context(), c)
				if err != nil || emitted != tt.want || story(resp.Trace) != tt.story {
					t.Errorf("%q, %+v, %v", emitted, resp, err)
				}
			})
		})
	}
}

// TestHedgeCancel holds that both requests end with the caller.
func TestHedgeCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := llm.NewFake("gemini", llm.Step{Hang: true}), llm.NewFake("groq", llm.Step{Hang: true})
		c := chain(t, llm.Options{HedgeAfter: time.Second}, first, second)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				_, err := c.Complete(ctx, llm.Prompt("hi"))
				if e, ok := errors.AsType[*llm.Error](err); !ok || e.Class != llm.ClassCancelled {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		a, _ := first.Running()
		if b, _ := second.Running(); a+b != 0 {
			t.Errorf("%d requests go on", a+b)
		}
	})
}
