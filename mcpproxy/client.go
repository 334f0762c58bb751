package mcpproxy

import (
	"slices"
	"strconv"
	"sync"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

var null = []byte("null")

// client is the router's side of one wire.Session.
type client struct {
	p *Proxy
	s *wire.Session

	mu      sync.Mutex
	version string // negotiated by initialize; "" before
	name    string // clientInfo.name
	caps    []byte // capabilities of initialize, raw; nil before
	ready   bool   // notifications/initialized has come
	level   int    // of logging/setLevel; -1 before
	calls   map[string]*call
	own     map[string]*ownCall // those that AgentArmor answers itself
	listens map[string]*listen
	asks    map[string]*ask // our requests to this client, by their id "s<n>"
	held    [][]byte        // those that came before it was ready
	nextAsk uint64
	subs    map[string]subscription // by the URI the client used
	elicits map[string]*instance    // who asked for a URL elicitation, by elicitationId
	mute    bool                    // it will answer nothing any more
	closed  bool
}

// clientOf returns the client of s, made at its first message.
func (p *Proxy) clientOf(s *wire.Session) *client {
	if c, ok := s.State.Load().(*client); ok {
		return c
	}
	p.clientsMu.Lock()
	defer p.clientsMu.Unlock()
	if c, ok := s.State.Load().(*client); ok {
		return c
	}
	c := &client{p: p, s: s, level: -1}
	s.State.Store(c)
	if !s.Stateless {
		p.clients[c] = true
	}
	return c
}

// Closed implements [wire.Handler]: what the client had under way is cancelled.
func (p *Proxy) Closed(s *wire.Session) {
	c, ok := s.State.Load().(*client)
	if !ok {
		return
	}
	p.clientsMu.Lock()
	delete(p.clients, c)
	p.clientsMu.Unlock()
	c.mu.Lock()
	c.closed = true
	calls, own, asks, subs, listens := c.calls, c.own, c.asks, c.subs, c.listens
	c.calls, c.own, c.asks, c.subs, c.listens, c.held = nil, nil, nil, nil, nil, nil
	c.mu.Unlock()
	for _, k := range calls {
		k.cancel("the client left")
	}
	for _, o := range own {
		o.cancel()
	}
	for _, a := range asks {
		a.refuse("the client left")
	}
	for _, l := range listens {
		l.end(false)
	}
	if !s.Stateless {
		p.parking.abandonAll(c)
		p.links.drop(c)
		p.closeSessions(c)
		p.levelsChanged()
	}
	if len(subs) > 0 {
		p.subscriptionsChanged()
	}
}

// InputEnded implements [wire.InputEnder]: the client answers nothing any more,
// so that nobody may wait for it, and its listens end.
func (p *Proxy) InputEnded(s *wire.Session) {
	c := p.clientOf(s)
	c.mu.Lock()
	c.mute = true
	asks, listens := c.asks, c.listens
	c.asks, c.listens, c.held = nil, nil, nil
	c.mu.Unlock()
	for _, a := range asks {
		a.refuse("the client left")
	}
	for _, l := range listens {
		l.end(true)
	}
}

// allClients returns the clients that have a session.
func (p *Proxy) allClients() []*client {
	p.clientsMu.Lock()
	defer p.clientsMu.Unlock()
	out := make([]*client, 0, len(p.clients))
	for c := range p.clients {
		out = append(out, c)
	}
	return out
}

// touch remembers what only a first request tells: the generation of the one
// client of a stdio endpoint.
func (c *client) touch(r *request) {
	if c.p.cfg.OneClient && r.modern { // a legacy one tells by initialize
		c.p.first.set(true, r.hop.caps)
	}
}

// add registers a call under its client id; false: that id is under way already.
func (c *client) add(k *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.takenLocked(k.r.id) {
		return false
	}
	if c.calls == nil {
		c.calls = map[string]*call{}
	}
	c.calls[string(k.r.id)] = k
	return true
}

// takenLocked tells whether a request with that id is under way.
func (c *client) takenLocked(id []byte) bool {
	return c.calls[string(id)] != nil || c.own[string(id)] != nil || c.listens[string(id)] != nil
}

func (c *client) remove(k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[string(k.r.id)] == k {
		delete(c.calls, string(k.r.id))
	}
}

// declared tells whether a capability is there, and neither null nor false.
func declared(caps []byte, path ...string) bool {
	for _, name := range path {
		caps = wire.Get(caps, name)
	}
	return caps != nil && string(caps) != "null" && string(caps) != "false"
}

func (c *client) capabilities() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.caps
}

