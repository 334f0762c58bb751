package mcpproxy

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/builtin"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// Chaos is injected where the endpoint meets the network: into the providers'
// transport (chaos.Injector.Transport) and into connections to upstreams
// (chaospeer.go). What is here marks its part in all that is told.

// watchChaos tells the injector what there is to break, and hears what it does.
func (p *Proxy) watchChaos() {
	if !p.cfg.Chaos.Enabled() {
		return
	}
	p.cfg.Chaos.Watch(chaos.Watcher{Targets: p.chaosTargets, OnChange: p.chaosChanged, OnHit: func(h chaos.Hit) {
		if h.Context != nil {
			llm.MarkInjected(h.Context, h.ID)
		}
		p.changes.updated(builtin.ChaosURI)
	}})
}

// chaosTargets is all that can be broken now: providers in their order, then
// the servers with their tools.
func (p *Proxy) chaosTargets() []string {
	var targets []string
	if s := p.llmStatus(); s != nil {
		for _, name := range s.Chain {
			targets = append(targets, chaos.Provider(name))
		}
	}
	for _, up := range p.ups() {
		if up.cfg.Disabled {
			continue
		}
		targets = append(targets, chaos.Server(up.cfg.Name))
		for _, e := range p.cat.Load().entries[tools] {
			if e.upstream == up.cfg.Name {
				targets = append(targets, chaos.Tool(up.cfg.Name, e.original))
			}
		}
	}
	return targets
}

// chaosChanged tells of the begin or end of a fault.
func (p *Proxy) chaosChanged(c chaos.Change) {
	defer wire.OnPanic() // it may be called by a timer
	e := event.Event{Kind: event.ChaosInjected, Injected: c.ID, To: string(c.Fault), Text: c.Target + ": " + c.Fault.About()}
	text := "a fault is injected"
	if c.Kind != chaos.Began {
		e.Kind, e.To = event.ChaosCleared, string(c.Kind)
		e.Text = fmt.Sprintf("%s on %s has hit %d of %d calls", c.Fault, c.Target, c.Hits, c.Calls)
		text = "an injected fault has ended"
		defer p.forgive(c.ID)
	}
	p.publishAs(e, slog.LevelWarn, text) // and that the status has changed
	p.changes.updated(builtin.ChaosURI)
	if c.Fault != chaos.SchemaDrift {
		return
	}
	for _, up := range p.ups() { // a server announces that its tools have changed
		if !c.Concerns(chaos.Server(up.cfg.Name)) {
			continue
		}
		if c.Kind != chaos.Began && c.Hits > 0 {
			up.drift.Store(&drift{c.ID, time.Now().Add(driftBack)})
		}
		for _, in := range up.instances() {
			if conn := in.live(); conn != nil {
				conn.lists.changed(listTable[tools].changed)
			}
		}
	}
}

// forgive ends what a fault has led to, when it is over: what it told of
// credentials and of when to come back was not true, and what it broke works.
func (p *Proxy) forgive(fault string) {
	if p.cfg.LLM != nil {
		p.cfg.LLM.Forgive(fault)
	}
	for _, up := range p.ups() {
		for _, in := range up.instances() {
			in.forgive(fault)
		}
		for _, t := range up.guard.watched() {
			if t.blamed() == fault {
				t.breaker.Reset()
			}
		}
	}
}

// forgive tries the server at once, if it is the fault that has put that off.
func (in *instance) forgive(fault string) {
	if in.blamed() == fault && !in.breaker.Closed() {
		in.prober.Load().Kick()
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.asked == fault {
		in.asked = ""
		select {
		case in.wake <- struct{}{}:
		default: // it is woken already
		}
	}
}

// rest notes the fault that has made the server ask for a rest, if one has.
func (in *instance) rest(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.asked = failing(injectedBy(err))
}

func (p *Proxy) chaosStatus() ChaosStatus {
	return ChaosStatus{p.cfg.Chaos.Enabled(), len(p.cfg.Chaos.List())}
}

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
	up := p.upstream(e.Upstream)
	if up == nil || e.Kind != event.DefinitionChanged && e.Kind != event.CatalogChanged {
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
