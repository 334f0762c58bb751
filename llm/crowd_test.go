package llm_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/llm"
)

// TestCrowdAgainstDeadPrimary has 500 callers ask again and again for fifty
// seconds while the primary is down, in each way of being down. What reaches it
// is bounded by its breaker: at most twice the threshold per open period.
func TestCrowdAgainstDeadPrimary(t *testing.T) {
	const threshold, openFor, callers, lasts = 2, 15 * time.Second, 500, 50 * time.Second
	for name, down := range map[string]llm.Step{
		"refuses fast": {Status: 503},
		"refuses slow": {Delay: 300 * time.Millisecond, Status: 500},
		"hangs":        {Hang: true},
		"throttles":    {Delay: 300 * time.Millisecond, Status: 429, Header: retryAfter("15")},
		"has no key":   {Delay: 300 * time.Millisecond, Status: 401},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var reached []time.Time
				primary := llm.NewFake("gemini").Script(func(int, *llm.Request) llm.Step {
					mu.Lock()
					defer mu.Unlock()
					reached = append(reached, time.Now())
					return down
				})
				fallback := llm.NewFake("groq", llm.Step{Delay: 2 * time.Second})
				c, err := llm.New([]llm.Entry{{Provider: primary, Timeout: 5 * time.Second}, {Provider: fallback}}, llm.Options{})
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				var times []time.Duration
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for time.Since(start) < lasts {
							asked := time.Now()
							resp, err := c.Complete(t.Context(), llm.Prompt("hi"))
							took := time.Since(asked)
							mu.Lock()
							times = append(times, took)
							mu.Unlock()
							if err != nil || resp.Provider != "groq" {
								t.Errorf("%+v, %v", resp, err)
								return
							}
						}
					})
				}
				wg.Wait()
				for i, at := range reached {
					n := 0
					for _, other := range reached[i:] {
						if other.Sub(at) < openFor*4/5 { // the shortest, with jitter
							n++
						}
					}
					if n > 2*threshold {
						t.Fatalf("%d requests within an open period: %v", n, reached)
					}
				}
				if periods := int(lasts/openFor) + 1; len(reached) > 2*threshold*periods {
					t.Errorf("%d requests in %s", len(reached), lasts)
				}
				slices.Sort(times)
				if p95 := times[len(times)*95/100]; p95 > 2400*time.Millisecond {
					t.Errorf("p95 %s, of the fallback alone 2s", p95)
				}
				// Patience, the first to ask the fallback, and its own time.
				if most := times[len(times)-1-len(reached)]; most > 6*time.Second {
					t.Errorf("a call that did not reach the primary took %s", most)
				}
				if n := fallback.Calls(); n < callers*20 {
					t.Errorf("the fallback answered %d times only", n)
				}
			})
		})
	}
}

// TestCrowdAfterARest holds that a provider which has asked to be left alone
// does not meet everybody at once when that is over.
func TestCrowdAfterARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := llm.NewFake("gemini").Script(func(n int, _ *llm.Request) llm.Step {
			switch {
			case n <= 100:
				return llm.Step{Delay: time.Second}
			case n <= 210:
				return llm.Step{Delay: 300 * time.Millisecond, Status: 429, Header: retryAfter("15")}
			}
			return llm.Step{Delay: time.Second}
		})
		c := chain(t, llm.Options{}, f, llm.NewFake("groq", llm.Step{Delay: time.Second}))
		for i, want := range []int{100, 200, 202, 204, 206, 208, 210, 212, 312} { // calls of gemini's so far
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					if resp, err := c.Complete(t.Context(), llm.Prompt("hi")); err != nil || resp.Degraded || resp.Latency > 3*time.Second {
						t.Errorf("%+v, %v", resp, err)
					}
				})
			}
			wg.Wait()
			if n := f.Calls(); n != want {
				t.Errorf("round %d: %d calls, want %d", i, n, want)
			}
			if i > 0 {
				time.Sleep(15 * time.Second)
			}
		}
	})
}

// TestCrowdAfterABlip holds that nobody gets the apology because others are
// still finding out that both entries work.
func TestCrowdAfterABlip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blip := func(n int, _ *llm.Request) llm.Step {
			if n == 1 {
				return llm.Step{Status: 503}
			}
			return llm.Step{Delay: time.Second}
		}
		c := chain(t, llm.Options{}, llm.NewFake("gemini").Script(blip), llm.NewFake("groq").Script(blip))
		var degraded atomic.Int32
		var wg sync.WaitGroup
		for range 500 {
			wg.Go(func() {
				if resp, err := c.Complete(t.Context(), llm.Prompt("hi")); err != nil || resp.Degraded {
					degraded.Add(1)
				}
			})
		}
		wg.Wait()
		if n := degraded.Load(); n > 0 {
			t.Errorf("%d calls have no answer", n)
		}
	})
}

