package mcpproxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var everyClientTakes = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// rawNamed returns a list of minimal tools or prompts.
func rawNamed(names ...string) []json.RawMessage {
	var raws []json.RawMessage
	for _, n := range names {
		raws = append(raws, json.RawMessage(fmt.Sprintf(`{"name":%s,"inputSchema":{}}`, quoted(n))))
	}
	return raws
}

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// up is a ready source that lists the tools named.
func up(name string, tools ...string) source {
	return source{name: name, prefix: name, ready: true, list: &listing{Tools: rawNamed(tools...)}}
}

// exposedTools maps upstream/original to the exposed name.
func exposedTools(c *catalog) map[string]string {
	found := map[string]string{}
	for _, e := range c.entries[tools] {
		found[e.upstream+"/"+e.original] = e.exposed
	}
	return found
}

func TestNamesOddInputs(t *testing.T) {
	long := strings.Repeat("x", 70)
	c := buildCatalog(ownEntries{}, []source{
		up("fs", "read_file", "a.b", "a_b", "a/b", "a b", "工具", "具工", "", long, long+"y"),
		up("we__ird", "tool"),
		up("we", "ird__tool"),
		up("My Server", "list"),
	})
	got := exposedTools(c)
	want := map[string]string{
		"fs/read_file":     "fs__read_file",
		"fs/a_b":           "fs__a_b",
		"fs/a.b":           "fs__a_b_748250f6",
		"fs/a/b":           "fs__a_b_82d0452c",
		"fs/a b":           "fs__a_b_2d0a9ff9",
		"fs/工具":            "fs_____591e3303",
		"fs/具工":            "fs_____9bd28aed",
		"fs/":              "fs__",
		"we__ird/tool":     "we__ird__tool",
		"we/ird__tool":     "we__ird__tool_f36698f6",
		"My Server/list":   "My_Server__list",
		"fs/" + long:       "fs__" + strings.Repeat("x", 51) + "_9e5099c9",
		"fs/" + long + "y": "fs__" + strings.Repeat("x", 51) + "_db313b49",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the rule for names must never change (-want +got):\n%s", diff)
	}
	for original, exposed := range got {
		if !everyClientTakes.MatchString(exposed) {
			t.Errorf("%q is exposed as %q", original, exposed)
		}
		e, err := c.tool(exposed)
		if err != nil || e.upstream+"/"+e.original != original {
			t.Errorf("%q leads to %v, %v", exposed, e, err)
		}
	}
}

func TestNamesDoNotDependOnOrder(t *testing.T) {
	names := []string{"a.b", "a_b", "a/b", "a_b_748250f6", "c", "工具", ""}
	want := exposedTools(buildCatalog(ownEntries{}, []source{up("fs", names...)}))
	slices.Reverse(names)
	got := exposedTools(buildCatalog(ownEntries{}, []source{up("fs", names...)}))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names changed with the order of the list (-want +got):\n%s", diff)
	}
	if got["fs/a_b_748250f6"] != "fs__a_b_748250f6" {
		t.Errorf("a legal name lost against a suffixed one: %q", got["fs/a_b_748250f6"])
	}
}

func TestNamesStayWhenOthersComeAndGo(t *testing.T) {
	all := exposedTools(buildCatalog(ownEntries{}, []source{up("fs", "a.b", "a_b", "a/b")}))
	for key := range all {
		alone := exposedTools(buildCatalog(ownEntries{}, []source{up("fs", strings.TrimPrefix(key, "fs/"))}))
		if alone[key] != all[key] {
			t.Errorf("%s is %s alone and %s among others", key, alone[key], all[key])
		}
	}
}

