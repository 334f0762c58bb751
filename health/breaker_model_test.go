package health_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/health"
)

// model is a breaker as the design words it, without gobreaker. Its window
// moves in steps of a tenth, counted from when it was closed.
type model struct {
	o                         health.BreakerOptions
	state                     health.BreakerState
	id, trial                 int // of the newest permit that may count; of the trial that is out
	inARow, successes, opened int
	closedAt, until           time.Time
	calls                     []modelCall
}

type modelCall struct {
	step   int64 // of the window
	failed bool
}

func (m *model) close() {
	*m = model{o: m.o, state: health.BreakerClosed, id: m.id + 1, closedAt: time.Now()}
}

func (m *model) open() {
	m.state, m.successes, m.id = health.BreakerOpen, 0, m.id+1
	m.opened++
}

func (m *model) trip() {
	if m.state == health.BreakerClosed {
		m.inARow = max(m.inARow+1, m.o.Failures)
		m.open()
	}
}

func (m *model) allow() (id int, ok bool) {
	if m.state == health.BreakerOpen && !m.o.Manual && !time.Now().Before(m.until) {
		m.state = health.BreakerHalfOpen
	}
	if m.state == health.BreakerHalfOpen && m.trial == 0 {
		m.id++
		m.trial = m.id
		return m.id, true
	}
	return m.id, m.state == health.BreakerClosed
}

func (m *model) done(id int, v health.Verdict) {
	if id != m.id || m.state != health.BreakerClosed && id != m.trial {
		return
	}
	m.trial = 0
	m.count(v)
}

func (m *model) count(v health.Verdict) {
	if v != health.Success && v != health.Failure {
		return
	}
	m.inARow++
	if v == health.Success {
		m.inARow = 0
	}
	if m.state == health.BreakerHalfOpen {
		m.successes++
		if v == health.Failure {
			m.open()
		} else if m.successes == m.o.Successes {
			m.close()
		}
		return
	}
	period := m.o.Window / 10
	steps := int64((m.o.Window + period - 1) / period) // rounded up, as gobreaker does
	now := int64(time.Since(m.closedAt) / period)
	m.calls = append(m.calls, modelCall{now, v == health.Failure})
	m.calls = slices.DeleteFunc(m.calls, func(c modelCall) bool { return c.step <= now-steps })
	failed := 0
	for _, c := range m.calls {
		if c.failed {
			failed++
		}
	}
	rate := float64(failed) / float64(len(m.calls))
	if v == health.Failure && (m.inARow >= m.o.Failures || len(m.calls) >= m.o.MinCalls && rate >= m.o.FailureRate) {
		m.open()
	}
}

func TestBreakerModel(t *testing.T) {
	const runs, steps = 200, 5000 // a million
	opened := map[bool]int{}
	for seed := range uint64(runs) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			o := health.BreakerOptions{
				Failures: 1 + rng.IntN(6), FailureRate: float64(1+rng.IntN(10)) / 10, MinCalls: 1 + rng.IntN(20),
				Window: time.Second + rand.N(time.Minute), OpenFor: time.Millisecond + rand.N(time.Minute),
				Successes: 1 + rng.IntN(4), Manual: seed%8 == 7,
			}
			o.MaxOpenFor = o.OpenFor * time.Duration(1+rng.IntN(20))
			r := &modelRun{T: t, rng: rng, b: health.NewBreaker(o), m: model{o: o}}
			r.m.close()
			for range steps {
				r.step()
				r.compare()
				if t.Failed() {
					t.Fatalf("seed %d, %+v", seed, o)
				}
			}
			opened[o.Manual] += r.opened
		})
	}
	// Else the test would say nothing.
	if opened[false] < 10_000 || opened[true] < 500 {
		t.Errorf("the breakers opened %v times", opened)
	}
}

// modelRun drives a breaker and its model with the same random steps.
type modelRun struct {
	*testing.T
	rng     *rand.Rand
	b       *health.Breaker
	m       model
	permits []modelPermit // out at this moment
	opened  int
	state   health.BreakerState
}

type modelPermit struct {
	health.Permit
	id int
}

func (r *modelRun) step() {
	verdict := []health.Verdict{health.Success, health.Success, health.Failure, health.Failure, health.Neutral, health.Ask}[r.rng.IntN(6)]
	switch n := r.rng.IntN(100); {
	case n < 40 && len(r.permits) < 20:
		p, ok := r.b.Allow()
		id, want := r.m.allow()
		if ok != want {
			r.Errorf("Allow is %v, the model says %v", ok, want)
		}
		if ok {
			r.permits = append(r.permits, modelPermit{p, id})
		}
	case n < 75 && len(r.permits) > 0:
		i := len(r.permits) - 1 - int(r.rng.ExpFloat64())%len(r.permits) // mostly the newest
		p := r.permits[i]
		r.permits = slices.Delete(r.permits, i, i+1)
		p.Done(verdict)
		r.m.done(p.id, verdict)
	case n < 80:
		r.b.Record(verdict)
		if r.m.state == health.BreakerClosed {
			r.m.count(verdict)
		}
	case n == 98 && r.rng.IntN(10) == 0:
		r.b.Trip()
		r.m.trip()
	case n == 99 && (r.m.o.Manual || r.rng.IntN(10) == 0):
		r.b.Reset()
		r.m.close()
	case n < 85 && r.m.state == health.BreakerOpen && !r.m.o.Manual: // to the edge
		time.Sleep(time.Until(r.m.until) - time.Duration(r.rng.IntN(2)))
	default:
		time.Sleep(time.Duration(r.rng.ExpFloat64() * float64(r.m.o.Window) / 30))
	}
}

func (r *modelRun) compare() {
	got := r.b.Snapshot()
	if r.m.state == health.BreakerOpen && r.state != health.BreakerOpen {
		r.opened++
		r.opening(got)
	}
	r.state = r.m.state
	want := r.m.state
	if want == health.BreakerOpen && !r.m.o.Manual && !time.Now().Before(r.m.until) {
		want = health.BreakerHalfOpen
	}
	if got.State != want || r.b.Closed() != (want == health.BreakerClosed) || got.ConsecutiveFailures != r.m.inARow {
		r.Errorf("the breaker is %+v, closed %v; the model %+v", got, r.b.Closed(), r.m)
	}
}

// opening takes over until, which is random, within its bounds.
func (r *modelRun) opening(got health.BreakerSnapshot) {
	if r.m.o.Manual {
		if got.Until != nil {
			r.Errorf("Manual, but open until %v", got.Until)
		}
		return
	}
	if got.Until == nil {
		r.Error("open without until")
		return
	}
	r.m.until = *got.Until
	open := min(r.m.o.OpenFor<<min(r.m.opened-1, 20), r.m.o.MaxOpenFor)
	if d := time.Until(r.m.until); d < open*4/5 || d > min(open*6/5, r.m.o.MaxOpenFor) {
		r.Errorf("opening %d lasts %v, want %v ± 20 %%", r.m.opened, d, open)
	}
}
