package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// maxStops is OpenAI's limit; Gemini takes 5.
const maxStops = 4

// check returns why no model can be asked this.
func (r *Request) check() error {
	if len(r.Messages) == 0 {
		return errors.New("there is no message")
	}
	for i, m := range r.Messages {
		switch m.Role {
		case RoleSystem, RoleUser, RoleAssistant, RoleTool:
		default:
			return fmt.Errorf("message %d: unknown role %.64q", i+1, m.Role)
		}
		for _, c := range m.ToolCalls {
			if len(c.Arguments) > 0 && !isObject(c.Arguments) {
				return fmt.Errorf("message %d: the arguments for %.64q are no JSON object", i+1, c.Name)
			}
		}
		for _, p := range m.Parts {
			if p.Image != nil && len(p.Image.Data) == 0 && p.Image.URL == "" {
				return fmt.Errorf("message %d: an image without data or address", i+1)
			}
		}
	}
	for _, t := range r.Tools {
		if len(t.Parameters) > 0 && !isObject(t.Parameters) {
			return fmt.Errorf("tool %.64q: the parameters are no JSON object", t.Name)
		}
	}
	if len(r.Stop) > maxStops {
		return fmt.Errorf("there are %d stop texts: %d at most can be given", len(r.Stop), maxStops)
	}
	if r.Strategy != "" && !r.Strategy.known() {
		return fmt.Errorf("unknown strategy %.64q", r.Strategy)
	}
	return nil
}

// judge returns the class of an answer: [ClassOK], or why it is none.
func (q *question) judge(r *Response) (Class, string) {
	switch {
	case r.FinishReason == FinishBlocked:
		return ClassBlocked, "a content filter refused the prompt or the answer"
	case r.FinishReason == FinishLength && !q.asked(r):
		return ClassCut, fmt.Sprintf("the answer is cut after %d tokens", r.Usage.Output)
	case strings.TrimSpace(r.Text) == "" && len(r.ToolCalls) == 0:
		return ClassEmpty, fmt.Sprintf("the answer is empty (finish reason %s)", r.FinishReason)
	}
	if err := q.checkTools(r); err != nil {
		return ClassSchema, err.Error()
	}
	if q.schema != nil && len(r.ToolCalls) == 0 {
		r.Text = unfence(r.Text)
		if err := q.checkSchema(r.Text); err != nil {
			return ClassSchema, err.Error()
		}
	}
	return ClassOK, ""
}

// asked tells whether the answer is as long as the request wants it at most.
func (q *question) asked(r *Response) bool {
	return q.MaxTokens > 0 && r.Usage.Output >= q.MaxTokens && strings.TrimSpace(r.Text) != "" && q.schema == nil
}

func (q *question) checkTools(r *Response) error {
	calls := func(name string) bool {
		return slices.ContainsFunc(r.ToolCalls, func(c ToolCall) bool { return c.Name == name })
	}
	switch choice := q.ToolChoice; {
	case choice == "", choice == ToolsAuto:
	case choice == ToolsNone && len(r.ToolCalls) > 0:
		return errors.New("the answer calls a tool, and was to call none")
	case choice == ToolsRequired && len(r.ToolCalls) == 0:
		return errors.New("the answer calls no tool")
	case choice != ToolsNone && choice != ToolsRequired && !calls(choice):
		return fmt.Errorf("the answer does not call the tool %.64q", choice)
	}
	for _, c := range r.ToolCalls {
		if !slices.ContainsFunc(q.Tools, func(t Tool) bool { return t.Name == c.Name }) {
			return fmt.Errorf("the answer calls a tool that does not exist: %.64q", c.Name)
		}
		if !isObject(c.Arguments) {
			return fmt.Errorf("the arguments for %s are no object", c.Name)
		}
	}
	return nil
}

func isObject(raw json.RawMessage) bool {
	var object map[string]json.RawMessage
	return json.Unmarshal(raw, &object) == nil && object != nil
}

// unfence takes the JSON out of the code fence that models without a schema
// mode put around it.
func unfence(s string) string {
	inner, ok := strings.CutPrefix(strings.TrimSpace(s), "```")
	if !ok {
		return s
	}
	inner, ok = strings.CutSuffix(strings.TrimPrefix(inner, "json"), "```")
	if !ok {
		return s
	}
	return strings.TrimSpace(inner)
}

func (q *question) checkSchema(text string) error {
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return errors.New("the answer is not JSON")
	}
	if err := q.schema.Validate(v); err != nil {
		_, what, _ := strings.Cut(err.Error(), "\n") // the first line names the schema
		return errors.New("the answer does not match the schema: " + what)
	}
	return nil
}

// compileSchema reads a response schema. References lead nowhere outside it.
func compileSchema(raw json.RawMessage) (*jsonschema.Schema, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, errors.New("it is no valid JSON")
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	const name = "schema:///response" // no file: the working directory is nobody's business
	if err := c.AddResource(name, doc); err != nil {
		return nil, err
	}
	schema, err := c.Compile(name)
	if err != nil {
		return nil, errors.New(schemaFault(err))
	}
	return schema, nil
}

// schemaFault says in a line what is wrong with a schema: the first finding
// that is no mere sum of others, which are "- at '/type': …", each on a line.
func schemaFault(err error) string {
	for line := range strings.Lines(err.Error()) {
		what, found := strings.CutPrefix(strings.TrimSpace(line), "- ")
		if found && !strings.HasSuffix(what, " failed") {
			return what
		}
	}
	return strings.ReplaceAll(err.Error(), "schema:///response", "")
}

type noLoader struct{}

// Load refuses every address.
func (noLoader) Load(url string) (any, error) {
	return nil, errors.New("a schema cannot refer to " + url)
}
