package llm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/agentarmor/agentarmor/health"
)

// Chain asks one model after the other until one answers. It is safe for
// concurrent use.
type Chain struct {
	o       Options
	entries []*entry
	queue   chan struct{} // one for each call that waits for a recovery
	changed bell          // an entry may be asked again
	traces  traces
	hours   hourly
}

// Options of a [Chain]. The zero value has the defaults.
type Options struct {
	Strategy   Strategy      // "": [ByPriority]
	Timeout    time.Duration // for the whole chain; 0: 50 s
	Attempts   int           // at one entry in one call; 0: 4
	Backoff    Backoff
	Breaker    health.BreakerOptions // of each entry; 0: 2 failures, open for 15 s, 2 successes
	HedgeAfter time.Duration         // a second entry is asked beside a slow one; 0: never
	Queue      Queue

	// DegradedMessage is the text of an answer that no model gave.
	DegradedMessage string
	// SystemNote is asked at each call for what the model should know, such as
	// which tools are down; it joins the system prompt. "" adds nothing.
	SystemNote func() string
	// OnEvent is told what happens to the chain. No lock is held; it must not block.
	OnEvent func(Event)
	// OnTrace is told each finished call. No lock is held; it must not block.
	OnTrace func(*Trace)
}

// Backoff paces the attempts at one entry: min(Max, Base·2ⁿ⁻¹) ± Jitter.
type Backoff struct {
	Base   time.Duration // 0: 800 ms
	Max    time.Duration // 0: 8 s
	Jitter float64       // 0: 0.2; negative: none
}

// Queue is where calls wait for a recovery when no entry can be asked.
type Queue struct {
	Size int           // calls; 0: 64, negative: none
	Wait time.Duration // of one call; 0: 30 s
}

// The defaults of Options and Entry.
const (
	defaultTimeout        = 50 * time.Second // clients give up at 60 s
	defaultAttemptTimeout = 20 * time.Second
	defaultDegraded       = "I cannot reach a language model right now. Your message was received; please try again shortly."
)

func (o Options) withDefaults() Options {
	o.Strategy = cmp.Or(o.Strategy, ByPriority)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.Attempts = cmp.Or(o.Attempts, 4)
	o.Backoff.Base = cmp.Or(o.Backoff.Base, 800*time.Millisecond)
	o.Backoff.Max = cmp.Or(o.Backoff.Max, 8*time.Second)
	o.Backoff.Jitter = min(1, max(0, cmp.Or(o.Backoff.Jitter, 0.2)))
	o.Breaker.Failures = cmp.Or(o.Breaker.Failures, 2)
	o.Breaker.OpenFor = cmp.Or(o.Breaker.OpenFor, 15*time.Second)
	// Nothing but calls tries a provider, so a longer and longer opening would
	// only have its recovery noticed later.
	o.Breaker.MaxOpenFor = cmp.Or(o.Breaker.MaxOpenFor, o.Breaker.OpenFor)
	o.Breaker.Successes = cmp.Or(o.Breaker.Successes, 2)
	o.Queue.Size = max(0, cmp.Or(o.Queue.Size, 64))
	o.Queue.Wait = cmp.Or(o.Queue.Wait, 30*time.Second)
	o.DegradedMessage = cmp.Or(o.DegradedMessage, defaultDegraded)
	return o
}

func (o Options) check() error {
	if !o.Strategy.known() {
		return fmt.Errorf("llm: unknown strategy %q", o.Strategy)
	}
	b := o.Breaker
	if min(o.Timeout, o.HedgeAfter, o.Backoff.Base, o.Backoff.Max, b.OpenFor, b.MaxOpenFor, b.Window) < 0 ||
		min(o.Attempts, b.Failures, b.MinCalls, b.Successes) < 0 {
		return errors.New("llm: an option is below 0")
	}
	return nil
}

