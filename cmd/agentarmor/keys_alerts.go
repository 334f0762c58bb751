package main

import "github.com/agentarmor/agentarmor/mcpproxy"

func (d *decoder) alerts(n *node, c *mcpproxy.AlertConfig) {
	r := &c.Rules
	count := func(v *int) setter { return d.ranged(v, 0, maxCount) }
	d.object(n, fields{
		"webhook": d.text(&c.Webhook, optional(webURL)),
		"rules": func(n *node) {
			d.object(n, fields{
				"breaker_open":        pointer(&r.BreakerOpen, d.flag),
				"breakers_in_60s":     pointer(&r.BreakersIn60s, count),
				"primary_error_rate":  pointer(&r.PrimaryErrorRate, func(v *float64) setter { return d.number(v, 0, 1) }),
				"failovers_per_hour":  pointer(&r.FailoversPerHour, count),
				"no_healthy_provider": pointer(&r.NoHealthyProvider, d.flag),
				"crash_loop":          pointer(&r.CrashLoop, d.flag),
				"definition_changed":  pointer(&r.DefinitionChanged, d.flag),
			})
		},
	})
}
