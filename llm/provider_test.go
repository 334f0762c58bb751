package llm

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/fixtures/fakellm"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
)

const testKey = "AIza-secret/key+1"

// api is one of the two kinds of providers with its fake.
type api struct {
	name  string
	fake  func(fakellm.Options) *fakellm.Server
	build func(ProviderOptions) (Provider, error)
}

var apis = []api{{"gemini", fakellm.NewGemini, NewGemini}, {"openai", fakellm.NewOpenAI, NewOpenAI}}

// start returns a provider in front of a fake.
func (a api) start(t *testing.T, model string, o fakellm.Options) (Provider, *fakellm.Server) {
	t.Helper()
	o.Key = testKey
	s := a.fake(o)
	ts := httptest.NewServer(s)
	p, err := a.build(ProviderOptions{Model: model, APIKey: testKey, BaseURL: ts.URL, Transport: &http.Transport{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.(interface{ Close() error }).Close(); ts.Close() })
	return p, s
}

func both(t *testing.T, test func(*testing.T, api)) {
	for _, a := range apis {
		t.Run(a.name, func(t *testing.T) { test(t, a) })
	}
}

// ask calls a provider whole and as a stream.
func ask(t *testing.T, p Provider, r *Request, stream bool) (resp *Response, emitted string, failed *Error) {
	t.Helper()
	var emit func(string)
	if stream {
		emit = func(s string) { emitted += s }
	}
	resp, err := p.Generate(t.Context(), r, emit)
	if err != nil {
		var ok bool
		if failed, ok = err.(*Error); !ok {
			t.Fatalf("%T is no *Error", err)
		}
		if strings.Contains(failed.Error()+string(failed.Body)+failed.Partial, testKey) || failed.Err != nil && strings.Contains(failed.Err.Error(), testKey) {
			t.Errorf("the key is in %+v", failed)
		}
	}
	return resp, emitted, failed
}

func TestAnswers(t *testing.T) {
	call := ToolCall{ID: "call_7", Name: "f", Arguments: json.RawMessage(`{"n":9007199254740993}`)}
	fakeCall := fakellm.ToolCall{ID: "call_7", Name: "f", Arguments: `{"n":9007199254740993}`}
	for _, c := range []struct {
		name  string
		reply fakellm.Reply
		want  Response
	}{
		{"text", fakellm.Reply{Text: "one two three"}, Response{Text: "one two three", FinishReason: FinishStop}},
		{"out of tokens", fakellm.Reply{Text: "one", Finish: "length/MAX_TOKENS"}, Response{Text: "one", FinishReason: FinishLength}},
		{"thoughts took all tokens", fakellm.Reply{NoContent: true, Finish: "length/MAX_TOKENS", Usage: fakellm.Usage{Input: 7, Thoughts: 9}}, Response{FinishReason: FinishLength, Usage: Usage{7, 9, 16}}},
		{"blocked", fakellm.Reply{NoContent: true, Finish: "content_filter/SAFETY"}, Response{FinishReason: FinishBlocked}},
		{"blocked, by number", fakellm.Reply{NoContent: true, Finish: "content_filter/8"}, Response{FinishReason: FinishBlocked}},
		{"unknown reason", fakellm.Reply{Text: "x", Finish: "new/BRAND_NEW"}, Response{Text: "x", FinishReason: FinishUnknown}},
		{"unknown number", fakellm.Reply{Text: "x", Finish: "new/77"}, Response{Text: "x", FinishReason: FinishUnknown}},
		{"empty", fakellm.Reply{NoContent: true}, Response{FinishReason: FinishStop}},
		{"tool call", fakellm.Reply{Tools: []fakellm.ToolCall{fakeCall}}, Response{FinishReason: FinishTools, ToolCalls: []ToolCall{call}}},
		{"text and tool calls", fakellm.Reply{Text: "I ask.", Tools: []fakellm.ToolCall{fakeCall, {ID: "call_8", Name: "g"}}},
			Response{Text: "I ask.", FinishReason: FinishTools, ToolCalls: []ToolCall{call, {ID: "call_8", Name: "g", Arguments: json.RawMessage(`{}`)}}}},
	} {
		both(t, func(t *testing.T, a api) {
			reply := c.reply
			if openai, gemini, two := strings.Cut(reply.Finish, "/"); two {
				reply.Finish = openai
				if a.name == "gemini" {
					reply.Finish = gemini
				}
			}
			reply.Model = "the-real-one"
			p, _ := a.start(t, "m", fakellm.Options{Reply: reply})
			for _, stream := range []bool{false, true} {
				for _, r := range []*Request{Prompt("hi"), {Messages: []Message{User("a"), Assistant("b"), User("c")}}} {
					want := c.want
					want.Model, want.Status = "the-real-one", 200
					if want.Usage == (Usage{}) {
						want.Usage = Usage{7, 5, 12}
					}
					got, emitted, err := ask(t, p, r, stream)
					if err != nil {
						t.Fatalf("%s, stream %v: %v", c.name, stream, err)
					}
					if got.Header.Get("Content-Type") == "" {
						t.Error("the headers are lost")
					}
					if d := cmp.Diff(&want, got, cmpopts.IgnoreFields(Response{}, "Header")); d != "" {
						t.Errorf("%s, stream %v: %s", c.name, stream, d)
					}
					if stream && emitted != got.Text {
						t.Errorf("%s: emitted %q of %q", c.name, emitted, got.Text)
					}
				}
			}
		})
	}
}

// Every canonical field arrives at the API in its own spelling.
func TestRequests(t *testing.T) {
	call := ToolCall{ID: "call_1", Name: "weather", Arguments: json.RawMessage(`{"id":9007199254740993}`)}
	r := &Request{
		Messages: []Message{System("Be kind."), User("Look:", Image{MIMEType: "image/png", Data: []byte("png")}),
			Assistant("", call), ToolResult(call, `{"c":20}`), System("And brief.")},
		Tools:       []Tool{{Name: "weather", Description: "tells it", Parameters: json.RawMessage(`{"$schema":"x","type":"object","oneOf":[{"x-y":1}]}`)}},
		ToolChoice:  "weather",
		Temperature: new(0.0), TopP: new(0.5), MaxTokens: 99, Stop: []string{"END"}, Seed: new(3),
	}
	want := map[string]string{
		"gemini": `{
			"model": "models/m",
			"systemInstruction": {"parts": [{"text": "Be kind."}, {"text": "And brief."}]},
			"contents": [
				{"role": "user", "parts": [{"text": "Look:"}, {"inlineData": {"mimeType": "image/png", "data": "cG5n"}}]},
				{"role": "model", "parts": [{"functionCall": {"name": "weather", "args": {"id": 9007199254740993}}, "thoughtSignature": "skip_thought_signature_validator"}]},
				{"role": "user", "parts": [{"functionResponse": {"name": "weather", "response": {"result": "{\"c\":20}"}}}]}],
			"tools": [{"functionDeclarations": [{"name": "weather", "description": "tells it", "parametersJsonSchema": {"type": "object", "oneOf": [{"x-y": 1}]}}]}],
			"toolConfig": {"functionCallingConfig": {"mode": 2, "allowedFunctionNames": ["weather"]}},
			"generationConfig": {"candidateCount": 1, "stopSequences": ["END"], "maxOutputTokens": 99, "temperature": 0, "topP": 0.5, "seed": 3}}`,
		"openai": `{
			"model": "m",
			"messages": [
				{"role": "system", "content": "Be kind."},
				{"role": "user", "content": [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}}]},
				{"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"id\":9007199254740993}"}}]},
				{"role": "tool", "content": "{\"c\":20}", "tool_call_id": "call_1"},
				{"role": "system", "content": "And brief."}],
			"tools": [{"type": "function", "function": {"name": "weather", "description": "tells it", "parameters": {"$schema": "x", "type": "object", "oneOf": [{"x-y": 1}]}}}],
			"tool_choice": {"type": "function", "function": {"name": "weather"}},
			"max_tokens": 99, "temperature": 1e-8, "top_p": 0.5, "stream": false, "stop": ["END"], "seed": 3}`,
	}
	both(t, func(t *testing.T, a api) {
		p, s := a.start(t, "m", fakellm.Options{})
		if _, _, err := ask(t, p, r, false); err != nil {
			t.Fatal(err)
		}
		got := s.Requests()[0]
		if d := cmp.Diff(exactly(t, want[a.name]), exactly(t, string(got.Body))); d != "" {
			t.Error(d)
		}
		if strings.Contains(got.Path+got.Query, "AIza") {
			t.Errorf("the key is in the URL %s?%s", got.Path, got.Query)
		}
	})
}

// exactly decodes JSON with its numbers as they are spelled.
func exactly(t *testing.T, s string) (v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// body returns what a provider sends for a request.
func body(t *testing.T, a api, model string, o *Limits, r *Request) string {
	t.Helper()
	s := a.fake(fakellm.Options{Reply: fakellm.Reply{Text: "{}"}})
	ts := httptest.NewServer(s)
	defer ts.Close()
	p, err := a.build(ProviderOptions{Model: model, BaseURL: ts.URL + "/v1beta", Limits: o, Transport: &http.Transport{DisableKeepAlives: true}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := ask(t, p, r, false); err != nil {
		t.Fatal(err)
	}
	return string(s.Requests()[0].Body)
}

func TestSchemas(t *testing.T) {
	r := Prompt("hi")
	r.Schema = json.RawMessage(`{"type":"object","anyOf":[{}]}`)
	if b := body(t, apis[0], "m", nil, r); !strings.Contains(b, `"responseJsonSchema":{"type":"object","anyOf":[{}]}`) || !strings.Contains(b, `"responseMimeType":"application/json"`) {
		t.Error(b)
	}
	if b := body(t, apis[1], "m", nil, r); !strings.Contains(b, `"response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":{"type":"object","anyOf":[{}]},"strict":false}}`) {
		t.Error(b)
	}
	inWords := `JSON schema:\n{\"type\":\"object\",\"anyOf\":[{}]}`
	if b := body(t, apis[1], "llama-3.1-8b-instant", nil, r); !strings.Contains(b, inWords) || strings.Contains(b, "response_format") {
		t.Error(b)
	}
	r.Tools = []Tool{{Name: "f"}}
	both(t, func(t *testing.T, a api) {
		if b := body(t, a, "m", nil, r); !strings.Contains(b, inWords) || strings.Contains(b, "application/json") || strings.Contains(b, "response_format") {
			t.Error(b)
		}
	})
}

func TestReasoningModels(t *testing.T) {
	r := Prompt("hi")
	r.MaxTokens, r.Temperature, r.TopP = 5, new(0.3), new(0.5)
	for model, sampling := range map[string]bool{"openai/gpt-oss-20b": true, "gpt-5-mini": false, "openai/gpt-5": false, "o1": false, "o3": false, "o4-mini": false} {
		b := body(t, apis[1], model, nil, r)
		if !strings.Contains(b, `"max_completion_tokens":5`) || strings.Contains(b, `"max_tokens"`) {
			t.Error(b)
		}
		if strings.Contains(b, `"temperature"`) != sampling || strings.Contains(b, `"top_p"`) != sampling {
			t.Errorf("%s: %s", model, b)
		}
	}
}

// What cannot be done is said, and nothing is sent.
func TestWhatCannotBeDone(t *testing.T) {
	both(t, func(t *testing.T, a api) {
		p, s := a.start(t, "gpt-5", fakellm.Options{})
		for name, r := range map[string]*Request{
			"an empty message":          {Messages: []Message{User("")}},
			"an image of the model's":   {Messages: []Message{{Role: RoleAssistant, Parts: []Part{{Image: &Image{Data: []byte("x")}}}}, User("x")}},
			"an image of a tool's":      {Messages: []Message{User("x"), {Role: RoleTool, Name: "f", Parts: []Part{{Image: &Image{Data: []byte("x")}}}}}},
			"a tool without tools":      {Messages: []Message{User("x")}, ToolChoice: "f"},
			"gemini: image by address":  {Messages: []Message{User("x", Image{URL: "https://example.com/x.png"})}},
			"gemini: ends with a model": {Messages: []Message{User("x"), Assistant("y")}},
		} {
			if only, _, found := strings.Cut(name, ":"); found && only != a.name {
				continue
			}
			if _, _, err := ask(t, p, r, false); err == nil || err.Class != ClassRejected || err.Status != 0 {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := len(s.Requests()); n != 0 {
			t.Errorf("%d requests were sent", n)
		}
	})
	for _, o := range []ProviderOptions{{}, {Model: "m", BaseURL: "localhost:1"}, {Model: "m", BaseURL: "ftp://host"}, {Model: "m", BaseURL: "http://user:pass@host"}} {
		for _, a := range apis {
			if _, err := a.build(o); err == nil || strings.Contains(err.Error(), "pass") {
				t.Errorf("%+v: %v", o, err)
			}
		}
	}
	for _, key := range []string{"pass\nword", "pass\x00", "pass word", "passé"} {
		for _, a := range apis {
			if _, err := a.build(ProviderOptions{Name: "mine", Model: "m", APIKey: key}); err == nil || strings.Contains(err.Error(), "pass") || !strings.Contains(err.Error(), "mine: the API key has") {
				t.Errorf("%q: %v", key, err)
			}
		}
	}
}

// Gemini's signatures come back with the call they belong to, and only there.
func TestSignatures(t *testing.T) {
	p, s := apis[0].start(t, "gemini-3.5-flash-lite", fakellm.Options{Reply: fakellm.Reply{Tools: []fakellm.ToolCall{{Name: "f", Signature: "c2ln"}, {Name: "g"}}}})
	first, _, err := ask(t, p, Prompt("x"), true)
	if err != nil || len(first.ToolCalls) != 2 || first.ToolCalls[0].ID == first.ToolCalls[1].ID {
		t.Fatalf("%+v, %v", first, err)
	}
	calls := first.ToolCalls
	if _, _, err := ask(t, p, &Request{Messages: []Message{User("x"), Assistant("", calls...), ToolResult(calls[0], "1"), ToolResult(calls[1], "2")}}, false); err != nil {
		t.Fatal(err)
	}
	got := string(s.Requests()[1].Body)
	if strings.Count(got, "thoughtSignature") != 1 || !strings.Contains(got, `"thoughtSignature":"c2ln"`) || strings.Count(got, `"role":"user"`) != 2 {
		t.Error(got)
	}
}

func TestSignaturesAreForgotten(t *testing.T) {
	var s signatures
	for range 3 * maxSignatures {
		s.keep([]geminiCall{{ToolCall: ToolCall{ID: newCallID()}}})
	}
	if len(s.known) != maxSignatures || len(s.order) != maxSignatures {
		t.Errorf("%d, %d", len(s.known), len(s.order))
	}
}

// The name of the tool that a result belongs to is known from its call.
func TestToolResultsByID(t *testing.T) {
	r := &Request{Messages: []Message{User("x"), Assistant("", ToolCall{ID: "1", Name: "f"}, ToolCall{ID: "2", Name: "g"}),
		{Role: RoleTool, ToolCallID: "2", Parts: []Part{{Text: "b"}}}, {Role: RoleTool, ToolCallID: "1", Parts: []Part{{Text: "a"}}}}}
	if b := body(t, apis[0], "m", nil, r); !strings.Contains(b, `"functionResponse":{"name":"g","response":{"result":"b"}}`) || !strings.Contains(b, `"name":"f","response":{"result":"a"}`) {
		t.Error(b)
	}
}

// Servers number the pieces of tool calls as they like.
func TestPiecesOfToolCalls(t *testing.T) {
	for name, pieces := range map[string][]string{
		"as documented":         {`"index":0,"id":"1","function":{"name":"f","arguments":"{\"a\""}`, `"index":0,"function":{"arguments":":1}"}`, `"index":1,"id":"2","function":{"name":"g","arguments":"{}"}`},
		"mixed":                 {`"index":0,"id":"1","function":{"name":"f","arguments":"{\"a\""}`, `"index":1,"id":"2","function":{"name":"g","arguments":"{}"}`, `"index":0,"function":{"arguments":":1}"}`},
		"from 1":                {`"index":1,"id":"1","function":{"name":"f","arguments":"{\"a\""}`, `"index":1,"function":{"arguments":":1}"}`, `"index":2,"id":"2","function":{"name":"g","arguments":"{}"}`},
		"all the same":          {`"index":0,"id":"1","function":{"name":"f","arguments":"{\"a\":1}"}`, `"index":0,"id":"2","function":{"name":"g","arguments":"{}"}`},
		"without a number":      {`"id":"1","function":{"name":"f","arguments":"{\"a\""}`, `"function":{"arguments":":1}"}`, `"id":"2","function":{"name":"g","arguments":"{}"}`},
		"with the id each":      {`"id":"1","function":{"name":"f","arguments":"{\"a\""}`, `"id":"1","function":{"arguments":":1}"}`, `"id":"2","function":{"name":"g","arguments":"{}"}`},
		"number below 0":        {`"index":-1,"id":"1","function":{"name":"f","arguments":"{\"a\":1}"}`, `"index":-7,"id":"2","function":{"name":"g","arguments":"{}"}`},
		"an id that comes late": {`"index":0,"function":{"name":"f","arguments":"{\"a\""}`, `"index":0,"id":"1","function":{"arguments":":1}"}`, `"index":1,"id":"2","function":{"name":"g","arguments":"{}"}`},
	} {
		p, s := apis[1].start(t, "m", fakellm.Options{})
		var stream strings.Builder
		for _, piece := range pieces {
			stream.WriteString(`data: {"choices":[{"index":0,"delta":{"tool_calls":[{` + piece + `}]}}]}` + "\n\n")
		}
		s.Script(fakellm.Reply{Body: stream.String() + `data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}` + "\n\ndata: [DONE]\n\n"})
		resp, _, err := ask(t, p, Prompt("x"), true)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := []ToolCall{{ID: "1", Name: "f", Arguments: json.RawMessage(`{"a":1}`)}, {ID: "2", Name: "g", Arguments: json.RawMessage(`{}`)}}
		if d := cmp.Diff(want, resp.ToolCalls); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// A thought is no answer, and a part that the library panics at harms nobody.
func TestGeminiOddParts(t *testing.T) {
	p, s := apis[0].start(t, "m", fakellm.Options{})
	parts := `[{"text":"thinking","thought":true},{"thoughtSignature":"c2ln"},{"functionResponse":{"name":"f"}},{"fileData":{}},{"text":"Hello"}]`
	element := `{"candidates":[{"content":{"parts":` + parts + `},"finishReason":1},{"index":1,"content":{"parts":[{"text":"other"}]}}]}`
	s.Script(fakellm.Reply{Body: element}, fakellm.Reply{Body: "[" + element + "]"})
	for _, stream := range []bool{false, true} {
		if resp, _, err := ask(t, p, Prompt("x"), stream); err != nil || resp.Text != "Hello" || resp.FinishReason != FinishStop {
			t.Errorf("stream %v: %+v, %v", stream, resp, err)
		}
	}
}

// Nothing runs on after any number of calls: the one Gemini client of the
// process is all there is, however many providers there are.
func TestNothingLeaks(t *testing.T) {
	if _, err := geminiClient(); err != nil {
		t.Fatal(err)
	}
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	both(t, func(t *testing.T, a api) {
		for range 5 {
			p, s := a.start(t, "m", fakellm.Options{})
			s.Script(fakellm.Reply{Status: 503}, fakellm.Reply{Cut: &fakellm.Cut{Bytes: 20}}, fakellm.Reply{Drop: true}, fakellm.Reply{Hang: true})
			for i := range 5 {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				_, err := p.Generate(ctx, Prompt("x"), func(string) {})
				cancel()
				if (err == nil) != (i == 4) {
					t.Errorf("call %d: %v", i, err)
				}
			}
		}
	})
}

// Good answers leave their connection for the next request, streams as well.
func TestConnectionsAreUsedAgain(t *testing.T) {
	both(t, func(t *testing.T, a api) {
		s := a.fake(fakellm.Options{})
		var opened atomic.Int32
		ts := httptest.NewUnstartedServer(s)
		ts.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				opened.Add(1)
			}
		}
		ts.Start()
		defer ts.Close()
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		p, err := a.build(ProviderOptions{Model: "m", BaseURL: ts.URL, Transport: transport})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 6 {
			if _, _, err := ask(t, p, Prompt("x"), i%2 == 0); err != nil {
				t.Fatal(err)
			}
		}
		if n := opened.Load(); n != 1 {
			t.Errorf("%d connections for 6 requests", n)
		}
	})
}

// A redirect would carry the key to somebody else.
func TestRedirectsAreNotFollowed(t *testing.T) {
	both(t, func(t *testing.T, a api) {
		other := a.fake(fakellm.Options{})
		ts := httptest.NewServer(other)
		defer ts.Close()
		p, _ := a.start(t, "m", fakellm.Options{Reply: fakellm.Reply{Status: 307, Header: http.Header{"Location": {ts.URL}}}})
		if _, _, err := ask(t, p, Prompt("x"), false); err == nil || err.Status != 307 || len(other.Requests()) != 0 {
			t.Errorf("%v; %d requests arrived elsewhere", err, len(other.Requests()))
		}
	})
}

// An answer beyond the bound is not read to its end.
func TestAnswersAreBounded(t *testing.T) {
	both(t, func(t *testing.T, a api) {
		p, s := a.start(t, "m", fakellm.Options{})
		huge := `{"x":"` + string(bytes.Repeat([]byte("x"), maxAnswer)) + `"}`
		s.Script(fakellm.Reply{Body: huge}, fakellm.Reply{Status: 500, Body: huge})
		if _, _, err := ask(t, p, Prompt("x"), false); err == nil || err.Class != ClassMalformed {
			t.Error(err)
		}
		if _, _, err := ask(t, p, Prompt("x"), false); err == nil || err.Class != ClassOverloaded || len(err.Body) > maxBody {
			t.Error(err)
		}
	})
}
