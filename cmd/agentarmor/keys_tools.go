package main

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/agentarmor/agentarmor/mcpproxy"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// tools reads the filter and the settings of single tools. A list is what
// Copilot writes there: the tools to allow.
func (d *decoder) tools(n *node, u *mcpproxy.UpstreamConfig) {
	if n.kind == kindSequence {
		d.list(&u.Allow, pattern)(n)
		return
	}
	d.object(n, fields{
		"allow": d.list(&u.Allow, pattern),
		"deny":  d.list(&u.Deny, pattern),
		"settings": func(n *node) {
			u.Tools = map[string]mcpproxy.ToolConfig{}
			d.each(n, func(name string, at, val *node) {
				if val.kind != kindNull {
					u.Tools[name] = d.tool(val)
				}
			})
		},
	})
}

func (d *decoder) tool(n *node) (t mcpproxy.ToolConfig) {
	d.object(n, fields{
		"call_timeout": d.duration(&t.CallTimeout, false),
		"idempotent":   pointer(&t.Idempotent, d.flag),
		"cache":        d.duration(&t.Cache, true),
		"breaker":      d.breaker(&t.Breaker),
		"probe":        d.toolProbe(&t.Probe),
		"fallback": func(n *node) {
			d.items(n, func(step *node) { t.Fallback = append(t.Fallback, d.fallback(step)) })
		},
	})
	return t
}

// fallback reads one step of what stands in for a failed call: another tool,
// the last good result, or a fixed one.
func (d *decoder) fallback(n *node) (s mcpproxy.FallbackStep) {
	d.object(n, fields{
		"tool":      d.text(&s.Tool, notEmpty),
		"arguments": d.template(&s.Arguments),
		"cached":    d.duration(&s.Cached, false),
		"result":    d.result(&s.Result),
	})
	kinds := 0
	for _, key := range []string{"tool", "cached", "result"} {
		if n.get(key) != nil {
			kinds++
		}
	}
	args := n.get("arguments")
	switch {
	case n.kind != kindMapping:
	case kinds != 1:
		d.fail(n, "needs exactly one of tool, cached and result")
	case args != nil && n.get("tool") == nil:
		d.fail(args, "goes with tool")
	}
	return s
}

// result reads a fixed result: a text, or any JSON that a tool might answer.
func (d *decoder) result(p *json.RawMessage) setter {
	return func(n *node) {
		if content := n.get("content"); content != nil {
			d.want(content, kindSequence)
		}
		d.raw(p)(n)
	}
}

// template reads arguments whose strings are templates. A problem is told in
// full only where the file shows it, not where the value of a variable does.
func (d *decoder) template(p *json.RawMessage) setter {
	return func(n *node) {
		d.arguments(p)(n)
		n.texts(func(leaf *node) {
			s, problems := expand(leaf.text, d.env)
			if problems != nil || templateProblem(s) == "" {
				return
			}
			why := cmp.Or(templateProblem(leaf.text), "once its variables are filled in")
			d.fail(leaf, "not a template: %s", why)
		})
	}
}

// templateProblem returns what is wrong with one string of a fallback's arguments, or "".
func templateProblem(s string) string {
	err := mcpproxy.CheckTemplate(append(wire.AppendString([]byte(`{"":`), s), '}'))
	if err == nil {
		return ""
	}
	_, why, _ := strings.Cut(err.Error(), "arguments.") // "template: arguments.:1: …"
	return strings.TrimLeft(why, ":0123456789 ")
}
