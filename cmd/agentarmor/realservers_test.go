package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/mcpproxy/builtin"
)

// stdioServer is how to start one server, for the driver and for the config.
type stdioServer struct {
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env,omitempty"`
}

// plan is what the driver reads.
type plan struct {
	Dir     string                 `json:"dir"`
	Servers map[string]stdioServer `json:"servers"`
	Proxy   *stdioServer           `json:"proxy,omitempty"`
	Expect  []string               `json:"expect,omitempty"` // names to wait for
}

// realServers are the reference servers from npm, working in dir.
func realServers(t *testing.T, dir string) map[string]stdioServer {
	t.Helper()
	server := func(name string, env map[string]string, args ...string) stdioServer {
		return stdioServer{nodeBin(t), append([]string{module(t, name+"/dist/index.js")}, args...), env}
	}
	return map[string]stdioServer{
		"everything": server("server-everything", nil, "stdio"),
		"filesystem": server("server-filesystem", nil, dir),
		"memory":     server("server-memory", map[string]string{"MEMORY_FILE_PATH": dir + ".jsonl"}),
		"thinking":   server("server-sequential-thinking", nil),
	}
}

// onePixel is a PNG of one pixel.
const onePixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// record is one line of the driver's output.
type record struct{ Step, Kind, Value string }

// drive plays the sequence of .ci/js with a client of one generation, in a
// fresh working directory that is the same for every run.
func drive(t *testing.T, generation string, p plan) []record {
	t.Helper()
	for _, name := range []string{p.Dir, p.Dir + ".jsonl"} {
		if err := os.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(p.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(p.Dir, "pixel.png"), string(must(base64.StdEncoding.DecodeString(onePixel))))
	file := filepath.Join(t.TempDir(), "plan.json")
	write(t, file, string(must(json.Marshal(p))))
	out, err := runNode(t, must(filepath.Abs("../../.ci/js/drive.mjs")), generation, file)
	if err != nil {
		t.Fatalf("the driver failed after\n%.2000s", out)
	}
	var records []record
	for line := range bytes.Lines(out) {
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		records = append(records, r)
	}
	return records
}

// Each of the official clients sees through AgentArmor, in front of all
// servers, what it sees of each server directly: key order included.
func TestRealServers(t *testing.T) {
	npm(t)
	self := must(exec.LookPath("agentarmor"))
	for _, generation := range []string{"legacy", "modern"} {
		t.Run(generation, func(t *testing.T) {
			dir := filepath.Join(must(filepath.EvalSymlinks(t.TempDir())), "scratch")
			servers := realServers(t, dir)
			direct := drive(t, generation, plan{Dir: dir, Servers: servers})

			var entries []string
			for _, name := range slices.Sorted(maps.Keys(servers)) {
				entries = append(entries, fmt.Sprintf("  %s: %s\n", name, must(json.Marshal(servers[name]))))
			}
			config := configFile(t, "", entries...)
			lists := directLists(t, direct)
			var expect []string
			for key := range lists {
				if name, ok := strings.CutPrefix(key, "tools/list "); ok {
					expect = append(expect, name)
				}
			}
			proxied := drive(t, generation, plan{Dir: dir, Servers: servers, Expect: expect,
				Proxy: &stdioServer{Command: self, Args: []string{"serve", "--config", config}}})

			compareLists(t, lists, proxiedLists(t, proxied))
			compareSteps(t, generation, direct, proxied)
			if generation == "modern" {
				urlIsAsked(t, proxied)
			}
		})
	}
}

// listKeys says where each list keeps its entries and what identifies them.
var listKeys = map[string][2]string{
	"tools/list":               {"tools", "name"},
	"prompts/list":             {"prompts", "name"},
	"resources/list":           {"resources", "uri"},
	"resources/templates/list": {"resourceTemplates", "uriTemplate"},
}

// entries splits a list's answer into its raw entries, by "method identity".
func entries(t *testing.T, method, raw string, into map[string]string, rename func(string) string) {
	t.Helper()
	keys := listKeys[method]
	var m struct{ Result map[string]json.RawMessage }
	var list []json.RawMessage
	if err := json.Unmarshal([]byte(raw), &m); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(m.Result[keys[0]], &list); err != nil {
		t.Fatalf("%s: %v in %.300s", method, err, raw)
	}
	for _, e := range list {
		var identity map[string]json.RawMessage
		var name string
		if json.Unmarshal(e, &identity) != nil || json.Unmarshal(identity[keys[1]], &name) != nil {
			t.Fatalf("%s: %s", method, e)
		}
		entry := string(e)
		if keys[1] == "name" {
			renamed := rename(name)
			entry = strings.Replace(entry, `"name":`+quoted(name), `"name":`+quoted(renamed), 1)
			name = renamed
		}
		into[method+" "+name] = entry
	}
}

// directLists merges what the servers list, tools and prompts under the names
// that AgentArmor gives them.
func directLists(t *testing.T, records []record) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, r := range records {
		server, method, _ := strings.Cut(r.Step, " ")
		if listKeys[method][0] != "" {
			entries(t, method, r.Value, all, func(n string) string { return server + "__" + n })
		}
	}
	return all
}

