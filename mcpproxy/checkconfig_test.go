package mcpproxy

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// checked returns the warnings of a check with a scripted upstream "fake" beside
// "other", which has the tools of any legacy server.
func checked(t *testing.T, s *scripted, edit func(u *UpstreamConfig)) (warnings []Warning) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		u := UpstreamConfig{Name: "fake", Command: "x", Protocol: "legacy"}
		edit(&u)
		cfg := Config{Anew: true, Upstreams: []UpstreamConfig{u, {Name: "other", Command: "x", Protocol: "legacy"}}}
		r := newRig(t, cfg, map[string]*fakeServer{"fake": s.fakeServer, "other": newLegacyServer()})
		defer r.end()
		report := r.p.Check(t.Context())
		if !report.OK() {
			t.Errorf("warnings are no errors: %+v", report.Upstreams)
		}
		if n := len(report.Upstreams[1].Warnings); n != 0 {
			t.Errorf("other has %d warnings", n)
		}
		warnings = report.Upstreams[0].Warnings
	})
	return warnings
}

func TestCheckWarnsOfSettings(t *testing.T) {
	const unused = "no result is used again: the tool has neither readOnlyHint nor idempotentHint; say idempotent: true if calling it twice does no harm"
	always := new(true)
	for name, tt := range map[string]struct {
		tools map[string]ToolConfig
		edit  func(u *UpstreamConfig)
		want  []Warning
	}{
		"all is well": {tools: map[string]ToolConfig{
			"read":  {Cache: time.Minute, Fallback: []FallbackStep{{Cached: time.Hour}, {Tool: "fake__find"}, {Result: raw(`""`)}}},
			"plain": {Cache: time.Minute, Idempotent: always, Fallback: []FallbackStep{{Tool: "other__t1"}}},
		}},
		"no such tool": {
			tools: map[string]ToolConfig{"raed": {Cache: time.Minute}},
			want:  []Warning{{"tools.settings.raed", "the server lists no such tool"}},
		},
		"a filtered tool": {
			tools: map[string]ToolConfig{"read": {}},
			edit:  func(u *UpstreamConfig) { u.Deny = []string{"re*"} },
			want:  []Warning{{"tools.settings.read", "clients do not see this tool: tools.allow and tools.deny leave it out"}},
		},
		"not idempotent": {
			tools: map[string]ToolConfig{"plain": {Cache: time.Minute, Fallback: []FallbackStep{{Cached: time.Hour}}}},
			want:  []Warning{{"tools.settings.plain.cache", unused}, {"tools.settings.plain.fallback[0].cached", unused}},
		},
		"hints that do not count": {
			tools: map[string]ToolConfig{"read": {Cache: time.Minute}},
			edit:  func(u *UpstreamConfig) { u.DistrustHints = true },
			want:  []Warning{{"tools.settings.read.cache", unused}},
		},
		"fallbacks that nobody has": {
			tools: map[string]ToolConfig{"read": {Fallback: []FallbackStep{{Tool: "other__gone"}, {Tool: "armor.status"}}}},
			want: []Warning{
				{"tools.settings.read.fallback[0].tool", "left out: no server lists other__gone"},
				{"tools.settings.read.fallback[1].tool", "left out: armor.status cannot stand in"},
			},
		},
		"a fallback that changes something": {
			tools: map[string]ToolConfig{"read": {Fallback: []FallbackStep{{Tool: "other__t1"}}}},
			want:  []Warning{{"tools.settings.read.fallback[0].tool", "other__t1 is not read-only, unlike the tool it stands in for: a question may become a change"}},
		},
	} {
		got := checked(t, newScripted(), func(u *UpstreamConfig) {
			u.Tools = tt.tools
			if tt.edit != nil {
				tt.edit(u)
			}
		})
		if diff := cmp.Diff(append([]Warning{}, tt.want...), got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// While a server is down, nobody knows whether it has the tool.
func TestCheckDoesNotGuessFallbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := newLegacyServer()
		other.onDial = func(int, string) error { return errGone }
		u := UpstreamConfig{Name: "fake", Command: "x", Tools: map[string]ToolConfig{"read": {Fallback: []FallbackStep{{Tool: "other__gone"}}}}}
		r := newRig(t, Config{Anew: true, Upstreams: []UpstreamConfig{u, {Name: "other", Command: "x"}}}, map[string]*fakeServer{"fake": newScripted().fakeServer, "other": other})
		defer r.end()
		if got := r.p.Check(t.Context()).Upstreams[0].Warnings; len(got) != 0 {
			t.Errorf("%v", got)
		}
	})
}

