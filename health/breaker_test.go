package health_test

import (
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/health"
)

// do makes one call, if the breaker admits it.
func do(b *health.Breaker, v health.Verdict) bool {
	p, ok := b.Allow()
	if ok {
		p.Done(v)
	}
	return ok
}

func times(n int, f func()) {
	for range n {
		f()
	}
}

func wantState(t *testing.T, b *health.Breaker, want health.BreakerState) {
	t.Helper()
	if got := b.Snapshot(); got.State != want {
		t.Fatalf("the breaker is %+v, want %s", got, want)
	}
}

// TestBreakerStory goes once through everything, with the defaults.
func TestBreakerStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []health.BreakerState
		var b *health.Breaker
		b = health.NewBreaker(health.BreakerOptions{OnChange: func(from health.BreakerState, now health.BreakerSnapshot) {
			if s := b.Snapshot(); s.State != now.State { // no lock is held
				t.Errorf("told %+v, is %+v", now, s)
			}
			seen = append(seen, from, now.State)
		}})
		fail := func() { do(b, health.Failure) }
		times(2, fail)
		do(b, health.Success)
		times(2, fail)
		wantState(t, b, health.BreakerClosed)
		if !b.Until().IsZero() {
			t.Errorf("closed until %v", b.Until())
		}
		fail()
		wantState(t, b, health.BreakerOpen)
		for _, base := range []time.Duration{30, 60, 120, 240, 300, 300} {
			d := time.Until(b.Until())
			if low, high := base*time.Second*4/5, min(base*time.Second*6/5, 5*time.Minute); d < low || d > high {
				t.Errorf("open for %v, want %v … %v", d, low, high)
			}
			time.Sleep(d - time.Nanosecond)
			if do(b, health.Success) {
				t.Error("admitted before until")
			}
			time.Sleep(time.Nanosecond)
			wantState(t, b, health.BreakerHalfOpen)
			if !b.Until().IsZero() {
				t.Errorf("half-open until %v", b.Until())
			}
			times(2, func() { do(b, health.Success) })
			fail()
			wantState(t, b, health.BreakerOpen)
		}
		time.Sleep(5 * time.Minute)
		times(3, func() { do(b, health.Success) })
		wantState(t, b, health.BreakerClosed)
		times(3, fail)
		if d := time.Until(b.Until()); d > 36*time.Second {
			t.Errorf("after having closed, open for %v", d)
		}
		want := []health.BreakerState{health.BreakerClosed, health.BreakerOpen}
		for range 6 {
			want = append(want, health.BreakerOpen, health.BreakerHalfOpen, health.BreakerHalfOpen, health.BreakerOpen)
		}
		want = append(want, health.BreakerOpen, health.BreakerHalfOpen, health.BreakerHalfOpen, health.BreakerClosed,
			health.BreakerClosed, health.BreakerOpen)
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Error(diff)
		}
	})
}

// TestBreakerSlowFailures holds that failures in a row do not decay: gobreaker's
// own counter loses those that its window has left behind.
func TestBreakerSlowFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := health.NewBreaker(health.BreakerOptions{Failures: 5, Window: time.Minute})
		times(5, func() {
			time.Sleep(50 * time.Second)
			do(b, health.Failure)
		})
		wantState(t, b, health.BreakerOpen)
	})
}

// TestBreakerTimeouts holds that calls that take longer than the window count
// in its rate: gobreaker files a result under the time its call began.
func TestBreakerTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := health.NewBreaker(health.BreakerOptions{Failures: 100, Window: time.Minute})
		var permits []health.Permit
		times(10, func() {
			p, _ := b.Allow()
			permits = append(permits, p)
		})
		time.Sleep(2 * time.Minute)
		for _, p := range permits {
			p.Done(health.Failure)
		}
		wantState(t, b, health.BreakerOpen)
	})
}

func TestBreakerRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := health.NewBreaker(health.BreakerOptions{})
		times(4, func() {
			do(b, health.Failure)
			do(b, health.Success)
			do(b, health.Neutral) // no call, as far as the rate goes
		})
		time.Sleep(time.Minute) // all forgotten
		times(2, func() {
			times(2, func() { do(b, health.Failure) })
			do(b, health.Success)
		})
		times(3, func() { do(b, health.Success) })
		wantState(t, b, health.BreakerClosed) // 4 of 9
		do(b, health.Failure)
		wantState(t, b, health.BreakerOpen) // 5 of 10
	})
}

// TestBreakerTrial holds that a half-open breaker has one trial out at a time,
// and that nothing else has a say then.
func TestBreakerTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := health.NewBreaker(health.BreakerOptions{})
		late, _ := b.Allow()
		times(3, func() { do(b, health.Failure) })
		time.Sleep(time.Minute)
		trial, ok := b.Allow()
		if !ok {
			t.Fatal("no trial")
		}
		late.Done(health.Failure)
		b.Record(health.Failure)
		wantState(t, b, health.BreakerHalfOpen)
		if do(b, health.Success) {
			t.Error("two trials at a time")
		}
		trial.Done(health.Neutral) // cancelled: says nothing, makes room
		second, ok := b.Allow()
		if !ok {
			t.Fatal("a neutral outcome does not free the trial")
		}
		trial.Done(health.Failure)
		wantState(t, b, health.BreakerHalfOpen)
		second.Done(health.Success)
		second.Done(health.Failure) // one too many
		wantState(t, b, health.BreakerHalfOpen)
		times(2, func() { do(b, health.Success) })
		wantState(t, b, health.BreakerClosed)
	})
}

