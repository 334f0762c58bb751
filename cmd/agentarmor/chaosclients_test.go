package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
)

// The Inspector's command line and both official TypeScript clients break a
// running endpoint with its own tools, and mend it.
func TestChaosFromClients(t *testing.T) {
	npm(t)
	_, url := startBad(t, badserver.Options{})
	config := configFile(t, "chaos: {seed: 7, scenarios: {grumpy: [{target: mcp/web/*, fault: tool_error, message: Not today.}]}}",
		remote("web", url+"/mcp", ", retry: {attempts: 0}"), up("local", ""))
	e := serveWeb(t, config, "--chaos")
	e.awaitTools("web__echo", "local__echo")
	t.Run("inspector", func(t *testing.T) { inspectorBreaks(t, e.url) })
	for _, generation := range []string{"legacy", "modern"} {
		t.Run(generation, func(t *testing.T) {
			out, err := runNode(t, must(filepath.Abs("../../.ci/js/chaos.mjs")), generation, e.url)
			if err != nil || string(out) != "done\n" {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// inspected is a result that the Inspector prints.
type inspected struct {
	Tools []struct {
		Name        string
		Annotations struct{ ReadOnlyHint, DestructiveHint, IdempotentHint, OpenWorldHint bool }
	}
	Contents          []struct{ Text string }
	Content           []struct{ Text string }
	StructuredContent struct {
		Injected, Cleared []injectedFault
		Active            int
	}
	IsError bool
	Meta    struct {
		Call struct{ Outcome, Injected string } `json:"agentarmor/call"`
	} `json:"_meta"`
}

// inspector runs one request of the Inspector's command line. It fails when a tool does.
func inspector(t *testing.T, url string, args ...string) (inspected, error) {
	t.Helper()
	out, err := runNode(t, append([]string{module(t, "inspector/clients/launcher/build/index.js"), "--cli", url, "--format", "json", "--method"}, args...)...)
	var m struct{ Result inspected }
	if json.Unmarshal(out, &m) != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return m.Result, err
}

func inspectorBreaks(t *testing.T, url string) {
	call := func(name string, args ...string) (inspected, error) {
		t.Helper()
		return inspector(t, url, append([]string{"tools/call", "--tool-name", name, "--tool-arg"}, args...)...)
	}
	list, err := inspector(t, url, "tools/list")
	hints := map[string][4]bool{} // read-only, destructive, idempotent, open world
	for _, tool := range list.Tools {
		if a := tool.Annotations; strings.HasPrefix(tool.Name, "chaos.") {
			hints[tool.Name] = [4]bool{a.ReadOnlyHint, a.DestructiveHint, a.IdempotentHint, a.OpenWorldHint}
		}
	}
	want := map[string][4]bool{"chaos.inject": {1: true}, "chaos.clear": {2: true}, "chaos.list": {0: true, 2: true}}
	if diff := cmp.Diff(want, hints); err != nil || diff != "" {
		t.Errorf("%v, hints (-want +got):\n%s", err, diff)
	}

	in, err := call("chaos.inject", "target=mcp/web/echo", "fault=error", "status=503", "probability=1", "ttl=10m")
	if err != nil || len(in.StructuredContent.Injected) != 1 {
		t.Fatalf("chaos.inject: %v, %+v", err, in)
	}
	id := in.StructuredContent.Injected[0].ID

	failed, err := call("web__echo", "text=hello")
	if err == nil || !failed.IsError || failed.Meta.Call.Outcome != "overloaded" || failed.Meta.Call.Injected != id {
		t.Errorf("under the fault: %v, %+v", err, failed)
	}

	res, err := inspector(t, url, "resources/read", "--uri", "agentarmor://chaos")
	if err != nil || len(res.Contents) != 1 {
		t.Fatalf("agentarmor://chaos: %v, %+v", err, res)
	}
	var doc chaosList
	if err := json.Unmarshal([]byte(res.Contents[0].Text), &doc); err != nil || len(doc.Active) != 1 || doc.Active[0].ID != id || doc.Active[0].Hits != 1 || doc.Seed != 7 {
		t.Errorf("%v in %s", err, res.Contents[0].Text)
	}

	gone, err := call("chaos.clear", "which="+id)
	if err != nil || len(gone.StructuredContent.Cleared) != 1 || gone.StructuredContent.Active != 0 {
		t.Errorf("chaos.clear: %v, %+v", err, gone)
	}
	well, err := call("web__echo", "text=hello")
	if err != nil || len(well.Content) != 1 || well.Content[0].Text != "hello" {
		t.Errorf("after the fault: %v, %+v", err, well)
	}
}
