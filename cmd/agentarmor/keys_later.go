package main

import (
	"encoding/json"
	"math"
	"time"
)

// The keys here are read and checked; nothing acts on them yet.

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
