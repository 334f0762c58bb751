package mcpproxy

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// upstream is one registered server: its configuration, the instance that all
// clients share, and with sharing: session one more for each of them.
type upstream struct {
	p       *Proxy
	cfg     *UpstreamConfig
	guard   *guard
	shared  *instance
	sampler *sampler              // nil: its clients alone sample
	drift   atomic.Pointer[drift] // that is or was active; nil: none

	mu       sync.Mutex
	list     *listing  // the last complete one, live or remembered
	live     bool      // list came from the running server
	outSince time.Time // when it stopped working; zero: it works, or starts for the first time
	pins     pins
	saved    bool // a list has been remembered, or not because of unsaved
	unsaved  error
	per      map[sessionKey]*perSession
	stopped  bool
}

// sessionKey names who an instance of sharing: session belongs to: a session, or
// all stateless requests with the same token.
type sessionKey struct {
	c         *client
	principal string
}

type perSession struct {
	in   *instance
	idle *time.Timer // of a stateless one
	used time.Time
}

// maxPerSession bounds the instances of one upstream with sharing: session.
const maxPerSession = 32

var errBusy = errors.New("busy: it runs as many sessions as it may, try again when one has ended")

func (p *Proxy) newUpstream(u *UpstreamConfig) *upstream {
	up := &upstream{p: p, cfg: u, sampler: newSampler(u, p.cfg.LLM), per: map[sessionKey]*perSession{}}
	if !p.cfg.Anew {
		up.list = p.memory.load(u)
	}
	up.guard = newGuard(p, up)
	mode := pinsServe
	switch {
	case p.cfg.Anew && p.cfg.Accept:
		mode = pinsAccept
	case p.cfg.Anew:
		mode = pinsLook
	}
	up.pins = newPins(u, mode, p.memory.known(u), up.list)
	up.shared = p.newInstance(up, nil)
	return up
}

func (p *Proxy) newInstance(up *upstream, owner *client) *instance {
	var tell teller
	o := instanceOptions{
		cfg: up.cfg, limits: p.cfg.Limits, log: p.log, version: p.cfg.Version,
		remembered: up.list, capabilities: p.capabilities, preferLegacy: p.preferLegacy,
		lists: owner == nil,
		hooks: hooks{message: p.message, listed: p.gotListing, lost: p.connLost, state: func(in *instance, from health.State, now health.Snapshot) {
			p.stateChanged(in, &tell, from, now)
		}},
	}
	if owner != nil {
		o.capabilities = func(context.Context) []byte {
			if caps := owner.capabilities(); caps != nil {
				return caps
			}
			return sharedCapabilities
		}
	}
	theirs := o.capabilities
	o.capabilities = func(ctx context.Context) []byte { return up.sampler.declare(theirs(ctx)) }
	in := newInstance(o)
	in.up, in.owner = up, owner
	if p.dial != nil {
		in.dial = p.dial(up.cfg)
	}
	in.dial = p.withChaos(in)
	return in
}

func (up *upstream) start() {
	up.mu.Lock()
	defer up.mu.Unlock()
	if !up.cfg.Disabled && !up.stopped {
		up.shared.start(up.p.ctx)
	}
}

// drain waits until no call of a client is under way, the time for that is
// over, or the endpoint closes.
func (up *upstream) drain() {
	over := time.After(drainTime)
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for up.busy() {
		select {
		case <-look.C:
		case <-over:
			return
		case <-up.p.ctx.Done():
			return
		}
	}
}

func (up *upstream) busy() bool {
	return up.guard.waiting() || slices.ContainsFunc(up.instances(), func(in *instance) bool {
		conn := in.live()
		return conn != nil && len(conn.routed()) > 0
	})
}

