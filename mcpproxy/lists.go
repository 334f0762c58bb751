package mcpproxy

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// listTable says how each list is asked for, which capability offers it and
// which notification tells that it has changed.
var listTable = [kinds]struct{ method, capability, changed string }{
	tools:     {"tools/list", "tools", "notifications/tools/list_changed"},
	prompts:   {"prompts/list", "prompts", "notifications/prompts/list_changed"},
	resources: {"resources/list", "resources", "notifications/resources/list_changed"},
	templates: {"resources/templates/list", "resources", "notifications/resources/list_changed"},
}

// minAge bounds how often lists are asked for because they are old.
const minAge = 30 * time.Second

// lister keeps the listing of one connection up to date. However often a list
// is announced as changed, one round is under way and at most one waits.
type lister struct {
	c        *conn
	standing chan standing // what the last round says about the upstream
	wake     chan struct{}

	mu        sync.Mutex
	due, told kindSet
	again     bool // publish what is known once more

	// Owned by run.
	failing [kinds]error
	hints   [kinds]cacheHint
	lists   [kinds][]json.RawMessage // the newest of those in listed
	listed  kindSet                  // listed over this connection
}

// standing is the state of a connection in service.
type standing struct {
	state  health.State
	reason string
}

// kindSet is a set of lists.
type kindSet uint8

const allKinds = kindSet(1<<kinds - 1)

func (s kindSet) has(k listKind) bool { return s&(1<<k) != 0 }
func (s *kindSet) add(k listKind)     { *s |= 1 << k }

func newLister(c *conn) *lister {
	return &lister{c: c, standing: make(chan standing), wake: make(chan struct{}, 1)}
}

// changed takes a notification of the server; it tells whether it was one of
// */list_changed.
func (l *lister) changed(method string) bool {
	var told kindSet
	for k := range kinds {
		if listTable[k].changed == method {
			told.add(k)
		}
	}
	if told != 0 {
		l.ask(told, told)
	}
	return told != 0
}

func (l *lister) ask(due, told kindSet) {
	l.mu.Lock()
	l.due |= due
	l.told |= told
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// repeat publishes the listing again, for a connection that is back in service.
func (l *lister) repeat() {
	l.mu.Lock()
	l.again = true
	l.mu.Unlock()
	l.ask(0, 0)
}

func (l *lister) take() (due, told kindSet) {
	l.mu.Lock()
	due, told = l.due, l.told
	again := l.again
	l.due, l.told, l.again = 0, 0, false
	l.mu.Unlock()
	if known := l.c.in.listing(); again && known != nil && l.listed != 0 {
		l.c.in.o.hooks.listed(l.c.in, known, 0)
	}
	return due, told
}

// run lists all that the server offers, then what has changed or failed.
func (l *lister) run(ctx context.Context) {
	defer wire.OnPanic()
	pace := backoff{base: 500 * time.Millisecond, max: 5 * time.Minute}
	offered := l.offered()
	due, told := offered, kindSet(0)
	var failed, owed kindSet // owed: announced, and failed since
	var again, stale <-chan time.Time
	for {
		owed |= told & offered
		failed = l.round(ctx, due, offered, owed)
		owed &= failed
		l.report(ctx)
		again = nil
		if failed == 0 {
			pace.reset()
		} else {
			again = time.After(max(pace.next(), l.retryAfter()))
		}
		aging, age := l.aging(offered)
		stale = nil
		if aging != 0 {
			stale = time.After(age)
		}
		for due = 0; due == 0; due &= offered {
			select {
			case <-ctx.Done():
				return
			case <-again:
				due, told = failed, 0
			case <-stale:
				due, told = aging, 0
			case <-l.wake:
				due, told = l.take()
			}
		}
	}
}

// aging returns the lists whose change nobody announces, and when the first of
// them is no longer fresh by the server's own word. Less than a second says
// "do not cache" rather than "ask again at once".
func (l *lister) aging(offered kindSet) (set kindSet, age time.Duration) {
	for k := range kinds {
		ttl := time.Duration(l.hints[k].ttl) * time.Millisecond
		if !l.c.modern || !(offered & l.listed).has(k) || ttl < time.Second ||
			declared(l.c.capabilities, listTable[k].capability, "listChanged") {
			continue
		}
		if set == 0 || ttl < age {
			age = ttl
		}
		set.add(k)
	}
	return set, max(age, minAge)
}

// offered is what the server's capabilities declare.
func (l *lister) offered() kindSet {
	var s kindSet
	for k := range kinds {
		if declared(l.c.capabilities, listTable[k].capability) {
			s.add(k)
		}
	}
	return s
}

// round asks for the lists that are due, each on its own, and publishes what
// came of it. It returns the lists that have failed.
func (l *lister) round(ctx context.Context, due, offered, told kindSet) (failed kindSet) {
	var wg sync.WaitGroup
	for k := range kinds {
		if due.has(k) {
			wg.Go(func() {
				defer wire.OnPanic()
				var list []json.RawMessage
				if list, l.hints[k], l.failing[k] = l.fetch(ctx, k); l.failing[k] == nil {
					l.lists[k] = list
				}
			})
		}
	}
	wg.Wait()
	if ctx.Err() != nil {
		return 0
	}
	for k := range kinds {
		switch {
		case l.failing[k] != nil:
			failed.add(k)
		case due.has(k):
			l.listed.add(k)
		}
	}
	if due != 0 && due&^failed == 0 {
		return failed // nothing new
	}
	in := l.c.in
	old := in.listing()
	// An error never says "no tools": without a list of them, from now or an
	// earlier run, there is nothing to publish.
	if old == nil && failed.has(tools) && !l.listed.has(tools) {
		return failed
	}
	next := l.merge(old, offered)
	in.setListing(next)
	in.o.hooks.listed(in, next, told&due&^failed)
	return failed
}

// merge returns the listing with the lists of this connection, and the old ones
// for those that are offered but have not come.
func (l *lister) merge(old *listing, offered kindSet) *listing {
	c := l.c
	next := &listing{
		Server: c.server, Instructions: c.instructions, Protocol: c.version, Capabilities: c.capabilities,
	}
	for k := range kinds {
		switch {
		case l.listed.has(k):
			*next.entries(k) = l.lists[k]
		case offered.has(k) && old != nil:
			*next.entries(k) = *old.entries(k)
		}
	}
	next.TTL, next.Public = l.cacheHints(offered)
	return next
}

func (l *lister) cacheHints(offered kindSet) (ttl int64, public bool) {
	ttl, public = -1, offered != 0
	for k := range kinds {
		if !offered.has(k) {
			continue
		}
		h := l.hints[k]
		if !l.listed.has(k) {
			h = cacheHint{ttl: -1}
		}
		if h.ttl >= 0 && (ttl < 0 || h.ttl < ttl) {
			ttl = h.ttl
		}
		public = public && h.public
	}
	return max(ttl, 0), public
}

// report tells the supervisor how the upstream stands.
func (l *lister) report(ctx context.Context) {
	s := standing{state: health.Ready}
	var reasons []string
	for k := range kinds {
		if err := l.failing[k]; err != nil {
			s.state = health.Degraded
			reasons = append(reasons, listTable[k].method+": "+err.Error())
		}
	}
	s.reason = strings.Join(reasons, "; ")
	select {
	case l.standing <- s:
	case <-ctx.Done():
	}
}

// retryAfter is how long the server wants to be left alone.
func (l *lister) retryAfter() (d time.Duration) {
	for k := range kinds {
		if e, ok := errors.AsType[*wire.Error](l.failing[k]); ok {
			d = max(d, e.RetryAfter)
		}
	}
	return d
}
