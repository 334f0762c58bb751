package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCase10TextPassesBothWays(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", "")))
	e.awaitTools("a__mirror")
	const args = `{"text":"héllo 你好 😀 \u2028 \ud83d \/ \u00e9","b":1.0,"a":1e2,"n":9007199254740993}`
	if r := e.result(e.call("a__mirror", args)); string(r.StructuredContent) != args {
		t.Errorf("got  %s\nwant %s", r.StructuredContent, args)
	}
	e.send("{\"jsonrpc\":\"2.0\",\"id\":900,\"method\":\"tools/call\",\"params\":{\"name\":\"a__echo\",\"arguments\":{\"text\":\"\xff\"}}}")
	e.wantError(e.wait("parse error", func(m *rpcMessage) bool { return m.Error != nil }), -32700)
	for _, tool := range []string{"a__badutf8", "a__badjson"} {
		m := e.call(tool, `{}`)
		if r := e.result(m); !r.IsError || r.Meta.Call == nil || r.Meta.Call.Executed != "maybe" {
			t.Errorf("%s: %s", tool, m.Result)
		}
	}
	e.wantText(e.call("a__echo", `{"text":"x"}`), "x")
}

func TestCase11LongLines(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", "")))
	e.awaitTools("a__blob")
	long := strings.Repeat("y", 1<<20)
	e.wantText(e.call("a__echo", `{"text":"`+long+`"}`), long)
	if r := e.result(e.call("a__blob", `{"bytes":20000000}`)); len(r.text()) != 20_000_000 {
		t.Errorf("%d bytes of 20 MB came", len(r.text()))
	}

	text := strings.Repeat("é", 10_000_000) // 20 MB there and back
	e.wantText(e.call("a__echo", `{"text":"`+text+`"}`), text)
}

// Over the limit, that call alone fails, and those beside it go on.
func TestCase11LinesOverTheLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, top string
		size      int
	}{{"small limit", "limits: {message: 1MiB}", 3 << 20}, {"default limit", "", 100 << 20}} {
		if testing.Short() && c.size > 10<<20 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			e := serveStdio(t, configFile(t, c.top, up("a", "")))
			e.awaitTools("a__blob")
			beside := e.start("tools/call", toolCall("a__hang", `{}`))
			m := e.call("a__blob", fmt.Sprintf(`{"bytes":%d}`, c.size))
			e.wantUnserved(m, "too_large", "maybe")
			e.wantText(e.call("a__echo", `{"text":"x"}`), "x")

			e.wantError(e.call("a__echo", `{"text":"`+strings.Repeat("z", c.size)+`"}`), -32600)
			e.wantText(e.call("a__echo", `{"text":"x"}`), "x")
			if s := e.status("a"); s.State != "ready" || s.Restarts != 0 {
				t.Errorf("it cost the connection: %+v", s)
			}
			if _, answered, _ := e.take(func(m *rpcMessage) bool { return string(m.ID) == beside }); answered {
				t.Error("the call beside was ended")
			}
			e.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + beside + `}}`)
		})
	}
}

func TestCase13ProgressExtendsTheTimeoutUpToTheCap(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", ", call_timeout: 1s"), up("capped", ", call_timeout: 1s, max_call_time: 2s")))
	e.awaitTools("a__sleep", "capped__sleep")
	const args = `"arguments":{"ms":3000,"progress_every":200}`
	for _, token := range []string{`"my token"`, "9007199254740993"} {
		m := e.rpc("tools/call", `{"name":"a__sleep",`+args+`,"_meta":{"progressToken":`+token+`}}`)
		e.wantText(m, "slept")
		n := 0
		for e.seen("notifications/progress") > 0 {
			if p := e.notification("notifications/progress"); !strings.Contains(string(p.Params), `"progressToken":`+token) {
				t.Errorf("progress under another token: %s", p.Params)
			}
			n++
		}
		if n < 5 {
			t.Errorf("%d progress notifications in 3 s", n)
		}
	}
	// Without a token of the client's, ours keeps the call alive.
	e.wantText(e.rpc("tools/call", `{"name":"a__sleep",`+args+`}`), "slept")
	if n := e.seen("notifications/progress"); n > 0 {
		t.Errorf("%d progress notifications that nobody asked for", n)
	}

	m := e.rpc("tools/call", `{"name":"capped__sleep",`+args+`}`)
	e.wantUnserved(m, "timeout", "maybe")
	eventually(t, "the server is told", func() bool {
		return strings.Contains(e.result(e.call("capped__calls", `{}`)).text(), `"notifications/cancelled":1`)
	})
}