func (up *upstream) stop(ctx context.Context) {
	up.mu.Lock()
	up.stopped = true
	per := up.per
	up.per = map[sessionKey]*perSession{}
	up.mu.Unlock()
	all := []*instance{up.shared}
	for _, s := range per {
		if s.idle != nil {
			s.idle.Stop()
		}
		all = append(all, s.in)
	}
	var wg sync.WaitGroup
	for _, in := range all {
		wg.Go(func() {
			defer wire.OnPanic()
			in.stop(ctx)
		})
	}
	wg.Wait()
	up.guard.close()
}

// instances returns all that run for the upstream.
func (up *upstream) instances() []*instance {
	up.mu.Lock()
	defer up.mu.Unlock()
	out := []*instance{up.shared}
	for _, s := range up.per {
		out = append(out, s.in)
	}
	return out
}

// subscribing returns the instances that hear of resources for somebody: with
// sharing: session not the one that only lists.
func (up *upstream) subscribing() []*instance {
	all := up.instances()
	if up.cfg.Sharing == "session" {
		return all[1:]
	}
	return all
}

// serves tells whether what in says may concern c.
func (in *instance) serves(c *client) bool {
	o := in.owner
	return o == nil || o == c || o.s.Stateless && c.s.Stateless && o.s.Principal == c.s.Principal
}

// instanceFor returns the instance that serves c.
func (p *Proxy) instanceFor(c *client, up *upstream) (*instance, error) {
	if up.cfg.Disabled {
		return up.shared, errors.New("it is disabled in the configuration")
	}
	if up.cfg.Sharing != "session" {
		return up.shared, nil
	}
	in, fresh, err := up.ownInstance(c)
	if fresh {
		p.subscriptionsChanged()
		p.levelsChanged()
	}
	return in, err
}

// ownInstance returns the instance of c alone; fresh tells that it is new.
func (up *upstream) ownInstance(c *client) (in *instance, fresh bool, err error) {
	key := sessionKey{c: c}
	if c.s.Stateless {
		key = sessionKey{principal: c.s.Principal}
	}
	up.mu.Lock()
	defer up.mu.Unlock()
	s := up.per[key]
	switch {
	case up.stopped:
		return up.shared, false, errors.New("it has been removed from the configuration")
	case s == nil && len(up.per) >= maxPerSession:
		return up.shared, false, errBusy
	case s == nil:
		s, fresh = &perSession{in: up.p.newInstance(up, c)}, true
		up.per[key] = s
		s.in.start(up.p.ctx)
	}
	if c.s.Stateless {
		s.used = time.Now()
		if s.idle == nil {
			s.idle = time.AfterFunc(up.p.cfg.Limits.SessionIdle, func() { up.endIdle(key, s) })
		}
	}
	return s.in, fresh, nil
}

// endIdle ends the instance of stateless clients that none has used for a
// while, and none waits for or listens to.
func (up *upstream) endIdle(key sessionKey, s *perSession) {
	defer wire.OnPanic()
	idle := up.p.cfg.Limits.SessionIdle
	conn := s.in.live()
	busy := conn != nil && len(conn.routed()) > 0 || up.p.listened(up.cfg.Name, s.in)
	up.mu.Lock()
	defer up.mu.Unlock()
	rest := idle - time.Since(s.used)
	if busy {
		rest = idle
	}
	switch {
	case up.per[key] != s: // ended already
	case rest > 0:
		s.idle.Reset(rest)
	default:
		up.endSessionLocked(key)
	}
}

// listened tells whether somebody listens to resources of in.
func (p *Proxy) listened(upstream string, in *instance) (yes bool) {
	p.eachListen(func(l *listen) {
		for _, s := range l.subs {
			yes = yes || s.upstream == upstream && in.serves(l.r.c)
		}
	})
	return yes
}

// closeSessions ends the instances that ran for c alone.
func (p *Proxy) closeSessions(c *client) {
	for _, up := range p.ups() {
		if up.cfg.Sharing == "session" {
			up.mu.Lock()
			up.endSessionLocked(sessionKey{c: c})
			up.mu.Unlock()
		}
	}
}