func proxiedLists(t *testing.T, records []record) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, r := range records {
		if method, ok := strings.CutPrefix(r.Step, "* "); ok {
			entries(t, method, r.Value, all, func(n string) string { return n })
		}
	}
	for key := range all {
		_, name, _ := strings.Cut(key, " ")
		if name == "armor.status" || name == builtin.LLMComplete || strings.HasPrefix(name, "agentarmor://") { // ours
			delete(all, key)
		}
	}
	return all
}

func compareLists(t *testing.T, direct, proxied map[string]string) {
	t.Helper()
	if len(direct) < 40 {
		t.Errorf("%d entries in the servers' lists: some are missing", len(direct))
	}
	if diff := cmp.Diff(direct, proxied); diff != "" {
		t.Errorf("lists (-direct +proxied):\n%s", diff)
	}
}

// compareSteps compares what each step brought, by kind and in order.
func compareSteps(t *testing.T, generation string, direct, proxied []record) {
	t.Helper()
	group := func(records []record) map[string][]string {
		m := map[string][]string{}
		for _, r := range records {
			_, method, _ := strings.Cut(r.Step, " ")
			// The server has asked for the roots at its start, except where
			// there is no client yet to ask: then it asks within the call.
			if listKeys[method][0] != "" || generation == "modern" && (r.Kind == "roots/list" || r.Step == urlRequired) {
				continue
			}
			key := r.Step + " → " + r.Kind
			m[key] = append(m[key], normal(generation, r))
		}
		return m
	}
	if diff := cmp.Diff(group(direct), group(proxied)); diff != "" {
		t.Errorf("steps (-direct +proxied):\n%s", diff)
	}
}

// urlRequired is the call that server-everything ends with -32042, a code that
// must not reach a 2026-07-28 client (basic/index, "Error Codes").
const urlRequired = "everything tool trigger-url-elicitation #2"

// urlIsAsked checks what a modern client gets instead: the URL as input required.
func urlIsAsked(t *testing.T, proxied []record) {
	t.Helper()
	if !slices.ContainsFunc(proxied, func(r record) bool {
		return r.Step == urlRequired && r.Kind == "elicitation/create" && strings.Contains(r.Value, `"mode":"url","url":"https://modelcontextprotocol.io"`)
	}) {
		t.Error("the URL that server-everything requires was not asked of the modern client")
	}
	if slices.ContainsFunc(proxied, func(r record) bool { return strings.Contains(r.Value, `"code":-32042`) }) {
		t.Error("-32042 reached a modern client")
	}
}

var (
	clock     = regexp.MustCompile(`\d{1,2}:\d\d:\d\d\p{Zs}[AP]M`)
	date      = regexp.MustCompile(`[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d{4} \d\d:\d\d:\d\d GMT[+-]\d{4}`)
	isoDate   = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z`)
	uuid      = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	blobText  = regexp.MustCompile(`"blob":"(UmVzb3VyY2Ug[^"]+)"`)
	listenID  = regexp.MustCompile(`,"_meta":\{"io\.modelcontextprotocol/subscriptionId":"listen:\d+"\}`)
	hopToken  = regexp.MustCompile(`"progressToken":[^,}]+`)
	simulated = regexp.MustCompile(`-level message|level-message`)
)