// TestTrialsOfThoseWhoLeave holds that a breaker recovers although the callers
// that were its trials, and those behind the gate, have left.
func TestTrialsOfThoseWhoLeave(t *testing.T) {
	for _, hedge := range []time.Duration{0, 100 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			back := time.Now().Add(40 * time.Second)
			f := llm.NewFake("gemini").Script(func(n int, _ *llm.Request) llm.Step {
				switch {
				case n <= 2:
					return llm.Step{Status: 503}
				case time.Now().Before(back):
					return llm.Step{Hang: true}
				}
				return llm.Step{}
			})
			c := chain(t, llm.Options{HedgeAfter: hedge}, f, llm.NewFake("groq", llm.Step{Delay: 100 * time.Millisecond}))
			for i := range 60 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				var wg sync.WaitGroup
				for range 20 {
					wg.Go(func() { _, _ = c.Complete(ctx, llm.Prompt("hi")) })
				}
				wg.Wait()
				cancel()
				if now, _ := f.Running(); now > 0 {
					t.Fatalf("%d requests go on in second %d", now, i)
				}
				time.Sleep(time.Second)
			}
			if p := c.Status().Providers["gemini"]; p.State != "ready" || p.Breaker.State != "closed" {
				t.Errorf("hedged after %s: %+v", hedge, p)
			}
		})
	}
}

// TestCrowdWaitsForNobodyWhenAllIsWell holds that the gate opens with the first answer.
func TestCrowdWaitsForNobodyWhenAllIsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := llm.NewFake("gemini", llm.Step{Delay: time.Second})
		c := chain(t, llm.Options{}, f, llm.NewFake("groq"))
		for i, want := range []time.Duration{2 * time.Second, time.Second} {
			start := time.Now()
			var wg sync.WaitGroup
			for range 500 {
				wg.Go(func() {
					if resp, err := c.Complete(t.Context(), llm.Prompt("hi")); err != nil || resp.Provider != "gemini" {
						t.Errorf("%+v, %v", resp, err)
					}
				})
			}
			wg.Wait()
			if took := time.Since(start); took != want {
				t.Errorf("round %d took %s, want %s", i, took, want)
			}
		}
		if _, most := f.Running(); most != 500 {
			t.Errorf("at most %d at once", most)
		}
	})
}

// TestGateOpensWithTheFirstText holds that a long stream keeps nobody waiting.
func TestGateOpensWithTheFirstText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := llm.NewFake("gemini", llm.Step{Chunks: []string{"a", "b", "c", "d", "e"}, Pause: time.Second})
		c := chain(t, llm.Options{}, f)
		start := time.Now()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, _, err := stream(t.Context(), c); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took != 6*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

// TestWorkflow runs a workflow of 20 calls 2,000 times against providers that
// fail 2 % of their requests, each on its own.
func TestWorkflow(t *testing.T) {
	const steps, runs = 20, 2000
	faulty := func(name string, seed uint64) *llm.Fake {
		rnd := rand.New(rand.NewPCG(seed, 1)) // only used under the fake's lock
		return llm.NewFake(name).Script(func(int, *llm.Request) llm.Step {
			s := llm.Step{Delay: 200 * time.Millisecond}
			if rnd.Float64() < 0.02 {
				s.Status = []int{429, 500, 503}[rnd.IntN(3)]
			}
			return s
		})
	}
	synctest.Test(t, func(t *testing.T) {
		direct, done := faulty("gemini", 7), 0
		for range runs {
			ok := true
			for range steps {
				if _, err := direct.Generate(t.Context(), llm.Prompt("hi"), nil); err != nil {
					ok = false
					break
				}
			}
			if ok {
				done++
			}
		}
		if p := float64(done) / runs; p < 0.64 || p > 0.70 {
			t.Errorf("without the chain %.1f %% of the workflows complete", 100*p)
		}

		c := chain(t, llm.Options{}, faulty("gemini", 7), faulty("groq", 8))
		done = 0
		for range runs {
			ok := true
			for range steps {
				if resp, err := c.Complete(t.Context(), llm.Prompt("hi")); err != nil || resp.Degraded {
					ok = false
				}
			}
			if ok {
				done++
			}
		}
		if p := float64(done) / runs; p < 0.999 {
			t.Errorf("with the chain %.2f %% of the workflows complete", 100*p)
		}
	})
}