// endSessionLocked gives up an instance and stops it in the background.
func (up *upstream) endSessionLocked(key sessionKey) {
	s := up.per[key]
	delete(up.per, key)
	if s == nil {
		return
	}
	up.p.work.Go(func() {
		defer wire.OnPanic()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(up.p.ctx), stopGrace)
		defer cancel()
		s.in.stop(ctx)
	})
}

// source is the upstream as the catalog sees it.
func (up *upstream) source() source {
	up.mu.Lock()
	defer up.mu.Unlock()
	prefix := up.cfg.Name
	if up.cfg.Prefix != nil {
		prefix = *up.cfg.Prefix
	}
	s := source{name: up.cfg.Name, prefix: prefix, allow: up.cfg.Allow, deny: up.cfg.Deny, list: up.list, ready: up.live,
		suspects: up.pins.reasons(), hidden: up.cfg.OnOutage == "hide" && !usable(up.shared.tracker.Snapshot().State)}
	if up.cfg.Disabled {
		s.list = nil
		s.ready = true
	}
	return s
}

// gotListing takes a complete new listing of an upstream's shared instance.
func (p *Proxy) gotListing(in *instance, l *listing, told kindSet) {
	up := in.up
	now := definitions(l.Tools)
	var accepted map[string]json.RawMessage
	if up.cfg.OnChange == "quarantine" {
		accepted = p.memory.known(up.cfg)
	}
	up.mu.Lock()
	old := up.list
	up.list, up.live = l, true
	changes := up.pins.take(now, accepted)
	remember := *l
	remember.Pins = up.pins.beside(now)
	up.mu.Unlock()
	if old.hash() != l.hash() {
		p.publish(event.Event{Kind: event.CatalogChanged, Upstream: up.cfg.Name})
	}
	for _, e := range changes {
		p.publish(e)
	}
	err := p.memory.save(up.cfg, &remember)
	if err != nil {
		p.log.Warn("catalog is not remembered", "upstream", up.cfg.Name, "reason", err)
	}
	up.mu.Lock()
	up.saved, up.unsaved = true, err
	up.mu.Unlock()
	p.rebuild()
	p.listed.Do(func() { close(p.listedOne) })
	if p.knowsAll() {
		p.allOnce.Do(func() { close(p.listedAll) })
	}
	p.changes.compare(told)
}

// usable tells whether an upstream in this state is worth a call.
func usable(s health.State) bool { return s == health.Ready || s == health.Degraded }

// stateChanged follows the tracker of an instance.
func (p *Proxy) stateChanged(in *instance, t *teller, from health.State, now health.Snapshot) {
	up := in.up
	if from != now.State {
		p.tellState(in, t, from, now)
	}
	if in != up.shared {
		return
	}
	up.mu.Lock()
	was := up.live
	up.live = up.live && usable(now.State)
	changed := was != up.live
	switch { // further attempts to start belong to the same outage
	case usable(now.State):
		up.outSince = time.Time{}
	case now.State != health.Starting && up.outSince.IsZero():
		up.outSince = now.Since
	}
	up.mu.Unlock()
	shows := up.cfg.OnOutage == "hide" && usable(from) != usable(now.State)
	if changed || shows {
		p.rebuild()
	}
	if shows {
		p.changes.compare(0)
	}
	p.changes.status(up.cfg.Name)
}

// out is since when the upstream does not work, zero if it does.
func (up *upstream) out() time.Time {
	up.mu.Lock()
	defer up.mu.Unlock()
	return up.outSince
}

// connLost drops what was asked on behalf of a connection that is gone.
func (p *Proxy) connLost(c *conn) {
	c.in.up.sampler.drop(func(a *ask) bool { return a.conn == c && a.result == nil })
	for _, cl := range p.allClients() {
		cl.mu.Lock()
		var void []*ask
		for id, a := range cl.asks {
			if a.conn == c && a.result == nil {
				void = append(void, a)
				delete(cl.asks, id)
			}
		}
		cl.mu.Unlock()
		for _, a := range void {
			cl.cancelAsk(a, "the server that asked is gone")
		}
	}
}