// notified handles a notification of the client.
func (c *client) notified(m wire.Message) {
	switch m.Method {
	case "notifications/initialized":
		c.mu.Lock()
		c.ready = true
		held := c.held
		c.held = nil
		c.mu.Unlock()
		for _, raw := range held {
			_ = c.s.Send(raw, true) // the client may have left
		}
	case "notifications/cancelled":
		c.cancelled(m)
	case "notifications/roots/list_changed":
		c.p.rootsChanged(c, m)
	case "notifications/progress":
		c.progressed(m)
	}
}

// cancelled ends the request the client no longer wants; it gets no answer.
func (c *client) cancelled(m wire.Message) {
	if c.s.Stateless {
		return // not part of modern HTTP, where a closed stream cancels
	}
	id, reason := wire.Get(m.Params, "requestId"), ""
	if id == nil {
		return
	}
	if s, ok := wire.String(wire.Get(m.Params, "reason")); ok {
		reason = s
	}
	c.mu.Lock()
	k, o, l := c.calls[string(id)], c.own[string(id)], c.listens[string(id)]
	c.mu.Unlock()
	if k != nil {
		k.cancel(reason)
	}
	if o != nil {
		o.cancel()
	}
	if l != nil {
		l.end(false)
	}
}

// progressed passes the progress of one of our requests on to the upstream that asked.
func (c *client) progressed(m wire.Message) {
	token, _ := wire.String(wire.Get(m.Params, "progressToken"))
	c.mu.Lock()
	a := c.asks[token]
	c.mu.Unlock()
	if a != nil && a.token != nil {
		params := wire.Rewrite(nil, m.Params, wire.Edit{Key: "progressToken", Value: a.token})
		a.conn.notify(m.Method, params)
	}
}

// responded gives the client's answer to the upstream that asked.
func (c *client) responded(m wire.Message) {
	id, _ := wire.String(m.ID)
	c.mu.Lock()
	a := c.asks[id]
	delete(c.asks, id)
	c.mu.Unlock()
	if a != nil {
		a.done(m)
	}
}

// maxAsks bounds the requests that wait for one client.
const maxAsks = 1000

// ask sends a request of ours to the client, on st if that still takes it,
// else on the session's own stream.
func (c *client) ask(a *ask, method string, params []byte, st wire.Stream) error {
	meta := wire.Get(params, "_meta")
	a.token = wire.Get(meta, "progressToken")
	elicitation, _ := wire.String(wire.Get(params, "elicitationId"))
	c.mu.Lock()
	if c.closed || c.mute || len(c.asks) >= maxAsks {
		c.mu.Unlock()
		return wire.ErrGone
	}
	c.nextAsk++
	a.id = "s" + strconv.FormatUint(c.nextAsk, 10)
	if c.asks == nil {
		c.asks = map[string]*ask{}
	}
	c.asks[a.id] = a
	if elicitation != "" {
		if len(c.elicits) >= maxAsks || c.elicits == nil { // the oldest are not worth a list of their own
			c.elicits = map[string]*instance{}
		}
		c.elicits[elicitation] = a.conn.in
	}
	c.mu.Unlock()
	id := wire.AppendString(nil, a.id)
	if a.token != nil {
		params = wire.Rewrite(nil, params, wire.Edit{Key: "_meta", Value: wire.Rewrite(nil, meta, wire.Edit{Key: "progressToken", Value: id})})
	}
	raw := wire.AppendRequest(nil, id, method, params)
	if c.hold(raw) {
		return nil
	}
	var err error
	if st == nil || st.Send(slices.Clone(raw), false) != nil {
		err = c.s.Send(raw, false)
	}
	if err != nil {
		c.mu.Lock()
		delete(c.asks, a.id)
		c.mu.Unlock()
	}
	return err
}

// hold keeps a request of ours until a legacy client has said that it is
// initialized; before that it must not be asked (2025-11-25, basic/lifecycle).
func (c *client) hold(raw []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ready || c.version == "" {
		return false
	}
	if len(c.held) < maxAsks {
		c.held = append(c.held, raw)
	}
	return true
}

// levels are the syslog severities of logging/setLevel, least first.
var levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// levelOf returns the rank of a raw level name, -1 if there is none such.
func levelOf(raw []byte) int {
	s, ok := wire.String(raw)
	if !ok {
		return -1
	}
	return slices.Index(levels, s)
}
