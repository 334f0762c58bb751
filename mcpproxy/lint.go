package mcpproxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// Finding is one tool that one client refuses or alters.
type Finding struct {
	Tool    string `json:"tool"`
	Client  string `json:"client"`
	Problem string `json:"problem"`
}

// ToolLimit is how many tools one client takes from all its servers together.
type ToolLimit struct {
	Client string `json:"client"`
	Tools  int    `json:"tools"`
}

// ClientToolLimits lists the clients known to have a limit, the tightest first.
// Cursor's is what its users report; the others are documented.
var ClientToolLimits = []ToolLimit{{"Cursor", 40}, {"Windsurf", 100}, {"VS Code", 128}}

// Names of clients in findings.
const (
	clientAnthropic = "Anthropic API"
	clientOpenAI    = "OpenAI gpt-4o"
	clientVSCode    = "VS Code"
	clientDesktop   = "Claude Desktop"
	clientCursor    = "Cursor"
	clientGemini    = "Gemini CLI"
	clientModern    = "2026-07-28 over HTTP"
)

// assumedName is the name under which clients are taken to know this
// endpoint; several put it before each tool.
const assumedName = "agentarmor"

// Lint returns what named clients do to raw tools, exposed as they are
// listed: tools in their order, findings of one tool in a fixed order.
func Lint(tools []json.RawMessage) []Finding {
	var all []Finding
	for i, raw := range tools {
		all = append(all, lintTool(i, raw)...)
	}
	return all
}

// linter collects the findings of one tool.
type linter struct {
	tool  string
	found []Finding
}

func (l *linter) add(client, format string, args ...any) {
	l.found = append(l.found, Finding{l.tool, client, fmt.Sprintf(format, args...)})
}

func lintTool(i int, raw json.RawMessage) []Finding {
	e, err := newEntry(tools, "", raw)
	if err != nil {
		l := linter{tool: fmt.Sprintf("tool %d", i+1)}
		l.add(clientDesktop, "refuses the whole list: %v", err)
		return l.found
	}
	l := linter{tool: e.original}
	l.name(e.original)
	if description, _ := wire.String(wire.Get(raw, "description")); description == "" {
		l.add(clientVSCode, "puts <empty> in place of the missing description")
	}
	if _, err := readParamHeaders(raw); err != nil {
		l.add(clientModern, "leaves the tool out: %v", err)
	}
	var schema any
	dec := json.NewDecoder(bytes.NewReader(wire.Get(raw, "inputSchema")))
	dec.UseNumber()
	_ = dec.Decode(&schema) // a missing one stays nil
	root, ok := schema.(map[string]any)
	if !ok {
		for _, client := range []string{clientAnthropic, clientOpenAI, clientVSCode} {
			l.add(client, "refuses the tool: inputSchema is not an object")
		}
		return l.found
	}
	l.root(root)
	l.schema(root, "inputSchema")
	return l.found
}

// name checks the rules for names. The lengths are those that the clients
// leave when they know the endpoint under assumedName.
func (l *linter) name(name string) {
	if strings.ContainsFunc(name, func(r rune) bool { return !legalName(r) }) || name == "" || len(name) > maxName {
		l.add(clientDesktop, "refuses the whole list: the name is not 1 to %d of a-z, A-Z, 0-9, _ and -", maxName)
	}
	for _, limit := range []struct {
		client, does string
		max          int
	}{
		{clientCursor, "leaves the tool out", 60 - len(assumedName)},
		{clientVSCode, "cuts the name", 64 - len("mcp_"+assumedName+"_")},
		{clientGemini, "shortens the name in the middle", 63 - len("mcp_"+assumedName+"_")},
	} {
		if len(name) > limit.max {
			l.add(limit.client, "%s: it has %d characters, %d fit beside the server name %s", limit.does, len(name), limit.max, assumedName)
		}
	}
}

// root checks what only the top of inputSchema must not have.
func (l *linter) root(root map[string]any) {
	var combinators []string
	for _, key := range []string{"anyOf", "oneOf", "allOf", "not", "if", "then", "else"} {
		if _, ok := root[key]; ok {
			combinators = append(combinators, key)
		}
	}
	if combinators != nil {
		list := strings.Join(combinators, ", ")
		l.add(clientAnthropic, "refuses %s at the top of inputSchema", list)
		l.add(clientOpenAI, "refuses %s at the top of inputSchema", list)
		l.add(clientVSCode, "strips %s from the top of inputSchema", list)
	}
	if root["type"] != "object" {
		l.add(clientVSCode, `needs "type":"object" at the top of inputSchema`)
	}
	properties, _ := root["properties"].(map[string]any)
	required, _ := root["required"].([]any)
	for _, key := range required {
		if name, ok := key.(string); ok && properties[name] == nil {
			l.add(clientVSCode, "drops the required %q, which properties lacks", name)
		}
	}
}

// schema checks what no subschema must have. where is its path.
func (l *linter) schema(v any, where string) {
	switch v := v.(type) {
	case []any:
		for i, sub := range v {
			l.schema(sub, fmt.Sprintf("%s[%d]", where, i))
		}
	case map[string]any:
		if _, ok := v["items"]; v["type"] == "array" && !ok {
			l.add(clientVSCode, "refuses the tool: the array %s has no items", where)
		}
		if types, ok := v["type"].([]any); ok && slices.Contains(types, any("null")) {
			l.add(clientGemini, "turns the null among the types of %s into nullable", where)
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			l.keyword(key, v[key], where+"."+key)
		}
	}
}

// keyword descends into what holds schemas, and not into values.
func (l *linter) keyword(key string, v any, where string) {
	byName, isMap := v.(map[string]any)
	switch {
	case slices.Contains(dataKeywords, key):
	case isMap && (key == "properties" || slices.Contains(mapKeywords, key)):
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			l.schema(byName[name], where+"."+name)
		}
	default:
		l.schema(v, where)
	}
}
