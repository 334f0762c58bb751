package main

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy"
)

// Defaults that other keys of the same entry are compared with.
const (
	maxCallTime    = 10 * time.Minute
	retryBase      = 200 * time.Millisecond
	retryMax       = 5 * time.Second
	probeEvery     = 30 * time.Second
	breakerOpenFor = 30 * time.Second
	breakerOpenMax = 5 * time.Minute // or open_for, if that is longer
)

// agree checks the values of n, an upstream's entry, that make sense only together.
func (d *decoder) agree(n *node, u *mcpproxy.UpstreamConfig) {
	d.inside(n.get("call_timeout"), u.CallTimeout, u.MaxCallTime)
	d.ordered(n.get("retry"), "base", cmp.Or(u.Retry.Base, retryBase), "max", cmp.Or(u.Retry.Max, retryMax))
	d.breakerTimes(n.get("breaker"), u.Breaker, mcpproxy.BreakerConfig{})
	probe := n.get("probe")
	if at := probe.get("timeout"); at != nil {
		d.ordered(probe, "timeout", u.Probe.Timeout, "every", cmp.Or(u.Probe.Every, probeEvery))
	}
	if u.Probe.Tool == "" {
		for _, key := range []string{"arguments", "expect"} {
			if at := probe.get(key); at != nil && !blankValue(at) {
				d.fail(at, "goes with probe.tool, which names the tool to call")
			}
		}
		u.Probe.Arguments = nil
	}
	settings := n.get("tools").get("settings")
	for name, t := range u.Tools {
		set := settings.get(name)
		d.inside(set.get("call_timeout"), t.CallTimeout, u.MaxCallTime)
		d.breakerTimes(set.get("breaker"), t.Breaker, u.Breaker)
		d.reusable(set, &t, u.DistrustHints)
	}
}

// inside checks that a call_timeout fits into the time of a whole call.
func (d *decoder) inside(n *node, timeout, most time.Duration) {
	if most = cmp.Or(most, maxCallTime); n != nil && timeout > most {
		d.fail(n, "is longer than max_call_time, %v", most)
	}
}

// breakerTimes checks what holds for a breaker with what it takes from another.
func (d *decoder) breakerTimes(n *node, b, from mcpproxy.BreakerConfig) {
	open := cmp.Or(b.OpenFor, from.OpenFor, breakerOpenFor)
	d.ordered(n, "open_for", open, "max_open_for", cmp.Or(b.MaxOpenFor, from.MaxOpenFor, max(breakerOpenMax, open)))
}

// ordered checks that one key of n is not longer than another, given what they
// are with their defaults. It complains about the one that is set.
func (d *decoder) ordered(n *node, low string, is time.Duration, high string, most time.Duration) {
	switch {
	case is <= most:
	case n.get(low) != nil:
		d.fail(n.get(low), "is longer than %s, %v; change one of them", high, most)
	case n.get(high) != nil:
		d.fail(n.get(high), "is shorter than %s, %v; change one of them", low, is)
	}
}

// reusable checks that results are kept only of tools that may be called twice.
func (d *decoder) reusable(n *node, t *mcpproxy.ToolConfig, distrust bool) {
	var why string
	switch {
	case t.Idempotent != nil && !*t.Idempotent:
		why = "a result of a tool with idempotent: false is never used again; leave this out, or say idempotent: true"
	case t.Idempotent == nil && distrust:
		why = "with trust_hints: false this needs idempotent: true"
	default:
		return
	}
	if t.Cache > 0 {
		d.fail(n.get("cache"), "%s", why)
	}
	for i, s := range t.Fallback {
		if s.Cached > 0 {
			d.fail(n.get("fallback").items[i].get("cached"), "%s", why)
		}
	}
}

// targets checks the tools that fallbacks name, which takes all upstreams. One
// that nobody has is a warning: the upstream may come later.
func (d *decoder) targets(root *node, f *document) {
	for i := range f.upstreams {
		u := &f.upstreams[i]
		entry := entryOf(root, u.Name)
		for _, name := range slices.Sorted(maps.Keys(u.Tools)) {
			for i, step := range u.Tools[name].Fallback {
				at := entry.get("tools").get("settings").get(name).get("fallback")
				switch {
				case step.Tool == "":
				case listedAs(u, step.Tool, name):
					d.fail(at.items[i].get("tool"), "is this tool itself; name another one")
				case !slices.ContainsFunc(f.upstreams, func(u mcpproxy.UpstreamConfig) bool { return mayHave(&u, step.Tool) }):
					d.warn(at.items[i].get("tool"), "no server here has such a tool; as clients see it, a name is <server>__<tool>")
				}
			}
		}
	}
}

// entryOf returns what the file says of an upstream.
func entryOf(root *node, name string) *node {
	return cmp.Or(root.get("mcpServers").get(name), root.get("servers").get(name))
}

// samplers warns of upstreams that a chain without a usable model is to answer.
func (d *decoder) samplers(root *node, f *document) {
	if slices.ContainsFunc(f.llm.chain(d.env), func(e llmEntry) bool { return !e.skipped() }) {
		return
	}
	for i := range f.upstreams {
		if u := &f.upstreams[i]; u.Sampling == "chain" && !u.Disabled {
			d.warn(entryOf(root, u.Name).get("sampling"), "no model has a key, so chain is client for now")
		}
	}
}

// listedAs tells whether clients may mean a tool of u by name.
func listedAs(u *mcpproxy.UpstreamConfig, name, tool string) bool {
	prefix := prefixOf(u)
	return name == u.Name+"."+tool || prefix == "" && name == tool || prefix != "" && name == prefix+"__"+tool
}

// mayHave tells whether name may be one of u's tools, going by its prefix.
func mayHave(u *mcpproxy.UpstreamConfig, name string) bool {
	prefix := prefixOf(u)
	return !u.Disabled && (prefix == "" || strings.HasPrefix(name, prefix+"__") || strings.HasPrefix(name, u.Name+"."))
}

// prefixOf is what clients see before the names of u's tools.
func prefixOf(u *mcpproxy.UpstreamConfig) string {
	if u.Prefix != nil {
		return *u.Prefix
	}
	return strings.Map(func(r rune) rune {
		if consists(string(r), letters, "0123456789_-") {
			return r
		}
		return '_'
	}, u.Name)
}
