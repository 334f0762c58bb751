package main

import (
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
)

// startBad serves a badserver over HTTP until the test ends.
func startBad(t *testing.T, o badserver.Options) (*badserver.Server, string) {
	t.Helper()
	s := badserver.New(o)
	ts := httptest.NewServer(s)
	t.Cleanup(func() { s.Close(); ts.CloseClientConnections(); ts.Close() })
	return s, ts.URL
}

func TestCase21ForgottenSessionIsRenewedOnce(t *testing.T) {
	t.Parallel()
	for _, status := range []int{404, 400, 422} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			bad, url := startBad(t, badserver.Options{Era: "legacy", ForgetStatus: status})
			e := serveWeb(t, configFile(t, "", remote("a", url+"/mcp", ", protocol: legacy")))
			e.awaitTools("a__echo")
			if n := bad.Count("initialize"); n != 1 {
				t.Fatalf("%d initialize at first", n)
			}
			bad.Forget()
			var ids []string
			for i := range 20 {
				ids = append(ids, e.start("tools/call", toolCall("a__echo", fmt.Sprintf(`{"text":"%d"}`, i))))
			}
			for i, id := range ids {
				e.wantText(e.answer(id), fmt.Sprint(i))
			}
			if n := bad.Count("initialize"); n != 2 {
				t.Errorf("%d initialize for 20 calls that found the session gone", n-1)
			}
		})
	}
}

// A tool's own text about sessions is no lost session.
func TestCase21TextDecidesNothing(t *testing.T) {
	t.Parallel()
	bad, url := startBad(t, badserver.Options{Era: "legacy"})
	e := serveWeb(t, configFile(t, "", remote("a", url+"/mcp", ", protocol: legacy")))
	e.awaitTools("a__echo")
	e.wantText(e.call("a__echo", `{"text":"Session not found"}`), "Session not found")
	e.wantError(e.call("a__rpcerror", `{"code":-32001,"message":"Session not found"}`), -32001)
	if n := bad.Count("initialize"); n != 1 {
		t.Errorf("%d initialize", n)
	}
}

func TestHTTPUpstreamFaults(t *testing.T) {
	t.Parallel()
	bad, url := startBad(t, badserver.Options{})
	e := serveWeb(t, configFile(t, "", remote("a", url+"/mcp", noRetry)))
	e.awaitTools("a__echo")
	e.wantUnserved(e.call("a__cut", `{}`), "lost", "maybe")
	e.wantText(e.call("a__echo", `{"text":"x"}`), "x")
	for _, c := range []struct {
		status            int
		outcome, executed string
	}{
		{429, "throttled", "no"},
		{503, "overloaded", "maybe"},
		{401, "auth", "no"},
	} {
		eventually(t, "it is ready", func() bool { return e.status("a").State == "ready" })
		bad.Fault(badserver.Fault{Kind: "status", Status: c.status, Count: 1, RetryAfter: "1"})
		e.wantUnserved(e.call("a__echo", `{"text":"x"}`), c.outcome, c.executed)
		if c.outcome == "throttled" { // which the status tells a moment after the call
			eventually(t, "it is throttled", func() bool { return e.status("a").State == "throttled" })
		}
	}
}

// A stream that the server closes early is resumed (SEP-1699).
func TestHTTPUpstreamPolling(t *testing.T) {
	t.Parallel()
	_, url := startBad(t, badserver.Options{Era: "legacy"})
	e := serveWeb(t, configFile(t, "", remote("a", url+"/mcp", ", protocol: legacy")))
	e.awaitTools("a__poll")
	e.wantText(e.call("a__poll", `{"ms":500}`), "resumed")
}

func TestSSEUpstream(t *testing.T) {
	t.Parallel()
	_, url := startBad(t, badserver.Options{Era: "legacy"})
	e := serveWeb(t, configFile(t, "", remote("a", url+"/sse", "")))
	e.awaitTools("a__echo")
	e.wantText(e.call("a__echo", `{"text":"héllo"}`), "héllo")
	e.call("a__add_tool", `{"name":"fresh"}`)
	e.awaitTools("a__fresh")
}

// Both generations of clients on one HTTP endpoint, in front of servers of
// both.
func TestHTTPGenerations(t *testing.T) {
	t.Parallel()
	e := serveWeb(t, configFile(t, "", up("old", "", "-era", "legacy"), up("new", "", "-era", "modern")))
	e.awaitTools("old__echo", "new__echo")
	modern := newHTTPClient(t, e.url)
	modern.version = "2026-07-28"
	for _, c := range []*rawClient{e.rawClient, modern} {
		for _, name := range []string{"old__mirror", "new__mirror"} {
			if r := c.result(c.call(name, `{"n":9007199254740993}`)); string(r.StructuredContent) != `{"n":9007199254740993}` {
				t.Errorf("%s for %q: %+v", name, c.version, r)
			}
		}
	}
	if got := e.status("new").Protocol; got != "2026-07-28" {
		t.Errorf("the modern server is spoken to in %q", got)
	}
}
