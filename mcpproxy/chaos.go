package mcpproxy

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/builtin"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// Chaos is injected where the endpoint meets the network: into the providers'
// transport (chaos.Injector.Transport) and into connections to upstreams
// (chaospeer.go); chaosmarks.go marks its part in all that is told.

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
