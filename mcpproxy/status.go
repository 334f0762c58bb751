package mcpproxy

import (
	"fmt"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// Status is the document behind agentarmor://status and armor.status.
type Status struct {
	Version   string                    `json:"version"`
	StartedAt time.Time                 `json:"started_at"`
	Summary   Summary                   `json:"summary"`
	Upstreams map[string]UpstreamStatus `json:"upstreams"`
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
	Tools       int               `json:"tools"`
	Prompts     int               `json:"prompts"`
	Resources   int               `json:"resources"`
	Sessions    int               `json:"sessions"`
	Quarantined map[string]string `json:"quarantined"`
}

// Short is the part of the status that fits a context window: one line per upstream.
func (s Status) Short() any {
	type line struct {
		State       health.State `json:"state"`
		Reason      string       `json:"reason,omitempty"`
		NextAttempt *time.Time   `json:"next_attempt,omitempty"`
		Tools       int          `json:"tools"`
	}
	short := struct {
		Summary   Summary         `json:"summary"`
		Upstreams map[string]line `json:"upstreams"`
	}{s.Summary, map[string]line{}}
	for name, u := range s.Upstreams {
		short.Upstreams[name] = line{u.State, u.Reason, u.NextAttempt, u.Tools}
	}
	return short
}

// Status is a snapshot of everything the endpoint knows of its upstreams.
func (p *Proxy) Status() Status {
	s := Status{Version: p.cfg.Version, StartedAt: p.started.UTC(), Upstreams: map[string]UpstreamStatus{}}
	var trouble []string
	for _, up := range p.ups() {
		u := p.statusOf(up)
		s.Upstreams[up.cfg.Name] = u
		s.Summary.Upstreams++
		s.Summary.Tools += u.Tools
		if u.State == health.Ready || u.State == health.Degraded {
			s.Summary.Ready++
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
		s.Summary.Text = fmt.Sprintf("%s; %d tools unavailable", strings.Join(trouble, "; "), s.Summary.ToolsUnavailable)
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
	return u
}

// observe follows a call that was answered.
func (p *Proxy) observe(k *call, m wire.Message) {
	k.in.tracker.Succeeded()
	if m.Result != nil && k.r.method == "tools/call" {
		p.noteLinks(k, m.Result)
	}
}

// observeFailure publishes a call that was not served.
func (p *Proxy) observeFailure(k *call, class health.Class, reason string) {
	e := event.Event{Kind: event.CallFailed, Upstream: k.up.cfg.Name, To: class.String(), Text: reason}
	if k.r.method == "tools/call" {
		e.Tool = k.name
	}
	p.events.Publish(e)
	p.log.Debug("call not served", "upstream", e.Upstream, "target", k.name, "outcome", e.To, "reason", reason)
}
