package mcpproxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func raws(texts ...string) []json.RawMessage {
	var all []json.RawMessage
	for _, t := range texts {
		all = append(all, json.RawMessage(t))
	}
	return all
}

var (
	legacyView = view{dotted: true}
	modernView = view{dotted: true, modern: true}
)

// oddTools are definitions that made others drop a tool, a list or a digit.
func oddTools() []json.RawMessage {
	return raws(
		`{"name":"empty","inputSchema":{}}`,
		`{"name":"true","inputSchema":true}`,
		`{ "inputSchema" : {"type":["object","null"]} ,  "name" : "types" }`,
		`{"name":"notype","inputSchema":{"type":""}}`,
		`{"name":"none"}`,
		`{"name":"nullschema","inputSchema":null}`,
		`{"name":"big","inputSchema":{"enum":[9007199254740993,1e400,-0,1.0],"$ref":"#/$defs/a","oneOf":[{}],"patternProperties":{"^x":{}},"$defs":{"a":{"$ref":"#"}}}}`,
		`{"name":"text","description":"h\u00e9llo 你好 \ud83d </script> \u2028 \"name\":\"x\"","name2":{"name":"text"},"inputSchema":{}}`,
		`{"name":"huge","inputSchema":{"description":"`+strings.Repeat("x", 300<<10)+`"}}`,
		`{"n\u0061me":"escaped","inputSchema":{}}`,
	)
}

func TestOddToolsPassUnchanged(t *testing.T) {
	odd := oddTools()
	c := buildCatalog(ownEntries{}, []source{{name: "up", prefix: "", list: &listing{Tools: odd}}})
	for _, e := range c.entries[tools] {
		if !bytes.Equal(e.listed, e.raw) {
			t.Errorf("unprefixed %s is listed as\n%.200s", e.original, e.listed)
		}
	}
	c = buildCatalog(ownEntries{}, []source{{name: "up", prefix: "up", list: &listing{Tools: odd}}})
	if len(c.entries[tools]) != len(odd) || len(c.quarantined) != 0 {
		t.Fatalf("%d of %d tools listed, quarantined: %v", len(c.entries[tools]), len(odd), c.quarantined)
	}
	for _, e := range c.entries[tools] {
		want := bytes.Replace(e.raw, e.rawName, []byte(`"up__`+e.original+`"`), 1)
		if !bytes.Equal(e.listed, want) {
			t.Errorf("%s is listed as\n%.200s\nwant\n%.200s", e.original, e.listed, want)
		}
	}
	for _, v := range []view{{}, legacyView, modernView} {
		if !json.Valid(c.list(tools, v)) {
			t.Errorf("%+v: the list is not JSON", v)
		}
	}
}

