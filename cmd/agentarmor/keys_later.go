package main

import (
	"encoding/json"
	"math"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy"
)

// The keys here are read and checked; nothing acts on them yet.

func (d *decoder) llm(n *node) {
	var text string
	var span time.Duration
	var count int
	var ratio float64
	var on bool
	d.object(n, fields{
		"strategy": d.oneOf(&text, "priority", "health", "latency", "cost"),
		"timeout":  d.duration(&span, false),
		"attempts": d.whole(&count, 1),
		"backoff": func(n *node) {
			d.object(n, fields{
				"base":   d.duration(&span, false),
				"max":    d.duration(&span, false),
				"jitter": d.number(&ratio, 0, 1),
			})
		},
		"breaker":     d.breaker(new(mcpproxy.BreakerConfig)),
		"hedge_after": d.duration(&span, true),
		"queue": func(n *node) {
			d.object(n, fields{"size": d.whole(&count, 0), "wait": d.duration(&span, true)})
		},
		"degraded_message":             d.text(&text),
		"tool_status_in_system_prompt": d.flag(&on),
		"chain":                        d.chain,
	})
}

func (d *decoder) chain(n *node) {
	names := map[string]bool{}
	d.items(n, func(entry *node) {
		var name, text string
		var span time.Duration
		var count int
		var price float64
		d.object(entry, fields{
			"name":     d.text(&name, notEmpty),
			"provider": d.oneOf(&text, "gemini", "openai"),
			"model":    d.text(&text, notEmpty),
			"api_key":  d.text(&text),
			"base_url": d.text(&text, optional(webURL)),
			"timeout":  d.duration(&span, false),
			"rpm":      d.whole(&count, 0),
			"tpm":      d.whole(&count, 0),
			"price": func(n *node) {
				d.object(n, fields{
					"input":  d.number(&price, 0, math.Inf(1)),
					"output": d.number(&price, 0, math.Inf(1)),
				})
			},
		})
		for _, key := range []string{"name", "provider", "model"} {
			if entry.kind == kindMapping && entry.get(key) == nil {
				d.fail(entry, "needs a %s", key)
			}
		}
		if name != "" && names[name] {
			d.fail(entry.get("name"), "duplicate name")
		}
		names[name] = true
	})
}

func (d *decoder) chaos(n *node) {
	var on bool
	var seed int
	var ttl time.Duration
	d.object(n, fields{
		"enabled":   d.flag(&on),
		"seed":      d.whole(&seed, math.MinInt),
		"max_ttl":   d.duration(&ttl, false),
		"scenarios": d.arguments(new(json.RawMessage)),
	})
}

func (d *decoder) alerts(n *node) {
	var url string
	var on bool
	var count int
	var ratio float64
	d.object(n, fields{
		"webhook": d.text(&url, optional(webURL)),
		"rules": func(n *node) {
			d.object(n, fields{
				"breaker_open":        d.flag(&on),
				"breakers_in_60s":     d.whole(&count, 0),
				"primary_error_rate":  d.number(&ratio, 0, 1),
				"failovers_per_hour":  d.whole(&count, 0),
				"no_healthy_provider": d.flag(&on),
				"crash_loop":          d.flag(&on),
				"definition_changed":  d.flag(&on),
			})
		},
	})
}
