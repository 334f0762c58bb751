package mcpproxy

import (
	"errors"
	"fmt"
	"log/slog"

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
	e := event.Event{Kind: event.ChaosInjected, Injected: c.ID, To: string(c.Spec.Fault), Text: c.Spec.Target + ": " + c.Spec.Fault.About()}
	text := "a fault is injected"
	if c.Kind != chaos.Began {
		e.Kind, e.To = event.ChaosCleared, string(c.Kind)
		e.Text = fmt.Sprintf("%s on %s has hit %d of %d calls", c.Spec.Fault, c.Spec.Target, c.Hits, c.Calls)
		text = "an injected fault has ended"
		defer p.forgive(c.ID)
	}
	p.publishAs(e, slog.LevelWarn, text) // and that the status has changed
	p.changes.updated(builtin.ChaosURI)
	if c.Spec.Fault != chaos.SchemaDrift {
		return
	}
	for _, up := range p.ups() { // a server announces that its tools have changed
		if conn := up.shared.live(); conn != nil && c.Concerns(chaos.Server(up.cfg.Name)) {
			conn.lists.changed(listTable[tools].changed)
		}
	}
}

// forgive ends the waits that a fault has asked for: what it told was not true.
// Breakers are left to their probes and trials.
func (p *Proxy) forgive(fault string) {
	if p.cfg.LLM != nil {
		p.cfg.LLM.Forgive(fault)
	}
	for _, up := range p.ups() {
		for _, in := range up.instances() {
			if in.blamed() == fault {
				select {
				case in.wake <- struct{}{}:
				default: // it is woken already
				}
			}
		}
	}
}

func (p *Proxy) chaosStatus() ChaosStatus {
	return ChaosStatus{p.cfg.Chaos.Enabled(), len(p.cfg.Chaos.List())}
}

// drifting is the fault that changes the definitions of an upstream, for an event
// that tells of other ones.
func (p *Proxy) drifting(e event.Event) string {
	if e.Kind != event.DefinitionChanged && e.Kind != event.CatalogChanged {
		return ""
	}
	for _, f := range p.cfg.Chaos.List() {
		if f.Spec.Fault == chaos.SchemaDrift && f.Hits > 0 && f.Concerns(chaos.Server(e.Upstream)) {
			return f.ID
		}
	}
	return ""
}

// blamed is the fault that was injected into what failed last; "" is none. So
// that what follows from a failure is marked as the failure is, and no longer.
func (in *instance) blamed() string {
	if id := in.fault.Load(); id != nil {
		return *id
	}
	return ""
}

// behind is the fault that has led to a state.
func (in *instance) behind(s health.State) string {
	if s == health.Degraded && in.up != nil {
		for _, t := range in.up.guard.watched() {
			if id := t.blamed(); id != "" && !t.breaker.Closed() {
				return id
			}
		}
	}
	return in.blamed()
}

func (t *toolGuard) blamed() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fault
}

// injectedBy is the fault that made an error, "" if none did.
func injectedBy(err error) string {
	if i, ok := errors.AsType[*chaos.Injected](err); ok {
		return i.ID
	}
	return ""
}

// struck notes a fault that has a part in the call; "" is none.
func (k *call) struck(fault string) {
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

// struckUnderWay notes a fault that has hit the request that is under way.
func (k *call) struckUnderWay() {
	if !k.p.cfg.Chaos.Enabled() {
		return
	}
	k.mu.Lock()
	conn, id := k.conn, k.id
	k.mu.Unlock()
	if conn == nil {
		return
	}
	if c, ok := conn.peer.(*chaosPeer); ok {
		if cause := c.fault(id); cause != nil {
			k.struck(cause.ID)
		}
	}
}

func (k *call) injectedFault() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.injected
}
