package mcpproxy

import (
	"errors"
	"time"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
)

// What chaos has a part in carries the id of its fault. A failure knows its fault; what
// follows from failures (states, breakers, refused calls) is marked as the last
// of them is.

// drift is a fault that has changed definitions, until they are as before.
type drift struct {
	fault string
	until time.Time
}

// driftBack is how long it may take to hear that the definitions are as before.
const driftBack = time.Minute

// drifting is the fault that changes the definitions of an upstream, or has
// done so until now, for an event that tells of other ones.
func (p *Proxy) drifting(e event.Event) string {
	if e.Kind != event.DefinitionChanged && e.Kind != event.CatalogChanged {
		return ""
	}
	up := p.upstream(e.Upstream)
	if up == nil {
		return ""
	}
	for _, f := range p.cfg.Chaos.List() {
		if f.Fault == chaos.SchemaDrift && f.Hits > 0 && f.Concerns(chaos.Server(e.Upstream)) {
			return f.ID
		}
	}
	if d := up.drift.Load(); d != nil && time.Now().Before(d.until) {
		return d.fault
	}
	return ""
}

// blame notes the fault that has made the server fail last, "" for a failure of its
// own: what follows from a failure is marked as the failure is, and no longer.
func (in *instance) blame(fault string) { in.fault.Store(&fault) }

// blameLate does the same for a request that has taken too long: that may be the
// work of a delay, too.
func (in *instance) blameLate(i *chaos.Injected) {
	if i == nil {
		in.blame("")
	} else {
		in.blame(i.ID)
	}
}

// blamed is the fault that has made the server fail last; "" is none.
func (in *instance) blamed() string {
	if id := in.fault.Load(); id != nil {
		return *id
	}
	return ""
}

// behind is the fault that has led to a state.
func (in *instance) behind(s health.State) string {
	if s != health.Degraded || in.up == nil {
		return in.blamed()
	}
	own := false
	for _, t := range in.up.guard.watched() {
		if t.breaker.Closed() {
			continue
		}
		if id := t.blamed(); id != "" {
			return id
		}
		own = true
	}
	if own {
		return ""
	}
	return in.blamed()
}

func (t *toolGuard) blamed() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fault
}

// injectedBy is the fault that had a part in an error, nil if none had.
func injectedBy(err error) *chaos.Injected {
	i, _ := errors.AsType[*chaos.Injected](err)
	return i
}

// failing is the fault that makes what it hits fail, "" for one that only delays.
func failing(i *chaos.Injected) string {
	if i == nil || i.Fault == chaos.Latency {
		return ""
	}
	return i.ID
}

// hit is the fault that has hit a request under way, nil if none did.
func (c *conn) hit(id uint64) *chaos.Injected {
	if peer, ok := c.peer.(*chaosPeer); ok {
		return peer.fault(id)
	}
	return nil
}

// mark notes a fault that has a part in the call; "" is none.
func (k *call) mark(fault string) {
	if fault == "" {
		return
	}
	k.mu.Lock()
	k.injected = fault
	attempt := k.attempt
	k.mu.Unlock()
	k.span.Injected(fault)
	attempt.Injected(fault)
}

// struck notes the fault that has hit the attempt under way, nil if none did.
// late tells that the attempt has failed by taking too long.
func (k *call) struck(i *chaos.Injected, late bool) {
	if i == nil {
		return
	}
	k.mu.Lock()
	k.cause = failing(i)
	if late {
		k.cause = i.ID
	}
	k.mu.Unlock()
	k.mark(i.ID)
}

// underWay is the fault that has hit the request that is under way, nil if none did.
func (k *call) underWay() *chaos.Injected {
	if !k.p.cfg.Chaos.Enabled() {
		return nil
	}
	k.mu.Lock()
	conn, id := k.conn, k.id
	k.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.hit(id)
}

func (k *call) injectedFault() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.injected
}
