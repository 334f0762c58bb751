package llm

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	city := json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}`)
	tool := []Tool{{Name: "find", Parameters: json.RawMessage(`{"type":"object"}`)}}
	call := func(name, args string) []ToolCall {
		return []ToolCall{{ID: "1", Name: name, Arguments: json.RawMessage(args)}}
	}
	for _, tt := range []struct {
		name string
		r    Request
		resp Response
		want Class
		text string // of the answer afterwards, if it differs
	}{
		{"plain", Request{}, Response{Text: "hi"}, ClassOK, ""},
		{"nothing", Request{}, Response{FinishReason: FinishStop}, ClassEmpty, ""},
		{"white space", Request{}, Response{Text: " \n\t"}, ClassEmpty, ""},
		{"only a tool call", Request{Tools: tool}, Response{ToolCalls: call("find", `{"q":1}`), FinishReason: FinishTools}, ClassOK, ""},
		{"unknown reason", Request{}, Response{Text: "hi", FinishReason: FinishUnknown}, ClassOK, ""},
		{"blocked", Request{}, Response{Text: "I", FinishReason: FinishBlocked}, ClassBlocked, ""},
		{"cut", Request{}, Response{Text: "I", FinishReason: FinishLength}, ClassCut, ""},
		{"all tokens were thought", Request{MaxTokens: 9}, Response{FinishReason: FinishLength, Usage: Usage{Output: 9}}, ClassCut, ""},
		{"cut before what was asked for", Request{MaxTokens: 9}, Response{Text: "I", FinishReason: FinishLength, Usage: Usage{Output: 5}}, ClassCut, ""},
		{"as long as was asked for", Request{MaxTokens: 9}, Response{Text: "I", FinishReason: FinishLength, Usage: Usage{Output: 9}}, ClassOK, ""},
		{"half a JSON", Request{MaxTokens: 9, Schema: city}, Response{Text: `{"ci`, FinishReason: FinishLength, Usage: Usage{Output: 9}}, ClassCut, ""},
		{"unknown tool", Request{Tools: tool}, Response{ToolCalls: call("seek", `{}`)}, ClassSchema, ""},
		{"arguments that are no JSON", Request{Tools: tool}, Response{ToolCalls: call("find", `{"q":`)}, ClassSchema, ""},
		{"arguments that are no object", Request{Tools: tool}, Response{ToolCalls: call("find", `null`)}, ClassSchema, ""},
		{"no call of a required tool", Request{Tools: tool, ToolChoice: ToolsRequired}, Response{Text: "no"}, ClassSchema, ""},
		{"another than the tool that was wanted", Request{Tools: append(tool, Tool{Name: "seek"}), ToolChoice: "seek"}, Response{ToolCalls: call("find", `{}`)}, ClassSchema, ""},
		{"the tool that was wanted", Request{Tools: tool, ToolChoice: "find"}, Response{ToolCalls: call("find", `{}`)}, ClassOK, ""},
		{"a call where none was wanted", Request{Tools: tool, ToolChoice: ToolsNone}, Response{Text: "I", ToolCalls: call("find", `{}`)}, ClassSchema, ""},
		{"no call where none was wanted", Request{Tools: tool, ToolChoice: ToolsNone}, Response{Text: "I"}, ClassOK, ""},
		{"matches", Request{Schema: city}, Response{Text: `{"city":"Rome"}`}, ClassOK, ""},
		{"matches in a fence", Request{Schema: city}, Response{Text: "```json\n{\"city\":\"Rome\"}\n```\n"}, ClassOK, `{"city":"Rome"}`},
		{"half a fence", Request{Schema: city}, Response{Text: "```json\n{\"city\":\"Rome\"}"}, ClassSchema, ""},
		{"wrong type", Request{Schema: city}, Response{Text: `{"city":1}`}, ClassSchema, ""},
		{"missing", Request{Schema: city}, Response{Text: `{}`}, ClassSchema, ""},
		{"no JSON", Request{Schema: city}, Response{Text: `Rome`}, ClassSchema, ""},
		{"JSON and more", Request{Schema: city}, Response{Text: `{"city":"Rome"} as asked`}, ClassSchema, ""},
		{"a fence is text without a schema", Request{}, Response{Text: "```\nx\n```"}, ClassOK, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := New(nil, Options{})
			if err != nil {
				t.Fatal(err)
			}
			tt.r.Messages = []Message{User("x")}
			q, err := c.question(&tt.r)
			if err != nil {
				t.Fatal(err)
			}
			text := tt.resp.Text
			if tt.text != "" {
				text = tt.text
			}
			got, why := q.judge(&tt.resp)
			if got != tt.want || (why == "") != (got == ClassOK) || tt.resp.Text != text {
				t.Errorf("%s: %s (text %q), want %s", got, why, tt.resp.Text, tt.want)
			}
		})
	}
}

// TestSchemasStayInside holds that a schema is never a reason to read a file or
// an address.
func TestSchemasStayInside(t *testing.T) {
	for _, s := range []string{
		`{"$ref":"file:///etc/hostname"}`, `{"$ref":"http://127.0.0.1:1/x"}`, `{"$ref":"other.json"}`, `{"$schema":"http://127.0.0.1:1/meta"}`, `{`, `{"type":7}`,
	} {
		if _, err := compileSchema(json.RawMessage(s)); err == nil || strings.Contains(err.Error(), "file:///") && !strings.Contains(s, "file:///") {
			t.Errorf("%s: %v", s, err)
		}
	}
	for s, want := range map[string]string{
		`{"type":"strng"}`:                      "at '/type': value must be one of 'array', 'boolean', 'integer', 'null', 'number', 'object', 'string'",
		`{"properties":{"a":{"minLength":-1}}}`: "at '/properties/a/minLength': minimum: got -1, want 0",
		`{"$ref":"#/x"}`:                        `json-pointer in "#/x" not found`,
		`{`:                                     "it is no valid JSON",
	} {
		if _, err := compileSchema(json.RawMessage(s)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", s, err, want)
		}
	}
	loop, err := compileSchema(json.RawMessage(`{"$ref":"#"}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := (&question{schema: loop}).checkSchema("{}"); err == nil || strings.Contains(err.Error(), "file:") {
		t.Errorf("a schema that leads nowhere: %v", err)
	}
	if _, err := compileSchema(json.RawMessage(`{"$defs":{"a":{"type":"string"}},"$ref":"#/$defs/a"}`)); err != nil {
		t.Error(err)
	}
}
