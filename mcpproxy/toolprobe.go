package mcpproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// Tools are probed by calling them: with the arguments that the configuration
// gives, regularly, or without any, only while the breaker of a read-only tool
// that needs none is not closed. Nothing else is ever called by itself.

// probeTools probes the tools of the connection, one after the other.
func (in *instance) probeTools(ctx context.Context, c *conn) {
	defer wire.OnPanic()
	if in.up == nil {
		return
	}
	tick := time.NewTicker(min(in.o.cfg.Probe.every(), in.o.cfg.Probe.everyDown()))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, t := range in.up.guard.dueProbes(in) {
			if in.live() != c || ctx.Err() != nil {
				break
			}
			in.probeTool(ctx, c, t)
		}
	}
}

// dueProbes returns the tools to be probed now, by name. With sharing: session
// the instance that only lists probes for all.
func (g *guard) dueProbes(in *instance) (due []*toolGuard) {
	if in != g.up.shared {
		return nil
	}
	for name, cfg := range g.cfg.Tools {
		if cfg.Probe != nil {
			g.tool(name) // is probed before its first call
		}
	}
	for _, t := range g.watched() {
		if t.due(g.cfg.Probe.every()) && g.listed(t.name) && g.probes(t) && !(t.breaker.Closed() && g.underWay(t)) {
			due = append(due, t)
		}
	}
	return due
}

// watched returns the tools known by their calls or probes, by name.
func (g *guard) watched() []*toolGuard {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]*toolGuard, 0, len(g.tools))
	for _, name := range sortedKeys(g.tools) {
		all = append(all, g.tools[name])
	}
	return all
}

// due tells whether a probe is wanted: of a broken tool always, of a working
// one after a while without traffic.
func (t *toolGuard) due(every time.Duration) bool {
	if !t.breaker.Closed() {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cfg.Probe != nil && time.Since(later(t.probed, t.used)) >= every
}

// underWay tells whether a client's call of the tool is under way.
func (g *guard) underWay(t *toolGuard) bool {
	return slices.ContainsFunc(g.up.instances(), func(in *instance) bool {
		conn := in.live()
		return conn != nil && slices.ContainsFunc(conn.routed(), func(k *call) bool { return k.tool == t })
	})
}

// probes tells whether the tool can be called by itself.
func (g *guard) probes(t *toolGuard) bool {
	return g.probesAs(t, g.definition(t.name))
}

func (g *guard) probesAs(t *toolGuard, definition []byte) bool {
	return t.cfg.Probe != nil || !g.cfg.Probe.NoAuto && !g.cfg.DistrustHints && harmless(definition)
}

// probes tells the same of the tool of the call.
func (k *call) probes() bool {
	return k.entry != nil && k.up.guard.probesAs(k.tool, k.entry.raw)
}

// listed tells whether clients are still offered a tool: a definition that is
// not trusted must not get it called by itself either.
func (g *guard) listed(tool string) bool {
	_, suspect := g.up.quarantinedTool(tool)
	return !suspect && g.definition(tool) != nil
}

// harmless tells whether a tool is read-only and needs no arguments.
func harmless(raw []byte) bool {
	if !hinted(raw, "readOnlyHint") {
		return false
	}
	required := wire.Get(wire.Get(raw, "inputSchema"), "required")
	return len(required) == 0 || string(required) == "[]"
}

// definition is the raw definition of a tool as last listed, nil if there is none.
func (g *guard) definition(tool string) []byte {
	g.up.mu.Lock()
	list := g.up.list
	g.up.mu.Unlock()
	if list == nil {
		return nil
	}
	i := slices.IndexFunc(list.Tools, func(raw json.RawMessage) bool {
		name, _ := wire.String(wire.Get(raw, "name"))
		return name == tool
	})
	if i < 0 {
		return nil
	}
	return list.Tools[i]
}

// probeTool makes one synthetic call.
func (in *instance) probeTool(ctx context.Context, c *conn, t *toolGuard) {
	permit, ok := t.breaker.Allow()
	if !ok {
		return
	}
	interval := in.o.cfg.Probe.everyDown()
	if t.breaker.Closed() {
		interval = in.o.cfg.Probe.every()
	}
	ctx, cancel := context.WithTimeout(ctx, min(in.o.cfg.Probe.timeout(), interval))
	defer cancel()
	var probe ToolProbe
	if t.cfg.Probe != nil {
		probe = *t.cfg.Probe
	}
	err := c.synthetic(ctx, t.name, probe.Arguments, probe.Expect)
	v := in.verdictOf(c, err)
	t.mu.Lock()
	t.probed = time.Now()
	if v == health.Failure {
		t.lastError, t.fault = in.secrets.mask(err.Error()), in.blamed()
	}
	t.mu.Unlock()
	permit.Done(v)
}

// verdictOf is what the outcome of a tool's probe says about the tool.
func (in *instance) verdictOf(c *conn, err error) health.Verdict {
	e, ok := errors.AsType[*wire.Error](err)
	switch {
	case err == nil:
		return health.Success
	case ok:
		in.failedOwn(c, e)
		return health.Classify(evidence(e)).Tool(0)
	case in.live() != c:
		return health.Neutral // it is the server that fails
	}
	return health.Failure
}

// brokenTools says which tools do not work, and when the first is tried again.
func (in *instance) brokenTools() (text string, until time.Time) {
	if in.up == nil || in != in.up.shared {
		return "", until
	}
	var broken []string
	for _, t := range in.up.guard.watched() {
		if t.breaker.Closed() {
			continue
		}
		broken = append(broken, fmt.Sprintf("%s does not work (%s)", t.name, cut(t.error(), 80)))
		if at := t.breaker.Until(); !at.IsZero() && (until.IsZero() || at.Before(until)) {
			until = at
		}
	}
	if len(broken) > 3 {
		broken = append(broken[:3], fmt.Sprintf("%d more", len(broken)-3))
	}
	return strings.Join(broken, ", "), until
}

// contentText joins the text of a result.
func contentText(result []byte) string {
	var all []string
	content := wire.Get(result, "content")
	if len(content) == 0 || content[0] != '[' {
		return ""
	}
	for item := range wire.Elements(content) {
		if s, ok := wire.String(wire.Get(item, "text")); ok {
			all = append(all, s)
		}
	}
	return strings.Join(all, "\n")
}

// contains tells whether the text of a result has a part.
func contains(result []byte, part string) bool {
	return part == "" || strings.Contains(contentText(result), part)
}
