package llm

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/sashabaranov/go-openai"
)

var (
	_ Provider  = (*openAI)(nil)
	_ io.Closer = (*openAI)(nil)
)

type openAI struct {
	endpoint
	client *openai.Client
	limits Limits
}

// NewOpenAI returns a model behind any API that speaks OpenAI's chat
// completions: OpenAI's own by default, else Groq, Ollama, vLLM, … by BaseURL.
//
// A response schema is sent as response_format, or in words where that cannot
// be had: with [Limits].NoSchema, or beside tools. Images by address are passed on.
// Temperature and TopP are left out for OpenAI's reasoning models, which refuse them.
func NewOpenAI(o ProviderOptions) (Provider, error) {
	e, err := newEndpoint(o, "openai", "https://api.openai.com/v1")
	if err != nil {
		return nil, err
	}
	p := &openAI{endpoint: e, limits: openAILimits(e.base.Host, o.Model)}
	if o.Limits != nil {
		p.limits = *o.Limits
	}
	config := openai.DefaultConfig("") // the key is the exchange's
	config.BaseURL = e.base.String()
	config.HTTPClient = &http.Client{Transport: carrier{}}
	p.client = openai.NewClientWithConfig(config)
	return p, nil
}

// openAILimits is what Groq's documentation says of the models it serves.
func openAILimits(host, model string) Limits {
	switch {
	case strings.HasPrefix(baseModel(model), "gpt-oss"):
		return Limits{Context: 131_072, NoVision: true}
	case strings.HasPrefix(model, "llama-3.1-8b-instant"), strings.HasPrefix(model, "llama-3.3-70b-versatile"):
		return Limits{Context: 131_072, NoVision: true, NoSchema: true}
	case strings.HasSuffix(host, "groq.com"):
		return Limits{NoSchema: true} // few of its models have one; the chain checks anyway
	}
	return Limits{}
}

// baseModel is a model's name without the maker that routers put before it.
func baseModel(model string) string { return model[strings.LastIndexByte(model, '/')+1:] }

// Info implements Provider.
func (p *openAI) Info() Info {
	return Info{Name: p.options.Name, API: "openai", Model: p.options.Model, Limits: p.limits}
}

// Generate implements Provider.
func (p *openAI) Generate(ctx context.Context, r *Request, emit func(text string)) (*Response, error) {
	ask, err := p.request(r)
	if err != nil {
		return nil, err
	}
	x := &exchange{transport: p.transport, secret: p.options.APIKey, prepare: p.authorize}
	if emit != nil {
		x.streamed = x.openAIEvents
	} else {
		x.whole = x.openAIAnswer
	}
	asked, stop := x.begin(ctx)
	defer stop()
	if emit != nil {
		return p.stream(asked, x, ask, emit)
	}
	answer, failure := p.client.CreateChatCompletion(asked, *ask)
	if failure != nil {
		return nil, x.error(ctx, failure, "")
	}
	resp := openAIResponse(&answer)
	resp.Status, resp.Header = x.status, x.header
	return resp, nil
}

func (p *openAI) authorize(r *http.Request) error {
	if p.options.APIKey != "" {
		r.Header.Set("Authorization", "Bearer "+p.options.APIKey)
	}
	return nil
}

// stream gathers an answer from its events.
func (p *openAI) stream(ctx context.Context, x *exchange, ask *openai.ChatCompletionRequest, emit func(string)) (*Response, error) {
	ask.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
	events, err := p.client.CreateChatCompletionStream(ctx, *ask)
	if err != nil {
		return nil, x.error(ctx, err, "")
	}
	defer events.Close()
	answer := openai.ChatCompletionResponse{Choices: make([]openai.ChatCompletionChoice, 1)}
	choice := &answer.Choices[0]
	var text strings.Builder
	for {
		event, err := events.Recv()
		if err == io.EOF && x.failed == nil {
			break
		} else if err != nil {
			return nil, x.error(ctx, err, text.String())
		}
		answer.Model = cmp.Or(event.Model, answer.Model)
		if event.Usage != nil {
			answer.Usage = *event.Usage
		}
		if len(event.Choices) == 0 || event.Choices[0].Index != 0 {
			continue
		}
		one := &event.Choices[0]
		choice.FinishReason = cmp.Or(one.FinishReason, choice.FinishReason)
		choice.Message.Refusal += one.Delta.Refusal
		choice.Message.ToolCalls = mergeCalls(choice.Message.ToolCalls, one.Delta.ToolCalls)
		if s := one.Delta.Content; s != "" {
			text.WriteString(s)
			emit(s)
		}
	}
	if choice.FinishReason == "" {
		return nil, x.broken(text.String())
	}
	choice.Message.Content = text.String()
	resp := openAIResponse(&answer)
	resp.Status, resp.Header = x.status, x.header
	return resp, nil
}

