package mcpproxy

import (
	"encoding/json"
	"maps"
	"time"

	"github.com/agentarmor/agentarmor/health"
)

// missing is what a list tells of an upstream whose part of it cannot be used,
// or is not there, or not all of it.
type missing struct {
	State       health.State `json:"state"`
	Reason      string       `json:"reason,omitempty"`
	Since       time.Time    `json:"since"`
	NextAttempt *time.Time   `json:"next_attempt,omitempty"`
	Tools       int          `json:"tools,omitempty"`       // as far as known; 0 of one that works
	Quarantined []string     `json:"quarantined,omitempty"` // tools that are left out of the list, by original name
}

// missing returns the enabled upstreams that do not work or keep tools back, by name.
func (p *Proxy) missing() map[string]missing {
	var out map[string]missing
	for _, up := range p.enabled() {
		s := up.shared.tracker.Snapshot()
		kept := up.quarantined()
		if usable(s.State) && kept == nil {
			continue
		}
		since := s.Since
		if out := up.out(); !out.IsZero() {
			since = out
		}
		m := missing{s.State, s.Reason, since.Truncate(time.Second), inSeconds(s.NextAttempt), 0, kept}
		for _, e := range p.cat.Load().entries[tools] {
			if e.upstream == up.cfg.Name && !usable(s.State) {
				m.Tools++
			}
		}
		if out == nil {
			out = map[string]missing{}
		}
		out[up.cfg.Name] = m
	}
	return out
}

// withMissing adds what is missing to the result of a list, which stays as it
// is while nothing is.
func (p *Proxy) withMissing(kind listKind, list []byte) []byte {
	out := p.missing()
	if kind != tools { // of which alone some may be quarantined
		maps.DeleteFunc(out, func(_ string, m missing) bool { return usable(m.State) })
	}
	if len(out) == 0 {
		return list
	}
	raw, _ := json.Marshal(out) // strings, numbers and times always encode
	told := make([]byte, 0, len(list)+len(raw)+40)
	told = append(told, list[:len(list)-1]...)
	told = append(append(told, `,"_meta":{"agentarmor/upstreams":`...), raw...)
	return append(told, `}}`...)
}