// normal takes from a record what differs between any two runs: ids, tokens,
// times, random choices. Everything else must be the same text.
func normal(generation string, r record) string {
	v := r.Value
	switch {
	case r.Kind == "answer":
		v = answerText(generation, v)
	case r.Kind == "notifications/message" && simulated.MatchString(v):
		return "one of the simulated messages"
	}
	switch {
	case strings.Contains(r.Step, " get-env "):
		return "the environment" // AgentArmor passes on another one
	case strings.Contains(r.Step, "://resource/nothing ") && strings.HasPrefix(v, `error {"code":-32`):
		return "an error" // no server has it, so AgentArmor says it itself
	}
	v = blobText.ReplaceAllStringFunc(v, func(s string) string {
		b, _ := base64.StdEncoding.DecodeString(blobText.FindStringSubmatch(s)[1])
		return `"blob":` + quoted(string(b))
	})
	v = listenID.ReplaceAllString(v, "")
	v = hopToken.ReplaceAllString(v, `"progressToken":0`)
	for _, re := range []*regexp.Regexp{clock, date, isoDate, uuid} {
		v = re.ReplaceAllString(v, "…")
	}
	return v
}

// answerText is the result or error of an answer, without what the 2026-07-28
// revision adds for the client's hop.
func answerText(generation, raw string) string {
	var m struct{ Result, Error json.RawMessage }
	if err := json.Unmarshal([]byte(raw), &m); err != nil {
		return "not JSON: " + raw
	}
	if m.Error != nil {
		return "error " + string(m.Error)
	}
	result := string(m.Result)
	if generation != "modern" {
		return result
	}
	for _, added := range modernMembers {
		result = added.ReplaceAllString(result, "")
	}
	return strings.ReplaceAll(result, "{,", "{")
}

// modernMembers are what AgentArmor adds to a legacy server's result for a
// 2026-07-28 client: resultType (basic), cache hints of reads (caching) and
// its own serverInfo.
var modernMembers = []*regexp.Regexp{
	regexp.MustCompile(`,?"resultType":"complete"`),
	regexp.MustCompile(`,?"ttlMs":0`),
	regexp.MustCompile(`,?"cacheScope":"private"`),
	regexp.MustCompile(`,?"_meta":\{"io\.modelcontextprotocol/serverInfo":\{[^{}]*\}\}`),
}

// The Inspector's command line works against the endpoint.
func TestInspector(t *testing.T) {
	self := must(exec.LookPath("agentarmor"))
	inspector := module(t, "inspector/clients/launcher/build/index.js")
	dir := filepath.Join(t.TempDir(), "scratch")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	fs := realServers(t, dir)["filesystem"]
	config := configFile(t, "", fmt.Sprintf("  fs: %s\n", must(json.Marshal(fs))))
	// A client that lists once sees what is remembered, however slow node starts.
	if out, err := exec.CommandContext(t.Context(), self, "check", "--config", config).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	endpoint := map[string]stdioServer{"agentarmor": {Command: self, Args: []string{"serve", "--config", config}}}
	session := filepath.Join(t.TempDir(), "inspector.json")
	write(t, session, string(must(json.Marshal(map[string]any{"mcpServers": endpoint}))))
	run := func(args ...string) string {
		t.Helper()
		out, err := runNode(t, append([]string{inspector, "--cli", "--config", session, "--server", "agentarmor"}, args...)...)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := run("--method", "tools/list"); !strings.Contains(out, `"fs__read_text_file"`) {
		t.Errorf("tools/list: %.1000s", out)
	}
	write(t, filepath.Join(dir, "a.txt"), "héllo from a file")
	out := run("--method", "tools/call", "--tool-name", "fs__read_text_file", "--tool-arg", "path="+filepath.Join(dir, "a.txt"))
	if !strings.Contains(out, "héllo from a file") {
		t.Errorf("tools/call: %.1000s", out)
	}
}