// mergeCalls adds the pieces of tool calls to what has come before. Servers
// number them from 0 or from 1, not at all, or all the same.
func mergeCalls(calls, pieces []openai.ToolCall) []openai.ToolCall {
	for _, piece := range pieces {
		i := len(calls) - 1
		for i >= 0 && !continues(&calls[i], &piece) {
			i--
		}
		if i < 0 {
			calls = append(calls, piece)
			continue
		}
		c := &calls[i]
		c.ID, c.Function.Name = cmp.Or(c.ID, piece.ID), cmp.Or(c.Function.Name, piece.Function.Name)
		c.Function.Arguments += piece.Function.Arguments
	}
	return calls
}

func continues(c, piece *openai.ToolCall) bool {
	switch {
	case piece.Index != nil && c.Index != nil && *piece.Index != *c.Index:
		return false
	case piece.ID != "" && c.ID != "":
		return piece.ID == c.ID
	}
	return piece.Index != nil || piece.ID == "" && piece.Function.Name == ""
}

// openAIResponse is the canonical form of an answer. Servers differ in how
// they say that tools are called or that the model refuses.
func openAIResponse(a *openai.ChatCompletionResponse) *Response {
	resp := &Response{FinishReason: FinishUnknown, Model: a.Model,
		Usage: Usage{Input: a.Usage.PromptTokens, Output: a.Usage.CompletionTokens, Total: a.Usage.TotalTokens}}
	if len(a.Choices) == 0 {
		return resp
	}
	choice := &a.Choices[0]
	resp.Text = choice.Message.Content
	for _, c := range choice.Message.ToolCalls {
		resp.ToolCalls = append(resp.ToolCalls, ToolCall{ID: cmp.Or(c.ID, newCallID()), Name: c.Function.Name,
			Arguments: json.RawMessage(cmp.Or(strings.TrimSpace(c.Function.Arguments), "{}"))})
	}
	switch choice.FinishReason {
	case openai.FinishReasonStop:
		resp.FinishReason = FinishStop
	case openai.FinishReasonLength:
		resp.FinishReason = FinishLength
	case openai.FinishReasonToolCalls, openai.FinishReasonFunctionCall:
		resp.FinishReason = FinishTools
	case openai.FinishReasonContentFilter:
		resp.FinishReason = FinishBlocked
	}
	if resp.FinishReason == FinishStop && len(resp.ToolCalls) > 0 {
		resp.FinishReason = FinishTools
	}
	if choice.Message.Refusal != "" {
		resp.FinishReason = FinishBlocked
	}
	return resp
}

// request maps the canonical request, or says what cannot be mapped.
func (p *openAI) request(r *Request) (*openai.ChatCompletionRequest, error) {
	ask := &openai.ChatCompletionRequest{Model: p.options.Model, Stop: r.Stop, Seed: r.Seed}
	if !hasPrefix(p.options.Model, reasoning) {
		ask.Temperature, ask.TopP = openAINumber(r.Temperature), openAINumber(r.TopP)
	}
	if hasPrefix(p.options.Model, reasoning) || hasPrefix(p.options.Model, []string{"gpt-oss"}) {
		ask.MaxCompletionTokens = r.MaxTokens
	} else {
		ask.MaxTokens = r.MaxTokens //lint:ignore SA1019 all that many servers know
	}
	for i, m := range r.Messages {
		one, err := openAIMessage(m)
		if err != nil {
			return nil, newError(ClassRejected, "message %d: %v", i+1, err)
		}
		ask.Messages = append(ask.Messages, one)
	}
	p.schema(ask, r)
	return ask, openAITools(ask, r)
}

