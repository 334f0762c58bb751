package llm

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/google/generative-ai-go/genai"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
)

var (
	_ Provider  = (*gemini)(nil)
	_ io.Closer = (*gemini)(nil)
)

type gemini struct {
	endpoint
	limits     Limits
	signatures signatures
}

// NewGemini returns a Gemini model behind Google's API.
//
// Inline images only. All system messages become the one system instruction,
// wherever they stand. A response schema and the parameters of tools go as JSON
// schema; beside tools a response schema goes in words. A conversation ends with
// a user or with the results of tool calls.
func NewGemini(o ProviderOptions) (Provider, error) {
	o.BaseURL = strings.TrimSuffix(strings.TrimRight(o.BaseURL, "/"), "/v1beta") // the library adds it
	e, err := newEndpoint(o, "gemini", "https://generativelanguage.googleapis.com")
	if err != nil {
		return nil, err
	}
	p := &gemini{endpoint: e, limits: Limits{Context: 1_048_576}}
	if o.Limits != nil {
		p.limits = *o.Limits
	}
	return p, nil
}

// geminiClient is the one client of the process, whatever the keys and
// addresses: it knows neither, for those are the exchange's. A pool of no
// connections keeps it from dialing Google by gRPC at once and for ever, for a
// cache that nobody uses.
var geminiClient = sync.OnceValues(func() (*genai.Client, error) {
	return genai.NewClient(context.Background(), option.WithHTTPClient(&http.Client{Transport: carrier{}}),
		option.WithAPIKey("none"), option.WithGRPCConnectionPool(-1))
})

// Info implements Provider.
func (p *gemini) Info() Info {
	return Info{Name: p.options.Name, API: "gemini", Model: p.options.Model, Limits: p.limits}
}

// Generate implements Provider. One message is answered whole if nobody wants
// it in pieces; the library can hold a conversation only as a stream.
func (p *gemini) Generate(ctx context.Context, r *Request, emit func(text string)) (*Response, error) {
	client, err := geminiClient()
	if err != nil {
		return nil, newError(ClassRejected, "%v", err)
	}
	model := client.GenerativeModel(p.options.Model)
	history, last, err := p.request(model, r)
	if err != nil {
		return nil, err
	}
	x := &exchange{transport: p.transport, secret: p.options.APIKey}
	x.prepare = func(req *http.Request) error { return p.prepare(req, r) }
	answer := &geminiAnswer{x: x}
	asked, stop := x.begin(ctx)
	defer stop()
	whole := len(history) == 0 && emit == nil
	if whole {
		x.whole = answer.whole
		var got *genai.GenerateContentResponse
		if got, err = model.GenerateContent(asked, last...); err == nil {
			answer.text.WriteString(geminiText(got))
		}
	} else {
		x.streamed = answer.elements
		err = answer.gather(asked, model, history, last, emit)
	}
	if err != nil {
		return nil, x.error(ctx, err, answer.text.String())
	}
	resp := answer.response()
	if !whole && resp.FinishReason == "" {
		return nil, x.broken(resp.Text)
	}
	p.signatures.keep(answer.calls)
	return resp, nil
}

// gather reads a stream to its end.
func (a *geminiAnswer) gather(ctx context.Context, model *genai.GenerativeModel, history []*genai.Content, last []genai.Part, emit func(string)) error {
	chat := model.StartChat()
	chat.History = history
	stream := chat.SendMessageStream(ctx, last...)
	for {
		got, err := stream.Next()
		if errors.Is(err, iterator.Done) && a.x.failed == nil {
			return nil
		} else if err != nil {
			return err
		}
		if s := geminiText(got); s != "" {
			a.text.WriteString(s)
			if emit != nil {
				emit(s)
			}
		}
	}
}

// geminiText is what the library understands of an answer.
func geminiText(r *genai.GenerateContentResponse) string {
	var b strings.Builder
	for _, c := range r.Candidates {
		if c.Content == nil {
			continue
		}
		for _, part := range c.Content.Parts {
			if s, ok := part.(genai.Text); ok {
				b.WriteString(string(s))
			}
		}
	}
	return b.String()
}

