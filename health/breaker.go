package health

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// Breaker stops the calls of something that fails until it works again. It is
// safe for concurrent use. A nil Breaker is one that is switched off: it admits
// everything and counts nothing.
type Breaker struct {
	o      BreakerOptions
	closed atomic.Uint64 // gen while closed, else 0: a closed breaker takes no lock to admit

	mu       sync.Mutex
	cb       *gobreaker.CircuitBreaker[struct{}] // only called with mu held
	state    BreakerState                        // follows cb through entered
	gen      uint64                              // of the permits whose outcome still counts
	trial    bool                                // half-open: the permit of gen is out
	failures int                                 // in a row
	opened   int                                 // times in a row without closing
	until    time.Time                           // no trial before; set while open
}

// BreakerState is what a Breaker does with calls.
type BreakerState string

const (
	BreakerClosed   BreakerState = "closed"    // admits them
	BreakerOpen     BreakerState = "open"      // refuses them
	BreakerHalfOpen BreakerState = "half_open" // admits one at a time, as a trial
	BreakerOff      BreakerState = "off"       // there is no breaker
)

// BreakerOptions are the settings of a Breaker; zero fields are defaults.
type BreakerOptions struct {
	Failures    int           // in a row that open it; 0: 3
	FailureRate float64       // that opens it too, …; 0: 0.5
	MinCalls    int           // … of at least so many calls …; 0: 10
	Window      time.Duration // … within this; 0: 60 s
	OpenFor     time.Duration // ± 20 %, doubled by each failed trial …; 0: 30 s
	MaxOpenFor  time.Duration // … up to this; 0: 5 min
	Successes   int           // trials in a row that close it; 0: 3

	// Manual has it stay open until Reset: no call is ever its trial.
	Manual bool
	// OnChange is told of each change of state and of the state before,
	// without a lock held. Changes made by several goroutines may arrive out of
	// order: the truth is [Breaker.Snapshot].
	OnChange func(from BreakerState, now BreakerSnapshot)
}

// BreakerSnapshot is a Breaker at one moment, as the status document shows it.
type BreakerSnapshot struct {
	State               BreakerState `json:"state"`
	Until               *time.Time   `json:"until,omitempty"` // no trial before; never of a Manual one
	ConsecutiveFailures int          `json:"consecutive_failures,omitempty"`
}

// NewBreaker returns a closed Breaker.
func NewBreaker(o BreakerOptions) *Breaker {
	o.Failures = cmp.Or(o.Failures, 3)
	o.FailureRate = cmp.Or(o.FailureRate, 0.5)
	o.MinCalls = cmp.Or(o.MinCalls, 10)
	o.Window = cmp.Or(o.Window, time.Minute)
	o.OpenFor = cmp.Or(o.OpenFor, 30*time.Second)
	o.MaxOpenFor = cmp.Or(o.MaxOpenFor, max(5*time.Minute, o.OpenFor))
	o.Successes = cmp.Or(o.Successes, 3)
	b := &Breaker{o: o}
	b.cb = b.newCircuit()
	b.entered(BreakerClosed)
	return b
}

// Permit lets one call through. Exactly one Done must follow. The zero Permit
// is valid, its Done does nothing.
type Permit struct {
	b   *Breaker
	gen uint64
}

// Allow asks whether a call may be made.
func (b *Breaker) Allow() (Permit, bool) {
	if b == nil {
		return Permit{}, true
	}
	if gen := b.closed.Load(); gen != 0 {
		return Permit{b, gen}, true
	}
	b.mu.Lock()
	from := b.state
	p, ok := b.allowLocked()
	b.unlock(from)
	return p, ok
}

func (b *Breaker) allowLocked() (Permit, bool) {
	if b.stateLocked() == BreakerHalfOpen {
		b.cb.State() // half-open happens only when gobreaker is asked
	}
	switch {
	case b.state == BreakerClosed: // since Allow looked
		return Permit{b, b.gen}, true
	case b.state == BreakerHalfOpen && !b.trial:
		b.trial = true
		b.gen++ // so that no other trial's Done is taken for this one's
		return Permit{b, b.gen}, true
	}
	return Permit{}, false
}

// Done reports how the call ended. A call that began before the breaker last
// changed its state counts nowhere.
func (p Permit) Done(v Verdict) {
	b := p.b
	if b == nil {
		return
	}
	b.mu.Lock()
	from := b.state
	if p.gen == b.gen && (b.state == BreakerClosed || b.trial) {
		b.trial = false
		b.countLocked(v)
	}
	b.unlock(from)
}

// Record reports an outcome that had no permit. It counts while the breaker is
// closed; otherwise only trials do.
func (b *Breaker) Record(v Verdict) {
	if b == nil {
		return
	}
	b.mu.Lock()
	from := b.state
	if b.state == BreakerClosed {
		b.countLocked(v)
	}
	b.unlock(from)
}

