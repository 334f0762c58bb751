package mcpproxy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
)

// meet applies the rules about single events.
func (a *alerts) meet(e event.Event) {
	r := &a.cfg.Rules
	key := alertKey{Upstream: e.Upstream, Tool: e.Tool, Provider: e.Provider}
	switch e.Kind {
	case event.BreakerChanged, event.LLMBreaker:
		if e.From == string(health.BreakerClosed) && e.To == string(health.BreakerOpen) {
			a.breaker(key, e)
		}
		a.models()
	case event.UpstreamState:
		if e.To == string(health.CrashLoop) && orNil(r.CrashLoop, true) {
			key.Rule = ruleCrashLoop
			a.raise(key, because(e.Upstream+" ends again and again right after its start", e.Text), e.Injected)
		}
	case event.DefinitionChanged:
		if orNil(r.DefinitionChanged, true) && e.From != definitionQuarantined {
			key.Rule = ruleDefinitionChanged
			// Not how: the new text is what must not be trusted.
			a.raise(key, fmt.Sprintf("the definition of %s has changed; it is %s", key.subject(), e.To), e.Injected)
		}
	}
}

// breaker takes a breaker that has opened.
func (a *alerts) breaker(key alertKey, e event.Event) {
	now := time.Now()
	a.opened = append(a.opened, opening{now, key.subject()})
	if orNil(a.cfg.Rules.BreakerOpen, true) {
		key.Rule = ruleBreakerOpen
		a.raise(key, because("the breaker of "+key.subject()+" has opened", e.Text), e.Injected)
	}
	if limit := orNil(a.cfg.Rules.BreakersIn60s, 2); limit > 0 {
		if names := a.openings(now); len(names) > limit {
			a.raise(alertKey{Rule: ruleBreakersIn60s}, fmt.Sprintf("%d breakers have opened within 60 s: %s", len(names), cut(strings.Join(names, ", "), 200)), e.Injected)
		}
	}
}

// openings are the breakers that have opened within the last minute.
func (a *alerts) openings(now time.Time) []string {
	a.opened = slices.DeleteFunc(a.opened, func(o opening) bool { return now.Sub(o.at) > openings })
	var names []string
	for _, o := range a.opened {
		names = append(names, o.what)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// models applies the rules about the state of the chain.
func (a *alerts) models() {
	s := a.p.llmStatus()
	if s == nil || len(s.Chain) == 0 {
		return
	}
	r, injected := &a.cfg.Rules, a.p.brokenModel(s.Chain)
	if rate, over := a.primary(s); over {
		a.raise(alertKey{Rule: rulePrimaryErrorRate, Provider: s.Chain[0]}, fmt.Sprintf("%.3g %% of the requests to %s fail", 100*rate, s.Chain[0]), a.p.brokenProvider(s.Chain[0]))
	}
	if limit := orNil(r.FailoversPerHour, 5); limit > 0 && s.FailoversLastHour > limit {
		a.raise(alertKey{Rule: ruleFailoversPerHour}, fmt.Sprintf("another model than the first one has answered %d times within an hour", s.FailoversLastHour), injected)
	}
	if orNil(r.NoHealthyProvider, true) && s.Healthy == 0 {
		a.raise(alertKey{Rule: ruleNoHealthyProvider}, "no model can be asked: "+cut(statesOf(s), 200), injected)
	}
}

// primary is the error rate of the first provider, and whether that is too high.
func (a *alerts) primary(s *llm.Status) (rate float64, over bool) {
	w := s.Providers[s.Chain[0]].Window
	limit := orNil(a.cfg.Rules.PrimaryErrorRate, 0.03)
	return w.ErrorRate, limit > 0 && w.Calls >= rateCalls && w.ErrorRate > limit
}

// brokenModel is an active fault that has hit one of the providers, "" if none has.
func (p *Proxy) brokenModel(chain []string) string {
	for _, name := range chain {
		if id := p.brokenProvider(name); id != "" {
			return id
		}
	}
	return ""
}

func statesOf(s *llm.Status) string {
	var parts []string
	for _, name := range s.Chain {
		parts = append(parts, name+" is "+s.Providers[name].State)
	}
	return strings.Join(parts, ", ")
}

// holds reads from the state of things whether a condition holds.
func (a *alerts) holds(key alertKey) bool {
	if key.Rule == ruleBreakersIn60s {
		return len(a.openings(time.Now())) > orNil(a.cfg.Rules.BreakersIn60s, 2)
	}
	if up := a.p.upstream(key.Upstream); up != nil {
		switch key.Rule {
		case ruleBreakerOpen:
			if key.Tool != "" {
				return !up.guard.tool(key.Tool).breaker.Closed()
			}
			return !up.shared.breaker.Closed()
		case ruleCrashLoop:
			state := up.shared.tracker.Snapshot().State
			return !usable(state) && state != health.Disabled
		case ruleDefinitionChanged:
			_, yes := up.quarantinedTool(key.Tool)
			return yes
		}
	}
	s := a.p.llmStatus()
	if s == nil || key.Upstream != "" {
		return false
	}
	switch key.Rule {
	case ruleBreakerOpen:
		return s.Providers[key.Provider].Breaker.State != health.BreakerClosed
	case rulePrimaryErrorRate:
		_, over := a.primary(s)
		return over
	case ruleFailoversPerHour:
		return s.FailoversLastHour > orNil(a.cfg.Rules.FailoversPerHour, 5)
	case ruleNoHealthyProvider:
		return s.Healthy == 0
	}
	return false
}

// subject names what an alert is about.
func (k alertKey) subject() string {
	switch {
	case k.Provider != "":
		return "the provider " + k.Provider
	case k.Tool != "":
		return k.Upstream + "'s tool " + k.Tool
	}
	return "the server " + k.Upstream
}

func because(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + cut(why, 200)
}
