package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
)

// appends calls a tool that leaves a line in a file for each execution, and
// tells how many there are. more are further arguments, with a comma in front.
func (e *endpoint) appends(tool, more string) (answer rpcMessage, lines func() int) {
	e.t.Helper()
	file := filepath.Join(e.t.TempDir(), "lines")
	answer = e.call(tool, fmt.Sprintf(`{"file":%q,"text":"once"%s}`, file, more))
	return answer, func() int { return len(fileLines(file)) }
}

func (e *endpoint) wantLines(want int, lines func() int, what string) {
	e.t.Helper()
	if got := lines(); got != want {
		e.t.Errorf("%s: executed %d times, want %d", what, got, want)
	}
}

// With retries on, what may have been executed is made again only if that is
// harmless: by the tool's hints, and by the config, which wins.
func TestCase23OnlyHarmlessCallsAreMadeAgain(t *testing.T) {
	t.Parallel()
	const settings = ", tools: {settings: {append: {idempotent: true}, append_idempotent: {idempotent: false}}}"
	e := serveStdio(t, configFile(t, "",
		up("hints", soon+atOnce), up("config", soon+atOnce+settings), up("wary", soon+atOnce+", trust_hints: false"), up("never", soon+atOnce+noRetry)))
	const dies = `,"exit":true,"times":1`
	for tool, executions := range map[string]int{
		"hints__append": 1, "hints__append_idempotent": 2, "hints__append_readonly": 2,
		"config__append": 2, "config__append_idempotent": 1,
		"wary__append_idempotent": 1, "wary__append_readonly": 1,
		"never__append_idempotent": 1,
	} {
		e.awaitTools(tool)
		upstream, _, _ := strings.Cut(tool, "__")
		eventually(t, upstream+" is ready", func() bool { return e.status(upstream).State == "ready" })
		m, lines := e.appends(tool, dies)
		if executions == 2 {
			e.wantServed(m, "appended", 2, "")
		} else if said := e.wantUnserved(m, "lost", "maybe"); said.Attempts > 1 || said.Upstream != upstream {
			t.Errorf("%s: %+v", tool, said)
		}
		e.wantLines(executions, lines, tool)
	}
}

func TestCase23OverHTTP(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, ", breaker: {enabled: false}")
	for _, kind := range []string{"status", "drop", "html", "garbage"} {
		outcome := map[string]string{"status": "overloaded", "drop": "lost", "html": "malformed", "garbage": "malformed"}[kind]
		for tool, harmless := range map[string]bool{"append": false, "append_idempotent": true} {
			eventually(t, "it is ready", func() bool { return e.status("a").State == "ready" })
			bad.Fault(badserver.Fault{Kind: kind, Status: 503, Tool: tool, Count: 1})
			m, lines := e.appends("a__"+tool, "")
			if harmless {
				e.wantServed(m, "appended", 2, "")
				e.wantLines(1, lines, kind)
			} else {
				e.wantUnserved(m, outcome, "maybe")
				e.wantLines(0, lines, kind)
			}
		}
	}
	// Retries end, too.
	bad.Fault(badserver.Fault{Kind: "status", Status: 503, Tool: "append_idempotent"})
	m, _ := e.appends("a__append_idempotent", "")
	if said := e.wantUnserved(m, "overloaded", "maybe"); said.Attempts != 3 {
		t.Errorf("attempts: %+v", said)
	}
}

// A timeout spends the budget: there is no second one.
func TestCase23TimeoutIsNotDoubled(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", ", call_timeout: 500ms")))
	e.awaitTools("a__append_idempotent")
	for _, tool := range []string{"a__append", "a__append_idempotent"} {
		m, lines := e.appends(tool, `,"ms":30000`)
		said := e.wantUnserved(m, "timeout", "maybe")
		if said.Attempts > 1 || !strings.Contains(said.Reason, "500ms") {
			t.Errorf("%+v", said)
		}
		e.wantLines(1, lines, tool)
	}
}

