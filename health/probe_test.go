package health_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/health"
)

// probed is a thing with a Prober; it notes when each probe began and ended.
type probed struct {
	*health.Prober
	mu      sync.Mutex // see order
	born    time.Time
	takes   time.Duration // how long a probe takes, if it is let
	broken  bool          // what a probe finds
	down    bool          // what the last one found
	traffic bool
	started []time.Duration // since born
	results []time.Duration
	lastErr error
	stopAnd context.CancelFunc
	running sync.WaitGroup
}

var errDown = errors.New("down")

// run starts a Prober with the default settings.
func (p *probed) run(t *testing.T, o health.ProbeOptions) {
	o.Check = func(ctx context.Context) error {
		p.order()
		p.started = append(p.started, time.Since(p.born))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(p.takes):
		}
		p.order()
		if p.broken {
			return errDown
		}
		return nil
	}
	o.Down = func() bool { p.order(); return p.down }
	o.Skip = func() bool { p.order(); return p.traffic }
	o.Result = func(err error) {
		p.order()
		p.results = append(p.results, time.Since(p.born))
		p.lastErr, p.down = err, err != nil
	}
	p.Prober = health.NewProber(o)
	if !p.Next().IsZero() {
		t.Errorf("not running, but due at %v", p.Next())
	}
	p.born = time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	p.running.Go(func() { p.Run(ctx) })
	p.stopAnd = cancel
	synctest.Wait()
}

// stop ends the Prober and waits for it.
func (p *probed) stop() {
	p.stopAnd()
	p.running.Wait()
}

// after lets time pass.
func (p *probed) after(d time.Duration) {
	p.order()
	time.Sleep(d)
	synctest.Wait()
}

// order tells the race detector what the bubble's time guarantees: that what
// the test did before a sleep comes before the probe that ends it.
func (p *probed) order() {
	p.mu.Lock()
	p.mu.Unlock() //lint:ignore SA2001 only the order counts
}

// bubble runs f with a new probed whose first probe has just been made.
func bubble(t *testing.T, o health.ProbeOptions, f func(t *testing.T, p *probed)) {
	synctest.Test(t, func(t *testing.T) {
		p := &probed{}
		p.run(t, o)
		defer p.stop()
		p.after(time.Until(p.Next()))
		if len(p.started) != 1 {
			t.Fatalf("%d probes at the time of the first", len(p.started))
		}
		p.born, p.started, p.results = time.Now(), nil, nil
		f(t, p)
	})
}

