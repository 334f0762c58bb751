package mcpproxy

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParamHeaders(t *testing.T) {
	tool := `{"name":"t","inputSchema":{"type":"object","properties":{
		"region":{"type":"string","x-mcp-header":"Region"},
		"auth":{"type":"object","properties":{"tenant":{"type":"integer","maximum":1e999,"x-mcp-header":"Tenant-Id"}}},
		"x-mcp-header":{"type":"string"},
		"dry":{"type":"boolean","x-mcp-header":"dry","default":{"x-mcp-header":"data"}}}}}`
	got, err := readParamHeaders(json.RawMessage(tool))
	want := []paramHeader{
		{Name: "Tenant-Id", Path: []string{"auth", "tenant"}},
		{Name: "dry", Path: []string{"dry"}},
		{Name: "Region", Path: []string{"region"}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestParamHeadersInvalid(t *testing.T) {
	for name, tc := range map[string]struct{ schema, want string }{
		"empty":       {`{"properties":{"a":{"type":"string","x-mcp-header":""}}}`, "empty"},
		"not string":  {`{"properties":{"a":{"type":"string","x-mcp-header":1}}}`, "no string"},
		"space":       {`{"properties":{"a":{"type":"string","x-mcp-header":"My Header"}}}`, "no header name"},
		"line break":  {`{"properties":{"a":{"type":"string","x-mcp-header":"A\r\nB"}}}`, "no header name"},
		"non-ASCII":   {`{"properties":{"a":{"type":"string","x-mcp-header":"Größe"}}}`, "no header name"},
		"number":      {`{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}`, "type string"},
		"several":     {`{"properties":{"a":{"type":["string","null"],"x-mcp-header":"A"}}}`, "type string"},
		"no type":     {`{"properties":{"a":{"x-mcp-header":"A"}}}`, "type string"},
		"twice":       {`{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}`, "twice"},
		"root":        {`{"type":"string","x-mcp-header":"A"}`, "no chain"},
		"items":       {`{"properties":{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}}`, "no chain"},
		"anyOf":       {`{"anyOf":[{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}]}`, "no chain"},
		"$defs":       {`{"$defs":{"a":{"type":"string","x-mcp-header":"A"}}}`, "no chain"},
		"then":        {`{"then":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}`, "no chain"},
		"items first": {`{"properties":{"a":{"items":{"properties":{"b":{"type":"string","x-mcp-header":"A"}}}}}}`, "no chain"},
	} {
		_, err := readParamHeaders(json.RawMessage(`{"inputSchema":` + tc.schema + `}`))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want … %s …", name, err, tc.want)
		}
	}
}

func TestParamHeadersOfToolsWithout(t *testing.T) {
	for _, tool := range []string{
		`{}`, `{"inputSchema":true}`, `{"inputSchema":{"type":["object","null"]}}`,
		`{"description":"about x-mcp-header","inputSchema":{"type":"object"}}`,
		`{"inputSchema":{"const":{"x-mcp-header":"A"}}}`,
	} {
		if got, err := readParamHeaders(json.RawMessage(tool)); got != nil || err != nil {
			t.Errorf("%s gives %v, %v", tool, got, err)
		}
	}
}
