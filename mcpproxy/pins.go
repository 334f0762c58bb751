package mcpproxy

import (
	"bytes"
	"encoding/json"
	"maps"

	"github.com/agentarmor/agentarmor/mcpproxy/event"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// pins holds an upstream to the definitions of its tools that were seen first:
// a server that describes a known tool anew may want something else of the
// agent than what its user has agreed to. The lock of the upstream guards it.
//
// First sight outlives this process, and tools that are gone for a while are not
// forgotten: see [memory]. What on_change says decides about a definition that is
// another one: allow takes it, warn takes it and tells, quarantine keeps the
// tool from clients until agentarmor check --accept has accepted it, which is
// noticed when the tools are listed or the tool is called. Without --accept,
// agentarmor check leaves what is known as it is, so that an endpoint still tells.
type pins struct {
	cfg      *UpstreamConfig
	mode     pinMode
	mask     func(string) string        // of what differences repeat
	known    map[string]json.RawMessage // by original name
	suspects map[string]suspect
	differ   map[string]string // for agentarmor check: the differences, by original name
}

// pinMode is what becomes of definitions that are other ones than those known.
type pinMode int

const (
	pinsServe  pinMode = iota // as on_change says
	pinsLook                  // they are reported; on_change: allow takes them
	pinsAccept                // all are taken, and reported
)

// suspect is a tool that is kept from clients.
type suspect struct {
	raw    json.RawMessage
	reason string
	told   bool
}

const (
	definitionAccepted    = "accepted"
	definitionQuarantined = "quarantined"
	// maxPins bounds the tools that are known of one upstream; the first count.
	maxPins = 5000
)

// definitions are the tools of a listing by name; of those of one name the
// first, as in the catalog.
func definitions(raws []json.RawMessage) map[string]json.RawMessage {
	found := make(map[string]json.RawMessage, len(raws))
	for _, raw := range raws {
		if e, err := newEntry(tools, "", raw); err == nil && found[e.original] == nil {
			found[e.original] = raw
		}
	}
	return found
}

// newPins prepares the pins of an upstream that starts. What is suspect of the
// remembered list is kept from clients before the server has said it again.
func newPins(cfg *UpstreamConfig, mode pinMode, known map[string]json.RawMessage, l *listing) pins {
	p := pins{cfg: cfg, mode: mode, mask: secretsOf(cfg).mask, known: map[string]json.RawMessage{}, suspects: map[string]suspect{}, differ: map[string]string{}}
	p.take(known, nil)
	if l != nil && cfg.OnChange == "quarantine" {
		p.take(definitions(l.Tools), nil)
		for name, s := range p.suspects {
			s.told = false
			p.suspects[name] = s
		}
	}
	return p
}

// take compares the tools of a listing with what is known of them. accepted are
// definitions that another process has accepted. It returns what is to be told.
func (p *pins) take(now, accepted map[string]json.RawMessage) (told []event.Event) {
	filter := source{allow: p.cfg.Allow, deny: p.cfg.Deny}
	for _, name := range sortedKeys(now) {
		raw := now[name]
		old, ok := p.known[name]
		_, suspect := p.suspects[name]
		switch {
		case !ok && len(p.known) < maxPins:
			p.known[name] = raw
		case !ok, bytes.Equal(old, raw) && !suspect, !filter.allowed(name):
		default:
			if e := p.differs(name, raw, accepted[name]); e.To != "" {
				told = append(told, e)
			}
		}
	}
	maps.DeleteFunc(p.suspects, func(name string, _ suspect) bool { return now[name] == nil })
	maps.DeleteFunc(p.differ, func(name string, _ string) bool { return now[name] == nil })
	return told
}

// differs decides about a definition of a known tool that is spelled otherwise
// than what is known, or suspect. An event without To is not to be told.
func (p *pins) differs(name string, raw, accepted json.RawMessage) event.Event {
	diff := diffDefinitions(p.known[name], raw, p.mask)
	same := len(diff.lines) == 0
	was := p.suspects[name]
	e := event.Event{Kind: event.DefinitionChanged, Upstream: p.cfg.Name, Tool: name, To: definitionAccepted, Text: diff.text()}
	if !same && p.mode != pinsAccept && p.cfg.OnChange == "quarantine" && (accepted == nil || !sameDefinition(accepted, raw)) {
		if was.told && sameDefinition(was.raw, raw) {
			return event.Event{}
		}
		p.suspects[name] = suspect{raw, "its definition changed (" + diff.fields() + "); agentarmor check --accept accepts it", true}
		p.differ[name] = diff.text()
		e.To = definitionQuarantined
		return e
	}
	if !same && p.mode == pinsLook && p.cfg.OnChange != "allow" {
		p.differ[name] = diff.text()
		return event.Event{}
	}
	p.known[name] = raw
	delete(p.suspects, name)
	if p.mode == pinsLook {
		delete(p.differ, name)
	}
	switch {
	case was.told:
		e.From = definitionQuarantined
		if same {
			e.Text = "as it was first seen"
		}
	case same, p.cfg.OnChange == "allow":
		return event.Event{}
	case p.mode == pinsAccept:
		p.differ[name] = diff.text()
		return event.Event{}
	}
	return e
}

// beside returns what is known and not in a listing as it is there.
func (p *pins) beside(now map[string]json.RawMessage) (raws []json.RawMessage) {
	for _, name := range sortedKeys(p.known) {
		if !bytes.Equal(p.known[name], now[name]) {
			raws = append(raws, p.known[name])
		}
	}
	return raws
}

// reasons says why tools are kept from clients.
func (p *pins) reasons() map[string]string {
	if len(p.suspects) == 0 {
		return nil
	}
	out := map[string]string{}
	for name, s := range p.suspects {
		out[name] = s.reason
	}
	return out
}

// quarantinedTool tells whether a tool, by its original name, must not be called, and why.
func (up *upstream) quarantinedTool(name string) (reason string, yes bool) {
	up.mu.Lock()
	defer up.mu.Unlock()
	s, yes := up.pins.suspects[name]
	return s.reason, yes
}

// quarantined are the tools that are kept from clients, by original name; nil
// if there are none.
func (up *upstream) quarantined() []string {
	up.mu.Lock()
	defer up.mu.Unlock()
	if len(up.pins.suspects) == 0 {
		return nil
	}
	return sortedKeys(up.pins.suspects)
}

// review looks whether what is suspect of the upstream has been accepted. It reads a file.
func (up *upstream) review() {
	p := up.p
	accepted := p.memory.known(up.cfg)
	up.mu.Lock()
	if up.list == nil {
		up.mu.Unlock()
		return
	}
	before := len(up.pins.suspects)
	told := up.pins.take(definitions(up.list.Tools), accepted)
	changed := len(up.pins.suspects) != before
	up.mu.Unlock()
	for _, e := range told {
		p.publish(e)
	}
	if changed {
		p.rebuild()
		p.changes.compare(0)
	}
}

// reviewPins is review, in the background, of all upstreams with suspects.
func (p *Proxy) reviewPins() {
	for _, up := range p.ups() {
		if up.quarantined() != nil {
			p.work.Go(func() {
				defer wire.OnPanic()
				up.review()
			})
		}
	}
}