func (p *openAI) schema(ask *openai.ChatCompletionRequest, r *Request) {
	switch {
	case len(r.Schema) == 0:
	case p.limits.NoSchema || len(r.Tools) > 0:
		words := openai.ChatCompletionMessage{Role: openai.ChatMessageRoleSystem, Content: schemaInWords(r)}
		ask.Messages = append([]openai.ChatCompletionMessage{words}, ask.Messages...)
	default: // strict would demand more of the schema than that it is one
		ask.ResponseFormat = &openai.ChatCompletionResponseFormat{Type: openai.ChatCompletionResponseFormatTypeJSONSchema,
			JSONSchema: &openai.ChatCompletionResponseFormatJSONSchema{Name: "answer", Schema: r.Schema}}
	}
}

func openAITools(ask *openai.ChatCompletionRequest, r *Request) error {
	for _, t := range r.Tools {
		f := &openai.FunctionDefinition{Name: t.Name, Description: t.Description, Parameters: json.RawMessage(`{"type":"object","properties":{}}`)}
		if len(t.Parameters) > 0 {
			f.Parameters = t.Parameters
		}
		ask.Tools = append(ask.Tools, openai.Tool{Type: openai.ToolTypeFunction, Function: f})
	}
	switch choice := cmp.Or(r.ToolChoice, ToolsAuto); {
	case len(r.Tools) == 0 && (choice == ToolsAuto || choice == ToolsNone), choice == ToolsAuto:
	case len(r.Tools) == 0:
		return newError(ClassRejected, "tool choice %q without tools", choice)
	case choice == ToolsNone, choice == ToolsRequired:
		ask.ToolChoice = choice
	default:
		ask.ToolChoice = openai.ToolChoice{Type: openai.ToolTypeFunction, Function: openai.ToolFunction{Name: choice}}
	}
	return nil
}

// openAINumber is 0 for the model's default. The library leaves out zeros, so
// a wanted 0 is what Groq makes of it.
func openAINumber(f *float64) float32 {
	switch {
	case f == nil:
		return 0
	case float32(*f) == 0:
		return 1e-8
	}
	return float32(*f)
}

// reasoning are the models of OpenAI's that take max_completion_tokens and
// refuse max_tokens, which is all that older servers know. They have one
// temperature and one top_p: the library and the API refuse any other, so what is
// asked for is left out.
var reasoning = []string{"gpt-5", "gpt-6", "o1", "o3", "o4"}

func hasPrefix(model string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(baseModel(model), p) })
}

func openAIMessage(m Message) (openai.ChatCompletionMessage, error) {
	out := openai.ChatCompletionMessage{Role: string(m.Role), ToolCallID: m.ToolCallID}
	for _, c := range m.ToolCalls {
		out.ToolCalls = append(out.ToolCalls, openai.ToolCall{ID: c.ID, Type: openai.ToolTypeFunction,
			Function: openai.FunctionCall{Name: c.Name, Arguments: cmp.Or(string(c.Arguments), "{}")}})
	}
	images := false
	for _, part := range m.Parts {
		if part.Image == nil {
			if part.Text != "" {
				out.MultiContent = append(out.MultiContent, openai.ChatMessagePart{Type: openai.ChatMessagePartTypeText, Text: part.Text})
			}
			continue
		}
		if m.Role != RoleUser {
			return out, errors.New("only a user can show images")
		}
		images = true
		u := part.Image.URL
		if u == "" {
			u = "data:" + part.Image.mimeType() + ";base64," + base64.StdEncoding.EncodeToString(part.Image.Data)
		}
		out.MultiContent = append(out.MultiContent, openai.ChatMessagePart{Type: openai.ChatMessagePartTypeImageURL, ImageURL: &openai.ChatMessageImageURL{URL: u}})
	}
	if !images {
		out.Content, out.MultiContent = m.Text(), nil
	}
	switch {
	case out.Content != "" || images || len(out.ToolCalls) > 0:
	case m.Role == RoleTool: // the library would leave out what the APIs require
		out.Content = " "
	default:
		return out, errors.New("it is empty")
	}
	return out, nil
}

// mimeType is that of inline data.
func (i *Image) mimeType() string { return cmp.Or(i.MIMEType, http.DetectContentType(i.Data)) }
