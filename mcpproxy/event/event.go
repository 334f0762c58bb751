// Package event carries what happens inside the endpoint to whoever watches:
// the log, the status resource, alerts.
//
//	var bus event.Bus
//	sub := bus.Subscribe(64)
//	defer sub.Close()
//	bus.Publish(event.Event{Kind: event.UpstreamState, Upstream: "github", To: "down"})
//	e := <-sub.C()
//
// # Promises
//
// Observers never slow the work: Publish does not wait. An event that finds a
// subscriber's buffer full is dropped for that subscriber and counted; a
// gap shows in Event.Seq too. The last [History] events can be read again.
// Each subscriber gets events in the order of their numbers. A Bus is safe for
// concurrent use and starts no goroutines.
package event

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// History is how many events a Bus remembers.
const History = 1000

// Kind says what happened.
type Kind string

const (
	UpstreamState     Kind = "upstream.state"     // From, To, NextAttempt, Text: the reason
	BreakerChanged    Kind = "breaker"            // Tool, "" for the server's own; From, To, NextAttempt, Text: why
	DefinitionChanged Kind = "definition.changed" // Tool, To: what became of it, Text: the difference
	CatalogChanged    Kind = "catalog.changed"    // Upstream whose listing changed
	CallFailed        Kind = "call.failed"        // Tool, To: the outcome class, Text: why
	ConfigReloaded    Kind = "config.reloaded"    // Text: what changed
	LLMBreaker        Kind = "llm.breaker"        // Provider, From, To, NextAttempt
	LLMRest           Kind = "llm.rest"           // Provider is left alone; To: why, NextAttempt, Text: what it said
	LLMFailover       Kind = "llm.failover"       // From, To: providers; To has answered
	LLMOutage         Kind = "llm.outage"         // no provider has answered; NextAttempt
	ChaosInjected     Kind = "chaos.injected"     // Injected: the fault; To: its kind, Text: what it does to whom
	ChaosCleared      Kind = "chaos.cleared"      // Injected: the fault; To: cleared or expired, Text: how often it has hit
	Alert             Kind = "alert"              // Rule; To: raised or resolved, Text: what a person should know
)

// Kinds are all kinds of events.
var Kinds = []Kind{UpstreamState, BreakerChanged, DefinitionChanged, CatalogChanged, CallFailed, ConfigReloaded, LLMBreaker, LLMRest, LLMFailover, LLMOutage, ChaosInjected, ChaosCleared, Alert}

// Event is one thing that happened. Fields that do not apply are empty; none
// ever holds a secret or a payload.
type Event struct {
	Seq      uint64    `json:"seq"`  // set by Publish: 1, 2, …
	Time     time.Time `json:"time"` // set by Publish if zero
	Kind     Kind      `json:"kind"`
	Upstream string    `json:"upstream,omitempty"`
	Tool     string    `json:"tool,omitempty"`
	Provider string    `json:"provider,omitempty"` // of a language model
	Rule     string    `json:"rule,omitempty"`     // of an alert
	From     string    `json:"from,omitempty"`
	To       string    `json:"to,omitempty"`
	Text     string    `json:"text,omitempty"`
	Injected string    `json:"injected,omitempty"` // the fault of chaos that has caused it, or may have

	NextAttempt *time.Time `json:"next_attempt,omitempty"` // when the upstream, tool or provider is tried again
}

// New returns an empty Bus.
func New() *Bus { return new(Bus) }

// Bus hands events to its subscribers. The zero value is ready for use.
type Bus struct {
	mu     sync.Mutex
	seq    uint64
	recent []Event // a ring: event n is at (n-1) % History
	subs   map[*Subscription]struct{}
}

// Subscription is one observer of a Bus.
type Subscription struct {
	bus     *Bus
	kinds   []Kind // empty: all
	ch      chan Event
	dropped atomic.Uint64
}

// Publish numbers e, remembers it and offers it to every subscriber.
func (b *Bus) Publish(e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seq++
	e.Seq = b.seq
	e.Time = cmp.Or(e.Time, time.Now().UTC())
	if len(b.recent) < History {
		b.recent = append(b.recent, e)
	} else {
		b.recent[(e.Seq-1)%History] = e
	}
	for s := range b.subs {
		if len(s.kinds) > 0 && !slices.Contains(s.kinds, e.Kind) {
			continue
		}
		select {
		case s.ch <- e:
		default:
			s.dropped.Add(1)
		}
	}
}

// Subscribe returns a subscription to what is published from now on, of some
// kinds or of all, with room for n events (at least one).
func (b *Bus) Subscribe(n int, kinds ...Kind) *Subscription {
	s := &Subscription{bus: b, kinds: kinds, ch: make(chan Event, max(n, 1))}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subs == nil {
		b.subs = map[*Subscription]struct{}{}
	}
	b.subs[s] = struct{}{}
	return s
}

// Recent returns the last n events that are remembered, oldest first.
func (b *Bus) Recent(n int) []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	n = max(0, min(n, len(b.recent)))
	out := make([]Event, 0, n)
	for seq := b.seq - uint64(n); seq < b.seq; seq++ {
		out = append(out, b.recent[seq%History])
	}
	return out
}

// Filter selects among the remembered events; zero fields select all.
type Filter struct {
	Upstream string
	Tool     string
	Kind     Kind
	Since    uint64 // only events with a higher number
	Limit    int    // the newest that many; 0: no limit
}

func (f *Filter) matches(e *Event) bool {
	return e.Seq > f.Since &&
		(f.Upstream == "" || f.Upstream == e.Upstream) &&
		(f.Tool == "" || f.Tool == e.Tool) &&
		(f.Kind == "" || f.Kind == e.Kind)
}

// Found is what a Filter selects.
type Found struct {
	LastSeq uint64  `json:"last_seq"`          // of all events: where to go on
	Omitted int     `json:"omitted,omitempty"` // older ones that match and are over the limit
	Events  []Event `json:"events"`            // oldest first
}

// Find returns the remembered events that f selects.
func (b *Bus) Find(f Filter) Found {
	found := Found{Events: []Event{}}
	all := b.Recent(History)
	for i := range all {
		found.LastSeq = all[i].Seq
		if f.matches(&all[i]) {
			found.Events = append(found.Events, all[i])
		}
	}
	if over := len(found.Events) - f.Limit; f.Limit > 0 && over > 0 {
		found.Events, found.Omitted = found.Events[over:], over
	}
	return found
}

// C is where the events arrive. It is closed by Close, after what it still holds.
func (s *Subscription) C() <-chan Event { return s.ch }

// Dropped is how many events found no room.
func (s *Subscription) Dropped() uint64 { return s.dropped.Load() }

// Close ends the subscription. It may be called more than once.
func (s *Subscription) Close() {
	s.bus.mu.Lock()
	defer s.bus.mu.Unlock()
	if _, ok := s.bus.subs[s]; ok {
		delete(s.bus.subs, s)
		close(s.ch)
	}
}
