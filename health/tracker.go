package health

import (
	"sync"
	"time"
)

// State is how an upstream is doing.
type State string

const (
	Starting    State = "starting"
	Ready       State = "ready"
	Degraded    State = "degraded"    // usable, but not all of it
	Down        State = "down"        // not reachable; tried again at NextAttempt
	NeedsAuth   State = "needs_auth"  // refuses our credentials
	Throttled   State = "throttled"   // asked us to wait until NextAttempt
	CrashLoop   State = "crash_loop"  // ends again and again right after its start
	Quarantined State = "quarantined" // not trusted any more
	Disabled    State = "disabled"    // switched off by the config
)

// Tracker holds the state of one upstream.
type Tracker struct {
	onChange func(from State, now Snapshot)

	mu sync.Mutex
	s  Snapshot
}

// Options of a Tracker; the zero value is valid.
type Options struct {
	// OnChange is told of each change of state, reason or next attempt and of
	// the state before, without a lock held. Changes from several goroutines may arrive out of
	// order: the truth is [Tracker.Snapshot].
	OnChange func(from State, now Snapshot)
}

// Snapshot is a Tracker at one moment, as the status document shows it.
type Snapshot struct {
	State        State      `json:"state"`
	Reason       string     `json:"reason,omitempty"`
	Since        time.Time  `json:"since"` // when State was entered
	NextAttempt  *time.Time `json:"next_attempt,omitempty"`
	RetryAfterMS int64      `json:"retry_after_ms,omitempty"` // until NextAttempt
	Restarts     int        `json:"restarts"`
	LastError    string     `json:"last_error,omitempty"`
	LastSuccess  *time.Time `json:"last_success,omitempty"`
}

// NewTracker returns a Tracker that starts in state s.
func NewTracker(s State, o Options) *Tracker {
	return &Tracker{onChange: o.OnChange, s: Snapshot{State: s, Since: time.Now().UTC()}}
}

// Set enters a state, or renews its reason and next attempt (zero: none). It
// tells whether anything has changed.
func (t *Tracker) Set(s State, reason string, next time.Time) (changed bool) {
	t.mu.Lock()
	from := t.s.State
	changed = t.setLocked(s, reason, next)
	now := t.snapshotLocked()
	t.mu.Unlock()
	if changed && t.onChange != nil {
		t.onChange(from, now)
	}
	return changed
}

func (t *Tracker) setLocked(s State, reason string, next time.Time) bool {
	var old time.Time
	if t.s.NextAttempt != nil {
		old = *t.s.NextAttempt
	}
	if t.s.State == s && t.s.Reason == reason && old.Equal(next) {
		return false
	}
	if t.s.State != s {
		t.s.Since = time.Now().UTC()
	}
	t.s.State, t.s.Reason, t.s.NextAttempt = s, reason, nil
	if !next.IsZero() {
		t.s.NextAttempt = new(next.UTC())
	}
	return true
}

// Failed remembers the last error.
func (t *Tracker) Failed(err string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.s.LastError = err
}

// Succeeded remembers the time of the last success.
func (t *Tracker) Succeeded() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.s.LastSuccess = new(time.Now().UTC())
}

// Restarted counts a restart.
func (t *Tracker) Restarted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.s.Restarts++
}

// Snapshot returns the state of this moment.
func (t *Tracker) Snapshot() Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.snapshotLocked()
}

func (t *Tracker) snapshotLocked() Snapshot {
	s := t.s
	if s.NextAttempt != nil {
		s.RetryAfterMS = max(0, time.Until(*s.NextAttempt).Milliseconds())
	}
	return s
}
