package llm_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
)

// outage is a fake that is down until the given time.
func outage(name string, until time.Time) *llm.Fake {
	return llm.NewFake(name).Script(func(int, *llm.Request) llm.Step {
		if time.Now().Before(until) {
			return llm.Step{Status: 503}
		}
		return llm.Step{Delay: 100 * time.Millisecond}
	})
}

// TestQueue holds that calls wait for a recovery that comes in time, and what
// happens to those that find no place.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := outage("p", time.Now().Add(10*time.Second))
		c := chain(t, llm.Options{Queue: llm.Queue{Size: 5}}, f)
		for range 2 { // opens the breaker
			if resp, err := c.Complete(t.Context(), &llm.Request{Messages: []llm.Message{llm.User("x")}, Timeout: 100 * time.Millisecond}); err != nil || !resp.Degraded {
				t.Fatal(resp, err)
			}
		}
		start := time.Now()
		var answered, degraded atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				resp, err := c.Complete(t.Context(), llm.Prompt("hi"))
				switch took := time.Since(start); {
				case err != nil:
					t.Error(err)
				case resp.Degraded:
					degraded.Add(1)
					if took != 0 || !resp.NotBefore.After(time.Now()) {
						t.Errorf("the full queue took %s, not before %s", took, resp.NotBefore)
					}
				default:
					answered.Add(1)
					if took < 12*time.Second || took > 20*time.Second || resp.Trace.QueuedMS == 0 {
						t.Errorf("an answer after %s, queued %v ms", took, resp.Trace.QueuedMS)
					}
				}
			})
		}
		synctest.Wait()
		if n := c.Status().Queued; n != 5 {
			t.Errorf("%d are queued", n)
		}
		wg.Wait()
		if answered.Load() != 5 || degraded.Load() != 3 {
			t.Errorf("%d answered, %d degraded", answered.Load(), degraded.Load())
		}
		if c.Status().Queued != 0 {
			t.Error("the queue is not empty")
		}
	})
}

// TestFullQueueLeavesOwnDelays holds that a call without a place in the queue
// still makes its own next attempt.
func TestFullQueueLeavesOwnDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chain(t, llm.Options{Queue: llm.Queue{Size: -1}, Breaker: health.BreakerOptions{Failures: 5}, Backoff: llm.Backoff{Base: 20 * time.Second, Max: time.Minute, Jitter: -1}},
			llm.NewFake("long", llm.Step{Status: 429, Header: retryAfter("15")}),
			llm.NewFake("short", llm.Step{}, llm.Step{Status: 503}, llm.Step{}))
		for _, want := range []string{"long:throttled short:ok", "long:throttled short:overloaded long:throttled short:ok"} {
			if resp, err := c.Complete(t.Context(), llm.Prompt("hi")); err != nil || story(resp.Trace) != want {
				t.Errorf("%s, %v, want %s", story(resp.Trace), err, want)
			}
		}
	})
}

func TestQueueWaits(t *testing.T) {
	for _, tt := range []struct {
		name string
		q    llm.Queue
		back time.Duration
		took time.Duration // at most; the degraded answer
	}{
		{"none", llm.Queue{Size: -1}, time.Minute, time.Second},
		{"shorter than the breaker is open", llm.Queue{Wait: 5 * time.Second}, time.Minute, time.Second},
		{"as long as it is of use", llm.Queue{}, time.Minute, 40 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				c := chain(t, llm.Options{Queue: tt.q, DegradedMessage: "sorry"}, outage("p", start.Add(tt.back)))
				resp, err := c.Complete(t.Context(), llm.Prompt("hi"))
				took := time.Since(start)
				if err != nil || !resp.Degraded || resp.Text != "sorry" || resp.Trace.Outcome != llm.ClassDegraded || took > tt.took {
					t.Errorf("%+v in %s, %v", resp, took, err)
				}
			})
		})
	}
}

// TestQueuedCallsTryOneAtATime holds that those who waited do not all fall on
// a provider that has just come back.
func TestQueuedCallsTryOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := outage("p", time.Now().Add(10*time.Second))
		c := chain(t, llm.Options{}, f)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = c.Complete(ctx, llm.Prompt("hi"))
		before := f.Calls()
		var wg sync.WaitGroup
		for range 60 {
			wg.Go(func() {
				if resp, err := c.Complete(t.Context(), llm.Prompt("hi")); err != nil || resp.Degraded {
					t.Errorf("%v, %v", resp, err)
				}
			})
		}
		time.Sleep(12 * time.Second)
		for f.Calls() == before {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(50 * time.Millisecond)
		if n := f.Calls() - before; n != 1 {
			t.Errorf("%d calls are the trial", n)
		}
		wg.Wait()
	})
}
