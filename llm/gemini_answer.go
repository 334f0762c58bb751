package llm

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// geminiAnswer gathers an answer as it passes. The library is shown nothing
// but its texts: it panics at some parts, fails at others, rounds numbers, and
// drops signatures, unknown reasons, errors in mid-stream and the last count of
// tokens.
type geminiAnswer struct {
	x      *exchange
	text   strings.Builder
	calls  []geminiCall
	finish string
	seen   bool // a candidate
	usage  geminiUsage
	model  string
}

type geminiCall struct {
	ToolCall
	signature string
}

// geminiElement is an answer, or one element of a stream of them.
type geminiElement struct {
	Candidates []struct {
		Index   int `json:"index"`
		Content struct {
			Parts []geminiPart `json:"parts"`
		} `json:"content"`
		FinishReason json.RawMessage `json:"finishReason"`
	} `json:"candidates"`
	PromptFeedback struct {
		BlockReason json.RawMessage `json:"blockReason"`
	} `json:"promptFeedback"`
	UsageMetadata *geminiUsage    `json:"usageMetadata"`
	ModelVersion  string          `json:"modelVersion"`
	Error         json.RawMessage `json:"error"`
}

type geminiPart struct {
	Text         string `json:"text"`
	Thought      bool   `json:"thought"`
	Signature    string `json:"thoughtSignature"`
	FunctionCall *struct {
		ID   string          `json:"id"`
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
	} `json:"functionCall"`
}

type geminiUsage struct {
	Prompt     int `json:"promptTokenCount"`
	Candidates int `json:"candidatesTokenCount"`
	Thoughts   int `json:"thoughtsTokenCount"`
	Total      int `json:"totalTokenCount"`
}

// whole reads a complete answer.
func (a *geminiAnswer) whole(body []byte) ([]byte, *Error) {
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(new(json.RawMessage)); errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, TransportError(err)
	}
	return a.element(body)
}

// elements reads a stream, which is one JSON array.
func (a *geminiAnswer) elements(r io.Reader) func() ([]byte, error) {
	d := json.NewDecoder(r)
	before := "["
	return func() ([]byte, error) {
		if before == "[" {
			if t, err := d.Token(); err != nil {
				return nil, err
			} else if t != json.Delim('[') {
				rest, _ := io.ReadAll(io.LimitReader(io.MultiReader(d.Buffered(), r), maxBody))
				return nil, a.x.fail(a.x.httpError(append([]byte("{"), rest...)))
			}
		}
		if !d.More() {
			if _, err := d.Token(); err != nil {
				return nil, err
			}
			a.x.ended = true
			return nil, io.EOF
		}
		var one json.RawMessage
		if err := d.Decode(&one); err != nil {
			return nil, err
		}
		shown, failed := a.element(one)
		if failed != nil {
			return nil, a.x.fail(failed)
		}
		shown = append([]byte(before), shown...)
		before = ","
		return shown, nil
	}
}

// element takes what is in one element and returns what the library may see.
func (a *geminiAnswer) element(body []byte) ([]byte, *Error) {
	var e geminiElement
	if err := json.Unmarshal(body, &e); err != nil || isSet(e.Error) {
		return nil, a.x.httpError(body)
	}
	a.model = cmp.Or(e.ModelVersion, a.model)
	if e.UsageMetadata != nil {
		a.usage = *e.UsageMetadata
	}
	if reason := geminiEnum(e.PromptFeedback.BlockReason); reason != "" {
		a.finish = "PROHIBITED_CONTENT" // whatever it is called: the prompt is refused
	}
	texts := []any{}
	for _, c := range e.Candidates {
		if c.Index != 0 {
			continue
		}
		a.seen = true
		a.finish = cmp.Or(geminiEnum(c.FinishReason), a.finish)
		for _, p := range c.Content.Parts {
			if f := p.FunctionCall; f != nil {
				a.call(f.ID, f.Name, f.Args, p.Signature)
			} else if p.Text != "" && !p.Thought {
				texts = append(texts, map[string]string{"text": p.Text})
			}
		}
	}
	return raw(map[string]any{"candidates": []any{map[string]any{"content": map[string]any{"role": "model", "parts": texts}}}}), nil
}

func (a *geminiAnswer) call(id, name string, args json.RawMessage, signature string) {
	if !isSet(args) {
		args = json.RawMessage("{}")
	}
	a.calls = append(a.calls, geminiCall{ToolCall{ID: cmp.Or(id, newCallID()), Name: name, Arguments: args}, signature})
}

// geminiEnum is the name of an enum's value, which travels as text or number;
// "" if it is unset.
func geminiEnum(raw json.RawMessage) string {
	s := strings.Trim(string(raw), `"`)
	switch s {
	case "", "null", "0", "FINISH_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED":
		return ""
	}
	return s
}

// geminiFinish maps google.ai.generativelanguage.v1beta.Candidate.FinishReason
// by name and by number. Everything else is unknown.
var geminiFinish = map[string]FinishReason{
	"STOP": FinishStop, "1": FinishStop,
	"MAX_TOKENS": FinishLength, "2": FinishLength,
	"SAFETY": FinishBlocked, "3": FinishBlocked,
	"RECITATION": FinishBlocked, "4": FinishBlocked,
	"BLOCKLIST": FinishBlocked, "7": FinishBlocked,
	"PROHIBITED_CONTENT": FinishBlocked, "8": FinishBlocked,
	"SPII": FinishBlocked, "9": FinishBlocked,
	"IMAGE_SAFETY": FinishBlocked, "11": FinishBlocked,
}

// response is the canonical form of the answer. Its finish reason is empty if
// the API gave none although it said something.
func (a *geminiAnswer) response() *Response {
	u := a.usage
	resp := &Response{Text: a.text.String(), Model: a.model, Status: a.x.status, Header: a.x.header,
		Usage: Usage{Input: u.Prompt, Output: u.Candidates + u.Thoughts, Total: u.Total}}
	for _, c := range a.calls {
		resp.ToolCalls = append(resp.ToolCalls, c.ToolCall)
	}
	reason, known := geminiFinish[a.finish]
	switch {
	case known && reason == FinishStop && len(a.calls) > 0:
		resp.FinishReason = FinishTools
	case known:
		resp.FinishReason = reason
	case a.finish != "" || a.x.whole != nil || a.x.ended && !a.seen:
		resp.FinishReason = FinishUnknown
	}
	return resp
}
