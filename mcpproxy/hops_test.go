package mcpproxy

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares the trace with testdata/wire/name.txt; what is random in a
// requestState is blanked.
func golden(t *testing.T, name string, lines []string) {
	t.Helper()
	got := strings.Join(lines, "\n") + "\n"
	got = regexp.MustCompile(`v1\.[0-9a-f]{32}\.[\w-]{43}`).ReplaceAllString(got, "v1.<id>.<mac>")
	got = regexp.MustCompile(`u1\.([\w-]+)\.[\w-]{22}\.`).ReplaceAllString(got, "u1.$1.<mac>.")
	path := filepath.Join("testdata", "wire", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-update writes it anew): %s", path, diff)
	}
}

const done = `{"content":[{"type":"text","text":"done"}]}`

// upstreamSays sends a message of the upstream and traces it.
func (r *rig) upstreamSays(p *fakePeer, body string) {
	r.note("upstream →", body)
	p.say(body)
}

func (r *rig) upstreamAnswers(p *fakePeer, id uint64, result string) {
	r.note("upstream →", string(wire.AppendResult(nil, wire.AppendID(nil, id), []byte(result))))
	p.result(id, result)
}

func legacyIssues() *fakeServer {
	s := newLegacyServer()
	s.result("tools/list", `{"tools":[{"name":"create_issue","inputSchema":{"type":"object"}}]}`)
	s.silent("tools/call")
	return s
}

func modernIssues() *fakeServer {
	s := newModernServer()
	s.result("tools/list", `{"tools":[{"name":"create_issue","inputSchema":{"type":"object"}}]}`)
	s.silent("tools/call")
	return s
}

// githubBubble is bubble with the upstream named github.
func githubBubble(t *testing.T, srv *fakeServer, f func(t *testing.T, r *rig)) {
	t.Helper()
	bubble(t, srv, f, func(c *Config) { c.Upstreams[0].Name = "github" })
}

// The four pairs of generations of the package comment, as raw bytes on every hop.
func TestHops2025to2025(t *testing.T) {
	srv := legacyIssues()
	githubBubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		r.forget()
		c.send(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"github__create_issue","arguments":{"n":9007199254740993},"_meta":{"progressToken":1}}}`)
		r.hops()
		p := srv.peer()
		id := p.lastID(t, "tools/call")
		r.upstreamSays(p, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`+string(wire.AppendToken(nil, id))+`,"progress":0.50}}`)
		r.upstreamAnswers(p, id, done)
		golden(t, "2025-2025", r.hops())
	})
}

func TestHops2025to2026(t *testing.T) {
	srv := modernIssues()
	githubBubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{"elicitation":{}}`)
		r.forget()
		c.send(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"github__create_issue","arguments":{}}}`)
		r.hops()
		p := srv.peer()
		r.upstreamAnswers(p, p.lastID(t, "tools/call"), `{"resultType":"input_required","inputRequests":{"who":{"method":"elicitation/create","params":{"message":"Who?","requestedSchema":{"type":"object","properties":{}}}}},"requestState":"s"}`)
		r.hops()
		c.send(`{"jsonrpc":"2.0","id":"s1","result":{"action":"accept","content":{}}}`)
		r.hops()
		r.upstreamAnswers(p, p.lastID(t, "tools/call"), `{"resultType":"complete",`+done[1:])
		golden(t, "2025-2026", r.hops())
	})
}

func TestHops2026to2025(t *testing.T) {
	srv := legacyIssues()
	githubBubble(t, srv, func(t *testing.T, r *rig) {
		st := r.modern("", `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"github__create_issue","arguments":{},`+elicits+`}}`)
		r.hops()
		p := srv.peer()
		r.upstreamSays(p, `{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"Who?","requestedSchema":{"type":"object","properties":{}}}}`)
		settle(parkBatch)
		r.modern("", `{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"github__create_issue","arguments":{},`+elicits+`,"requestState":`+stateOf(t, st)+`,"inputResponses":{"a1":{"action":"accept","content":{}}}}}`)
		r.hops()
		r.upstreamAnswers(p, p.lastID(t, "tools/call"), done)
		golden(t, "2026-2025", r.hops())
	})
}

func TestHops2026to2026(t *testing.T) {
	srv := modernIssues()
	githubBubble(t, srv, func(t *testing.T, r *rig) {
		st := r.modern("", `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"github__create_issue","arguments":{},`+elicits+`}}`)
		r.hops()
		p := srv.peer()
		r.upstreamAnswers(p, p.lastID(t, "tools/call"), `{"resultType":"input_required","requestState":"s"}`)
		r.hops()
		r.modern("", `{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"github__create_issue","arguments":{},`+elicits+`,"requestState":`+stateOf(t, st)+`}}`)
		r.hops()
		r.upstreamAnswers(p, p.lastID(t, "tools/call"), `{"resultType":"complete",`+done[1:])
		golden(t, "2026-2026", r.hops())
	})
}

const elicits = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`

// stateOf is the raw requestState of an input_required answer.
func stateOf(t *testing.T, st *testStream) string {
	t.Helper()
	state := wire.Get(wire.Get([]byte(st.text()), "result"), "requestState")
	if state == nil {
		t.Fatalf("no requestState in %s", st.text())
	}
	return string(state)
}

// The package comment shows exactly what the goldens hold.
func TestPackageCommentShowsTheGoldens(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for line := range strings.Lines(string(doc)) {
		if rest, ok := strings.CutPrefix(line, "//\t"); ok && strings.Contains(rest, `{"jsonrpc"`) {
			shown = append(shown, strings.TrimSpace(rest))
		}
	}
	var held []string
	for _, name := range []string{"2025-2025", "2025-2026", "2026-2025", "2026-2026"} {
		b, err := os.ReadFile(filepath.Join("testdata", "wire", name+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			held = append(held, strings.TrimSpace(strings.ReplaceAll(line, wire.MetaPrefix, "M/")))
		}
	}
	if diff := cmp.Diff(held, shown); diff != "" {
		t.Errorf("doc.go and testdata/wire differ: %s", diff)
	}
}
