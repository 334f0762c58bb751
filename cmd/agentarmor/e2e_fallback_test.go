package main

import (
	"strings"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
)

// mirrorWith is the config of a's tool mirror.
func mirrorWith(settings string) string {
	return noRetry + ", breaker: {enabled: false}, tools: {settings: {mirror: " + settings + "}}"
}

// broken makes a's tool mirror fail at HTTP.
var broken = badserver.Fault{Kind: "status", Status: 503, Tool: "mirror"}

func TestFallbackToAnotherTool(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, mirrorWith(`{fallback: [{tool: b__mirror, arguments: {query: 'about {{.q}}', limit: '{{.n}}', nested: {all: ['{{.list}}']}, fixed: 7}}]}`), up("b", ""))
	e.awaitTools("b__mirror")
	const args = `{"q":"é \"x\"","n":9007199254740993,"list":[1,{"a":null}]}`
	e.wantServed(e.call("a__mirror", args), args, 1, "")
	bad.Fault(broken)
	m := e.call("a__mirror", args)
	const want = `{"query":"about é \"x\"","limit":9007199254740993,"nested":{"all":[[1,{"a":null}]]},"fixed":7}`
	e.wantServed(m, want, 1, "tool")
	if said := e.result(m).Meta.Call; said != nil && (said.Upstream != "a" || said.Outcome != "overloaded" || said.Executed != "maybe" || !strings.Contains(said.Reason, "503")) {
		t.Errorf("it does not say what failed: %+v", said)
	}
}

// Without arguments of its own the other tool gets those of the call. What the
// upstream answers, errors included, is no reason to fall back.
func TestFallbackOnlyWhereThereIsNoAnswer(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, mirrorWith(`{fallback: [{tool: b.mirror}]}`), up("b", ""))
	e.awaitTools("b__mirror")
	for kind, isAnswer := range map[string]func(rpcMessage) bool{
		"error":      func(m rpcMessage) bool { return m.Error != nil },
		"tool_error": func(m rpcMessage) bool { return e.result(m).IsError && e.result(m).Meta.Call == nil },
	} {
		bad.Heal("")
		bad.Fault(badserver.Fault{Kind: kind, Tool: "mirror"})
		if m := e.call("a__mirror", `{"a":1}`); !isAnswer(m) {
			t.Errorf("%s: got %s", kind, m.raw)
		}
	}
	bad.Heal("")
	bad.Fault(broken)
	e.wantServed(e.call("a__mirror", `{"b":[1.0]}`), `{"b":[1.0]}`, 1, "tool")
}

// Steps are tried in order; a result of the same call comes before a fixed one.
func TestFallbackSteps(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, mirrorWith(`{fallback: [{tool: b__mirror}, {tool: nobody__has_this}, {cached: 10m}, {result: Nothing right now.}]}`),
		up("b", noRetry+", call_timeout: 500ms, breaker: {failures: 1}"))
	e.awaitTools("b__mirror")
	e.wantServed(e.call("a__mirror", `{"q":1,"r":[2]}`), `{"q":1,"r":[2]}`, 1, "")
	e.call("b__fault", `{"kind":"hang","tool":"mirror"}`)
	bad.Fault(broken)
	e.wantServed(e.call("a__mirror", ` { "r" : [2], "q":1}`), `{"q":1,"r":[2]}`, 1, "cached")
	e.wantServed(e.call("a__mirror", `{"q":2}`), "Nothing right now.", 1, "result")
	e.call("b__heal", `{}`)
	bad.Heal("")
	e.wantServed(e.call("a__mirror", `{"q":2}`), `{"q":2}`, 1, "")
}

// A fixed result may be a text or a whole result; an open breaker and a server
// that is not there fall back as well.
func TestFallbackOfAnOpenBreaker(t *testing.T) {
	t.Parallel()
	const step = `{fallback: [{result: {content: [{type: text, text: Later.}], structuredContent: {n: 9007199254740993}}}]}`
	e, bad := badHTTP(t, noRetry+", call_timeout: 200ms, tools: {settings: {hang: "+step+", echo: "+step+"}}",
		"  gone: {command: /nonexistent, tools: {settings: {x: "+step+"}}}\n")
	for range 5 { // the last ones are not sent
		m := e.call("a__hang", `{}`)
		e.wantServed(m, "Later.", 1, "result")
		if r := e.result(m); string(r.StructuredContent) != `{"n":9007199254740993}` {
			t.Errorf("got %s", m.Result)
		}
	}
	if n := bad.Count("tools/call hang"); n != 3 {
		t.Errorf("%d calls of a tool whose breaker opens at 3", n)
	}
	bad.Fail(503, 0)
	for range 5 {
		e.wantServed(e.call("a__echo", `{"text":"x"}`), "Later.", 1, "result")
	}
	eventually(t, "the server is down", func() bool { return e.status("a").State == "down" })
	e.wantServed(e.call("a__echo", `{"text":"x"}`), "Later.", 1, "result")
}

// A fresh result is used again and says so, for the same call only.
func TestCachedResultIsUsedWhileFresh(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, noRetry+", tools: {settings: {mirror: {cache: 10m}, echo: {cache: 500ms}, append: {idempotent: true, cache: 10m}}}")
	asked := func(tool string) int { return bad.Count("tools/call " + tool) }
	e.wantServed(e.call("a__mirror", `{"q":1,"r":{"b":1,"a":2.0}}`), `{"q":1,"r":{"b":1,"a":2.0}}`, 1, "")
	for _, same := range []string{`{"q":1,"r":{"b":1,"a":2.0}}`, `{"r":{"a":2.0,"b":1},"q":1}`, `{ "r" : { "a" : 2.0 , "b" : 1 }, "q" : 1 }`} {
		e.wantServed(e.call("a__mirror", same), `{"q":1,"r":{"b":1,"a":2.0}}`, 1, "cache")
	}
	e.wantServed(e.call("a__mirror", `{"q":2}`), `{"q":2}`, 1, "")
	if n := asked("mirror"); n != 2 {
		t.Errorf("two calls were sent %d times", n)
	}
	e.call("a__echo", `{"text":"x"}`)
	time.Sleep(600 * time.Millisecond)
	e.wantServed(e.call("a__echo", `{"text":"x"}`), "x", 1, "")

	// A result that is an error is not kept.
	bad.Fault(badserver.Fault{Kind: "tool_error", Tool: "mirror", Count: 1})
	e.call("a__mirror", `{"q":3}`)
	e.wantServed(e.call("a__mirror", `{"q":3}`), `{"q":3}`, 1, "")

	// Where each client has a process of its own, it has results of its own.
	web := serveWeb(t, configFile(t, "", up("a", ", sharing: session, tools: {settings: {pid: {cache: 10m}}}")))
	web.awaitTools("a__pid")
	first := web.result(web.call("a__pid", `{}`)).text()
	web.wantServed(web.call("a__pid", `{}`), first, 1, "cache")
	other := newHTTPClient(t, web.url)
	other.initialize(`{}`)
	if r := other.result(other.call("a__pid", `{}`)); r.IsError || r.text() == first {
		t.Errorf("another client got what is kept for the first: %+v", r)
	}
}