func TestCheckTriesProbes(t *testing.T) {
	const danger = "plain is called again and again, but it is not read-only by its hints, nor is it idempotent: true here; not tried"
	probe := func(tool, expect string) func(*UpstreamConfig) {
		return func(u *UpstreamConfig) { u.Probe.Tool, u.Probe.Expect = tool, expect }
	}
	setting := func(tool string, c ToolConfig) func(*UpstreamConfig) {
		return func(u *UpstreamConfig) { u.Tools = map[string]ToolConfig{tool: c} }
	}
	for name, tt := range map[string]struct {
		edit  func(*UpstreamConfig)
		calls map[string]int
		want  []Warning
	}{
		"a canary":             {probe("read", "fine"), map[string]int{"read": 1}, nil},
		"with other words":     {probe("read", "splendid"), map[string]int{"read": 1}, []Warning{{"probe.tool", `the answer to its probe lacks "splendid"`}}},
		"that is not listed":   {probe("raed", ""), nil, []Warning{{"probe.tool", "the server lists no tool raed"}}},
		"that may do harm":     {probe("plain", ""), nil, []Warning{{"probe.tool", danger}}},
		"that is silent":       {probe("find", ""), map[string]int{"find": 1}, []Warning{{"probe.tool", "a probe was not answered"}}},
		"a tool's probe":       {setting("read", ToolConfig{Probe: &ToolProbe{Expect: "splendid"}}), map[string]int{"read": 1}, []Warning{{"tools.settings.read.probe", `the answer to its probe lacks "splendid"`}}},
		"one that may do harm": {setting("plain", ToolConfig{Probe: &ToolProbe{}}), nil, []Warning{{"tools.settings.plain.probe", danger}}},
		"one that may not":     {setting("plain", ToolConfig{Idempotent: new(true), Probe: &ToolProbe{}}), map[string]int{"plain": 1}, nil},
	} {
		s := newScripted()
		s.does("find", hangs)
		if diff := cmp.Diff(append([]Warning{}, tt.want...), checked(t, s, tt.edit)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		for _, tool := range []string{"plain", "read", "find"} {
			s.mu.Lock()
			if got := s.calls[tool]; got != tt.calls[tool] {
				t.Errorf("%s: %s was called %d times", name, tool, got)
			}
			s.mu.Unlock()
		}
	}
}

// A definition that is not trusted is not probed either.
func TestCheckDoesNotProbeQuarantinedTools(t *testing.T) {
	dir := t.TempDir()
	s := newScripted()
	canary := func(c *Config) { c.Upstreams[0].Probe.Tool = "read" }
	bubble(t, s.fakeServer, func(*testing.T, *rig) {}, onChange("quarantine", dir))
	s.result("tools/list", `{"tools":[{"name":"read","description":"new","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}`)
	bubble(t, s.fakeServer, func(t *testing.T, r *rig) {
		want := []Warning{{"probe.tool", "not tried: the tool is quarantined"}}
		if diff := cmp.Diff(want, r.p.Check(t.Context()).Upstreams[0].Warnings); diff != "" || s.called("read") != 0 {
			t.Errorf("%s, called %d times", diff, s.called("read"))
		}
	}, onChange("quarantine", dir), looks, canary)
}
