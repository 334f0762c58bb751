package mcpproxy

import (
	"encoding/json"
	"time"

	"github.com/agentarmor/agentarmor/health"
)

// missing is what a list tells of an upstream whose part of it cannot be used,
// or is not there.
type missing struct {
	State       health.State `json:"state"`
	Reason      string       `json:"reason,omitempty"`
	Since       time.Time    `json:"since"`
	NextAttempt *time.Time   `json:"next_attempt,omitempty"`
	Tools       int          `json:"tools,omitempty"` // as far as known
}

// missing returns the enabled upstreams that do not work, by name.
func (p *Proxy) missing() map[string]missing {
	var out map[string]missing
	for _, up := range p.enabled() {
		s := up.shared.tracker.Snapshot()
		if usable(s.State) {
			continue
		}
		m := missing{s.State, s.Reason, s.Since.Truncate(time.Second), inSeconds(s.NextAttempt), 0}
		for _, e := range p.cat.Load().entries[tools] {
			if e.upstream == up.cfg.Name {
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
func (p *Proxy) withMissing(list []byte) []byte {
	missing := p.missing()
	if missing == nil {
		return list
	}
	raw, _ := json.Marshal(missing) // strings, numbers and times always encode
	out := make([]byte, 0, len(list)+len(raw)+40)
	out = append(out, list[:len(list)-1]...)
	out = append(append(out, `,"_meta":{"agentarmor/upstreams":`...), raw...)
	return append(out, `}}`...)
}
