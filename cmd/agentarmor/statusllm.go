package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// llmStatus is how the chain of models is doing.
type llmStatus struct {
	Strategy          string                 `json:"strategy"`
	Chain             []string               `json:"chain"` // the providers in their order
	Providers         map[string]modelStatus `json:"providers"`
	Healthy           int                    `json:"healthy"`
	FailoversLastHour int                    `json:"failovers_last_hour"`
	Queued            int                    `json:"queued"`
}

type modelStatus struct {
	State     string         `json:"state"`
	Until     *time.Time     `json:"until"`
	Model     string         `json:"model"`
	Breaker   *breakerStatus `json:"breaker"`
	Window    *windowStatus  `json:"window"`
	Limits    *limitStatus   `json:"limits"`
	LastError string         `json:"last_error"`
}

// limitStatus is what a provider has left until its limits start anew.
type limitStatus struct {
	Requests *int       `json:"requests_remaining"`
	Tokens   *int       `json:"tokens_remaining"`
	ResetAt  *time.Time `json:"reset_at"`
}

// steady returns the status without what changes by itself.
func (s *llmStatus) steady() *llmStatus {
	if s == nil {
		return nil
	}
	out := *s
	out.FailoversLastHour, out.Queued = 0, 0
	out.Providers = map[string]modelStatus{}
	for name, m := range s.Providers {
		m.Until, m.Window, m.Limits, m.Breaker = nil, nil, nil, m.Breaker.steady()
		out.Providers[name] = m
	}
	return &out
}

// names returns the providers in the order in which they are written.
func (s *llmStatus) names() []string {
	if len(s.Chain) > 0 {
		return s.Chain
	}
	return slices.Sorted(maps.Keys(s.Providers))
}

// models adds one line on the chain, a table of its models and a line for each
// that cannot be asked.
func (v *statusView) models(b *strings.Builder, s *llmStatus) {
	if len(s.Providers) == 0 {
		b.WriteString("llm.complete: no model is configured; agentarmor check says what is missing\n")
		return
	}
	fmt.Fprintf(b, "llm.complete: %d of %s can be asked", s.Healthy, count(len(s.Providers), "model"))
	if s.Strategy != "" {
		b.WriteString(", by " + oneLine(s.Strategy))
	}
	fmt.Fprintf(b, "; %s in the last hour", count(s.FailoversLastHour, "failover"))
	if s.Queued > 0 {
		fmt.Fprintf(b, "; %s waiting", count(s.Queued, "call"))
	}
	b.WriteString("\n\n")
	t := newTable("PROVIDER", "STATE", "BREAKER", "CALLS>", "ERRORS>", "P95>", "NEXT ATTEMPT", "LIMITS LEFT", "MODEL")
	var problems []string
	for _, name := range s.names() {
		m := s.Providers[name]
		t.add(v.model(name, &m)...)
		if m.State != "ready" && m.LastError != "" {
			problems = append(problems, painted(v.paint, colourOf(m.State), oneLine(name))+oneLine(" is "+m.State+": "+m.LastError))
		}
	}
	t.write(b, v.paint)
	if len(problems) > 0 {
		b.WriteString("\n" + strings.Join(problems, "\n") + "\n")
	}
}

func (v *statusView) model(name string, m *modelStatus) []cell {
	calls, errors, p95 := m.Window.cells()
	state, next := cmp.Or(m.State, "-"), "-"
	if m.Until != nil {
		next = v.in(*m.Until)
	}
	return []cell{
		{oneLine(name), bold}, {oneLine(state), colourOf(state)}, {m.Breaker.word(), m.Breaker.colour()},
		calls, errors, p95, {next, ""}, {v.left(m.Limits), ""}, {oneLine(cmp.Or(m.Model, "-")), ""},
	}
}

// left tells what a provider's limits have left, "-" if that is not known.
func (v *statusView) left(l *limitStatus) string {
	if l == nil {
		return "-"
	}
	var parts []string
	if l.Requests != nil {
		parts = append(parts, count(*l.Requests, "request"))
	}
	if l.Tokens != nil {
		parts = append(parts, count(*l.Tokens, "token"))
	}
	if len(parts) == 0 {
		return "-"
	}
	text := strings.Join(parts, ", ")
	if l.ResetAt != nil && l.ResetAt.After(v.now) {
		text += " for " + span(l.ResetAt.Sub(v.now))
	}
	return text
}