// The budget of retries bounds them where an outage meets many calls.
func TestRetriesHaveABudget(t *testing.T) {
	t.Parallel()
	none, url := startBad(t, badserver.Options{})
	e, bad := badHTTP(t, ", breaker: {enabled: false}, retry: {base: 1ms, max: 1ms}", remote("none", url+"/mcp", ", retry: {budget: 0}"))
	e.awaitTools("none__echo")
	none.Fault(badserver.Fault{Kind: "status", Status: 503, Tool: "mirror", Count: 1})
	if said := e.wantUnserved(e.call("none__mirror", `{}`), "overloaded", "maybe"); said.Attempts > 1 {
		t.Errorf("retried without a budget: %+v", said)
	}
	bad.Fault(badserver.Fault{Kind: "status", Status: 503, Tool: "mirror"})
	const calls = 100
	attempts := 0
	for range calls {
		said := e.wantUnserved(e.call("a__mirror", `{}`), "overloaded", "maybe")
		attempts += max(said.Attempts, 1)
	}
	// A fifth of the calls, and a reserve for those who have few.
	if attempts <= calls || attempts > calls*3/2 {
		t.Errorf("%d attempts for %d calls", attempts, calls)
	}
}

// Progress keeps a call that may be made again alive as any other, up to the cap.
func TestCase13WithRetries(t *testing.T) {
	t.Parallel()
	const harmless = ", tools: {settings: {sleep: {idempotent: true}}}"
	e := serveStdio(t, configFile(t, "", up("a", ", call_timeout: 500ms"+harmless), up("capped", ", call_timeout: 500ms, max_call_time: 1s"+harmless)))
	e.awaitTools("a__sleep", "capped__sleep")
	const args = `{"ms":1500,"progress_every":100}`
	e.wantServed(e.call("a__sleep", args), "slept", 1, "")
	if said := e.wantUnserved(e.call("capped__sleep", args), "timeout", "maybe"); said.Attempts > 1 {
		t.Errorf("%+v", said)
	}
	eventually(t, "the server is told", func() bool {
		return strings.Contains(e.result(e.call("capped__calls", `{}`)).text(), `"notifications/cancelled":1`)
	})
}

// A retry waits within the call's own budget, whatever it waits for.
func TestCase14WithRetries(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, ", call_timeout: 1s, retry: {base: 3s, max: 3s}, tools: {settings: {echo: {call_timeout: 45s}}}")
	bad.Fault(badserver.Fault{Kind: "status", Status: 503, Tool: "mirror"})
	began := time.Now()
	e.wantUnserved(e.call("a__mirror", `{}`), "overloaded", "maybe")
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("a budget of 1 s took %v", d)
	}
	bad.Fault(badserver.Fault{Kind: "status", Status: 429, RetryAfter: "2", Tool: "log", Count: 1})
	if said := e.wantUnserved(e.call("a__log", `{}`), "throttled", "no"); time.Until(said.RetryAt) > 3*time.Second {
		t.Errorf("%+v", said)
	}
	eventually(t, "it is ready", func() bool { return e.status("a").State == "ready" })
	bad.Fault(badserver.Fault{Kind: "status", Status: 429, RetryAfter: "2", Tool: "echo", Count: 1})
	e.wantServed(e.call("a__echo", `{"text":"x"}`), "x", 2, "")
}

// A forgotten session was forgotten before anything was executed: every call is
// made again, also one with effects, after one handshake for all.
func TestCase21WithRetries(t *testing.T) {
	t.Parallel()
	bad, url := startBad(t, badserver.Options{Era: "legacy"})
	e := serveStdio(t, configFile(t, "", remote("a", url+"/mcp", ", protocol: legacy")))
	e.awaitTools("a__append")
	file := filepath.Join(t.TempDir(), "lines")
	bad.Forget()
	var ids []string
	for i := range 20 {
		ids = append(ids, e.start("tools/call", toolCall("a__append", fmt.Sprintf(`{"file":%q,"text":"%d"}`, file, i))))
	}
	for _, id := range ids {
		if r := e.result(e.answer(id)); r.IsError {
			t.Errorf("got %+v", r)
		}
	}
	if n := len(fileLines(file)); n != 20 {
		t.Errorf("20 calls were executed %d times", n)
	}
	if n := bad.Count("initialize"); n != 2 {
		t.Errorf("%d initialize", n-1)
	}
	// A server that forgets every session at once is not asked for ever.
	bad.Fault(badserver.Fault{Kind: "status", Status: 404, Tool: "append"})
	if said := e.unserved(e.call("a__append", fmt.Sprintf(`{"file":%q,"text":"x"}`, file))); said.Outcome != "session_lost" && said.Outcome != "lost" {
		t.Errorf("%+v", said)
	}
	if n := bad.Count("initialize"); n > 6 {
		t.Errorf("%d initialize for one call", n-2)
	}
	if n := len(fileLines(file)); n != 20 {
		t.Error("executed in the end")
	}
}