func TestNamesCollide(t *testing.T) {
	own := ownEntries{tools: rawNamed("armor.status")}
	first, second, third := up("first", "search"), up("second", "search"), up("third", "armor_status", "armor.status")
	first.prefix, second.prefix, third.prefix = "", "", ""
	c := buildCatalog(own, []source{first, second, third})
	want := map[string]string{
		"/armor.status":      "armor.status",
		"first/search":       "search",
		"second/search":      "search_dde0af2e",
		"third/armor_status": "armor_status_1173b74f",
		"third/armor.status": "armor_status_ca896882",
	}
	if diff := cmp.Diff(want, exposedTools(c)); diff != "" {
		t.Errorf("own first, then config order (-want +got):\n%s", diff)
	}
	for _, spelling := range []string{"armor.status", "armor_status"} {
		if e, err := c.tool(spelling); err != nil || e.upstream != "" || e.original != "armor.status" {
			t.Errorf("%s leads to %v, %v", spelling, e, err)
		}
	}
}

func TestNamesSpellings(t *testing.T) {
	files, web := up("files", "read.it", "find"), up("web", "fetch", "find")
	files.prefix = "f"
	c := buildCatalog(ownEntries{}, []source{files, web})
	for spelling, want := range map[string]string{
		"f__find":       "files/find",
		"files.find":    "files/find",
		"files.read.it": "files/read.it",
		"f__read.it":    "files/read.it",
		"read.it":       "files/read.it",
		"fetch":         "web/fetch",
		"web__fetch":    "web/fetch",
	} {
		e, err := c.tool(spelling)
		if err != nil || e.upstream+"/"+e.original != want {
			t.Errorf("%s leads to %v, %v; want %s", spelling, e, err, want)
		}
	}
	for spelling, want := range map[string]string{
		"find":                     "ambiguous tool: find is one of f__find, web__find",
		"files__find":              "unknown tool: files__find",
		"Fetch":                    "unknown tool: Fetch",
		"nope":                     "unknown tool: nope",
		strings.Repeat("é", 1<<20): "unknown tool: " + strings.Repeat("é", 98) + "…",
	} {
		_, err := c.tool(spelling)
		if _, ok := errors.AsType[*nameError](err); !ok || err.Error() != want {
			t.Errorf("%s gives %v; want %s", cut(spelling, maxQuoted), err, want)
		}
	}
}

func TestFilters(t *testing.T) {
	for _, tc := range []struct {
		allow, deny []string
		want        []string
	}{
		{nil, nil, []string{"a/b", "create_issue", "delete_repo", "list"}},
		{[]string{"*"}, nil, []string{"a/b", "create_issue", "delete_repo", "list"}},
		{[]string{"*"}, []string{"delete_*", "a*"}, []string{"create_issue", "list"}},
		{[]string{"l?st", "[ab]/b"}, nil, []string{"a/b", "list"}},
		{[]string{"list"}, []string{"list"}, nil},
		{[]string{"[list"}, nil, nil},
	} {
		s := up("x", "list", "create_issue", "delete_repo", "a/b")
		s.allow, s.deny = tc.allow, tc.deny
		s.list.Prompts = rawNamed("delete_prompt")
		c := buildCatalog(ownEntries{}, []source{s})
		var got []string
		for _, e := range c.entries[tools] {
			got = append(got, e.original)
		}
		slices.Sort(got)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("allow %v, deny %v (-want +got):\n%s", tc.allow, tc.deny, diff)
		}
		if len(c.entries[prompts]) != 1 {
			t.Error("filters of tools must not touch prompts")
		}
	}
}

func FuzzNames(f *testing.F) {
	f.Add("fs", "a.b", "a_b")
	f.Add("", "", "_e3b0c442")
	f.Add("工", strings.Repeat("x", 64), strings.Repeat("x", 65))
	f.Fuzz(func(t *testing.T, prefix, one, two string) {
		a, b := up("a", one, two), up("b", two, one)
		a.prefix, b.prefix = prefix, prefix
		c := buildCatalog(ownEntries{}, []source{a, b})
		seen := map[string]bool{}
		for _, e := range c.entries[tools] {
			if !everyClientTakes.MatchString(e.exposed) || seen[e.exposed] {
				t.Errorf("%q is exposed as %q", e.original, e.exposed)
			}
			seen[e.exposed] = true
			if got, err := c.tool(e.exposed); err != nil || got != e {
				t.Errorf("%q does not lead back", e.exposed)
			}
		}
	})
}
