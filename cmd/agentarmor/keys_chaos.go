package main

import (
	"cmp"
	"math"
	"time"

	"github.com/agentarmor/agentarmor/chaos"
)

func (d *decoder) chaos(n *node, o *chaos.Options) {
	var seed int
	d.object(n, fields{
		"enabled":   d.flag(&o.Enabled),
		"seed":      d.whole(&seed, math.MinInt),
		"max_ttl":   d.duration(&o.MaxTTL, false),
		"scenarios": func(n *node) { d.scenarios(n, o) },
	})
	o.Seed = int64(seed)
	d.checkScenarios(n.get("scenarios"), o)
}

// scenarios reads lists of faults by name.
func (d *decoder) scenarios(n *node, o *chaos.Options) {
	o.Scenarios = map[string][]chaos.Spec{}
	d.each(n, func(name string, at, val *node) {
		if val.kind == kindNull || val.kind == kindSequence && len(val.items) == 0 {
			d.fail(at, "needs at least one fault")
			return
		}
		var specs []chaos.Spec
		d.items(val, func(item *node) { specs = append(specs, d.fault(item)) })
		o.Scenarios[name] = specs
	})
}

// fault reads one fault; a ttl may be left out, then whoever starts the scenario gives it.
func (d *decoder) fault(n *node) (s chaos.Spec) {
	seed := 0
	d.object(n, d.faultFields(&s, &seed))
	s.Seed = int64(seed)
	return s
}

func (d *decoder) faultFields(s *chaos.Spec, seed *int) fields {
	lasting := func(p *chaos.Duration) setter { return d.duration((*time.Duration)(p), false) }
	count := func(p *int) setter { return d.ranged(p, 0, maxCount) }
	return fields{
		"target":       d.text(&s.Target, notEmpty),
		"fault":        d.oneOf((*string)(&s.Fault), faultNames()...),
		"probability":  pointer(&s.Probability, func(v *float64) setter { return d.number(v, 0, 1) }),
		"count":        count(&s.Count),
		"after":        count(&s.After),
		"ttl":          lasting(&s.TTL),
		"seed":         d.whole(seed, math.MinInt),
		"status":       d.ranged(&s.Status, 400, 599),
		"retry_after":  lasting(&s.RetryAfter),
		"delay":        lasting(&s.Delay),
		"jitter":       lasting(&s.Jitter),
		"distribution": d.text((*string)(&s.Distribution)),
		"shape":        d.number(&s.Shape, 0, math.Inf(1)),
		"limit":        count(&s.Limit),
		"per":          lasting(&s.Per),
		"up":           lasting(&s.Up),
		"down":         lasting(&s.Down),
		"message":      d.text(&s.Message),
	}
}

func faultNames() (names []string) {
	for _, k := range chaos.Kinds {
		names = append(names, string(k))
	}
	return names
}

// checkScenarios checks each fault as a whole, once max_ttl is known.
func (d *decoder) checkScenarios(n *node, o *chaos.Options) {
	if n == nil || len(d.issues) > 0 {
		return
	}
	limit := cmp.Or(o.MaxTTL, chaos.DefaultMaxTTL)
	for _, m := range n.members {
		for i, s := range o.Scenarios[m.key] {
			s.TTL = cmp.Or(s.TTL, chaos.Duration(limit))
			if err := s.Validate(limit); err != nil {
				d.fail(m.val.items[i], "%v", err)
			}
		}
	}
}
