package main

import (
	"strconv"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy"
)

// Bounds on counts: beyond them is a slip of the pen, not a setting.
const (
	maxConcurrency = 10_000
	maxWaiting     = 100_000
	maxRetries     = 100
	maxCount       = 1_000_000
)

// ratePeriods are what stands after the slash of a rate.
var ratePeriods = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

// rate reads "10/s"; empty means no limit.
func (d *decoder) rate(p *mcpproxy.Rate) setter {
	return func(n *node) {
		s, ok := d.scalar(n)
		if !ok || s == "" {
			return
		}
		count, per, _ := strings.Cut(s, "/")
		calls, err := strconv.ParseFloat(count, 64)
		if err != nil || !consists(count, "", "0123456789.") || calls <= 0 || ratePeriods[per] == 0 {
			d.fail(n, `not a rate; write it like "10/s", "100/m" or "5/h", or "" for no limit`)
			return
		}
		*p = mcpproxy.Rate{Calls: calls, Per: ratePeriods[per]}
	}
}

func (d *decoder) retry(p *mcpproxy.RetryConfig) setter {
	return func(n *node) {
		d.object(n, fields{
			"attempts": pointer(&p.Attempts, func(v *int) setter { return d.ranged(v, 0, maxRetries) }),
			"base":     d.duration(&p.Base, false),
			"max":      d.duration(&p.Max, false),
			"budget":   pointer(&p.Budget, func(v *float64) setter { return d.number(v, 0, 1) }),
		})
	}
}

func (d *decoder) breaker(p *mcpproxy.BreakerConfig) setter {
	return func(n *node) {
		d.object(n, fields{
			"enabled":      pointer(&p.Enabled, d.flag),
			"failures":     d.ranged(&p.Failures, 1, maxCount),
			"failure_rate": d.failureRate(&p.FailureRate, "; to switch the breaker off write enabled: false"),
			"min_calls":    d.ranged(&p.MinCalls, 1, maxCount),
			"window":       d.duration(&p.Window, false),
			"open_for":     d.duration(&p.OpenFor, false),
			"max_open_for": d.duration(&p.MaxOpenFor, false),
			"successes":    d.ranged(&p.Successes, 1, maxCount),
		})
	}
}

// failureRate reads a share of calls. Zero would open on calls that succeed;
// instead says what to write for that.
func (d *decoder) failureRate(p *float64, instead string) setter {
	return func(n *node) {
		share := 1.0
		d.number(&share, 0, 1)(n)
		if share == 0 {
			d.fail(n, "must be more than 0%s", instead)
			return
		}
		*p = share
	}
}

func (d *decoder) probe(p *mcpproxy.ProbeConfig) setter {
	return func(n *node) {
		d.object(n, fields{
			"every":      d.duration(&p.Every, false),
			"every_down": d.duration(&p.EveryDown, false),
			"timeout":    d.duration(&p.Timeout, false),
			"misses":     d.ranged(&p.Misses, 1, maxCount),
			"tool":       d.text(&p.Tool),
			"arguments":  d.arguments(&p.Arguments),
			"expect":     d.text(&p.Expect),
			"auto":       d.unless(&p.NoAuto),
		})
	}
}

// toolProbe reads the synthetic call of one tool; that the key is there asks for it.
func (d *decoder) toolProbe(p **mcpproxy.ToolProbe) setter {
	return func(n *node) {
		*p = &mcpproxy.ToolProbe{Arguments: []byte("{}")}
		d.object(n, fields{
			"arguments": d.arguments(&(*p).Arguments),
			"expect":    d.text(&(*p).Expect),
		})
	}
}
