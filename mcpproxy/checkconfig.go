package mcpproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// Warning is a setting of an upstream that will not do what it is there for,
// as its running server shows.
type Warning struct {
	Setting string `json:"setting"` // "tools.settings.find.cache"
	Problem string `json:"problem"`
}

// configCheck compares the configuration of one upstream with what its server
// and the others list.
type configCheck struct {
	up     *upstream
	cat    *catalog
	listed map[string][]byte // definitions by original name
	found  []Warning
}

// checkConfigs returns the warnings about each upstream whose list is known, in
// config order. It makes the calls that the configuration wants as probes once,
// as far as they are harmless.
func (p *Proxy) checkConfigs(ctx context.Context, cat *catalog) [][]Warning {
	ups := p.ups()
	found := make([][]Warning, len(ups))
	var wg sync.WaitGroup
	for i, up := range ups {
		if !up.listed() {
			continue
		}
		up.mu.Lock()
		c := &configCheck{up: up, cat: cat, listed: map[string][]byte{}}
		for name, raw := range definitions(up.list.Tools) {
			c.listed[name] = raw
		}
		up.mu.Unlock()
		wg.Go(func() {
			defer wire.OnPanic()
			c.settings()
			c.probes(ctx)
			found[i] = c.found
		})
	}
	wg.Wait()
	return found
}

func (c *configCheck) warn(setting, format string, args ...any) {
	c.found = append(c.found, Warning{setting, fmt.Sprintf(format, args...)})
}

// settings checks those of single tools.
func (c *configCheck) settings() {
	filter := source{allow: c.up.cfg.Allow, deny: c.up.cfg.Deny}
	for _, name := range slices.Sorted(maps.Keys(c.up.cfg.Tools)) {
		at, t := "tools.settings."+name, c.up.cfg.Tools[name]
		switch {
		case c.listed[name] == nil:
			c.warn(at, "the server lists no such tool")
			continue
		case !filter.allowed(name):
			c.warn(at, "clients do not see this tool: tools.allow and tools.deny leave it out")
			continue
		}
		const unused = "no result is used again: the tool has neither readOnlyHint nor idempotentHint; say idempotent: true if calling it twice does no harm"
		if t.Cache > 0 && !c.idempotent(name) {
			c.warn(at+".cache", unused)
		}
		for i, step := range t.Fallback {
			at := fmt.Sprintf("%s.fallback[%d]", at, i)
			if step.Cached > 0 && !c.idempotent(name) {
				c.warn(at+".cached", unused)
			}
			if step.Tool != "" {
				c.fallback(at+".tool", name, step.Tool)
			}
		}
	}
}

// fallback checks the tool that stands in for another one.
func (c *configCheck) fallback(at, name, instead string) {
	e, err := c.cat.tool(instead)
	wrong, ok := errors.AsType[*nameError](err)
	switch {
	case ok && wrong.ambiguous:
		c.warn(at, "left out: %s", wrong)
	case err != nil && c.up.p.knowsAll():
		c.warn(at, "left out: no server lists %s", instead)
	case err != nil: // a server that did not start may have it
	case e.upstream == "" || e.upstream == c.up.cfg.Name && e.original == name:
		c.warn(at, "left out: %s cannot stand in", instead)
	case c.readOnly(name) && !hinted(e.raw, "readOnlyHint"):
		c.warn(at, "%s is not read-only, unlike the tool it stands in for: a question may become a change", instead)
	}
}

// probes checks what the configuration wants called again and again, and
// calls it once.
func (c *configCheck) probes(ctx context.Context) {
	type probe struct {
		at, tool string
		ToolProbe
	}
	var all []probe
	if p := c.up.cfg.Probe; p.Tool != "" {
		all = append(all, probe{"probe.tool", p.Tool, ToolProbe{p.Arguments, p.Expect}})
	}
	for _, name := range slices.Sorted(maps.Keys(c.up.cfg.Tools)) {
		if p := c.up.cfg.Tools[name].Probe; p != nil && c.listed[name] != nil {
			all = append(all, probe{"tools.settings." + name + ".probe", name, *p})
		}
	}
	said := make([]string, len(all))
	var wg sync.WaitGroup
	for i, p := range all {
		_, suspect := c.up.quarantinedTool(p.tool)
		switch {
		case c.listed[p.tool] == nil:
			said[i] = "the server lists no tool " + p.tool
		case suspect:
			said[i] = "not tried: the tool is quarantined"
		case !c.harmless(p.tool):
			said[i] = p.tool + " is called again and again, but it is not read-only by its hints, nor is it idempotent: true here; not tried"
		default:
			wg.Go(func() {
				defer wire.OnPanic()
				said[i] = c.up.shared.tryProbe(ctx, p.tool, p.ToolProbe)
			})
		}
	}
	wg.Wait()
	for i, p := range all {
		if said[i] != "" {
			c.warn(p.at, "%s", said[i])
		}
	}
}

// tryProbe makes a probe once and returns what is wrong with it.
func (in *instance) tryProbe(ctx context.Context, tool string, probe ToolProbe) string {
	conn := in.live()
	if conn == nil {
		return "not tried: the server is gone"
	}
	ctx, cancel := context.WithTimeout(ctx, in.o.cfg.Probe.timeout())
	defer cancel()
	if err := conn.synthetic(ctx, tool, probe.Arguments, probe.Expect); err != nil {
		return in.secrets.mask(err.Error())
	}
	return ""
}

// readOnly tells whether a tool is, by hints that are trusted.
func (c *configCheck) readOnly(name string) bool {
	return !c.up.cfg.DistrustHints && hinted(c.listed[name], "readOnlyHint")
}

// idempotent tells whether a tool may be called twice.
func (c *configCheck) idempotent(name string) bool { return c.up.cfg.idempotent(name, c.listed[name]) }

// harmless tells whether a tool may be called unasked.
func (c *configCheck) harmless(name string) bool {
	return c.readOnly(name) || orNil(c.up.cfg.Tools[name].Idempotent, false)
}
