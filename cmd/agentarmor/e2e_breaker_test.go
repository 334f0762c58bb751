package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// One tool is broken, in any way that is no answer: its breaker opens, all
// others work, the status says so, and it is tried again by itself.
func TestBrokenToolOnAHealthyServer(t *testing.T) {
	t.Parallel()
	for fault, outcome := range map[string]string{
		"error":   "", // the server's own answer
		"hang":    "timeout",
		"garbage": "malformed",
	} {
		// log may have effects: a client's call is the trial. mirror is read-only
		// and needs no arguments: it is probed.
		for _, tool := range []string{"log", "mirror"} {
			t.Run(fault+" "+tool, func(t *testing.T) {
				t.Parallel()
				e := serveStdio(t, configFile(t, "", up("a", soon+noRetry+", call_timeout: 300ms")))
				e.awaitTools("a__log")
				e.call("a__fault", fmt.Sprintf(`{"kind":%q,"tool":%q}`, fault, tool))
				for range 3 {
					m := e.call("a__"+tool, `{}`)
					if outcome == "" {
						e.wantError(m, -32603)
					} else {
						e.wantUnserved(m, outcome, "maybe")
					}
				}
				said := e.wantUnserved(e.call("a__"+tool, `{}`), "open", "no")
				if said.RetryAt.IsZero() || said.Upstream != "a" {
					t.Errorf("%+v", said)
				}
				// Garbage speaks against the server, too, until a probe speaks for it.
				eventually(t, "the server is found well", func() bool { return e.status("a").State == "degraded" })
				s := e.status("a")
				if d := s.DegradedTools[tool]; d.Name != "a__"+tool || d.Breaker.State == "closed" || d.LastError == "" || len(s.DegradedTools) != 1 {
					t.Errorf("the status: %+v", s)
				}
				if s.Breaker.State != "closed" || s.Restarts != 0 {
					t.Errorf("it was held against the server: %+v", s)
				}
				e.wantServed(e.call("a__echo", `{"text":"x"}`), "x", 1, "")
				if names, _ := e.tools(); !slices.Contains(names, "a__"+tool) {
					t.Error("the broken tool is not listed any more")
				}

				e.call("a__heal", `{}`)
				eventually(t, "the tool works again", func() bool { return !e.result(e.call("a__"+tool, `{}`)).IsError })
				eventually(t, "the status knows", func() bool { s := e.status("a"); return s.State == "ready" && len(s.DegradedTools) == 0 })
			})
		}
	}
}

// A tool with effects is never called by a probe, a read-only one only while
// its breaker is not closed.
func TestProbesCallNothingWithEffects(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, ", probe: {every: 100ms, every_down: 100ms}, breaker: {open_for: 100ms}"+noRetry)
	e.call("a__fault", `{"kind":"error","tool":"log"}`)
	for range 3 {
		e.wantError(e.call("a__log", `{}`), -32603)
	}
	reads := bad.Count("tools/call mirror")
	pings := bad.Count("ping") + bad.Count("server/discover")
	eventually(t, "the server is probed", func() bool { return bad.Count("ping")+bad.Count("server/discover") > pings+5 })
	if n := bad.Count("tools/call log"); n != 3 {
		t.Errorf("the broken tool was called %d times", n)
	}
	if n := bad.Count("tools/call mirror"); n != reads {
		t.Error("a tool that works was probed")
	}
	e.call("a__fault", `{"kind":"error","tool":"mirror"}`)
	for range 3 {
		e.wantError(e.call("a__mirror", `{}`), -32603)
	}
	eventually(t, "the read-only tool is probed", func() bool { return bad.Count("tools/call mirror") > reads+4 })
}

// The synthetic calls of the config run while all is well, too, and what they
// expect decides.
func TestConfiguredProbes(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, `, probe: {every: 200ms, every_down: 200ms, tool: echo, arguments: {text: canary}, expect: canary}, breaker: {open_for: 200ms, successes: 1}`+
		`, tools: {settings: {mirror: {probe: {arguments: {q: 1}, expect: '"q":1'}}}}`)
	eventually(t, "both are called", func() bool { return bad.Count("tools/call echo") > 2 && bad.Count("tools/call mirror") > 2 })
	e.wantHealthy("a")
	e.call("a__fault", `{"kind":"tool_error","tool":"mirror"}`) // its text is another
	eventually(t, "the tool is known to be broken, without a call", func() bool {
		s := e.status("a")
		return s.State == "degraded" && s.DegradedTools["mirror"].Breaker.State != ""
	})
	e.wantUnserved(e.call("a__mirror", `{}`), "open", "no")
	e.call("a__heal", `{}`)
	eventually(t, "it is known to work", func() bool { return e.status("a").State == "ready" })
	e.wantServed(e.call("a__mirror", `{"q":2}`), `{"q":2}`, 1, "")
	e.call("a__fault", `{"kind":"tool_error","tool":"echo"}`)
	eventually(t, "the canary tells of the server", func() bool { return e.status("a").State == "down" })
	bad.Heal("")
	eventually(t, "the canary sings", func() bool { return e.status("a").State == "ready" })
}

func TestBreakersCanBeSwitchedOff(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, ", breaker: {enabled: false}, call_timeout: 100ms"+noRetry)
	for range 6 {
		e.wantUnserved(e.call("a__hang", `{}`), "timeout", "maybe")
	}
	e.call("a__fault", `{"kind":"error","tool":"log"}`)
	for range 6 {
		e.wantError(e.call("a__log", `{}`), -32603)
	}
	bad.Fail(503, 0)
	for range 6 {
		e.wantUnserved(e.call("a__log", `{}`), "overloaded", "maybe")
	}
	if n := bad.Count("tools/call hang"); n != 6 {
		t.Errorf("%d calls got through", n)
	}
	if s := e.status("a"); s.Breaker.State != "off" || len(s.DegradedTools) != 0 {
		t.Errorf("the status: %+v", s)
	}
}

// The keys of one tool's breaker go before those of its server.
func TestBreakerOfOneTool(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", `, breaker: {failures: 2, open_for: 1h, max_open_for: 1h}`+
		`, tools: {settings: {log: {breaker: {failures: 5}}, fail: {breaker: {enabled: false}}}}`)))
	e.awaitTools("a__log")
	for tool, failures := range map[string]int{"rpcerror": 2, "log": 5} {
		e.call("a__fault", fmt.Sprintf(`{"kind":"error","tool":%q}`, tool))
		for range failures {
			e.wantError(e.call("a__"+tool, `{}`), -32603)
		}
		said := e.wantUnserved(e.call("a__"+tool, `{}`), "open", "no")
		if in := time.Until(said.RetryAt); in < 40*time.Minute || in > 80*time.Minute {
			t.Errorf("%s is open for %v", tool, in)
		}
	}
	e.call("a__fault", `{"kind":"error","tool":"fail"}`)
	for range 10 {
		e.wantError(e.call("a__fail", `{}`), -32603)
	}
	if text := e.result(e.call("a__log", `{}`)).text(); !strings.Contains(text, "not executed") {
		t.Errorf("the text: %s", text)
	}
}
