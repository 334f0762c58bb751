package mcpproxy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

const headerKey = "x-mcp-header"

// paramHeader is an argument that HTTP requests of 2026-07-28 repeat in a header.
type paramHeader = wire.ParamHeader

// readParamHeaders returns the x-mcp-header annotations of a raw tool, sorted
// by their path, and the first breach of the rules of "Schema Extension" in
// the specification of streamable HTTP. Annotations that are in order
// themselves are returned even then: the server may ask for their headers.
func readParamHeaders(tool json.RawMessage) ([]paramHeader, error) {
	if !bytes.Contains(tool, []byte(headerKey)) {
		return nil, nil
	}
	var schema any
	dec := json.NewDecoder(bytes.NewReader(wire.Get(tool, "inputSchema")))
	dec.UseNumber() // a number no float can hold is no reason to stop
	if dec.Decode(&schema) != nil {
		return nil, nil
	}
	s := headerScan{names: map[string]bool{}}
	s.schema(schema, nil, true)
	return s.found, s.err
}

// headerScan walks one schema.
type headerScan struct {
	found []paramHeader
	names map[string]bool // in lower case
	err   error           // the first one
}

// dataKeywords hold values, not schemas: an annotation there is none.
var dataKeywords = []string{"const", "default", "enum", "example", "examples"}

// mapKeywords hold schemas by name: their keys are no keywords.
var mapKeywords = []string{"$defs", "definitions", "dependentSchemas", "patternProperties"}

// schema walks one subschema. reachable means that only "properties" keys
// lead here from the root, which the specification asks of annotations.
func (s *headerScan) schema(v any, path []string, reachable bool) {
	switch v := v.(type) {
	case []any:
		for _, sub := range v {
			s.schema(sub, path, false)
		}
	case map[string]any:
		if name, ok := v[headerKey]; ok {
			s.annotation(name, v["type"], path, reachable && len(path) > 0)
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			s.keyword(key, v[key], path, reachable)
		}
	}
}

func (s *headerScan) keyword(key string, v any, path []string, reachable bool) {
	byName, isMap := v.(map[string]any)
	switch {
	case key == headerKey || slices.Contains(dataKeywords, key):
	case isMap && key == "properties":
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			s.schema(byName[name], append(slices.Clip(path), name), reachable)
		}
	case isMap && slices.Contains(mapKeywords, key):
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			s.schema(byName[name], append(slices.Clip(path), name), false)
		}
	default:
		s.schema(v, append(slices.Clip(path), key), false)
	}
}

func (s *headerScan) annotation(value, typ any, path []string, reachable bool) {
	name, isString := value.(string)
	lower := strings.ToLower(name)
	var problem string
	switch {
	case !reachable:
		problem = "stands where no chain of properties leads"
	case !isString || name == "":
		problem = "is no string or empty"
	case !isToken(name):
		problem = "is no header name"
	case s.names[lower]:
		problem = "stands twice: " + name
	case typ != "string" && typ != "integer" && typ != "boolean":
		problem = "needs the type string, integer or boolean"
	}
	if problem != "" {
		s.err = cmp.Or(s.err, fmt.Errorf("%s at %q %s", headerKey, strings.Join(path, "."), problem))
		return
	}
	s.names[lower] = true
	s.found = append(s.found, paramHeader{Name: name, Path: path})
}

// isToken tells whether s is a field name: 1*tchar of RFC 9110, section 5.6.2.
func isToken(s string) bool {
	return s != "" && strings.Trim(s, "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// paramHeaders are the Mcp-Param headers that a call of a tool must carry to a
// modern HTTP server.
func paramHeaders(params []paramHeader, args []byte) [][2]string {
	var out [][2]string
	for _, h := range params {
		value := args
		for _, step := range h.Path {
			if value = wire.Get(value, step); value == nil {
				break
			}
		}
		if len(value) == 0 || string(value) == "null" || value[0] == '{' || value[0] == '[' {
			continue
		}
		text := string(value)
		if s, ok := wire.String(value); ok {
			text = s
		}
		out = append(out, [2]string{h.Name, text})
	}
	return out
}
