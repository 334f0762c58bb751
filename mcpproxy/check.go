package mcpproxy

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"sync"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// CheckReport is what one start of every upstream has shown.
type CheckReport struct {
	Upstreams []UpstreamCheck `json:"upstreams"` // in config order
	Tools     int             `json:"tools"`     // listed to clients, our own included
	OwnTools  int             `json:"own_tools"`
	Exceeded  []ToolLimit     `json:"exceeded"` // clients that take fewer tools than that
}

// UpstreamCheck is one upstream of a CheckReport. Counts are of what clients
// would see: filtered tools and quarantined entries are not among them.
type UpstreamCheck struct {
	Name      string          `json:"name"`
	State     health.State    `json:"state"`
	Reason    string          `json:"reason,omitempty"`
	Transport string          `json:"transport"`
	Protocol  string          `json:"protocol,omitempty"` // the revision negotiated
	Era       string          `json:"era,omitempty"`      // legacy or modern
	Server    json.RawMessage `json:"server,omitempty"`
	ReadyMS   int64           `json:"ready_ms"` // from the start to the complete list

	Tools     int `json:"tools"`
	Prompts   int `json:"prompts"`
	Resources int `json:"resources"`
	Templates int `json:"templates"`

	Renamed     []Renamed         `json:"renamed"`            // beyond the prefix
	Quarantined map[string]string `json:"quarantined"`        // what is not listed, with the reason
	Changed     map[string]string `json:"changed,omitempty"`  // tools whose definition is not the known one, with the difference
	Accepted    map[string]string `json:"accepted,omitempty"` // the same tools with Config.Accept, which makes it the known one
	Findings    []Finding         `json:"findings"`           // of Lint
	Warnings    []Warning         `json:"warnings"`           // about its configuration
	Stderr      []string          `json:"stderr,omitempty"`
}

// Renamed is a tool or prompt that clients see under another name.
type Renamed struct {
	Original string `json:"original"`
	Exposed  string `json:"exposed"`
}

// OK tells whether the upstream works, or is switched off on purpose.
func (u *UpstreamCheck) OK() bool {
	return u.State == health.Ready || u.State == health.Disabled
}

// OK tells whether all upstreams do.
func (r *CheckReport) OK() bool {
	for i := range r.Upstreams {
		if !r.Upstreams[i].OK() {
			return false
		}
	}
	return true
}

// checkEvery is how often Check looks whether an upstream has settled.
const checkEvery = 5 * time.Millisecond

// listGrace is how long Check waits for the lists of an upstream that is ready.
const listGrace = 10 * time.Second

// Check starts all upstreams, in parallel and instead of [Proxy.Start], waits
// until each is ready or has failed once, and reports. An upstream that has
// done neither when ctx ends is reported as it is then. The caller closes p.
func (p *Proxy) Check(ctx context.Context) CheckReport {
	begin := time.Now()
	p.Start(ctx)
	ups := p.ups()
	took := make([]time.Duration, len(ups))
	var wg sync.WaitGroup
	for i, up := range ups {
		wg.Go(func() {
			defer wire.OnPanic()
			up.settled(ctx)
			took[i] = time.Since(begin)
		})
	}
	wg.Wait()
	p.rebuild()
	cat := p.cat.Load()
	warnings := p.checkConfigs(ctx, cat)
	r := CheckReport{Upstreams: make([]UpstreamCheck, len(ups)), Exceeded: []ToolLimit{}}
	for _, e := range cat.entries[tools] {
		if !e.hidden {
			r.Tools++
		}
		if e.upstream == "" {
			r.OwnTools++
		}
	}
	for i, up := range ups {
		r.Upstreams[i] = up.check(cat, took[i])
		r.Upstreams[i].Warnings = append(r.Upstreams[i].Warnings, warnings[i]...)
	}
	for _, l := range ClientToolLimits {
		if r.Tools > l.Tools {
			r.Exceeded = append(r.Exceeded, l)
		}
	}
	return r
}

// settled waits for the outcome of the first start.
func (up *upstream) settled(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	var ready time.Time
	for ctx.Err() == nil {
		switch up.shared.tracker.Snapshot().State {
		case health.Starting:
		case health.Ready, health.Degraded:
			if ready.IsZero() {
				ready = time.Now()
			}
			if up.listed() || time.Since(ready) > listGrace {
				return
			}
		default:
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// listed tells whether the list of the running server is known and remembered.
func (up *upstream) listed() bool {
	up.mu.Lock()
	defer up.mu.Unlock()
	return up.live && up.saved
}

// check describes the upstream as cat lists it.
func (up *upstream) check(cat *catalog, took time.Duration) UpstreamCheck {
	s := up.shared.status()
	src := up.source()
	u := UpstreamCheck{
		Name: up.cfg.Name, State: s.State, Reason: s.Reason,
		Transport: s.Transport, Protocol: s.Protocol, Era: eraOf(s.Protocol), Server: s.Server,
		Renamed: []Renamed{}, Findings: []Finding{}, Warnings: []Warning{}, Quarantined: map[string]string{},
	}
	maps.Copy(u.Quarantined, cat.quarantined[up.cfg.Name])
	up.checkPins(&u)
	if !u.OK() {
		u.Stderr = s.Stderr
		return u
	}
	if u.State == health.Ready {
		u.ReadyMS = took.Milliseconds()
	}
	var listed []json.RawMessage
	for kind, count := range [kinds]*int{tools: &u.Tools, prompts: &u.Prompts, resources: &u.Resources, templates: &u.Templates} {
		for _, e := range cat.entries[kind] {
			if e.upstream != up.cfg.Name || e.hidden {
				continue
			}
			*count++
			if e.kind == tools {
				listed = append(listed, e.listed)
			}
			if (e.kind == tools || e.kind == prompts) && e.exposed != expected(src.prefix, e.original) {
				u.Renamed = append(u.Renamed, Renamed{e.original, e.exposed})
			}
		}
	}
	u.Findings = append(u.Findings, Lint(listed)...)
	return u
}

// checkPins adds the definitions that are not the known ones.
func (up *upstream) checkPins(u *UpstreamCheck) {
	up.mu.Lock()
	defer up.mu.Unlock()
	err := cmp.Or(up.p.forgets, up.unsaved)
	if err != nil {
		u.Warnings = append(u.Warnings, Warning{"state_dir", "what it offers is not remembered: " + up.pins.mask(err.Error())})
	}
	differ := maps.Clone(up.pins.differ)
	switch {
	case len(differ) == 0:
	case up.pins.mode == pinsAccept && (err == nil || err == errSaysSecret):
		u.Accepted = differ
	default:
		u.Changed = differ
	}
}

// expected is the exposed name of an original that needs no change.
func expected(prefix, original string) string {
	if prefix == "" {
		return original
	}
	return clean(prefix) + nameSeparator + original
}

// eraOf names the protocol generation of a revision.
func eraOf(revision string) string {
	switch revision {
	case "":
		return ""
	case wire.Modern:
		return "modern"
	}
	return "legacy"
}
