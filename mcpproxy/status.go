package mcpproxy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
)

// Status is the document behind agentarmor://status and armor.status.
type Status struct {
	Version   string                    `json:"version"`
	StartedAt time.Time                 `json:"started_at"`
	Chaos     ChaosStatus               `json:"chaos"`
	Summary   Summary                   `json:"summary"`
	Upstreams map[string]UpstreamStatus `json:"upstreams"`
	LLM       *llm.Status               `json:"llm,omitempty"` // left out without a chain
	Alerts    []Alert                   `json:"alerts"`        // that hold or were resolved within the last hour, the newest first
}

// ChaosStatus tells whether what is behind the endpoint can be broken on purpose.
type ChaosStatus struct {
	Enabled bool `json:"enabled"`
	Active  int  `json:"active"` // faults that are injected now
}

// Summary is the status in a few numbers and one sentence.
type Summary struct {
	Upstreams        int    `json:"upstreams"`
	Ready            int    `json:"ready"`
	Tools            int    `json:"tools"`
	ToolsUnavailable int    `json:"tools_unavailable"`
	Text             string `json:"text"`
}

// UpstreamStatus is the state of one upstream.
type UpstreamStatus struct {
	instanceStatus
	Tools       int                     `json:"tools"`
	Prompts     int                     `json:"prompts"`
	Resources   int                     `json:"resources"`
	Breaker     health.BreakerSnapshot  `json:"breaker"`
	Window      windowStatus            `json:"window"`
	Sessions    int                     `json:"sessions"`
	Degraded    map[string]degradedTool `json:"degraded_tools"`
	Quarantined map[string]string       `json:"quarantined"`
}

// windowStatus is what the calls of the last minutes have met.
type windowStatus struct {
	health.WindowSnapshot
	InFlight int `json:"in_flight"`
	Queued   int `json:"queued"`
}

// degradedTool is one tool whose breaker is not closed, by its original name.
type degradedTool struct {
	Name         string                 `json:"name"` // as clients know it
	Breaker      health.BreakerSnapshot `json:"breaker"`
	LastError    string                 `json:"last_error,omitempty"`
	Alternatives []string               `json:"alternatives"`
}

// shortAlerts are so many of the newest alerts.
const shortAlerts = 10

// Short is the part of the status that fits a context window: one line per upstream.
func (s Status) Short() any {
	type line struct {
		State       health.State `json:"state"`
		Reason      string       `json:"reason,omitempty"`
		NextAttempt *time.Time   `json:"next_attempt,omitempty"`
		Tools       int          `json:"tools"`
	}
	type models struct {
		Healthy   int               `json:"healthy"`
		Providers map[string]string `json:"providers"` // their states
	}
	short := struct {
		Chaos     *ChaosStatus    `json:"chaos,omitempty"` // left out while it is off
		Summary   Summary         `json:"summary"`
		Upstreams map[string]line `json:"upstreams"`
		LLM       *models         `json:"llm,omitempty"`
		Alerts    []string        `json:"alerts,omitempty"` // those that hold
	}{Summary: s.Summary, Upstreams: map[string]line{}}
	if s.Chaos.Enabled {
		short.Chaos = &s.Chaos
	}
	for name, u := range s.Upstreams {
		short.Upstreams[name] = line{u.State, u.Reason, u.NextAttempt, u.Tools}
	}
	if s.LLM != nil {
		short.LLM = &models{s.LLM.Healthy, map[string]string{}}
		for name, provider := range s.LLM.Providers {
			short.LLM.Providers[name] = provider.State
		}
	}
	more := 0
	for i := range s.Alerts {
		switch {
		case s.Alerts[i].Resolved != nil:
		case len(short.Alerts) < shortAlerts:
			short.Alerts = append(short.Alerts, s.Alerts[i].Text)
		default:
			more++
		}
	}
	if more > 0 {
		short.Alerts = append(short.Alerts, fmt.Sprintf("%d more: see section alerts", more))
	}
	return short
}

