package mcpproxy

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/health"
)

// What check says of an upstream is what clients get of it: exposed names,
// filtered and quarantined entries left out.
func TestUpstreamCheck(t *testing.T) {
	p, err := New(Config{Upstreams: []UpstreamConfig{{Name: "a", Command: "x", Deny: []string{"hidden"}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	up := p.upstream("a")
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	up.list = &listing{
		Protocol: "2025-11-25",
		Server:   raw(`{"name":"s","version":"1"}`),
		Tools: []json.RawMessage{
			raw(`{"name":"plain","description":"d","inputSchema":{"type":"object"}}`),
			raw(`{"name":"hidden","description":"d","inputSchema":{"type":"object"}}`),
			raw(`{"name":"b/c","description":"d","inputSchema":{"type":"object","oneOf":[]}}`),
			raw(`{"title":"nameless"}`),
		},
		Prompts:   []json.RawMessage{raw(`{"name":"p"}`)},
		Resources: []json.RawMessage{raw(`{"uri":"x:y","name":"r"}`)},
		Templates: []json.RawMessage{raw(`{"uriTemplate":"x:{y}","name":"t"}`)},
	}
	up.live = true
	up.shared.list = up.list
	up.shared.tracker.Set(health.Ready, "", time.Time{})
	p.rebuild()

	got := up.check(p.cat.Load(), 7*time.Millisecond)
	exposed := p.cat.Load().toolNames
	e, err := exposed.find(tools, "b/c")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Findings) == 0 || got.Findings[0].Tool != e.exposed {
		t.Errorf("findings: %v", got.Findings)
	}
	got.Findings = nil
	if len(got.Quarantined) != 1 {
		t.Errorf("quarantined: %v", got.Quarantined)
	}
	got.Quarantined, got.Warnings = nil, nil
	want := UpstreamCheck{
		Name: "a", State: health.Ready, Transport: "stdio", Protocol: "2025-11-25", Era: "legacy",
		Server: raw(`{"name":"s","version":"1"}`), ReadyMS: 7,
		Tools: 2, Prompts: 1, Resources: 1, Templates: 1,
		Renamed: []Renamed{{"b/c", e.exposed}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCheckOK(t *testing.T) {
	for state, want := range map[health.State]bool{
		health.Ready: true, health.Disabled: true, health.Starting: false, health.Down: false,
		health.NeedsAuth: false, health.Degraded: false, health.CrashLoop: false,
	} {
		r := CheckReport{Upstreams: []UpstreamCheck{{State: health.Ready}, {State: state}}}
		if r.OK() != want {
			t.Errorf("%s: OK = %v", state, r.OK())
		}
	}
	if r := (CheckReport{}); !r.OK() {
		t.Error("a report without upstreams is not OK")
	}
}