func TestBrokenEntriesCostNobodyElse(t *testing.T) {
	list := &listing{
		Tools: raws(`{"name":"good"}`, `null`, `"x"`, `[]`, `{}`, `{"name":7}`, `{"name":null}`, `{"name":"good","title":"again"}`,
			`{"name":"head","inputSchema":{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}}`),
		Prompts:   raws(`{"name":"good"}`, `3`),
		Resources: raws(`{"uri":"file:///good"}`, `{"name":"no uri"}`),
		Templates: raws(`{"uriTemplate":"file:///{path}"}`, `{"uriTemplate":"file:///{"}`, `{}`),
	}
	c := buildCatalog(ownEntries{}, []source{{name: "up", prefix: "up", list: list}})
	want := map[string]string{
		"tool 2":             "not a JSON object",
		"tool 3":             "not a JSON object",
		"tool 4":             "not a JSON object",
		"tool 5":             "name is missing",
		"tool 6":             "name is not a string",
		"tool 7":             "name is not a string",
		"good (tool 8)":      "listed twice, the first one counts",
		"head":               `not listed to 2026-07-28 clients: x-mcp-header at "a" needs the type string, integer or boolean`,
		"prompt 2":           "not a JSON object",
		"resource 2":         "uri is missing",
		"template 3":         "uriTemplate is missing",
		"template file:///{": "uriTemplate is not a template of RFC 6570; listed, but no URI is matched with it",
	}
	if diff := cmp.Diff(want, c.quarantined["up"]); diff != "" {
		t.Errorf("quarantined (-want +got):\n%s", diff)
	}
	for kind, want := range map[listKind]string{
		tools:     `{"tools":[{"name":"up__good"},{"name":"up__head","inputSchema":{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}}]}`,
		prompts:   `{"prompts":[{"name":"up__good"}]}`,
		resources: `{"resources":[{"uri":"file:///good"}]}`,
		templates: `{"resourceTemplates":[{"uriTemplate":"file:///{"},{"uriTemplate":"file:///{path}"}]}`,
	} {
		if diff := cmp.Diff(want, string(c.list(kind, legacyView))); diff != "" {
			t.Errorf("%v (-want +got):\n%s", kind, diff)
		}
	}
	modern := `{"resultType":"complete","tools":[{"name":"up__good"}],"ttlMs":0,"cacheScope":"private"}`
	if diff := cmp.Diff(modern, string(c.list(tools, modernView))); diff != "" {
		t.Errorf("the modern list (-want +got):\n%s", diff)
	}
	if e, err := c.tool("up__head"); err != nil || e.legacyOnly == "" {
		t.Errorf("a tool left out of modern lists stays callable: %v, %v", e, err)
	}
}

func TestListOrderAndSpelling(t *testing.T) {
	own := ownEntries{
		tools:     raws(`{"name":"armor.status","x":1}`, `{"name":"alpha.x"}`),
		resources: raws(`{"uri":"agentarmor://status"}`),
		templates: raws(`{"uriTemplate":"agentarmor://status/{upstream}"}`),
	}
	c := buildCatalog(own, []source{up("zed", "b", "a"), up("Zoo", "z"), up("ant", "c")})
	rest := `{"name":"Zoo__z","inputSchema":{}},{"name":"ant__c","inputSchema":{}},{"name":"zed__a","inputSchema":{}},{"name":"zed__b","inputSchema":{}}]}`
	dotted := `{"tools":[{"name":"armor.status","x":1},{"name":"alpha.x"},` + rest
	if diff := cmp.Diff(dotted, string(c.list(tools, legacyView))); diff != "" {
		t.Errorf("own first, then upstream and name bytewise (-want +got):\n%s", diff)
	}
	safe := `{"tools":[{"name":"armor_status","x":1},{"name":"alpha_x"},` + rest
	if diff := cmp.Diff(safe, string(c.list(tools, view{}))); diff != "" {
		t.Errorf("safe spelling (-want +got):\n%s", diff)
	}
	if got := string(c.list(templates, view{})); got != `{"resourceTemplates":[{"uriTemplate":"agentarmor://status/{upstream}"}]}` {
		t.Errorf("templates: %s", got)
	}
	if got := string(c.list(prompts, view{})); got != `{"prompts":[]}` {
		t.Errorf("no prompts: %s", got)
	}
}

func TestPrompts(t *testing.T) {
	list := &listing{Prompts: rawNamed("ask", "a.b")}
	c := buildCatalog(ownEntries{tools: rawNamed("armor.status")}, []source{{name: "x", prefix: "x", list: list}})
	for spelling, want := range map[string]string{"x__ask": "ask", "x.ask": "ask", "a.b": "a.b"} {
		if e, err := c.prompt(spelling); err != nil || e.original != want || e.upstream != "x" {
			t.Errorf("%s leads to %v, %v", spelling, e, err)
		}
	}
	for _, unknown := range []string{"armor.status", "y__ask"} {
		if _, err := c.prompt(unknown); err == nil || err.Error() != "unknown prompt: "+unknown {
			t.Errorf("%s gives %v", unknown, err)
		}
	}
}

