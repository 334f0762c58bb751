package llm

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/agentarmor/agentarmor/health"
)

// Trace is the honest account of one call: every attempt and every entry that
// was passed over, in order. It does not change once the call is over.
type Trace struct {
	ID        string    `json:"id"`
	Started   time.Time `json:"started"`
	LatencyMS float64   `json:"latency_ms"`
	Strategy  Strategy  `json:"strategy"`
	Provider  string    `json:"provider,omitempty"` // entry that answered
	Model     string    `json:"model,omitempty"`    // that really answered
	Outcome   Class     `json:"outcome"`            // of the whole call; "degraded" if nobody could be reached
	QueuedMS  float64   `json:"queued_ms,omitempty"`
	Attempts  []Attempt `json:"attempts"`
	Omitted   int       `json:"omitted,omitempty"` // attempts beyond the first 100
}

// ClassDegraded is the outcome of a [Trace] whose call got the apology.
const ClassDegraded Class = "degraded"

// Attempt is one entry's turn: a request that was sent, or the reason why
// none was.
type Attempt struct {
	Provider string `json:"provider"`
	Model    string `json:"model"`
	Number   int    `json:"attempt,omitempty"` // of this entry in this call, from 1
	Hedge    bool   `json:"hedge,omitempty"`   // sent beside a slow one

	Skipped Skip       `json:"skipped,omitempty"` // nothing was sent
	Until   *time.Time `json:"until,omitempty"`   // Skipped holds at least so long

	Class         Class               `json:"class,omitempty"`
	Status        int                 `json:"status,omitempty"`
	Code          string              `json:"code,omitempty"`
	Error         string              `json:"error,omitempty"`
	BreakerBefore health.BreakerState `json:"breaker_before,omitempty"`
	BreakerAfter  health.BreakerState `json:"breaker_after,omitempty"`
	WaitMS        float64             `json:"wait_ms,omitempty"` // before this attempt, since the one before it
	LatencyMS     float64             `json:"latency_ms"`
	FirstTokenMS  float64             `json:"first_token_ms,omitempty"`
	Usage         *Usage              `json:"usage,omitempty"`
	RetryAfterMS  int64               `json:"retry_after_ms,omitempty"`
	Injected      string              `json:"injected,omitempty"` // the fault that had a part in it, see [MarkInjected]
	Next          string              `json:"next"`               // what came after it
}

// Skip is why an entry was not asked.
type Skip string

// The reasons to pass over an entry.
const (
	SkipOpen      Skip = "open"      // its breaker refuses calls
	SkipThrottled Skip = "throttled" // it asked to be left alone
	SkipExhausted Skip = "exhausted" // its rate limit is used up, as far as is known
	SkipQuota     Skip = "quota"     // of the day
	SkipAuth      Skip = "auth"      // it refuses the key
	SkipGone      Skip = "gone"      // its model does not exist any more
	SkipContext   Skip = "unfit: context length"
	SkipVision    Skip = "unfit: images"
	SkipTools     Skip = "unfit: tools"
	SkipTooLarge  Skip = "unfit: larger than the tokens per minute"
	SkipBusy      Skip = "busy" // others were still finding out whether it works
)

// maxAttempts bounds a trace.
const maxAttempts = 100

// tracer writes the trace of one call. Attempts that run beside each other own
// the Attempt they were given until they end.
type tracer struct {
	started  time.Time
	attempts []*Attempt
	omitted  int
	told     int       // attempts whose Next is set
	last     time.Time // end of the latest attempt
}

func (t *tracer) add(a *Attempt) *Attempt {
	if len(t.attempts) < maxAttempts {
		t.attempts = append(t.attempts, a)
	} else {
		t.omitted++
	}
	return a
}

// drop takes back the latest attempt, which has told nothing new.
func (t *tracer) drop(a *Attempt) {
	if n := len(t.attempts) - 1; n >= 0 && t.attempts[n] == a {
		t.attempts = t.attempts[:n]
		t.told = min(t.told, n)
	}
}

// next says what came after every attempt that has none said of it yet.
func (t *tracer) next(what string) {
	for ; t.told < len(t.attempts); t.told++ {
		t.attempts[t.told].Next = what
	}
}

// finish returns the trace, which nobody writes to any more.
func (t *tracer) finish(s Strategy, queued time.Duration) *Trace {
	done := &Trace{
		ID: rand.Text(), Started: t.started.UTC(), LatencyMS: ms(time.Since(t.started)), Strategy: s,
		QueuedMS: ms(queued), Omitted: t.omitted, Attempts: make([]Attempt, len(t.attempts)),
	}
	for i, a := range t.attempts {
		done.Attempts[i] = *a
	}
	return done
}

// ms returns d in milliseconds, to the microsecond.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// keptTraces is how many traces a chain remembers.
const keptTraces = 1000

// traces remembers the latest traces. The zero value is ready.
type traces struct {
	mu   sync.Mutex
	ring []*Trace
	at   int // where the next one goes, once the ring is full
	byID map[string]*Trace
}

func (t *traces) keep(one *Trace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[string]*Trace{}
	}
	t.byID[one.ID] = one
	if len(t.ring) < keptTraces {
		t.ring = append(t.ring, one)
		return
	}
	delete(t.byID, t.ring[t.at].ID)
	t.ring[t.at] = one
	t.at = (t.at + 1) % keptTraces
}

func (t *traces) get(id string) *Trace {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// latest returns up to n traces, the newest first.
func (t *traces) latest(n int) []*Trace {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*Trace
	for i := range min(n, len(t.ring)) {
		out = append(out, t.ring[(t.at+2*len(t.ring)-1-i)%len(t.ring)])
	}
	return out
}