// Status is a snapshot of everything the endpoint knows of its upstreams.
func (p *Proxy) Status() Status {
	s := Status{Version: p.cfg.Version, StartedAt: p.started.UTC(), Upstreams: map[string]UpstreamStatus{}, LLM: p.llmStatus(), Chaos: p.chaosStatus(), Alerts: p.alerts.list()}
	var trouble []string
	for _, up := range p.ups() {
		u := p.statusOf(up)
		s.Upstreams[up.cfg.Name] = u
		s.Summary.Upstreams++
		s.Summary.Tools += u.Tools
		if usable(u.State) {
			s.Summary.Ready++
			kept := up.quarantined()
			s.Summary.ToolsUnavailable += len(kept)
			for name := range u.Degraded {
				if !slices.Contains(kept, name) {
					s.Summary.ToolsUnavailable++
				}
			}
			if u.State == health.Degraded {
				trouble = append(trouble, describe(up.cfg.Name, u))
			}
			if kept != nil {
				trouble = append(trouble, fmt.Sprintf("%s has %s (%s)", up.cfg.Name, count(len(kept), "quarantined tool"), few(kept)))
			}
			continue
		}
		if u.State == health.Disabled {
			continue
		}
		s.Summary.ToolsUnavailable += u.Tools
		trouble = append(trouble, describe(up.cfg.Name, u))
	}
	s.Summary.Text = "every upstream is ready"
	switch {
	case s.Summary.Upstreams == 0:
		s.Summary.Text = "no upstream is configured"
	case len(trouble) > 0:
		s.Summary.Text = fmt.Sprintf("%s; %s unavailable", strings.Join(trouble, "; "), count(s.Summary.ToolsUnavailable, "tool"))
	}
	return s
}

func describe(name string, u UpstreamStatus) string {
	text := name + " is " + string(u.State)
	if u.Reason != "" {
		text += " (" + u.Reason + ")"
	}
	if u.NextAttempt != nil {
		text += ", next attempt " + u.NextAttempt.Format("15:04:05Z")
	}
	return text
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// few joins the first of some names.
func few(names []string) string {
	const most = 3
	short := make([]string, 0, most+1)
	for _, name := range names[:min(len(names), most)] {
		short = append(short, cut(name, maxName))
	}
	if more := len(names) - most; more > 0 {
		short = append(short, fmt.Sprintf("%d more", more))
	}
	return strings.Join(short, ", ")
}

// upstreamStatus is the status of one upstream for its resource.
func (p *Proxy) upstreamStatus(name string) (any, bool) {
	up := p.upstream(name)
	if up == nil {
		return nil, false
	}
	return p.statusOf(up), true
}

func (p *Proxy) statusOf(up *upstream) UpstreamStatus {
	cat := p.cat.Load()
	u := UpstreamStatus{instanceStatus: up.shared.status(), Quarantined: cat.quarantined[up.cfg.Name]}
	if u.Quarantined == nil {
		u.Quarantined = map[string]string{}
	}
	count := func(entries []*entry) (n int) {
		for _, e := range entries {
			if e.upstream == up.cfg.Name {
				n++
			}
		}
		return n
	}
	u.Tools, u.Prompts, u.Resources = count(cat.entries[tools]), count(cat.entries[prompts]), count(cat.entries[resources])
	u.Sessions = len(up.instances())
	u.Breaker = up.shared.breaker.Snapshot()
	if u.Breaker.State == health.BreakerOpen {
		u.Breaker.Until = u.NextAttempt
	}
	u.Window.WindowSnapshot = up.guard.window.Snapshot()
	u.Window.InFlight, u.Window.Queued = up.guard.places.load()
	u.Degraded = p.degraded(up)
	return u
}

// degraded are the tools of an upstream that do not work.
func (p *Proxy) degraded(up *upstream) map[string]degradedTool {
	broken := map[string]degradedTool{}
	for _, t := range up.guard.watched() {
		if t.breaker.Closed() {
			continue
		}
		d := degradedTool{Name: p.exposed(up, t.name), Breaker: t.breaker.Snapshot(), LastError: t.error()}
		d.Alternatives = append([]string{}, p.alternatives(up, t.name)...)
		broken[t.name] = d
	}
	return broken
}

// exposed is how clients know a tool of an upstream.
func (p *Proxy) exposed(up *upstream, original string) string {
	for _, e := range p.cat.Load().entries[tools] {
		if e.upstream == up.cfg.Name && e.original == original {
			return e.exposed
		}
	}
	return original
}
