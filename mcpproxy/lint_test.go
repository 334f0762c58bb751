package mcpproxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLint(t *testing.T) {
	long := strings.Repeat("n", 51)
	for tool, want := range map[string][]string{
		`{"name":"ok","description":"d","inputSchema":{"type":"object","properties":{"a":{"type":"array","items":{}}},"required":["a"]}}`:                      nil,
		`{"name":"ok","description":"d","inputSchema":{"type":"object","properties":{"type":{"const":{"type":"array"}},"items":{"enum":[{"type":"array"}]}}}}`: nil,

		`{"name":"a.b","description":"d","inputSchema":{"type":"object"}}`: {"a.b: Claude Desktop refuses the whole list: the name is not 1 to 64 of a-z, A-Z, 0-9, _ and -"},
		`{"name":"u","inputSchema":{"type":"object"}}`:                     {"u: VS Code puts <empty> in place of the missing description"},
		`{"name":"u","description":"d","inputSchema":{"type":"object","anyOf":[],"not":{}}}`: {
			"u: Anthropic API refuses anyOf, not at the top of inputSchema",
			"u: OpenAI gpt-4o refuses anyOf, not at the top of inputSchema",
			"u: VS Code strips anyOf, not from the top of inputSchema",
		},
		`{"name":"u","description":"d","inputSchema":{}}`:                                 {`u: VS Code needs "type":"object" at the top of inputSchema`},
		`{"name":"u","description":"d","inputSchema":{"type":"object","required":["x"]}}`: {`u: VS Code drops the required "x", which properties lacks`},
		`{"name":"u","description":"d","inputSchema":{"type":"object","properties":{"l":{"type":"array"}}}}`: {
			"u: VS Code refuses the tool: the array inputSchema.properties.l has no items",
		},
		`{"name":"u","description":"d","inputSchema":{"type":"object","properties":{"s":{"anyOf":[{"type":["string","null"]}]}}}}`: {
			"u: Gemini CLI turns the null among the types of inputSchema.properties.s.anyOf[0] into nullable",
		},
		`{"name":"u","description":"d","inputSchema":true}`: {
			"u: Anthropic API refuses the tool: inputSchema is not an object",
			"u: OpenAI gpt-4o refuses the tool: inputSchema is not an object",
			"u: VS Code refuses the tool: inputSchema is not an object",
		},
		`{"name":"u","description":"d","inputSchema":{"type":"object","properties":{"n":{"type":"number","x-mcp-header":"N"}}}}`: {
			`u: 2026-07-28 over HTTP leaves the tool out: x-mcp-header at "n" needs the type string, integer or boolean`,
		},
		`{"name":"` + long + `","description":"d","inputSchema":{"type":"object"}}`: {
			long + ": Cursor leaves the tool out: it has 51 characters, 50 fit beside the server name agentarmor",
			long + ": VS Code cuts the name: it has 51 characters, 49 fit beside the server name agentarmor",
			long + ": Gemini CLI shortens the name in the middle: it has 51 characters, 48 fit beside the server name agentarmor",
		},
		`7`: {"tool 1: Claude Desktop refuses the whole list: not a JSON object"},
	} {
		var got []string
		for _, f := range Lint(raws(tool)) {
			got = append(got, fmt.Sprintf("%s: %s %s", f.Tool, f.Client, f.Problem))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%.120s (-want +got):\n%s", tool, diff)
		}
	}
}

func TestLintKeepsTheOrderOfTools(t *testing.T) {
	var got []string
	for _, f := range Lint(rawNamed("b", "a", "c")) {
		got = append(got, f.Tool)
	}
	if diff := cmp.Diff([]string{"b", "a", "c"}, slices.Compact(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
