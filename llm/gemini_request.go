package llm

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"sync"
)

// prepare addresses the library's request, adds the key, and adds to its body
// what the library's types cannot hold: schemas as they are, exact arguments,
// the seed, and the signatures of earlier tool calls.
func (p *gemini) prepare(req *http.Request, r *Request) error {
	req.URL.Scheme, req.URL.Host, req.Host = p.base.Scheme, p.base.Host, p.base.Host
	req.URL.Path, req.URL.RawPath = p.base.Path+req.URL.Path, ""
	if p.options.APIKey != "" {
		req.Header.Set("x-goog-api-key", p.options.APIKey)
	}
	body, err := io.ReadAll(req.Body)
	req.Body.Close()
	if err != nil {
		return err
	}
	if body, err = p.complete(body, r); err != nil {
		return err
	}
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	return nil
}

// The parts of a request that are touched; the maps hold everything else.
type (
	jsonObject = map[string]json.RawMessage
	geminiTool struct {
		Functions []jsonObject `json:"functionDeclarations"`
	}
)

func (p *gemini) complete(body []byte, r *Request) ([]byte, error) {
	var calls []ToolCall
	for _, m := range r.Messages {
		calls = append(calls, m.ToolCalls...)
	}
	schema := len(r.Schema) > 0 && len(r.Tools) == 0
	if len(calls) == 0 && len(r.Tools) == 0 && !schema && r.Seed == nil {
		return body, nil
	}
	var top jsonObject
	if err := json.Unmarshal(body, &top); err != nil {
		return nil, err
	}
	if len(calls) > 0 {
		if err := p.sign(top, calls); err != nil {
			return nil, err
		}
	}
	if len(r.Tools) > 0 {
		if err := geminiParameters(top, r.Tools); err != nil {
			return nil, err
		}
	}
	if schema || r.Seed != nil {
		config := jsonObject{}
		if isSet(top["generationConfig"]) {
			if err := json.Unmarshal(top["generationConfig"], &config); err != nil {
				return nil, err
			}
		}
		if schema {
			config["responseJsonSchema"] = geminiSchema(r.Schema)
		}
		if r.Seed != nil {
			config["seed"] = raw(*r.Seed)
		}
		top["generationConfig"] = raw(config)
	}
	return json.Marshal(top)
}

// raw encodes what cannot fail to be encoded: numbers and valid JSON.
func raw(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return b
}

// geminiSchema leaves out the one keyword at the top that Gemini refuses.
func geminiSchema(schema json.RawMessage) json.RawMessage {
	var o jsonObject
	if json.Unmarshal(schema, &o) != nil {
		return schema
	}
	if _, ok := o["$schema"]; !ok {
		return schema
	}
	delete(o, "$schema")
	return raw(o)
}

func geminiParameters(top jsonObject, tools []Tool) error {
	var list []geminiTool
	if err := json.Unmarshal(top["tools"], &list); err != nil {
		return err
	}
	for i, t := range tools {
		if len(t.Parameters) > 0 {
			list[0].Functions[i]["parametersJsonSchema"] = geminiSchema(t.Parameters)
		}
	}
	top["tools"] = raw(list)
	return nil
}

// sign completes the tool calls of the conversation. Gemini 3 refuses a turn
// whose first call lacks the signature that came with it, and takes unsigned
// in its place for calls that another model made.
func (p *gemini) sign(top jsonObject, calls []ToolCall) error {
	const unsigned = "skip_thought_signature_validator"
	var contents []jsonObject
	if err := json.Unmarshal(top["contents"], &contents); err != nil {
		return err
	}
	for _, content := range contents {
		var parts []jsonObject
		if err := json.Unmarshal(content["parts"], &parts); err != nil {
			return err
		}
		first := true
		for _, part := range parts {
			if part["functionCall"] == nil || len(calls) == 0 {
				continue
			}
			call := calls[0]
			calls = calls[1:]
			args := call.Arguments
			if len(args) == 0 {
				args = json.RawMessage("{}")
			}
			part["functionCall"] = raw(jsonObject{"name": raw(call.Name), "args": args})
			signature, known := p.signatures.of(call.ID)
			if !known && first {
				signature = unsigned
			}
			if signature != "" {
				part["thoughtSignature"] = raw(signature)
			}
			first = false
		}
		content["parts"] = raw(parts)
	}
	top["contents"] = raw(contents)
	return nil
}

// signatures remembers the signatures of the latest tool calls by their IDs:
// the canonical messages have no place for them.
type signatures struct {
	mu    sync.Mutex
	known map[string]string
	order []string
}

const maxSignatures = 1024

// keep remembers calls.
func (s *signatures) keep(calls []geminiCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range calls {
		if s.known == nil {
			s.known = map[string]string{}
		}
		s.known[c.ID] = c.signature
		s.order = append(s.order, c.ID)
	}
	for len(s.order) > maxSignatures {
		delete(s.known, s.order[0])
		s.order = s.order[1:]
	}
}

func (s *signatures) of(id string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	signature, ok := s.known[id]
	return signature, ok
}
