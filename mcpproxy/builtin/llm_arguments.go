package builtin

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/llm"
)

// arguments are those of llm.complete.
type arguments struct {
	Prompt         string          `json:"prompt"`
	Messages       []message       `json:"messages"`
	System         string          `json:"system"`
	Model          string          `json:"model"`
	Temperature    *float64        `json:"temperature"`
	MaxTokens      *whole          `json:"max_tokens"`
	Stop           []string        `json:"stop"`
	ResponseSchema json.RawMessage `json:"response_schema"`
	Images         []string        `json:"images"`
	Timeout        *float64        `json:"timeout"` // seconds
	IncludeTrace   *bool           `json:"include_trace"`
}

// whole is an integer as JSON Schema has it: 2.0 is one.
type whole int

// UnmarshalJSON implements [json.Unmarshaler].
func (w *whole) UnmarshalJSON(b []byte) error {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<31 {
		return &json.UnmarshalTypeError{Value: string(b), Type: reflect.TypeFor[whole]()}
	}
	*w = whole(f)
	return nil
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// roles are those that a message may have.
var roles = []string{string(llm.RoleSystem), string(llm.RoleUser), string(llm.RoleAssistant)}

// parseArguments reads the arguments. Its errors tell an agent what to do.
func parseArguments(raw []byte) (*arguments, error) {
	var a arguments
	if len(raw) == 0 {
		raw = []byte(`{}`)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err := d.Decode(&a)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return nil, fmt.Errorf("%s must be %s", cmp.Or(wrong.Field, "arguments"), inWords(wrong.Type))
	}
	if name, ok := strings.CutPrefix(fmt.Sprint(err), "json: unknown field "); ok {
		return nil, fmt.Errorf("there is no argument %s: use prompt or messages, and system, model, temperature, max_tokens, stop, response_schema, images, timeout, include_trace", short(name))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.New("the arguments cannot be read as a JSON object")
	}
	return &a, nil
}

func inWords(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}

// request is what the chain is asked. Its errors tell an agent what to do.
func (a *arguments) request() (*llm.Request, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	r := &llm.Request{Temperature: a.Temperature, Stop: a.Stop, Schema: a.schema()}
	if a.System != "" {
		r.Messages = append(r.Messages, llm.System(a.System))
	}
	for _, m := range a.Messages {
		r.Messages = append(r.Messages, llm.Message{Role: llm.Role(m.Role), Parts: []llm.Part{{Text: m.Content}}})
	}
	if a.Prompt != "" {
		r.Messages = append(r.Messages, llm.User(a.Prompt))
	}
	if a.Model != "" {
		r.Prefer = []string{a.Model}
	}
	if a.MaxTokens != nil {
		r.MaxTokens = int(*a.MaxTokens)
	}
	if a.Timeout != nil {
		r.Timeout = time.Duration(min(*a.Timeout, 3600) * float64(time.Second)) // the chain's own is shorter
	}
	return r, a.addImages(r)
}

func (a *arguments) check() error {
	switch {
	case a.Prompt == "" && len(a.Messages) == 0:
		return errors.New("give prompt, the question, or messages, a conversation")
	case a.Prompt != "" && len(a.Messages) > 0:
		return errors.New("give either prompt or messages, not both: put the prompt at the end of messages, with role user")
	case a.Temperature != nil && (*a.Temperature < 0 || *a.Temperature > 2):
		return errors.New("temperature must be 0 to 2")
	case a.MaxTokens != nil && *a.MaxTokens < 1:
		return errors.New("max_tokens must be 1 or more; leave it out for the model's default")
	case a.Timeout != nil && *a.Timeout <= 0:
		return errors.New("timeout must be more than 0 seconds; leave it out for the configured time")
	case a.schema() != nil && a.schema()[0] != '{':
		return errors.New("response_schema must be a JSON schema, an object")
	case slices.Contains(a.Stop, ""):
		return errors.New("a text of stop is empty: leave it out")
	}
	for i, m := range a.Messages {
		if !slices.Contains(roles, m.Role) {
			return fmt.Errorf("messages[%d].role must be one of %s", i, strings.Join(roles, ", "))
		}
		if m.Content == "" {
			return fmt.Errorf("messages[%d].content is empty", i)
		}
	}
	if !slices.ContainsFunc(a.Messages, func(m message) bool { return m.Role != string(llm.RoleSystem) }) && a.Prompt == "" {
		return errors.New("messages holds instructions only: add a message with role user")
	}
	return nil
}

func (a *arguments) schema() json.RawMessage {
	if string(a.ResponseSchema) == "null" || len(a.ResponseSchema) == 0 {
		return nil
	}
	return a.ResponseSchema
}

// addImages shows the images with the last message of the user.
func (a *arguments) addImages(r *llm.Request) error {
	if len(a.Images) == 0 {
		return nil
	}
	var last *llm.Message
	for i := range r.Messages {
		if r.Messages[i].Role == llm.RoleUser {
			last = &r.Messages[i]
		}
	}
	if last == nil {
		return errors.New("images need a message with role user that they belong to")
	}
	for i, url := range a.Images {
		image, err := parseImage(url)
		if err != nil {
			return fmt.Errorf("images[%d] %w", i, err)
		}
		last.Parts = append(last.Parts, llm.Part{Image: image})
	}
	return nil
}

func parseImage(url string) (*llm.Image, error) {
	if strings.HasPrefix(url, "https://") || strings.HasPrefix(url, "http://") {
		return &llm.Image{URL: url}, nil
	}
	kind, data, ok := strings.Cut(url, ";base64,")
	mime, isData := strings.CutPrefix(kind, "data:")
	if !ok || !isData || !strings.HasPrefix(mime, "image/") {
		return nil, errors.New("must be data:image/png;base64,… (or another kind of image) or an https: URL")
	}
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil || len(raw) == 0 {
		return nil, errors.New("is no valid base64")
	}
	return &llm.Image{MIMEType: mime, Data: raw}, nil
}
