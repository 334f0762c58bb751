package mcpproxy

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

func messages(s string) string { return `{"messages":[` + s + `]}` }

const (
	hi      = `{"role":"user","content":{"type":"text","text":"hi"}}`
	use     = `{"role":"assistant","content":[{"type":"text","text":"wait"},{"type":"tool_use","id":"c1","name":"add","input":{"n":9007199254740993}},{"type":"tool_use","id":"c2","name":"sub","input":{}}]}`
	result1 = `{"type":"tool_result","toolUseId":"c1","content":[{"type":"text","text":"7"}]}`
	result2 = `{"type":"tool_result","toolUseId":"c2","isError":true,"content":[],"structuredContent":{"why":"no"}}`
)

func TestCreateMessageRequest(t *testing.T) {
	calls := []llm.ToolCall{{ID: "c1", Name: "add", Arguments: json.RawMessage(`{"n":9007199254740993}`)}, {ID: "c2", Name: "sub", Arguments: json.RawMessage(`{}`)}}
	for name, tt := range map[string]struct {
		params string
		want   llm.Request
	}{
		"all": {`{"messages":[` + hi + `],"systemPrompt":"be kind","temperature":0,"maxTokens":100.0,"stopSequences":["a","b","c","d","e"],` +
			`"includeContext":"allServers","metadata":{"x":1},"toolChoice":{"mode":"required"},"tools":[{"name":"add","title":"T","description":"adds","inputSchema":{"type":"object"}}]}`,
			llm.Request{Messages: []llm.Message{llm.System("be kind"), llm.User("hi")}, Temperature: new(0.0), MaxTokens: 100, Stop: []string{"a", "b", "c", "d"},
				ToolChoice: "required", Tools: []llm.Tool{{Name: "add", Description: "adds", Parameters: json.RawMessage(`{"type":"object"}`)}}}},
		"tools without a choice": {`{"messages":[` + hi + `],"tools":[{"name":"add"}]}`,
			llm.Request{Messages: []llm.Message{llm.User("hi")}, MaxTokens: maxSampledTokens, ToolChoice: "auto", Tools: []llm.Tool{{Name: "add"}}}},
		"choice without tools": {`{"messages":[` + hi + `],"toolChoice":{"mode":"required"}}`,
			llm.Request{Messages: []llm.Message{llm.User("hi")}, MaxTokens: maxSampledTokens}},
		"too many tokens": {`{"messages":[` + hi + `],"maxTokens":1e300}`, llm.Request{Messages: []llm.Message{llm.User("hi")}, MaxTokens: maxSampledTokens}},
		"image": {messages(`{"role":"user","content":[{"type":"text","text":"what?"},{"type":"image","data":"AQID","mimeType":"image/png"}]}`),
			llm.Request{Messages: []llm.Message{llm.User("what?", llm.Image{MIMEType: "image/png", Data: []byte{1, 2, 3}})}, MaxTokens: maxSampledTokens}},
		"tool loop": {messages(hi + `,` + use + `,{"role":"user","content":[` + result2 + `,` + result1 + `]}`),
			llm.Request{Messages: []llm.Message{llm.User("hi"), llm.Assistant("wait", calls...),
				llm.ToolResult(calls[1], `The tool failed: {"why":"no"}`), llm.ToolResult(calls[0], "7")}, MaxTokens: maxSampledTokens}},
	} {
		t.Run(name, func(t *testing.T) {
			var m createMessage
			if err := json.Unmarshal([]byte(tt.params), &m); err != nil {
				t.Fatal(err)
			}
			got, err := m.request(true)
			if err != nil {
				t.Fatal(err)
			}
			if !got.Bare {
				t.Error("a server is told which others are down")
			}
			got.Bare = false
			if diff := cmp.Diff(&tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCreateMessageRefused(t *testing.T) {
	for params, want := range map[string]string{
		`{}`:         "there are no messages",
		messages(``): "there are no messages",
		messages(`{"role":"system","content":{"type":"text","text":"x"}}`):                          `message 1: unknown role "system"`,
		messages(`{"role":"user","content":[]}`):                                                    "message 1: it is empty",
		messages(hi + `,{"role":"user","content":{"type":"audio","data":"AAAA"}}`):                  `message 2: content of type "audio" cannot be given`,
		messages(`{"role":"user","content":{"type":"tool_use","id":"c1","name":"add","input":{}}}`): `message 1: content of type "tool_use" cannot be given`,
		messages(use):            `the tool use "c1" has no result`,
		messages(use + `,` + hi): `message 2: the result of the tool use "c1" is missing before it`,
		messages(`{"role":"user","content":` + result1 + `}`):                                                                         `message 1: no tool use "c1" stands before its result`,
		messages(use + `,{"role":"user","content":` + result1 + `}`):                                                                  `message 2: the result of the tool use "c2" is missing`,
		messages(use + `,{"role":"user","content":[` + result1 + `,{"type":"text","text":"and"}]}`):                                   "message 2: results of tools stand alone",
		messages(use + `,{"role":"assistant","content":[` + result1 + `,` + result2 + `]}`):                                           "message 2: results of tools stand alone",
		messages(use + `,{"role":"user","content":[{"type":"tool_result","toolUseId":"c1","content":[{"type":"image","data":""}]}]}`): `message 2: content of type "image" in the result of a tool`,
		`{"messages":[` + hi + `],"tools":[{"name":"t"}],"toolChoice":{"mode":"any"}}`:                                                `unknown toolChoice mode "any"`,
	} {
		var m createMessage
		if err := json.Unmarshal([]byte(params), &m); err != nil {
			t.Fatal(params, err)
		}
		if _, err := m.request(true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", params, err, want)
		}
	}
}

func TestModelPreferences(t *testing.T) {
	status := llm.Status{Chain: []string{"gemini", "lite", "groq"}, Providers: map[string]llm.ProviderStatus{
		"gemini": {Model: "gemini-2.5-flash"}, "lite": {Model: "gemini-3.5-flash-lite"}, "groq": {Model: "llama-3.1-8b-instant"},
	}}
	for preferences, want := range map[string]llm.Request{
		`{}`: {},
		`{"hints":[{"name":"claude-3-sonnet"},{"name":""},{}]}`:               {},
		`{"hints":[{"name":"LLAMA"},{"name":"gemini"}]}`:                      {Prefer: []string{"groq", "gemini", "lite"}},
		`{"hints":[{"name":"groq"}],"speedPriority":0.1}`:                     {Prefer: []string{"groq"}, Strategy: llm.ByLatency},
		`{"costPriority":1,"speedPriority":0.9,"intelligencePriority":0.9}`:   {Strategy: llm.ByCost},
		`{"costPriority":0.3,"speedPriority":0.5,"intelligencePriority":0.8}`: {Strategy: llm.ByPriority},
		`{"costPriority":0.5,"speedPriority":0.5}`:                            {},
	} {
		var p samplingPreferences
		if err := json.Unmarshal([]byte(preferences), &p); err != nil {
			t.Fatal(err)
		}
		var got llm.Request
		p.prefer(&got, status)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", preferences, diff)
		}
	}
}

func TestCreateMessageResult(t *testing.T) {
	call := llm.ToolCall{ID: "c1", Name: "add", Arguments: json.RawMessage(`{"n":1}`)}
	const toolUse = `{"type":"tool_use","id":"c1","name":"add","input":{"n":1}}`
	for _, tt := range []struct {
		resp llm.Response
		want string
	}{
		{llm.Response{Text: "x", FinishReason: llm.FinishLength}, `"content":{"type":"text","text":"x"},"model":"m","stopReason":"maxTokens","_meta"`},
		{llm.Response{Text: "x", FinishReason: llm.FinishUnknown}, `"content":{"type":"text","text":"x"},"model":"m","_meta"`},
		{llm.Response{ToolCalls: []llm.ToolCall{call}, FinishReason: llm.FinishTools}, `"content":[` + toolUse + `],"model":"m","stopReason":"toolUse"`},
		{llm.Response{Text: "x", ToolCalls: []llm.ToolCall{call}, FinishReason: llm.FinishTools}, `"content":[{"type":"text","text":"x"},` + toolUse + `],`},
	} {
		tt.resp.Model, tt.resp.Trace = "m", &llm.Trace{ID: "T"}
		wantPart(t, string(createMessageResult(&tt.resp)), `{"role":"assistant",`, tt.want)
	}
}

// A revision without tools in sampling gets none.
func TestToolsOfAnOldServer(t *testing.T) {
	f, srv := llm.NewFake("f"), silentTool()
	srv.result("initialize", strings.Replace(initOK, wire.Legacy, wire.V20250618, 1))
	bubble(t, srv, func(t *testing.T, r *rig) {
		r.client(`{}`).send(callT1("1", ""))
		synctest.Wait()
		srv.peer().say(strings.Replace(sampleAsk, `"maxTokens"`, `"tools":[{"name":"t"}],"maxTokens"`, 1))
		wantPart(t, srv.peer().responses(), `"text":"ok"`)
		if tools := f.Requests()[0].Tools; tools != nil {
			t.Error(tools)
		}
	}, byChain(f))
}

func TestCreateMessageThatIsWrong(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		r.client(`{}`).send(callT1("1", ""))
		synctest.Wait()
		for _, params := range []string{`{"messages":7}`, `{"messages":[{"role":"user","content":{"type":"audio","data":"AAAA","mimeType":"audio/wav"}}]}`} {
			srv.peer().say(strings.Replace(sampleAsk, sampleParams, params, 1))
		}
		got := srv.peer().responses()
		wantPart(t, got, `message 1: content of type \"audio\" cannot be given to a language model here`)
		if n := strings.Count(got, `"error":{"code":-32602,"message":"AgentArmor: not sampled: `); n != 2 || !json.Valid([]byte("["+strings.ReplaceAll(got, "\n", ",")+"]")) {
			t.Error(got)
		}
	}, byChain(llm.NewFake("f")))
}