// New returns a chain of entries. Their names must differ. A chain without
// entries is valid, as is a nil one: it answers every call with an error of [ClassNone].
func New(entries []Entry, o Options) (*Chain, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	c := &Chain{o: o, queue: make(chan struct{}, o.Queue.Size)}
	names := map[string]bool{}
	for _, one := range entries {
		if one.Provider == nil || one.Timeout < 0 || one.RPM < 0 || one.TPM < 0 {
			return nil, fmt.Errorf("llm: the entry %q has no provider, or something below 0", one.Name)
		}
		e := newEntry(one, o)
		if names[e.Name] {
			return nil, fmt.Errorf("llm: two entries are called %q", e.Name)
		}
		names[e.Name] = true
		e.breaker = health.NewBreaker(c.breakerOptions(e))
		c.entries = append(c.entries, e)
	}
	return c, nil
}

func (c *Chain) breakerOptions(e *entry) health.BreakerOptions {
	o := c.o.Breaker
	theirs := o.OnChange
	o.OnChange = func(from health.BreakerState, now health.BreakerSnapshot) {
		if theirs != nil {
			theirs(from, now)
		}
		c.changed.ring()
		c.event(Event{Kind: EventBreaker, Provider: e.Name, From: string(from), To: string(now.State), Until: now.Until, Injected: e.injected()})
	}
	return o
}

// Close releases what the providers hold. No call may be under way or follow.
func (c *Chain) Close() error {
	if c == nil {
		return nil
	}
	var errs []error
	for _, e := range c.entries {
		if p, ok := e.Provider.(io.Closer); ok {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}

// Complete returns an answer from the first entry that has one. When no model
// can be reached, the response is Degraded and holds the configured text: check
// that before using it as an answer. An error is always an [*Error]: the caller
// left, or every entry that was asked finds the request itself at fault.
// Response and Error carry the trace.
func (c *Chain) Complete(ctx context.Context, r *Request) (*Response, error) {
	return c.do(ctx, r, nil)
}

// Stream is [Chain.Complete] with the text of the answer handed to emit as it
// arrives. emit is called by one goroutine at a time, never after Stream has
// returned, and only with what one model says: once it has been called, a
// failure ends the call, with the text so far in Error.Partial.
func (c *Chain) Stream(ctx context.Context, r *Request, emit func(text string)) (*Response, error) {
	return c.do(ctx, r, emit)
}

// Trace returns the trace of one of the last 1,000 calls, or nil.
func (c *Chain) Trace(id string) *Trace { return c.traces.get(id) }

// Traces returns up to n traces of the last 1,000 calls, the newest first.
func (c *Chain) Traces(n int) []*Trace { return c.traces.latest(n) }

// Event is something that happened to a chain.
type Event struct {
	Kind     EventKind
	Provider string     // the entry
	From, To string     // of a breaker: its states; of a failover: entries
	Until    *time.Time // of what has an end
	Text     string     // what the provider said
	Injected string     // the fault behind it, see [MarkInjected]; "": none
}

// EventKind says what an [Event] is about.
type EventKind string

// The kinds of events.
const (
	EventBreaker  EventKind = "breaker"  // a breaker changed its state
	EventRest     EventKind = "rest"     // an entry is left alone: To is a [Skip]
	EventFailover EventKind = "failover" // another entry than the first one answered
	EventOutage   EventKind = "outage"   // a call was answered by the apology
)

func (c *Chain) event(e Event) {
	if c.o.OnEvent != nil {
		c.o.OnEvent(e)
	}
}

// hourly counts things over the last hour, by the minute.
type hourly struct {
	mu    sync.Mutex
	slots [60]struct {
		minute int64
		n      int
	}
}

func (h *hourly) add(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	minute := now.Unix() / 60
	s := &h.slots[minute%60]
	if s.minute != minute {
		s.minute, s.n = minute, 0
	}
	s.n++
}

func (h *hourly) count(now time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum := 0
	for _, s := range h.slots {
		if now.Unix()/60-s.minute < 60 {
			sum += s.n
		}
	}
	return sum
}
