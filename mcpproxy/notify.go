package mcpproxy

import (
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// message handles what an upstream sends on its own: notifications and requests.
func (p *Proxy) message(c *conn, m wire.Message, via uint64) {
	if m.IsRequest() {
		p.asked(c, m, via)
		return
	}
	switch m.Method {
	case "notifications/progress":
		if id, ok := wire.ParseToken(wire.Get(m.Params, "progressToken")); ok {
			if k, ok := c.lookup(id).(*call); ok {
				k.progress(m)
			}
		}
	case "notifications/message":
		p.logged(c, m, via)
	case "notifications/resources/updated":
		p.updated(c, m)
	case "notifications/cancelled":
		p.withdrawn(c, m)
	case "notifications/elicitation/complete":
		p.elicited(c, m)
	default:
		p.passOn(c, m, via)
	}
}

// logged delivers a log message: on the stream of the call that caused it
// where that can be told, else to every session whose level lets it pass. A modern
// client gets it only on the request that asked for it.
func (p *Proxy) logged(c *conn, m wire.Message, via uint64) {
	rank := levelOf(wire.Get(m.Params, "level"))
	if _, k, _ := p.causer(c, via); k != nil {
		k.log(m, rank)
		return
	}
	for _, cl := range p.legacyClients() {
		if c.in.serves(cl) && cl.wants(rank) {
			_ = cl.s.Send(wire.AppendNotification(nil, m.Method, m.Params), m.More) // a client that does not read loses logs only
		}
	}
}

// wants tells whether the session's logging level lets rank pass; without a
// level the server decides (2025-11-25, server/utilities/logging).
func (c *client) wants(rank int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return rank < 0 || rank >= c.level
}

func (k *call) log(m wire.Message, rank int) {
	r := k.request()
	if r.modern {
		if level := levelOf(r.hop.logLevel); level < 0 || rank < level {
			return
		}
	} else if !r.c.wants(rank) {
		return
	}
	raw := wire.AppendNotification(nil, m.Method, m.Params)
	if r.st.Send(raw, m.More) != nil && !r.modern {
		_ = r.c.s.Send(wire.AppendNotification(nil, m.Method, m.Params), m.More) // a client that does not read loses logs only
	}
}

// passOn delivers a notification we do not know to the call it came with.
func (p *Proxy) passOn(c *conn, m wire.Message, via uint64) {
	cl, k, _ := p.causer(c, via)
	raw := wire.AppendNotification(nil, m.Method, m.Params)
	switch {
	case k != nil:
		_ = k.request().st.Send(raw, m.More) // nobody waits for it
	case cl != nil:
		_ = cl.s.Send(raw, m.More) // nobody waits for it
	}
}

// elicited tells the client that was asked that its URL elicitation is complete.
func (p *Proxy) elicited(from *conn, m wire.Message) {
	id, _ := wire.String(wire.Get(m.Params, "elicitationId"))
	for _, c := range p.allClients() {
		c.mu.Lock()
		mine := c.elicits[id] == from.in
		if mine {
			delete(c.elicits, id)
		}
		c.mu.Unlock()
		if mine {
			_ = c.s.Send(wire.AppendNotification(nil, m.Method, m.Params), m.More) // the client may have left
		}
	}
}

// setLevel keeps a session's level; upstreams get the most verbose of all.
func (p *Proxy) setLevel(r *request) {
	level := levelOf(wire.Get(r.params, "level"))
	if level < 0 {
		r.fail(wire.CodeInvalidParams, "params.level must be one of debug, info, notice, warning, error, critical, alert, emergency", nil)
		return
	}
	r.c.mu.Lock()
	r.c.level = level
	r.c.mu.Unlock()
	p.levelsChanged()
	r.answer([]byte(`{}`))
}

// levelsChanged gives every instance the most verbose level of those it serves.
func (p *Proxy) levelsChanged() {
	p.wantedMu.Lock()
	defer p.wantedMu.Unlock()
	clients := p.allClients()
	for _, up := range p.ups() {
		for _, in := range up.instances() {
			if most := in.mostVerbose(clients); most >= 0 {
				in.setLevel(levels[most])
			}
		}
	}
}

// asksLevel notes the level that one request of a modern client asks for: a
// legacy server knows only one level for all that follows.
func (k *call) asksLevel() {
	rank := levelOf(k.r.hop.logLevel)
	if rank < 0 {
		return
	}
	k.in.mu.Lock()
	lower := k.in.modernLevel == 0 || rank+1 < k.in.modernLevel
	if lower {
		k.in.modernLevel = rank + 1
	}
	k.in.mu.Unlock()
	if lower {
		k.p.levelsChanged()
	}
}

func (in *instance) mostVerbose(clients []*client) int {
	in.mu.Lock()
	most := in.modernLevel - 1
	in.mu.Unlock()
	for _, c := range clients {
		c.mu.Lock()
		if c.level >= 0 && (most < 0 || c.level < most) && in.serves(c) {
			most = c.level
		}
		c.mu.Unlock()
	}
	return most
}
