package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// What is missing from a list is named in the list.
type listedUpstreams map[string]struct {
	State, Reason, Since string
	Quarantined          []string
}

func (c *rawClient) listMeta() listedUpstreams {
	c.t.Helper()
	var list struct {
		Meta struct {
			Upstreams listedUpstreams `json:"agentarmor/upstreams"`
		} `json:"_meta"`
	}
	c.decode(c.rpc("tools/list", `{}`), &list)
	return list.Meta.Upstreams
}

func (e *endpoint) lists(tool string) bool {
	e.t.Helper()
	names, _ := e.tools()
	return slices.Contains(names, tool)
}

// In an outage the list stays, or hides what cannot be called; either way it
// says so, and a call by name gets the honest answer.
func TestListsInAnOutage(t *testing.T) {
	t.Parallel()
	for _, onOutage := range []string{"keep", "hide"} {
		t.Run(onOutage, func(t *testing.T) {
			t.Parallel()
			e, bad := badHTTP(t, ", on_outage: "+onOutage+", probe: {every: 500ms, every_down: 500ms}"+noRetry, up("b", ""))
			e.awaitTools("b__echo")
			if m := e.listMeta(); len(m) != 0 {
				t.Errorf("a list that lacks nothing says %+v", m)
			}
			time.Sleep(300 * time.Millisecond) // in which the client is told of the first lists
			for e.seen("notifications/tools/list_changed") > 0 {
				e.notification("notifications/tools/list_changed")
			}
			bad.Fail(503, 0)
			for range 3 {
				e.unserved(e.call("a__log", `{}`))
			}
			eventually(t, "it is down", func() bool { return e.status("a").State == "down" })
			if onOutage == "hide" {
				e.notification("notifications/tools/list_changed")
				eventually(t, "its tools are hidden", func() bool { return !e.lists("a__echo") })
			}
			if got := e.lists("a__echo"); got != (onOutage == "keep") || !e.lists("b__echo") {
				t.Errorf("listed: %v", got)
			}
			if m := e.listMeta(); len(m) != 1 || m["a"].State != "down" || m["a"].Reason == "" || m["a"].Since == "" {
				t.Errorf("the list says %+v", m)
			}
			if said := e.unserved(e.call("a__log", `{}`)); said.Executed != "no" || said.Upstream != "a" {
				t.Errorf("%+v", said)
			}
			bad.Heal("")
			eventually(t, "all is well", func() bool { return e.status("a").State == "ready" && e.lists("a__echo") && len(e.listMeta()) == 0 })
			if onOutage == "hide" {
				e.notification("notifications/tools/list_changed")
			} else if n := e.seen("notifications/tools/list_changed"); n > 0 {
				t.Errorf("told %d times of a list that did not change", n)
			}
			e.wantServed(e.call("a__log", `{}`), "logged", 1, "")
		})
	}
}

// definitionEvents are the events of changed definitions, newest or oldest first.
func (c *rawClient) definitionEvents() []json.RawMessage {
	c.t.Helper()
	r := c.result(c.call("armor.status", `{"section":"events","kind":"definition.changed"}`))
	var doc struct{ Events []json.RawMessage }
	if err := json.Unmarshal(r.StructuredContent, &doc); err != nil {
		c.t.Fatalf("%v in %s", err, r.StructuredContent)
	}
	return doc.Events
}

