package mcpproxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// maxPages bounds one list, whatever cursors the server makes up.
const maxPages = 1000

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
	listed  kindSet // listed over this connection
}

// standing is the state of a connection in service.
type standing struct {
	state  health.State
	reason string
}

// cacheHint is what a list says about itself (2026-07-28, caching).
type cacheHint struct {
	ttl    int64 // ms, -1 if not given
	public bool
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
	var again <-chan time.Time
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
		for due = 0; due == 0; due &= offered {
			select {
			case <-ctx.Done():
				return
			case <-again:
				due, told = failed, 0
			case <-l.wake:
				due, told = l.take()
			}
		}
	}
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
	var lists [kinds][]json.RawMessage
	var wg sync.WaitGroup
	for k := range kinds {
		if due.has(k) {
			wg.Go(func() {
				defer wire.OnPanic()
				lists[k], l.hints[k], l.failing[k] = l.fetch(ctx, k)
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
	next := l.merge(old, &lists, due&^failed, offered)
	in.setListing(next)
	in.o.hooks.listed(in, next, told&due&^failed)
	return failed
}

// merge returns the listing with the fresh lists, and the old ones for those
// that are offered but have not come.
func (l *lister) merge(old *listing, lists *[kinds][]json.RawMessage, fresh, offered kindSet) *listing {
	c := l.c
	next := &listing{
		Server: c.server, Instructions: c.instructions, Protocol: c.version, Capabilities: c.capabilities,
	}
	for k := range kinds {
		switch {
		case fresh.has(k):
			*next.entries(k) = lists[k]
		case offered.has(k) && old != nil:
			*next.entries(k) = *old.entries(k)
		}
	}
	next.TTL, next.Public = l.cacheHints(offered)
	return next
}

// entries is where the listing holds one kind.
func (l *listing) entries(k listKind) *[]json.RawMessage {
	return [kinds]*[]json.RawMessage{tools: &l.Tools, prompts: &l.Prompts, resources: &l.Resources, templates: &l.Templates}[k]
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

// fetch gets all pages of one list.
func (l *lister) fetch(ctx context.Context, k listKind) (entries []json.RawMessage, h cacheHint, err error) {
	var params, last []byte
	h = cacheHint{ttl: -1}
	seen := map[string]bool{}
	for range maxPages {
		m, err := l.page(ctx, k, params)
		if err != nil {
			return nil, h, err
		}
		if m.Error != nil {
			e := parseRPCError(m.Error)
			if e.code == wire.CodeMethodNotFound && k != tools {
				return nil, h, nil // many declare resources and have no templates
			}
			return nil, h, e
		}
		if bytes.Equal(m.Result, last) {
			return entries, h, nil // its cursor leads to where it came from
		}
		last = m.Result
		page := wire.Get(m.Result, kindTable[k].member)
		if len(page) == 0 || page[0] != '[' {
			return nil, h, fmt.Errorf("the result has no %s", kindTable[k].member)
		}
		for e := range wire.Elements(bytes.Clone(page)) {
			entries = append(entries, e)
		}
		if len(seen) == 0 {
			h = readCacheHint(m.Result)
		}
		cursor := wire.Get(m.Result, "nextCursor")
		if cursor == nil || string(cursor) == "null" || seen[string(cursor)] {
			return entries, h, nil
		}
		seen[string(cursor)] = true
		params = append(append([]byte(`{"cursor":`), cursor...), '}')
	}
	l.c.in.log.Warn("a list has too many pages, the rest is left out", "list", listTable[k].method)
	return entries, h, nil
}

// page makes one request, within the time of a call.
func (l *lister) page(ctx context.Context, k listKind, params []byte) (wire.Message, error) {
	in := l.c.in
	budget := in.callTimeout()
	ctx, cancel := context.WithTimeoutCause(ctx, budget, fmt.Errorf("no answer within %v", budget))
	defer cancel()
	m, err := l.c.call(ctx, listTable[k].method, params)
	if e, ok := errors.AsType[*wire.Error](err); ok {
		in.failedOwn(l.c, e)
	}
	return m, err
}

func readCacheHint(result []byte) cacheHint {
	var r struct {
		TTL   *int64 `json:"ttlMs"`
		Scope string `json:"cacheScope"`
	}
	_ = json.Unmarshal(result, &r) // what is missing or odd gives no hint
	h := cacheHint{ttl: -1, public: r.Scope == "public"}
	if r.TTL != nil {
		h.ttl = max(*r.TTL, 0)
	}
	return h
}

// declared tells whether a capability is there, and neither null nor false.
func declared(caps []byte, path ...string) bool {
	for _, name := range path {
		caps = wire.Get(caps, name)
	}
	return caps != nil && string(caps) != "null" && string(caps) != "false"
}
