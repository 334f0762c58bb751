package mcpproxy

import (
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
	"github.com/agentarmor/agentarmor/mcpproxy/telemetry"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// Keys of W3C Trace Context in _meta (2026-07-28, basic/index, "Reserved keys").
const (
	traceParent = "traceparent"
	traceState  = "tracestate"
)

// trace begins the call's span, if traces are on.
func (k *call) trace() {
	t := k.p.cfg.Tracer
	if t == nil {
		return
	}
	parent, state := k.r.traceContext()
	k.span = t.Start(parent, state, k.r.method, k.up.cfg.Name, k.name)
}

// traceContext is the caller's span.
func (r *request) traceContext() (parent, state string) {
	if len(r.meta) > 0 && r.meta[0] == '{' {
		parent, _ = wire.String(wire.Get(r.meta, traceParent))
		state, _ = wire.String(wire.Get(r.meta, traceState))
	}
	return parent, state
}

// traced are the edits that put an attempt's span in place of the caller's.
func (k *call) traced(edits []wire.Edit) []wire.Edit {
	if k.attempt == nil {
		return edits
	}
	parent, state := k.attempt.Context()
	edits = append(edits, wire.Edit{Key: traceParent, Value: wire.AppendString(nil, parent)})
	if state != "" {
		return append(edits, wire.Edit{Key: traceState, Value: wire.AppendString(nil, state)})
	}
	return append(edits, wire.Edit{Key: traceState})
}

// ended counts a call, once, with what its client is told.
func (k *call) ended(a account) {
	counter := k.up.guard.others
	if k.tool != nil {
		counter = k.tool.metrics
	}
	counter.Observe(a.outcome, a.injected != "", time.Since(k.start))
	k.span.End(a.outcome, a.executed, a.reason)
}

// observe follows a call that was answered.
func (p *Proxy) observe(k *call, m wire.Message) {
	k.in.tracker.Succeeded()
	if m.Result != nil && k.r.method == "tools/call" {
		p.noteLinks(k, m.Result)
	}
}

// observeFailure publishes a call that was not served.
func (p *Proxy) observeFailure(k *call, class health.Class, reason string) {
	e := event.Event{Kind: event.CallFailed, Upstream: k.up.cfg.Name, To: class.String(), Text: reason, Injected: k.injectedFault()}
	if k.r.method == "tools/call" {
		e.Tool = k.name
	}
	p.publish(e)
}

// breakerChanged tells of a breaker's transition; tool "" is the server's.
func (p *Proxy) breakerChanged(up *upstream, tool string, from health.BreakerState, now health.BreakerSnapshot) {
	plane, text, injected := "server", "", up.shared.blamed()
	if tool != "" {
		guard := up.guard.tool(tool)
		guard.changed(from)
		plane = "tool"
		if now.State == health.BreakerOpen {
			text = guard.error()
		}
		injected = guard.blamed()
		up.shared.reconsider()
	} else if now.State == health.BreakerOpen {
		text = up.shared.tracker.Snapshot().LastError
	}
	p.metrics.Transition(up.cfg.Name, tool, plane+" breaker", string(now.State), injected != "")
	p.publish(event.Event{
		Kind: event.BreakerChanged, Upstream: up.cfg.Name, Tool: tool,
		From: string(from), To: string(now.State), Text: text, NextAttempt: now.Until, Injected: injected,
	})
}

// gauges is the present state for the metrics.
func (p *Proxy) gauges() telemetry.Gauges {
	out := telemetry.Gauges{Sessions: len(p.allClients()), LLM: p.llmGauges()}
	for _, up := range p.ups() {
		s := up.shared.tracker.Snapshot()
		g := telemetry.UpstreamGauges{
			Name: up.cfg.Name, State: string(s.State), Breaker: string(up.shared.breaker.Snapshot().State),
			Tools: map[string]string{}, Restarts: s.Restarts, Instances: len(up.instances()),
		}
		g.InFlight, g.Queued = up.guard.places.load()
		for _, t := range up.guard.watched() {
			g.Tools[t.name] = string(t.breaker.Snapshot().State)
		}
		out.Upstreams = append(out.Upstreams, g)
	}
	return out
}
