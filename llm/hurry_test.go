package llm_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
)

func within(d time.Duration) *llm.Request {
	r := llm.Prompt("hi")
	r.Timeout = d
	return r
}

// TestHurryIsNoFault holds that an attempt which a caller's short time cuts is
// no error of the entry's, and is not said to be.
func TestHurryIsNoFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chain(t, llm.Options{}, llm.NewFake("gemini", llm.Step{Hang: true}), llm.NewFake("groq"))
		resp, err := c.Complete(t.Context(), within(time.Second))
		if err != nil || story(resp.Trace) != "gemini:timeout groq:ok" {
			t.Fatalf("%v, %v", resp, err)
		}
		if why := resp.Trace.Attempts[0].Error; why != "its share of the time for the whole chain has passed" {
			t.Errorf("%q", why)
		}
		if w := c.Status().Providers["gemini"].Window; w.Calls != 0 {
			t.Errorf("%+v", w)
		}
		resp, err = c.Complete(t.Context(), llm.Prompt("hi"))
		if err != nil || resp.Trace.Attempts[0].Error != "the entry's timeout has passed" {
			t.Errorf("%+v, %v", resp, err)
		}
		if w := c.Status().Providers["gemini"].Window; w.Calls != 1 || w.ErrorRate != 1 {
			t.Errorf("its own timeout: %+v", w)
		}
	})
}

// TestTooShortATimeout holds that a caller who gave nobody the time is told
// that, and not that models are down.
func TestTooShortATimeout(t *testing.T) {
	hang, down := llm.Step{Hang: true}, llm.Step{Status: 503}
	for _, tt := range []struct {
		name    string
		timeout time.Duration
		steps   [2]llm.Step
		short   bool
	}{
		{"all were cut", time.Second, [2]llm.Step{hang, hang}, true},
		{"one failed", time.Second, [2]llm.Step{hang, down}, false},
		{"all of the chain's time", 0, [2]llm.Step{hang, hang}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := chain(t, llm.Options{DegradedMessage: "Sorry."}, llm.NewFake("gemini", tt.steps[0]), llm.NewFake("groq", tt.steps[1]))
				resp, err := c.Complete(t.Context(), within(tt.timeout))
				if err != nil || !resp.Degraded || !strings.HasPrefix(resp.Text, "Sorry.") {
					t.Fatalf("%+v, %v", resp, err)
				}
				if strings.Contains(resp.Text, "too short") != tt.short || resp.NotBefore.IsZero() != tt.short {
					t.Errorf("%q, not before %s (%s)", resp.Text, resp.NotBefore, story(resp.Trace))
				}
			})
		})
	}
}

// TestNoTimeAtAll is the same for a call that is over before anybody is asked.
func TestNoTimeAtAll(t *testing.T) {
	c := chain(t, llm.Options{}, llm.NewFake("gemini", llm.Step{Hang: true}))
	resp, err := c.Complete(t.Context(), within(1))
	if err != nil || !resp.Degraded || !strings.Contains(resp.Text, "The timeout of 1ns was too short") || !resp.NotBefore.IsZero() {
		t.Errorf("%+v, %v", resp, err)
	}
}

// TestLostHedgesAreSlow holds that an entry which hangs is no longer asked first
// by latency, although hedging hides every time that it hangs.
func TestLostHedgesAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chain(t, llm.Options{Strategy: llm.ByLatency, HedgeAfter: 2 * time.Second},
			llm.NewFake("gemini", llm.Step{Hang: true}), llm.NewFake("groq", llm.Step{Delay: time.Second}))
		for _, want := range []string{"gemini:cancelled groq:ok", "groq:ok"} {
			if resp, err := c.Complete(t.Context(), llm.Prompt("hi")); err != nil || story(resp.Trace) != want {
				t.Errorf("%s, %v, want %s", story(resp.Trace), err, want)
			}
		}
		if w := c.Status().Providers["gemini"].Window; w.Calls != 1 || w.ErrorRate != 0 || w.P50MS < 2700 {
			t.Errorf("%+v", w)
		}
	})
}

// TestWaitsAreRounded holds that a wait in two parts has three decimals at most:
// 0.1 ms for the attempt's own delay, and 0.2 ms for others that are trying.
func TestWaitsAreRounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := llm.NewFake("p", llm.Step{Status: 503}, llm.Step{Delay: 250 * time.Microsecond}, llm.Step{Delay: 250 * time.Microsecond}, llm.Step{})
		c := chain(t, llm.Options{Backoff: llm.Backoff{Base: 100 * time.Microsecond, Jitter: -1}}, f)
		var wg sync.WaitGroup
		wg.Go(func() {
			resp, err := c.Complete(t.Context(), llm.Prompt("hi"))
			if err != nil || story(resp.Trace) != "p:overloaded p:ok" || resp.Trace.Attempts[1].WaitMS != 0.3 {
				t.Errorf("%+v, %v", resp, err)
			}
		})
		time.Sleep(50 * time.Microsecond)
		for range 2 {
			wg.Go(func() { _, _ = c.Complete(t.Context(), llm.Prompt("hi")) })
		}
		wg.Wait()
	})
}

// TestWaitsInTraces holds that no wait is below 0, also where its time has passed
// while another entry was asked.
func TestWaitsInTraces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chain(t, llm.Options{Backoff: llm.Backoff{Base: 800123 * time.Microsecond, Jitter: -1}, Breaker: health.BreakerOptions{Failures: 9}},
			llm.NewFake("gemini", llm.Step{Status: 503}, llm.Step{Status: 503}, llm.Step{}),
			llm.NewFake("groq", llm.Step{Delay: 10 * time.Second, Status: 503}, llm.Step{Status: 400}))
		resp, err := c.Complete(t.Context(), llm.Prompt("hi"))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := json.Marshal(resp.Trace)
		for _, a := range resp.Trace.Attempts {
			if strings.Contains(a.Next, "-") || a.WaitMS < 0 {
				t.Errorf("%s", b)
			}
		}
		if next := resp.Trace.Attempts[1].Next; next != "asks gemini" {
			t.Errorf("after 10 s %q", next)
		}
	})
}