// A known tool that says something else of itself is noticed, and on_change
// decides.
func TestChangedDefinitions(t *testing.T) {
	t.Parallel()
	for _, onChange := range []string{"allow", "warn", "quarantine"} {
		for member, change := range map[string]string{
			"description": `"Sends everything to a stranger."`,
			"inputSchema": `{"type":"object","properties":{"text":{"type":"string"},"secret":{"type":"string"}}}`,
			"annotations": `{"readOnlyHint":false}`,
		} {
			t.Run(onChange+" "+member, func(t *testing.T) {
				t.Parallel()
				e := serveStdio(t, configFile(t, "", up("a", ", on_change: "+onChange)))
				e.awaitTools("a__echo")
				e.call("a__add_tool", `{"name":"fresh"}`)
				e.awaitTools("a__fresh")
				if events := e.definitionEvents(); len(events) != 0 {
					t.Errorf("a new tool is no changed one: %s", events)
				}
				e.call("a__redefine", fmt.Sprintf(`{"name":"echo",%q:%s}`, member, change))
				if onChange == "quarantine" {
					eventually(t, "the tool is left out", func() bool { return !e.lists("a__echo") })
					said := e.wantUnserved(e.call("a__echo", `{"text":"x"}`), "open", "no")
					if said.Upstream != "a" || !strings.Contains(said.Reason, "changed") {
						t.Errorf("%+v", said)
					}
					if reason := e.status("a").Quarantined["echo"]; reason == "" {
						t.Error("the status does not name it")
					}
				} else {
					eventually(t, "the new definition is listed", func() bool {
						_, raw := e.tools()
						return strings.Contains(raw["a__echo"], change)
					})
					e.wantServed(e.call("a__echo", `{"text":"x"}`), "x", 1, "")
				}
				e.wantServed(e.call("a__mirror", `{}`), `{}`, 1, "")
				events := e.definitionEvents()
				if (len(events) == 1) != (onChange != "allow") {
					t.Fatalf("events: %s", events)
				}
				if len(events) == 1 && !strings.Contains(string(events[0]), member) {
					t.Errorf("the event does not say what changed: %s", events[0])
				}
			})
		}
	}
}

// What was known before a restart of ours is known after it; check tells, and
// check --accept accepts.
func TestDefinitionsStayKnown(t *testing.T) {
	t.Parallel()
	mood := filepath.Join(t.TempDir(), "mood")
	write(t, mood, "")
	config := configFile(t, "", shell("a", ", on_change: quarantine", fmt.Sprintf("exec badserver $$(cat %s)", mood)))
	t.Run("first sight", func(t *testing.T) { serveStdio(t, config).awaitTools("a__echo") })
	write(t, mood, `-redefine {"name":"echo","description":"another"}`)
	t.Run("changed", func(t *testing.T) {
		e := serveStdio(t, config)
		eventually(t, "the tool is left out", func() bool { return e.status("a").State == "ready" && !e.lists("a__echo") })
		e.wantUnserved(e.call("a__echo", `{"text":"x"}`), "open", "no")
	})
	const diff = `description "badserver's echo" → "another"`
	check := func(t *testing.T, flag string, want ...string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "agentarmor", "check", "--config", config, flag).Output()
		if err != nil {
			t.Fatalf("check: %v\n%s", err, out)
		}
		for _, part := range want {
			if !strings.Contains(string(out), part) {
				t.Errorf("no %s in\n%s", part, out)
			}
		}
	}
	t.Run("told", func(t *testing.T) {
		const why = "its definition changed (description); agentarmor check --accept accepts it"
		check(t, "--json=false", "  quarantined: echo: "+why, "  changed: echo: "+diff)
		check(t, "--json", `"echo": "`+why+`"`, `"changed": {`, strings.ReplaceAll(diff, `"`, `\"`))
		e := serveStdio(t, config)
		eventually(t, "it is still left out", func() bool { return e.status("a").State == "ready" && !e.lists("a__echo") })
		if m := e.listMeta(); !slices.Equal(m["a"].Quarantined, []string{"echo"}) {
			t.Errorf("the list says %+v", m)
		}
	})
	t.Run("accepted", func(t *testing.T) {
		check(t, "--accept", "  accepted: echo: "+diff)
		e := serveStdio(t, config)
		e.awaitTools("a__echo")
		e.wantServed(e.call("a__echo", `{"text":"x"}`), "x", 1, "")
	})
}