func TestListIsRenderedOnce(t *testing.T) {
	c := buildCatalog(ownEntries{}, []source{up("x", "a", "b")})
	got := make([][]byte, 8)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { got[i] = c.list(tools, modernView) })
	}
	wg.Wait()
	for _, b := range got {
		if &b[0] != &got[0][0] {
			t.Fatal("two callers got different bytes")
		}
	}
}

func TestCacheHints(t *testing.T) {
	fresh := func(ttl int64, public bool) source {
		return source{ready: true, list: &listing{TTL: ttl, Public: public}}
	}
	remembered, missing, disabled := fresh(100, true), source{}, source{ready: true}
	remembered.ready = false
	for name, tc := range map[string]struct {
		sources []source
		ttl     int64
		public  bool
	}{
		"none":          {nil, 0, true},
		"one":           {[]source{fresh(300, true)}, 300, true},
		"minimum":       {[]source{fresh(300, true), fresh(200, true), fresh(400, true)}, 200, true},
		"private wins":  {[]source{fresh(300, true), fresh(300, false)}, 300, false},
		"legacy":        {[]source{fresh(300, true), fresh(0, false)}, 0, false},
		"remembered":    {[]source{fresh(300, true), remembered}, 0, true},
		"not known":     {[]source{missing, fresh(300, true)}, 0, false},
		"disabled":      {[]source{disabled, fresh(300, true)}, 300, true},
		"negative is 0": {[]source{fresh(-5, true)}, 0, true},
	} {
		ttl, public := cacheHints(tc.sources)
		if ttl != tc.ttl || public != tc.public {
			t.Errorf("%s: ttlMs %d public %v, want %d %v", name, ttl, public, tc.ttl, tc.public)
		}
	}
	c := buildCatalog(ownEntries{}, []source{fresh(300, true)})
	if got := string(c.list(tools, modernView)); got != `{"resultType":"complete","tools":[],"ttlMs":300,"cacheScope":"public"}` {
		t.Errorf("got %s", got)
	}
}

func TestInstructions(t *testing.T) {
	says := func(name, text string) source {
		return source{name: name, prefix: name, list: &listing{Instructions: text}}
	}
	plain := says("plain", "Be kind.")
	plain.prefix = ""
	c := buildCatalog(ownEntries{instructions: "Ours."}, []source{says("fs", "Read first."), {name: "dead"}, says("mute", ""), plain})
	want := "Ours.\n\nfs (its names start with fs__):\nRead first.\n\nplain:\nBe kind."
	if diff := cmp.Diff(want, c.instructions()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var many []source
	for i := range 100 {
		many = append(many, says(fmt.Sprint("up", i), strings.Repeat("日本", 2000)))
	}
	for _, n := range []int{1, 3, 100} {
		got := buildCatalog(ownEntries{instructions: "Ours."}, many[:n]).instructions()
		if len(got) > maxInstructions || len(got) < maxInstructions/2 && n < 100 || !strings.HasPrefix(got, "Ours.") || strings.ContainsRune(got, '�') {
			t.Errorf("%d upstreams: %d bytes", n, len(got))
		}
	}
	if got := buildCatalog(ownEntries{instructions: strings.Repeat("é", 2000)}, many).instructions(); len(got) > maxInstructions {
		t.Errorf("ours alone: %d bytes", len(got))
	}
}

func BenchmarkBuildCatalog(b *testing.B) {
	schema := `{"type":"object","properties":{"path":{"type":"string","description":"` + strings.Repeat("x", 1500) + `"}}}`
	var sources []source
	for u := range 10 {
		l := &listing{}
		for i := range 20 {
			l.Tools = append(l.Tools, json.RawMessage(fmt.Sprintf(`{"name":"tool_%d","inputSchema":%s}`, i, schema)))
		}
		name := fmt.Sprint("up", u)
		sources = append(sources, source{name: name, prefix: name, list: l, ready: true})
	}
	for b.Loop() {
		buildCatalog(ownEntries{}, sources).list(tools, modernView)
	}
}