// request gives the model what the library can express of a request: the last
// message apart, for that is how the library takes a conversation.
func (p *gemini) request(model *genai.GenerativeModel, r *Request) (history []*genai.Content, last []genai.Part, err error) {
	model.StopSequences = r.Stop
	if r.Temperature != nil {
		model.Temperature = new(float32(*r.Temperature))
	}
	if r.TopP != nil {
		model.TopP = new(float32(*r.TopP))
	}
	if r.MaxTokens > 0 {
		model.MaxOutputTokens = new(int32(min(r.MaxTokens, 1<<30)))
	}
	var system []genai.Part
	var previous Role
	names := map[string]string{} // of the tools that were called, by the calls' IDs
	for i, m := range r.Messages {
		for _, c := range m.ToolCalls {
			names[c.ID] = c.Name
		}
		m.Name = cmp.Or(m.Name, names[m.ToolCallID])
		parts, err := geminiParts(m)
		if err != nil {
			return nil, nil, newError(ClassRejected, "message %d: %v", i+1, err)
		}
		switch {
		case m.Role == RoleSystem:
			system = append(system, parts...)
			continue
		case m.Role == previous: // the results of parallel calls belong into one turn
			history[len(history)-1].Parts = append(history[len(history)-1].Parts, parts...)
		default:
			history = append(history, &genai.Content{Role: geminiRole(m.Role), Parts: parts})
		}
		previous = m.Role
	}
	if previous != RoleUser && previous != RoleTool {
		return nil, nil, newError(ClassRejected, "the conversation does not end with a user or a tool")
	}
	if len(r.Schema) > 0 {
		if len(r.Tools) > 0 {
			system = append(system, genai.Text(schemaInWords(r)))
		} else {
			model.ResponseMIMEType = "application/json"
		}
	}
	if len(system) > 0 {
		model.SystemInstruction = &genai.Content{Parts: system}
	}
	last = history[len(history)-1].Parts
	return history[:len(history)-1], last, geminiTools(model, r)
}

func geminiRole(r Role) string {
	if r == RoleAssistant {
		return "model"
	}
	return "user"
}

func geminiParts(m Message) ([]genai.Part, error) {
	var parts []genai.Part
	if m.Role == RoleTool { // as text: a JSON number would go through a float
		parts = append(parts, genai.FunctionResponse{Name: m.Name, Response: map[string]any{"result": m.Text()}})
	}
	for _, p := range m.Parts {
		switch {
		case p.Image != nil && m.Role != RoleUser:
			return nil, errors.New("only a user can show images")
		case p.Image == nil && (p.Text == "" || m.Role == RoleTool):
		case p.Image == nil:
			parts = append(parts, genai.Text(p.Text))
		case len(p.Image.Data) == 0:
			return nil, errors.New("it has an image by address: only inline data can be sent")
		default:
			parts = append(parts, genai.Blob{MIMEType: p.Image.mimeType(), Data: p.Image.Data})
		}
	}
	for _, c := range m.ToolCalls {
		parts = append(parts, genai.FunctionCall{Name: c.Name}) // prepare adds the rest
	}
	if len(parts) == 0 {
		return nil, errors.New("it is empty")
	}
	return parts, nil
}

func geminiTools(model *genai.GenerativeModel, r *Request) error {
	if len(r.Tools) == 0 {
		if r.ToolChoice != "" && r.ToolChoice != ToolsAuto && r.ToolChoice != ToolsNone {
			return newError(ClassRejected, "tool choice %q without tools", r.ToolChoice)
		}
		return nil
	}
	tool := &genai.Tool{}
	for _, t := range r.Tools {
		tool.FunctionDeclarations = append(tool.FunctionDeclarations, &genai.FunctionDeclaration{Name: t.Name, Description: t.Description})
	}
	model.Tools = []*genai.Tool{tool}
	config := &genai.FunctionCallingConfig{}
	switch r.ToolChoice {
	case "", ToolsAuto:
		return nil
	case ToolsNone:
		config.Mode = genai.FunctionCallingNone
	case ToolsRequired:
		config.Mode = genai.FunctionCallingAny
	default:
		config.Mode, config.AllowedFunctionNames = genai.FunctionCallingAny, []string{r.ToolChoice}
	}
	model.ToolConfig = &genai.ToolConfig{FunctionCallingConfig: config}
	return nil
}