func wantTimes(t *testing.T, got []time.Duration, seconds ...float64) {
	t.Helper()
	var want []time.Duration
	for _, s := range seconds {
		want = append(want, time.Duration(s*float64(time.Second)))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestProberSchedule(t *testing.T) {
	bubble(t, health.ProbeOptions{Name: "a"}, func(t *testing.T, p *probed) {
		p.takes = 2 * time.Second
		p.after(91 * time.Second)
		wantTimes(t, p.started, 30, 60, 90) // from start to start
		if want := p.born.Add(120 * time.Second); !p.Next().Equal(want) {
			t.Errorf("while probing, due at %v, want %v", p.Next(), want)
		}
		p.after(time.Second)
		wantTimes(t, p.results, 32, 62, 92)
	})
}

// TestProberInterval has the thing fail and recover.
func TestProberInterval(t *testing.T) {
	bubble(t, health.ProbeOptions{}, func(t *testing.T, p *probed) {
		p.after(29 * time.Second)
		p.takes = time.Hour // times out
		p.after(12 * time.Second)
		wantTimes(t, p.started, 30, 35, 40)
		wantTimes(t, p.results, 35, 40)
		if !errors.Is(p.lastErr, context.DeadlineExceeded) {
			t.Errorf("a probe that hangs ends with %v", p.lastErr)
		}
		p.after(4 * time.Second)
		p.takes, p.broken = 0, true
		p.after(5 * time.Second)
		p.broken = false
		p.after(40 * time.Second)
		wantTimes(t, p.started[3:], 45, 50, 55, 85)
	})
}

// TestProberTimeout holds that a probe never runs into the next one.
func TestProberTimeout(t *testing.T) {
	for _, tt := range []struct{ timeout, every, want time.Duration }{
		{0, 0, 5 * time.Second},
		{2 * time.Second, 30 * time.Second, 2 * time.Second},
		{time.Minute, 10 * time.Second, 10 * time.Second},
	} {
		bubble(t, health.ProbeOptions{Timeout: tt.timeout, Every: tt.every}, func(t *testing.T, p *probed) {
			p.takes = time.Hour
			for len(p.results) == 0 {
				p.after(time.Second)
			}
			if took := p.results[0] - p.started[0]; took != tt.want {
				t.Errorf("timeout %v every %v: ends after %v, want %v", tt.timeout, tt.every, took, tt.want)
			}
		})
	}
}

func TestProberSkip(t *testing.T) {
	bubble(t, health.ProbeOptions{}, func(t *testing.T, p *probed) {
		p.traffic = true
		p.after(100 * time.Second)
		wantTimes(t, p.started)
		wantTimes(t, p.results)
		p.Kick()
		p.after(time.Second)
		wantTimes(t, p.started, 100)
		p.traffic = false
		p.after(60 * time.Second)
		wantTimes(t, p.started, 100, 130, 160) // counted from the kick
	})
}

func TestProberKick(t *testing.T) {
	bubble(t, health.ProbeOptions{}, func(t *testing.T, p *probed) {
		p.after(7 * time.Second)
		p.takes = 3 * time.Second
		p.Kick()
		p.after(time.Second)
		for range 10 { // one of them tells the probe to come, whatever the one under way says
			p.Kick()
		}
		p.after(40 * time.Second)
		wantTimes(t, p.started, 7, 10, 40)
	})
}

func TestProberCancelled(t *testing.T) {
	bubble(t, health.ProbeOptions{}, func(t *testing.T, p *probed) {
		p.takes = time.Hour
		p.Kick()
		p.after(time.Second)
		p.Kick()
		p.stop()
		if now := time.Since(p.born); now != time.Second {
			t.Errorf("Run ends %v after its context", now-time.Second)
		}
		wantTimes(t, p.started, 0)
		wantTimes(t, p.results) // it says nothing about the thing
	})
}

// TestProberFirst holds that many probers do not begin together, and that each
// begins within an interval, always after the same delay.
func TestProberFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 100
		var first []time.Duration
		for round := range 2 {
			for n := range count {
				p := &probed{down: n%2 == 0}
				p.run(t, health.ProbeOptions{Name: fmt.Sprint("upstream-", n)})
				first = append(first, p.Next().Sub(p.born))
				p.stop()
				if len(p.started) > 0 {
					t.Fatal("probed at once")
				}
			}
			if round == 1 && !slices.Equal(first[:count], first[count:]) {
				t.Error("another delay the second time")
			}
		}
		var quarters [2][4]int
		for n, d := range first[:count] {
			every := []time.Duration{5 * time.Second, 30 * time.Second}[n%2]
			if d < 0 || d >= every {
				t.Fatalf("first probe after %v of %v", d, every)
			}
			quarters[n%2][d*4/every]++
		}
		for _, q := range quarters {
			if slices.Min(q[:]) < 5 {
				t.Errorf("50 first probes fall into the quarters of an interval as %v", q)
			}
		}
	})
}

// TestProberBare has only what is required, and a kick before it runs.
func TestProberBare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		p := health.NewProber(health.ProbeOptions{Check: func(context.Context) error { made++; return errDown }})
		p.Kick()
		ctx, cancel := context.WithTimeout(t.Context(), 61*time.Second)
		defer cancel()
		p.Run(ctx)
		if made != 3 {
			t.Errorf("%d probes in a minute, want 3", made)
		}
	})
}

func TestProberNil(t *testing.T) {
	var p *health.Prober
	p.Kick()
	if !p.Next().IsZero() {
		t.Error("due")
	}
}

// TestProberPanic holds that a panic is not swallowed.
func TestProberPanic(t *testing.T) {
	defer func() {
		if r := recover(); r != "check" {
			t.Errorf("recovered %v", r)
		}
	}()
	p := health.NewProber(health.ProbeOptions{Check: func(context.Context) error { panic("check") }})
	p.Kick()
	p.Run(t.Context())
}
