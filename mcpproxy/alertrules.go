package mcpproxy

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
)

// meet applies the rules about single events.
func (a *alerts) meet(e event.Event) {
	key := alertKey{Upstream: e.Upstream, Tool: e.Tool, Provider: e.Provider}
	switch e.Kind {
	case event.BreakerChanged, event.LLMBreaker:
		if e.From == string(health.BreakerClosed) && e.To == string(health.BreakerOpen) {
			a.broken(key, e.Text, e.Injected)
			a.another(key, e.Injected)
		}
	case event.UpstreamState:
		if e.To == string(health.CrashLoop) {
			a.crashing(key, e.Text, e.Injected)
		}
		a.down[e.Upstream] = true // perhaps
	case event.DefinitionChanged:
		if e.From != definitionQuarantined {
			a.redefined(key, e.To, e.Injected)
		}
	}
}

// outages raises an alert about each server that has been out of service for a
// while. Its breaker may be closed: nothing is sent to it.
func (a *alerts) outages() {
	for name := range a.down {
		up := a.p.upstream(name)
		if up == nil || !up.away() {
			delete(a.down, name)
		} else if time.Since(up.out()) >= alertEvery {
			delete(a.down, name)
			a.away(up)
		}
	}
}

// away tells whether the server is out of service, other than by a request of its
// own or in a crash loop, which has a rule of its own.
func (up *upstream) away() bool {
	switch up.shared.tracker.Snapshot().State {
	case health.Throttled, health.CrashLoop, health.Disabled:
		return false
	}
	return !up.out().IsZero()
}

// survey raises what is found to hold now, in case its event was missed.
func (a *alerts) survey() {
	for _, up := range a.p.ups() {
		key, injected := alertKey{Upstream: up.cfg.Name}, up.shared.blamed()
		now := up.shared.tracker.Snapshot()
		if now.State == health.CrashLoop {
			a.crashing(key, now.Reason, injected)
		}
		a.down[key.Upstream] = true // perhaps
		if !up.shared.breaker.Closed() {
			a.broken(key, up.shared.secrets.mask(now.LastError), injected)
		}
		for _, t := range up.guard.watched() {
			if key.Tool = t.name; !t.breaker.Closed() {
				a.broken(key, up.shared.secrets.mask(t.error()), t.blamed())
			}
		}
		for _, key.Tool = range up.quarantined() {
			a.redefined(key, definitionQuarantined, a.p.drifting(event.Event{Kind: event.DefinitionChanged, Upstream: key.Upstream}))
		}
	}
	if s := a.p.llmStatus(); s != nil {
		for _, name := range s.Chain {
			if s.Providers[name].Breaker.State != health.BreakerClosed {
				a.broken(alertKey{Provider: name}, "", a.lately(rateTime, name))
			}
		}
	}
}

func (a *alerts) crashing(key alertKey, why, injected string) {
	if key.Rule = ruleCrashLoop; orNil(a.cfg.Rules.CrashLoop, true) {
		a.raise(key, because(key.subject()+" is in a crash loop", why), injected)
	}
}

// redefined does not say how: the new text is what must not be trusted.
func (a *alerts) redefined(key alertKey, what, injected string) {
	if key.Rule = ruleDefinitionChanged; orNil(a.cfg.Rules.DefinitionChanged, true) {
		a.raise(key, fmt.Sprintf("the definition of %s has changed; it is %s", key.subject(), what), injected)
	}
}

func (a *alerts) broken(key alertKey, why, injected string) {
	if key.Rule = ruleBreakerOpen; orNil(a.cfg.Rules.BreakerOpen, true) {
		a.raise(key, because("the breaker of "+key.subject()+" has opened", why), injected)
	}
}

// away goes by the rule about breakers: a server that is away is out of service
// like one whose breaker is open.
func (a *alerts) away(up *upstream) {
	if key := (alertKey{Rule: ruleBreakerOpen, Upstream: up.cfg.Name}); orNil(a.cfg.Rules.BreakerOpen, true) {
		now := up.shared.tracker.Snapshot()
		a.raise(key, because(key.subject()+" is out of service", cmp.Or(now.Reason, now.LastError)), up.shared.blamed())
	}
}

// another counts a breaker that has opened now.
func (a *alerts) another(key alertKey, injected string) {
	limit := orNil(a.cfg.Rules.BreakersIn60s, 2)
	if limit == 0 {
		return
	}
	a.opened[key.subject()] = stroke{time.Now(), injected}
	if names, injected := a.openings(); len(names) > limit {
		a.raise(alertKey{Rule: ruleBreakersIn60s}, fmt.Sprintf("%d breakers have opened within 60 s: %s", len(names), few(names)), injected)
	}
}

// openings are the breakers that have opened within the last minute, and a
// fault that has opened them, if faults have opened them all.
func (a *alerts) openings() (names []string, injected string) {
	maps.DeleteFunc(a.opened, func(_ string, o stroke) bool { return time.Since(o.at) > openings })
	names = sortedKeys(a.opened)
	for _, name := range names {
		if injected = a.opened[name].injected; injected == "" {
			break
		}
	}
	return names, injected
}

// models applies the rules about the state of the chain.
func (a *alerts) models() {
	s := a.p.llmStatus()
	if s == nil || len(s.Chain) == 0 {
		return
	}
	r := &a.cfg.Rules
	if rate, over := a.primary(s); over {
		a.raise(alertKey{Rule: rulePrimaryErrorRate, Provider: s.Chain[0]}, fmt.Sprintf("%.3g %% of the requests to %s fail", 100*rate, s.Chain[0]), a.lately(rateTime, s.Chain[0]))
	}
	if limit := orNil(r.FailoversPerHour, 5); limit > 0 && s.FailoversLastHour > limit {
		a.raise(alertKey{Rule: ruleFailoversPerHour}, fmt.Sprintf("another model than the first one has answered %d times within an hour", s.FailoversLastHour), a.lately(time.Hour, s.Chain...))
	}
	if orNil(r.NoHealthyProvider, true) && s.Healthy == 0 {
		a.raise(alertKey{Rule: ruleNoHealthyProvider}, "no model can be asked: "+cut(statesOf(s), 200), a.lately(rateTime, s.Chain...))
	}
}

// primary is the error rate of the first provider, and whether that is too high.
func (a *alerts) primary(s *llm.Status) (rate float64, over bool) {
	w := s.Providers[s.Chain[0]].Window
	limit := orNil(a.cfg.Rules.PrimaryErrorRate, 0.03)
	return w.ErrorRate, limit > 0 && w.Calls >= rateCalls && w.ErrorRate > limit
}

// hit notes that chaos has hit a request to a provider.
func (a *alerts) hit(provider, fault string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.struck[provider] = stroke{time.Now(), fault}
}

// lately is a fault that has hit one of the providers within the time.
func (a *alerts) lately(within time.Duration, providers ...string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range providers {
		if s, ok := a.struck[name]; ok && time.Since(s.at) <= within {
			return s.injected
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
		names, _ := a.openings()
		return len(names) > orNil(a.cfg.Rules.BreakersIn60s, 2)
	}
	if up := a.p.upstream(key.Upstream); up != nil {
		switch key.Rule {
		case ruleBreakerOpen:
			if key.Tool != "" {
				return !up.guard.tool(key.Tool).breaker.Closed()
			}
			return !up.shared.breaker.Closed() || up.away()
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
		return k.Upstream + "'s tool " + cut(k.Tool, maxName)
	}
	return "the server " + k.Upstream
}

func because(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + cut(why, 200)
}
