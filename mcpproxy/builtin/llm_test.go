package builtin

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/llm"
)

func TestCompletionRequests(t *testing.T) {
	png := llm.Image{MIMEType: "image/png", Data: []byte("png")}
	for args, want := range map[string]*llm.Request{
		`{"prompt":"p","messages":null,"temperature":null,"max_tokens":null,"response_schema":null}`: llm.Prompt("p"),
		`{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}],"model":"groq"}`: {
			Messages: []llm.Message{llm.System("s"), llm.User("a"), llm.Assistant("b"), llm.User("c")}, Prefer: []string{"groq"},
		},
		`{"prompt":"p","system":"s","temperature":0,"max_tokens":5.0,"stop":["x"],"timeout":1.5}`: {
			Messages: []llm.Message{llm.System("s"), llm.User("p")}, Temperature: new(0.0), MaxTokens: 5, Stop: []string{"x"}, Timeout: 1500 * time.Millisecond,
		},
		`{"prompt":"p","timeout":1e300}`:                 {Messages: []llm.Message{llm.User("p")}, Timeout: time.Hour},
		`{"prompt":"p","response_schema":{"type":"x"}}`:  {Messages: []llm.Message{llm.User("p")}, Schema: json.RawMessage(`{"type":"x"}`)},
		`{"prompt":"p","images":["https://host/a.png"]}`: {Messages: []llm.Message{llm.User("p", llm.Image{URL: "https://host/a.png"})}},
		`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"images":["data:image/png;base64,cG5n"]}`: {
			Messages: []llm.Message{llm.User("a", png), llm.Assistant("b")},
		},
	} {
		a, err := parseArguments([]byte(args))
		if err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		got, err := a.request()
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", args, err, diff)
		}
	}
}

// What is wrong with the arguments is said in words that help.
func TestWrongArguments(t *testing.T) {
	for args, want := range map[string]string{
		``:   "give prompt, the question, or messages",
		`{}`: "give prompt, the question, or messages",
		`{"prompt":"p","messages":[{"role":"user","content":"x"}]}`: "either prompt or messages",
		`{"prompt":7}`:                                                               "prompt must be a string",
		`{"prompt":"p","temperature":"x"}`:                                           "temperature must be a number",
		`{"prompt":"p","max_tokens":1.5}`:                                            "max_tokens must be a whole number",
		`{"prompt":"p","stop":"x"}`:                                                  "stop must be a list",
		`{"prompt":"p","include_trace":1}`:                                           "include_trace must be true or false",
		`{"messages":[{"role":"user","content":["x"]}]}`:                             "content must be a string",
		`{"messages":[7]}`:                                                           "must be an object",
		`{"messages":[{"role":"tool","content":"x"}]}`:                               "messages[0].role must be one of system, user, assistant",
		`{"messages":[{"role":"user"}]}`:                                             "messages[0].content is empty",
		`{"messages":[{"role":"system","content":"x"}]}`:                             "add a message with role user",
		`{"prompt":"p","max_output_tokens":5}`:                                       `no argument "max_output_tokens": use prompt or messages`,
		`{"prompt":"p","temperature":3}`:                                             "temperature must be 0 to 2",
		`{"prompt":"p","max_tokens":0}`:                                              "max_tokens must be 1 or more",
		`{"prompt":"p","timeout":0}`:                                                 "timeout must be more than 0",
		`{"prompt":"p","stop":[""]}`:                                                 "a text of stop is empty",
		`{"prompt":"p","response_schema":"x"}`:                                       "response_schema must be a JSON schema, an object",
		`{"prompt":"p","images":["data:text/plain,x"]}`:                              "images[0] must be data:image/png;base64",
		`{"prompt":"p","images":["data:image/png;base64,!"]}`:                        "images[0] is no valid base64",
		`{"messages":[{"role":"assistant","content":"x"}],"images":["https://a/b"]}`: "images need a message with role user",
		`[]`: "arguments must be an object",
	} {
		a, err := parseArguments([]byte(args))
		if err == nil {
			_, err = a.request()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: no %q in %v", args, want, err)
		}
	}
}

// The schemas of the tool are flat and described, and name what can be asked.
func TestCompleteSchema(t *testing.T) {
	chain, err := llm.New([]llm.Entry{{Provider: llm.NewFake("gemini")}}, llm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var in struct {
		Properties           map[string]struct{ Type, Description string }
		AdditionalProperties *bool
	}
	if err := json.Unmarshal(completeInput(chain), &in); err != nil {
		t.Fatal(err)
	}
	for name, p := range in.Properties {
		if p.Type == "" || p.Description == "" {
			t.Errorf("%s is not described", name)
		}
		if _, err := parseArguments([]byte(`{"` + name + `":null}`)); err != nil {
			t.Errorf("%s is not known: %v", name, err)
		}
	}
	if len(in.Properties) != 11 || in.AdditionalProperties == nil || *in.AdditionalProperties {
		t.Errorf("%+v", in)
	}
	if got := in.Properties["model"].Description; !strings.Contains(got, "gemini (gemini-model)") {
		t.Error(got)
	}
	if !json.Valid(completeOutput) {
		t.Error("the output schema is no JSON")
	}
}

func TestCompleteIsListed(t *testing.T) {
	got := asked(t, "tools/list", `{}`)
	for _, want := range []string{`"name":"llm.complete"`, `"outputSchema":{`, `"readOnlyHint":true`, `"destructiveHint":false`, `"idempotentHint":false`, `"openWorldHint":true`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	if got := asked(t, "resources/list", `{}`); !strings.Contains(got, `"uri":"agentarmor://llm"`) {
		t.Errorf("not listed: %s", got)
	}
	if got := asked(t, "resources/templates/list", `{}`); !strings.Contains(got, `"uriTemplate":"agentarmor://traces/{id}"`) {
		t.Errorf("not listed: %s", got)
	}
}