func TestCase14TimeoutsAreTheConfigured(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "",
		up("start", ", startup_timeout: 100ms", "-init-delay", "60s"),
		up("list", ", startup_timeout: 1s, call_timeout: 100ms", "-list-delay", "60s"),
		up("call", ", call_timeout: 100ms, tools: {settings: {hang: {call_timeout: 45s}}}"),
		up("patient", ", startup_timeout: 45s, call_timeout: 45s", "-init-delay", "1s", "-list-delay", "1s")))
	e.awaitTools("call__sleep")

	// A call, for each of the two: the long one outlives the short ones.
	hanging := e.start("tools/call", toolCall("call__hang", `{}`))
	for range 3 {
		began := time.Now()
		m := e.call("call__sleep", `{"ms":45000}`)
		e.wantUnserved(m, "timeout", "maybe")
		if d := time.Since(began); d < 100*time.Millisecond || d > 2*time.Second {
			t.Errorf("a timeout of 100 ms took %v", d)
		}
		if r := e.result(m); !strings.Contains(r.text(), "timeout after 100ms") {
			t.Errorf("the text names another timeout: %s", r.text())
		}
	}

	// A start, and a list: the first one belongs to the start.
	for name, why := range map[string]string{"start": "startup timeout", "list": "no answer within 100ms"} {
		eventually(t, name+" has timed out", func() bool {
			s := e.status(name)
			return s.State != "ready" && strings.Contains(s.Reason+s.LastError, why)
		})
	}
	e.awaitTools("patient__sleep")
	e.wantText(e.call("patient__sleep", `{"ms":1500}`), "slept")
	if s := e.status("patient"); s.State != "ready" || s.Restarts != 0 || s.LastError != "" {
		t.Errorf("the patient one: %+v", s)
	}

	if _, answered, _ := e.take(func(m *rpcMessage) bool { return string(m.ID) == hanging }); answered {
		t.Error("the call with 45 s was answered before")
	}
	e.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + hanging + `}}`)
	eventually(t, "the cancelled call reached the server", func() bool {
		m := e.result(e.call("call__calls", `{}`))
		return strings.Contains(m.text(), `"notifications/cancelled":4`)
	})
	if _, answered, _ := e.take(func(m *rpcMessage) bool { return string(m.ID) == hanging }); answered {
		t.Error("the cancelled call was answered")
	}
}

func TestCase19IntegersAreNotRounded(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", "")))
	e.awaitTools("a__mirror")
	const args = `{"n":9007199254740993,"m":-9007199254740993,"f":0.1000000000000000055,"e":1E400}`
	for _, id := range []string{"9007199254740993", `"9007199254740993"`, `"\u00e9"`, "-7"} {
		e.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":` + toolCall("a__mirror", args) + `}`)
		if r := e.result(e.answer(id)); string(r.StructuredContent) != args {
			t.Errorf("got  %s\nwant %s", r.StructuredContent, args)
		}
	}
	m := e.call("a__rpcerror", `{"code":-32042,"message":"<é>","data":{"n":9007199254740993}}`)
	if want := `{"code":-32042,"message":"<é>","data":{"n":9007199254740993}}`; string(m.Error) != want {
		t.Errorf("got  %s\nwant %s", m.Error, want)
	}
}

func TestCase20VariablesAreStrictAndSecret(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "",
		up("a", ", env: {ONE: '${AGENTARMOR_E2E_SECRET}', TWO: '${NOT_SET:-fallback}', THREE: '$$5'}"),
		"  broken: {command: /nonexistent, args: ['${AGENTARMOR_E2E_SECRET}'], env: {X: '${AGENTARMOR_E2E_SECRET}'}}\n"))
	e.awaitTools("a__env")
	names := "\n" + e.result(e.call("a__env", `{}`)).text() + "\n"
	for _, want := range []string{"ONE", "TWO", "THREE", "PATH"} {
		if !strings.Contains(names, "\n"+want+"\n") {
			t.Errorf("%s is not in the child's environment %q", want, names)
		}
	}
	if strings.Contains(names, "AGENTARMOR_E2E_SECRET") {
		t.Error("the child got our environment")
	}
	eventually(t, "the broken one has failed", func() bool { return e.status("broken").State == "down" })
	e.stderr.mu.Lock()
	defer e.stderr.mu.Unlock()
	if strings.Contains(e.stderr.text.String(), "s3cret-value") {
		t.Error("a secret is in the log")
	}
}

func TestCase23SideEffectsAreNotRepeated(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", ", call_timeout: 500ms")))
	e.awaitTools("a__append")
	for name, c := range map[string]struct{ args, outcome string }{
		"slow": {`"ms":30000`, "timeout"},
		"dies": {`"exit":true`, "lost"},
	} {
		file := filepath.Join(t.TempDir(), name)
		m := e.call("a__append", fmt.Sprintf(`{"file":%q,"text":"once",%s}`, file, c.args))
		e.wantUnserved(m, c.outcome, "maybe")
		if r := e.result(m); !strings.Contains(r.text(), "may have been executed") {
			t.Errorf("%s: the text does not warn: %s", name, r.text())
		}
		eventually(t, "the server is back", func() bool { return !e.result(e.call("a__echo", `{"text":"x"}`)).IsError })
		if lines := fileLines(file); len(lines) != 1 {
			t.Errorf("%s: executed %d times", name, len(lines))
		}
	}
}