// TestBreakerOneOfMany has 100 callers find an open breaker whose time is over.
func TestBreakerOneOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := health.NewBreaker(health.BreakerOptions{})
		times(3, func() { b.Record(health.Failure) })
		time.Sleep(time.Minute)
		for round, want := range []int32{1, 1, 1, 100} {
			var admitted atomic.Int32
			permits := make(chan health.Permit, 100)
			var callers sync.WaitGroup
			times(100, func() {
				callers.Go(func() {
					if p, ok := b.Allow(); ok {
						admitted.Add(1)
						permits <- p
					}
				})
			})
			callers.Wait()
			if n := admitted.Load(); n != want {
				t.Fatalf("round %d: %d of 100 admitted, want %d", round, n, want)
			}
			times(int(want), func() { (<-permits).Done(health.Success) })
		}
	})
}

// TestBreakerUnderLoad is for the race detector: whatever happens at once, a
// breaker that everyone has left is one that a reset closes.
func TestBreakerUnderLoad(t *testing.T) {
	var changes atomic.Int32
	b := health.NewBreaker(health.BreakerOptions{OpenFor: time.Microsecond, MaxOpenFor: time.Microsecond, Successes: 1,
		OnChange: func(health.BreakerState, health.BreakerSnapshot) { changes.Add(1) }})
	var callers sync.WaitGroup
	for n := range 8 {
		callers.Go(func() {
			for i := range 2000 {
				do(b, health.Verdict((i+n)%4))
				b.Record(health.Failure)
				if i%100 == 0 {
					b.Reset()
				}
				b.Until()
			}
		})
	}
	callers.Wait()
	b.Reset()
	wantState(t, b, health.BreakerClosed)
	if changes.Load() == 0 {
		t.Error("nothing has changed")
	}
}

func TestBreakerReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []health.BreakerState
		b := health.NewBreaker(health.BreakerOptions{OnChange: func(_ health.BreakerState, now health.BreakerSnapshot) {
			seen = append(seen, now.State)
		}})
		late, _ := b.Allow()
		times(3, func() { b.Record(health.Failure) })
		time.Sleep(time.Minute)
		trial, _ := b.Allow()
		b.Reset()
		trial.Done(health.Failure)
		late.Done(health.Failure)
		times(2, func() { b.Record(health.Failure) })
		if s := b.Snapshot(); s.State != health.BreakerClosed || s.ConsecutiveFailures != 2 {
			t.Errorf("after the reset and two failures: %+v", s)
		}
		b.Reset()
		times(2, func() { b.Record(health.Failure) })
		wantState(t, b, health.BreakerClosed)
		if want := []health.BreakerState{health.BreakerOpen, health.BreakerHalfOpen, health.BreakerClosed}; !slices.Equal(seen, want) {
			t.Errorf("changes to %v, want %v", seen, want)
		}
	})
}

func TestBreakerTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := health.NewBreaker(health.BreakerOptions{})
		b.Trip()
		until := b.Until()
		if s := b.Snapshot(); s.State != health.BreakerOpen || s.ConsecutiveFailures != 3 {
			t.Errorf("tripped: %+v", s)
		}
		time.Sleep(time.Second)
		b.Trip()
		if s := b.Snapshot(); !b.Until().Equal(until) || s.ConsecutiveFailures != 3 {
			t.Errorf("tripped again: %+v, want until %v", s, until)
		}
		time.Sleep(time.Until(until))
		b.Trip() // only trials count now
		wantState(t, b, health.BreakerHalfOpen)
	})
}

func TestBreakerManual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := health.NewBreaker(health.BreakerOptions{Manual: true})
		times(3, func() { b.Record(health.Failure) })
		time.Sleep(time.Hour)
		if do(b, health.Success) || b.Closed() || !b.Until().IsZero() {
			t.Errorf("a manual breaker opened itself to trials: %+v", b.Snapshot())
		}
		times(5, func() { b.Record(health.Success) })
		wantState(t, b, health.BreakerOpen)
		b.Reset()
		wantState(t, b, health.BreakerClosed)
	})
}

func TestBreakerOff(t *testing.T) {
	var b *health.Breaker
	times(5, func() {
		if !do(b, health.Failure) {
			t.Error("refused")
		}
		b.Record(health.Failure)
	})
	b.Trip()
	b.Reset()
	health.Permit{}.Done(health.Failure)
	if !b.Closed() || !b.Until().IsZero() {
		t.Error("a breaker that is switched off is not closed")
	}
	wantState(t, b, health.BreakerOff)
}

func TestBreakerSnapshotJSON(t *testing.T) {
	at := time.Date(2026, 11, 30, 10, 2, 50, 0, time.UTC)
	for want, s := range map[string]health.BreakerSnapshot{
		`{"state":"closed"}`: {State: health.BreakerClosed},
		`{"state":"open","until":"2026-11-30T10:02:50Z","consecutive_failures":3}`: {
			State: health.BreakerOpen, Until: &at, ConsecutiveFailures: 3},
	} {
		if b, err := json.Marshal(s); err != nil || string(b) != want {
			t.Errorf("%s, %v\nwant %s", b, err, want)
		}
	}
}

func BenchmarkBreakerClosed(b *testing.B) {
	br := health.NewBreaker(health.BreakerOptions{})
	b.ReportAllocs()
	for b.Loop() {
		p, _ := br.Allow()
		p.Done(health.Success)
	}
}

func BenchmarkBreakerOpen(b *testing.B) {
	br := health.NewBreaker(health.BreakerOptions{OpenFor: time.Hour})
	times(3, func() { br.Record(health.Failure) })
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := br.Allow(); ok {
			b.Fatal("admitted")
		}
	}
}

func BenchmarkBreakerIsClosed(b *testing.B) {
	br := health.NewBreaker(health.BreakerOptions{})
	for b.Loop() {
		br.Closed()
	}
}
