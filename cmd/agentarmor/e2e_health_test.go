package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
)

// What a server does wrong is told to the agent as what it is, and only what
// speaks against the server counts against it.

// soon makes breakers and probes quick; the defaults take minutes.
const soon = ", probe: {every: 1s, every_down: 500ms}, breaker: {open_for: 500ms, successes: 1}"

// noRetry shows the outcome of the first attempt.
const noRetry = ", retry: {attempts: 0}"

// badHTTP serves a badserver over HTTP behind an endpoint, as upstream a, and
// waits until it is ready.
func badHTTP(t *testing.T, keys string, others ...string) (*endpoint, *badserver.Server) {
	t.Helper()
	bad, url := startBad(t, badserver.Options{})
	e := serveStdio(t, configFile(t, "", append(others, remote("a", url+"/mcp", keys))...))
	e.awaitTools("a__echo")
	return e, bad
}

// wantHealthy fails the test if anything is held against an upstream.
func (e *endpoint) wantHealthy(name string) {
	e.t.Helper()
	if s := e.status(name); s.State != "ready" || s.Breaker.State != "closed" || s.Restarts != 0 || len(s.DegradedTools) != 0 {
		e.t.Errorf("%s is not as if nothing had happened: %+v", name, s)
	}
}

func TestCase22ToolErrorsAreNoOutage(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", soon)))
	e.awaitTools("a__fail")
	for range 10 {
		if r := e.result(e.call("a__fail", `{}`)); !r.IsError || r.text() != "it failed" || r.Meta.Call != nil {
			t.Errorf("not the server's own answer: %+v", r)
		}
	}
	var storm []string
	for range 50 {
		storm = append(storm, e.start("tools/call", toolCall("a__fail", `{}`)))
	}
	for _, id := range storm {
		if r := e.result(e.answer(id)); !r.IsError || r.Meta.Call != nil {
			t.Errorf("not the server's own answer: %+v", r)
		}
	}
	e.wantServed(e.call("a__echo", `{"text":"x"}`), "x", 1, "")
	e.wantHealthy("a")
	if s := e.status("a"); s.Window.Calls < 61 || s.Window.ErrorRate != 0 {
		t.Errorf("the window: %+v", s.Window)
	}
}

// Bad arguments, unknown resources, required sign-ins and a server's own codes
// are answers; -32603 alone says that a tool is broken.
func TestCase22ErrorAnswersAreNoOutage(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", soon)))
	e.awaitTools("a__rpcerror")
	for _, code := range []int{-32602, -32601, -32600, -32002, -32042, -32000, 7} {
		for range 4 {
			e.wantError(e.call("a__rpcerror", fmt.Sprintf(`{"code":%d}`, code)), code)
		}
	}
	e.wantHealthy("a")
	for range 3 {
		e.wantError(e.call("a__rpcerror", `{"code":-32603}`), -32603)
	}
	e.wantUnserved(e.call("a__rpcerror", `{}`), "open", "no")
	e.wantServed(e.call("a__echo", `{"text":"x"}`), "x", 1, "")
}

func TestCase22RefusedCredentialsAreTheirOwnState(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403} {
		e, bad := badHTTP(t, soon)
		bad.Fail(status, 0)
		said := e.wantUnserved(e.call("a__echo", `{"text":"x"}`), "auth", "no")
		if said.Attempts > 1 {
			t.Errorf("%d: retried: %+v", status, said)
		}
		for range 9 {
			if said := e.unserved(e.call("a__echo", `{"text":"x"}`)); said.Executed != "no" || said.Outcome != "auth" && said.Outcome != "open" {
				t.Errorf("%d: %+v", status, said)
			}
		}
		eventually(t, "it needs credentials", func() bool { return e.status("a").State == "needs_auth" })
		if s := e.status("a"); s.Breaker.State == "open" || s.NextAttempt.IsZero() {
			t.Errorf("%d: %+v", status, s)
		}
	}
}

// A server that is told to be overloaded is left alone until a probe finds it
// well; calls meanwhile cost it nothing.
func TestOverloadedServerIsLeftAlone(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, ", probe: {every: 1s, every_down: 1s}"+noRetry, up("b", ""))
	bad.Fail(503, 0)
	for range 3 {
		e.wantUnserved(e.call("a__log", `{}`), "overloaded", "maybe")
	}
	eventually(t, "its breaker is open", func() bool { return e.status("a").Breaker.State == "open" })
	calls := bad.Count("tools/call")
	for range 20 {
		said := e.wantUnserved(e.call("a__log", `{}`), "open", "no")
		if said.RetryAt.IsZero() || time.Until(said.RetryAt) > 10*time.Second {
			t.Errorf("not told when to come back: %+v", said)
		}
	}
	if n := bad.Count("tools/call") - calls; n != 0 {
		t.Errorf("%d calls met a server that is down", n)
	}
	if s := e.status("a"); s.State != "down" || !strings.Contains(s.Reason+s.LastError, "503") {
		t.Errorf("the status: %+v", s)
	}
	e.awaitTools("b__echo")
	e.wantServed(e.call("b__echo", `{"text":"x"}`), "x", 1, "")
	bad.Heal("")
	eventually(t, "a probe finds it well", func() bool { return e.status("a").State == "ready" })
	e.wantServed(e.call("a__log", `{}`), "logged", 1, "")
	if s := e.status("a"); s.Breaker.State != "closed" {
		t.Errorf("one good probe closes: %+v", s)
	}
}

// What is no MCP answer is told as such, with each way there is to spoil one.
func TestMalformedAnswers(t *testing.T) {
	t.Parallel()
	const unbroken = noRetry + ", breaker: {failures: 100, failure_rate: 1, min_calls: 100}"
	e, bad := badHTTP(t, unbroken, up("b", unbroken))
	e.awaitTools("b__badjson")
	for range 2 {
		for _, tool := range []string{"badjson", "badutf8", "badshape"} {
			e.wantUnserved(e.call("a__"+tool, `{}`), "malformed", "maybe")
			e.wantUnserved(e.call("b__"+tool, `{}`), "malformed", "maybe")
		}
	}
	bad.Fault(badserver.Fault{Kind: "html", Tool: "echo"})
	e.wantUnserved(e.call("a__echo", `{"text":"x"}`), "malformed", "maybe")
	bad.Heal("")
	eventually(t, "it works again", func() bool { return !e.result(e.call("a__echo", `{"text":"x"}`)).IsError })
	e.wantServed(e.call("b__echo", `{"text":"x"}`), "x", 1, "")
}
