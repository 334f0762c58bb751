package mcpproxy

import (
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// broken makes the server end, and refuse to start until the returned func is called.
func (s *fakeServer) broken() (repair func()) {
	var repaired atomic.Bool
	s.onDial = func(int, string) error {
		if repaired.Load() {
			return nil
		}
		return errors.New("refused")
	}
	s.peer().exit("broken")
	settle(200 * time.Millisecond)
	return func() { repaired.Store(true) }
}

func TestListsTellWhatIsMissing(t *testing.T) {
	a, b := newLegacyServer(), newLegacyServer()
	ups := []UpstreamConfig{{Name: "a", Command: "x", Protocol: "legacy"}, {Name: "b", Command: "x", Protocol: "legacy"}, {Name: "off", Command: "x", Disabled: true}}
	bubbles(t, Config{Upstreams: ups}, map[string]*fakeServer{"a": a, "b": b}, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		whole := r.listed(c)
		if strings.Contains(whole, "_meta") {
			t.Errorf("nothing is missing: %s", whole)
		}
		repair := a.broken()
		for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"} {
			for _, st := range []*testStream{
				c.send(`{"jsonrpc":"2.0","id":1,"method":"` + method + `"}`),
				r.modern("", `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+askingMeta+`}}`),
			} {
				m, err := wire.Parse([]byte(st.text()))
				if err != nil || !json.Valid(m.Result) {
					t.Fatalf("%s: %v in %s", method, err, st.text())
				}
				var got map[string]missing
				if err := json.Unmarshal(wire.Get(wire.Get(m.Result, "_meta"), "agentarmor/upstreams"), &got); err != nil {
					t.Fatal(err)
				}
				s := r.p.upstream("a").shared.tracker.Snapshot()
				want := map[string]missing{"a": {State: health.Down, Reason: s.Reason, Since: s.Since.Truncate(time.Second), NextAttempt: inSeconds(s.NextAttempt), Tools: 1}}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: %s", method, diff)
				}
			}
		}
		if got := r.listed(c); !strings.HasPrefix(got, strings.TrimSuffix(whole, "}}")) {
			t.Errorf("the list itself has changed: %s", got)
		}
		repair()
		settle(time.Minute)
		if diff := cmp.Diff(whole, r.listed(c)); diff != "" {
			t.Error(diff)
		}
		if got := strings.Join(c.take(), "\n"); strings.Contains(got, "list_changed") {
			t.Errorf("an outage alone changes no list: %s", got)
		}
	})
}

// Tools that are quarantined are named where they are missing, and counted.
func TestListsTellWhatIsQuarantined(t *testing.T) {
	const bad = `{"name":"t1","description":"Adds all.","inputSchema":{"type":"object"}},{"name":"t2","description":"x","inputSchema":{"type":"object"}},{"name":"t3","inputSchema":{"type":"object"}}`
	srv := newLegacyServer()
	srv.result("tools/list", `{"tools":[`+strings.ReplaceAll(strings.ReplaceAll(bad, " all", ""), `"x"`, `"y"`)+`]}`)
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		if got := r.listed(c); strings.Contains(got, "_meta") {
			t.Errorf("nothing is missing: %s", got)
		}
		srv.relist(`{"tools":[` + strings.ReplaceAll(bad, `"x"`, `"y"`) + `]}`)
		wantPart(t, r.listed(c), `"agentarmor/upstreams":{"fake":{"state":"ready","since":"`, `","quarantined":["t1"]}}`)
		s := r.p.Status().Summary
		if want := "fake has 1 quarantined tool (t1); 1 tool unavailable"; s.Text != want || s.ToolsUnavailable != 1 || s.Tools != 3 || s.Ready != 1 {
			t.Errorf("%+v", s)
		}
		srv.relist(`{"tools":[` + bad + `]}`)
		wantPart(t, r.listed(c), `"quarantined":["t1","t2"]`)
		r.p.upstream("fake").guard.tool("t2").breaker.Trip() // is counted once
		r.p.upstream("fake").guard.tool("t3").breaker.Trip()
		if s := r.p.Status().Summary; !strings.Contains(s.Text, "fake has 2 quarantined tools (t1, t2); 3 tools unavailable") || s.ToolsUnavailable != 3 {
			t.Errorf("%+v", s)
		}
		if got := c.send(`{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`).text(); strings.Contains(got, "_meta") {
			t.Errorf("no prompt is missing: %s", got)
		}
		if got := r.p.SystemNote(); strings.Contains(got, "all ") {
			t.Errorf("the server works: %s", got)
		}
		repair := srv.broken()
		wantPart(t, r.listed(c), `"state":"down"`, `"tools":3,"quarantined":["t1","t2"]`)
		if s := r.p.Status().Summary; s.ToolsUnavailable != 3 {
			t.Errorf("%+v", s)
		}
		repair()
	}, onChange("quarantine", ""))
}

func TestFew(t *testing.T) {
	for want, names := range map[string][]string{"a": {"a"}, "a, b, c": {"a", "b", "c"}, "a, b, c, 2 more": {"a", "b", "c", "d", "e"}} {
		if got := few(names); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestOnOutageHide(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		wantPart(t, r.listed(c), "fake__t1")
		c.take()
		const changed = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
		repair := srv.broken()
		settle(time.Minute) // attempts fail meanwhile
		if diff := cmp.Diff([]string{changed}, withoutLogs(c.take())); diff != "" {
			t.Errorf("hidden: %s", diff)
		}
		if got := r.listed(c); strings.Contains(got, "fake__t1") {
			t.Errorf("still listed: %s", got)
		}
		wantPart(t, r.listed(c), `"agentarmor/upstreams":{"fake":{"state":"down"`, `"tools":1`)
		wantPart(t, c.send(callT1("7", "")).text(), "fake__t1 is unavailable")
		c.take()
		repair()
		settle(10 * time.Minute)
		if diff := cmp.Diff([]string{changed}, withoutLogs(c.take())); diff != "" {
			t.Errorf("shown again: %s", diff)
		}
		wantPart(t, r.listed(c), "fake__t1")
	}, func(c *Config) { c.Upstreams[0].OnOutage = "hide" })
}