// Reset closes the breaker and forgets everything, calls under way included.
func (b *Breaker) Reset() {
	if b == nil {
		return
	}
	b.mu.Lock()
	from := b.state
	b.cb = b.newCircuit()
	b.entered(BreakerClosed)
	b.unlock(from)
}

// Trip opens a closed breaker, for reasons that were counted elsewhere.
func (b *Breaker) Trip() {
	if b == nil {
		return
	}
	b.mu.Lock()
	from := b.state
	if b.state == BreakerClosed {
		b.failures = max(b.failures, b.o.Failures-1)
		b.countLocked(Failure)
	}
	b.unlock(from)
}

// Closed tells whether calls are admitted freely. It takes no lock.
func (b *Breaker) Closed() bool { return b == nil || b.closed.Load() != 0 }

// Until returns when the next trial may be made; zero unless the breaker is
// open, and always of a Manual one.
func (b *Breaker) Until() time.Time {
	if s := b.Snapshot(); s.Until != nil {
		return *s.Until
	}
	return time.Time{}
}

// Snapshot returns the state of this moment. An open breaker whose time is over
// is half-open, though OnChange is only told with the first trial.
func (b *Breaker) Snapshot() BreakerSnapshot {
	if b == nil {
		return BreakerSnapshot{State: BreakerOff}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.snapshotLocked()
}

func (b *Breaker) snapshotLocked() BreakerSnapshot {
	s := BreakerSnapshot{State: b.stateLocked(), ConsecutiveFailures: b.failures}
	if s.State == BreakerOpen && !b.o.Manual {
		s.Until = new(b.until.UTC())
	}
	return s
}

// stateLocked is state, with the passing of until seen.
func (b *Breaker) stateLocked() BreakerState {
	if b.state == BreakerOpen && !b.o.Manual && !time.Now().Before(b.until) {
		return BreakerHalfOpen
	}
	return b.state
}

// unlock ends a critical section that began in state from.
func (b *Breaker) unlock(from BreakerState) {
	if b.state == from || b.o.OnChange == nil {
		b.mu.Unlock()
		return
	}
	now := b.snapshotLocked()
	b.mu.Unlock()
	b.o.OnChange(from, now)
}

// countLocked hands an outcome to gobreaker, as a call that begins and ends now.
// gobreaker files a result under the time its call began and drops it once the
// window has passed, so it would never see a call that times out after one.
func (b *Breaker) countLocked(v Verdict) {
	switch v {
	case Success:
		b.failures = 0
		_, _ = b.cb.Execute(succeeded)
	case Failure:
		b.failures++
		_, _ = b.cb.Execute(failed)
	}
}

var (
	errFailed = errors.New("failed")

	succeeded = func() (struct{}, error) { return struct{}{}, nil }
	failed    = func() (struct{}, error) { return struct{}{}, errFailed }
)

// circuitBuckets is how many pieces of it the window moves in.
const circuitBuckets = 10

func (b *Breaker) newCircuit() *gobreaker.CircuitBreaker[struct{}] {
	return gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:   uint32(b.o.Successes),
		Interval:      b.o.Window,
		BucketPeriod:  max(1, b.o.Window/circuitBuckets),
		Timeout:       1, // until is the gate
		ReadyToTrip:   b.tripped,
		OnStateChange: func(_ string, _, to gobreaker.State) { b.entered(circuitStates[to]) },
	})
}

var circuitStates = map[gobreaker.State]BreakerState{
	gobreaker.StateClosed:   BreakerClosed,
	gobreaker.StateHalfOpen: BreakerHalfOpen,
	gobreaker.StateOpen:     BreakerOpen,
}

// tripped is asked after each failure of a closed breaker, with mu and
// gobreaker's own lock held.
func (b *Breaker) tripped(c gobreaker.Counts) bool {
	calls := int(c.TotalSuccesses + c.TotalFailures)
	return b.failures >= b.o.Failures ||
		calls >= b.o.MinCalls && float64(c.TotalFailures)/float64(calls) >= b.o.FailureRate
}

// entered follows gobreaker into a state, with mu and gobreaker's own lock held.
func (b *Breaker) entered(s BreakerState) {
	b.state, b.trial, b.until = s, false, time.Time{}
	b.gen++
	b.closed.Store(0)
	switch s {
	case BreakerOpen:
		b.until = time.Now().Add(b.openFor())
		b.opened++
	case BreakerClosed:
		b.opened, b.failures = 0, 0
		b.closed.Store(b.gen)
	}
}

// openFor returns how long this opening lasts.
func (b *Breaker) openFor() time.Duration {
	d, most := b.o.OpenFor, b.o.MaxOpenFor
	for i := 0; i < b.opened && d < most; i++ {
		d *= 2
	}
	d = min(d, most)
	low, high := d*4/5, min(d*6/5, most)
	return low + rand.N(high-low+1)
}
