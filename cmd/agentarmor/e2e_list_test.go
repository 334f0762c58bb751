package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
)

func TestCase06FailedListIsNotAnEmptyList(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", "", "-fault", `{"kind":"error","method":"tools/list","count":2}`)))
	e.awaitTools("a__echo", "a__mirror", "a__sleep")

	// Once known, the list survives failures.
	e.call("a__fault", `{"kind":"error","method":"tools/list","count":2}`)
	e.call("a__add_tool", `{"name":"late"}`)
	for range 3 {
		names, _ := e.tools()
		if !strings.Contains(strings.Join(names, " "), "a__echo") {
			t.Fatalf("the last good list is gone: %v", names)
		}
	}
	e.awaitTools("a__echo", "a__late")
}

func TestCase07SlowServerDelaysNobody(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("slow", "", "-init-delay", "5s"), up("fast", "")))
	e.awaitTools("fast__echo")
	if names, _ := e.tools(); strings.Contains(strings.Join(names, " "), "slow__echo") {
		t.Fatal("the slow server is ready already: the test shows nothing")
	}
	e.wantText(e.call("fast__echo", `{"text":"x"}`), "x")
	e.awaitTools("slow__echo")
	e.notification("notifications/tools/list_changed")
}

func TestCase15ChangedListIsToldOnce(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", atOnce)))
	// told is how often the client was told in the time that changes are
	// gathered for, and more.
	told := func() (n int) {
		time.Sleep(500 * time.Millisecond)
		for ; e.seen("notifications/tools/list_changed") > 0; n++ {
			e.notification("notifications/tools/list_changed")
		}
		return n
	}
	once := func(what string) {
		t.Helper()
		if n := told(); n != 1 {
			t.Errorf("told %d times: %s", n, what)
		}
	}
	listed := func(name string) bool {
		names, _ := e.tools()
		return slices.Contains(names, name)
	}
	e.awaitTools("a__echo")
	told() // perhaps: the list came after the first one was asked for

	e.call("a__add_tool", `{"name":"fresh"}`)
	e.awaitTools("a__fresh")
	e.wantText(e.call("a__fresh", `{"a":1}`), `{"a":1}`)
	once("a tool is new")
	e.call("a__remove_tool", `{"name":"echo"}`)
	eventually(t, "the removed tool is not listed", func() bool { return !listed("a__echo") })
	once("a tool is gone")

	// The restarted server has its first list again, which is another one.
	e.call("a__exit", `{}`)
	e.awaitTools("a__echo")
	once("the restarted server has another list")

	// After the next restart the list is as before: nobody is told.
	e.call("a__exit", `{}`)
	eventually(t, "it runs again", func() bool { return !e.result(e.call("a__echo", `{"text":"x"}`)).IsError })
	eventually(t, "it was listed again", func() bool { return e.status("a").State == "ready" })
	if n := told(); n > 0 {
		t.Errorf("told %d times of a list that did not change", n)
	}
}

func TestCase16OddNamesAreListedSafelyAndCallable(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", "", "-odd-names"), up("b__c", ""), up("b", "", "-prefix", "c__")))
	e.awaitTools("a__a_b", "b__c__echo", "a__echo")
	names, _ := e.tools()
	safe := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	seen, called := map[string]bool{}, 0
	for _, name := range names {
		if own := name == "armor.status" || name == "llm.complete"; !own && !safe.MatchString(name) {
			t.Errorf("unsafe name %q", name)
		}
		if seen[name] {
			t.Errorf("listed twice: %q", name)
		}
		seen[name] = true
		if !strings.HasPrefix(name, "a__") || strings.Contains(name, "exit") {
			continue
		}
		// Every tool of -odd-names mirrors its arguments.
		if r := e.result(e.callOrSkip(name)); string(r.StructuredContent) == `{"a":1}` {
			called++
		}
	}
	if called < 11 {
		t.Errorf("%d of the tools with odd names were reached under the listed name", called)
	}
	for _, original := range []string{"a.a/b", "a.工具", "工具", "a/b"} {
		if r := e.result(e.call(original, `{"a":1}`)); string(r.StructuredContent) != `{"a":1}` {
			t.Errorf("%q is not accepted in a call: %+v", original, r)
		}
	}
	e.wantError(e.call("echo", `{}`), -32602) // ambiguous: the candidates are named
}

// callOrSkip calls a tool unless that would spoil the server.
func (c *rawClient) callOrSkip(name string) rpcMessage {
	for _, spoiler := range []string{"hang", "deaf", "exit", "sleep", "bad", "cut", "poll", "remove", "add", "rpcerror", "wrongid", "twice", "late", "fault", "heal", "redefine", "elicit", "sample", "roots", "ask", "append"} {
		if strings.HasPrefix(name, "a__"+spoiler) {
			return rpcMessage{Result: json.RawMessage(`{}`)}
		}
	}
	return c.call(name, `{"a":1}`)
}

// directTools lists what a badserver with these options lists by itself.
func directTools(t *testing.T, o badserver.Options) map[string]string {
	t.Helper()
	s := badserver.New(o)
	ts := httptest.NewServer(s)
	defer ts.Close()
	defer s.Close()
	c := newHTTPClient(t, ts.URL+"/mcp")
	c.initialize(`{}`)
	var list struct{ Tools []json.RawMessage }
	c.decode(c.rpc("tools/list", `{}`), &list)
	raw := map[string]string{}
	for _, def := range list.Tools {
		var tool struct{ Name string }
		if json.Unmarshal(def, &tool) == nil && tool.Name != "" {
			raw[tool.Name] = string(def)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	return raw
}

func TestCase17And18SchemasPassUntouched(t *testing.T) {
	t.Parallel()
	o := badserver.Options{OddSchemas: true, BigSchema: 300_000}
	direct := directTools(t, o)
	e := serveStdio(t, configFile(t, "", up("a", "", "-odd-schemas", "-big-schema", "300000")))
	e.awaitTools("a__echo", "a__mirror", "a__sleep")
	_, raw := e.tools()
	quarantined := e.status("a").Quarantined
	for name, def := range direct {
		got, listed := raw["a__"+name]
		reason := quarantined[name]
		switch {
		case listed:
			if want := strings.Replace(def, `"name":"`+name, `"name":"a__`+name, 1); got != want {
				t.Errorf("%s changed:\n%.500s\nwant\n%.500s", name, got, want)
			}
		case reason == "" || !strings.HasPrefix(name, "odd_"):
			t.Errorf("%s is neither listed nor quarantined with a reason", name)
		}
	}
	for _, must := range []string{"odd_combined", "big_schema", "odd_types"} {
		if raw["a__"+must] == "" {
			t.Errorf("%s is not listed; quarantined: %v", must, quarantined)
		}
	}
}
