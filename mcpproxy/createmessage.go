package mcpproxy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/llm"
)

// createMessage is the params of sampling/createMessage (2026-07-28,
// client/sampling). includeContext and metadata are ignored, as a client may.
type createMessage struct {
	Messages      []samplingMessage   `json:"messages"`
	Preferences   samplingPreferences `json:"modelPreferences"`
	SystemPrompt  string              `json:"systemPrompt"`
	Temperature   *float64            `json:"temperature"`
	MaxTokens     float64             `json:"maxTokens"`
	StopSequences []string            `json:"stopSequences"`
	Tools         []samplingTool      `json:"tools"`
	ToolChoice    struct {
		Mode string `json:"mode"`
	} `json:"toolChoice"`
}

type samplingMessage struct {
	Role    string           `json:"role"`
	Content samplingContents `json:"content"`
}

// samplingContents is one block or an array of them.
type samplingContents []samplingContent

// samplingContent is a block of any type: text, image, tool_use, tool_result;
// in the result of a tool also those of tools/call.
type samplingContent struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Data     []byte `json:"data"`
	MIMEType string `json:"mimeType"`

	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`

	ToolUseID  string           `json:"toolUseId"`
	Content    samplingContents `json:"content"`
	Structured json.RawMessage  `json:"structuredContent"`
	IsError    bool             `json:"isError"`
}

type samplingTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"inputSchema"`
}

type samplingPreferences struct {
	Hints []struct {
		Name string `json:"name"`
	} `json:"hints"`
	Cost         float64 `json:"costPriority"`
	Speed        float64 `json:"speedPriority"`
	Intelligence float64 `json:"intelligencePriority"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *samplingContents) UnmarshalJSON(raw []byte) error {
	if raw[0] == '[' {
		return json.Unmarshal(raw, (*[]samplingContent)(c))
	}
	*c = make(samplingContents, 1)
	return json.Unmarshal(raw, &(*c)[0])
}

const (
	maxSampledTokens = 4096 // of one answer, whatever the server wants
	maxStops         = 4    // as many as every provider takes
)

// request is what the chain is asked. Tools are left out for a server whose
// revision has none.
func (m *createMessage) request(tools bool) (*llm.Request, error) {
	var t transcript
	if m.SystemPrompt != "" {
		t.messages = append(t.messages, llm.System(m.SystemPrompt))
	}
	if len(m.Messages) == 0 {
		return nil, errors.New("there are no messages")
	}
	for i, one := range m.Messages {
		if err := t.add(one); err != nil {
			return nil, fmt.Errorf("message %d: %w", i+1, err)
		}
	}
	if len(t.open) > 0 {
		return nil, fmt.Errorf("the tool use %.64q has no result", t.open[0].ID)
	}
	r := &llm.Request{
		Messages: t.messages, Temperature: m.Temperature, MaxTokens: maxSampledTokens,
		Stop: m.StopSequences[:min(len(m.StopSequences), maxStops)],
		Bare: true, // which servers are down is nothing to tell another
	}
	if m.MaxTokens >= 1 && m.MaxTokens < maxSampledTokens {
		r.MaxTokens = int(m.MaxTokens)
	}
	if tools && len(m.Tools) > 0 {
		for _, tool := range m.Tools {
			r.Tools = append(r.Tools, llm.Tool{Name: tool.Name, Description: tool.Description, Parameters: tool.InputSchema})
		}
		switch r.ToolChoice = cmp.Or(m.ToolChoice.Mode, llm.ToolsAuto); r.ToolChoice {
		case llm.ToolsAuto, llm.ToolsNone, llm.ToolsRequired:
		default:
			return nil, fmt.Errorf("unknown toolChoice mode %.64q", r.ToolChoice)
		}
	}
	return r, nil
}

// transcript turns messages into those of package llm.
type transcript struct {
	messages []llm.Message
	open     []llm.ToolCall // of the last message, without a result yet
}

// add takes one message. What a server must keep to, results of tools right after
// their uses and nothing beside them, is checked: providers demand it as well.
func (t *transcript) add(m samplingMessage) error {
	results := 0
	for _, c := range m.Content {
		if c.Type == "tool_result" {
			results++
		}
	}
	switch {
	case m.Role != "user" && m.Role != "assistant":
		return fmt.Errorf("unknown role %.64q", m.Role)
	case len(m.Content) == 0:
		return errors.New("it is empty")
	case results > 0 && (results < len(m.Content) || m.Role != "user"):
		return errors.New("results of tools stand alone in a message of the user")
	case results == 0 && len(t.open) > 0:
		return fmt.Errorf("the result of the tool use %.64q is missing before it", t.open[0].ID)
	case results > 0:
		return t.addResults(m.Content)
	}
	out := llm.Message{Role: llm.Role(m.Role)}
	for _, c := range m.Content {
		switch {
		case c.Type == "text":
			out.Parts = append(out.Parts, llm.Part{Text: c.Text})
		case c.Type == "image":
			out.Parts = append(out.Parts, llm.Part{Image: &llm.Image{MIMEType: c.MIMEType, Data: c.Data}})
		case c.Type == "tool_use" && out.Role == llm.RoleAssistant:
			out.ToolCalls = append(out.ToolCalls, llm.ToolCall{ID: c.ID, Name: c.Name, Arguments: c.Input})
		default:
			return fmt.Errorf("content of type %.64q cannot be given to a language model here, only text and images", c.Type)
		}
	}
	t.messages, t.open = append(t.messages, out), out.ToolCalls
	return nil
}

func (t *transcript) addResults(results samplingContents) error {
	open := slices.Clone(t.open)
	for _, c := range results {
		i := slices.IndexFunc(open, func(use llm.ToolCall) bool { return use.ID == c.ToolUseID })
		if i < 0 {
			return fmt.Errorf("no tool use %.64q stands before its result", c.ToolUseID)
		}
		text, err := c.resultText()
		if err != nil {
			return err
		}
		t.messages = append(t.messages, llm.ToolResult(open[i], text))
		open = slices.Delete(open, i, i+1)
	}
	if t.open = open; len(open) > 0 {
		return fmt.Errorf("the result of the tool use %.64q is missing", open[0].ID)
	}
	return nil
}

func (c samplingContent) resultText() (string, error) {
	var text strings.Builder
	if c.IsError {
		text.WriteString("The tool failed: ")
	}
	for _, part := range c.Content {
		if part.Type != "text" {
			return "", fmt.Errorf("content of type %.64q in the result of a tool cannot be given to a language model here, only text", part.Type)
		}
		text.WriteString(part.Text)
	}
	if len(c.Content) == 0 {
		text.Write(c.Structured)
	}
	return text.String(), nil
}

// prefer maps the server's preferences to an order of the chain's entries. Those
// that match a hint come first, hint by hint: a hint is part of a name of an
// entry or model. The others follow by the highest of the three priorities: cost
// is the strategy [llm.ByCost], speed is [llm.ByLatency], and intelligence is
// [llm.ByPriority], for who writes a chain puts the best first. Where two are
// equal or none is given, the chain's own strategy decides.
func (p samplingPreferences) prefer(r *llm.Request, s llm.Status) {
	for _, hint := range p.Hints {
		name := strings.ToLower(hint.Name)
		for _, entry := range s.Chain {
			if name != "" && strings.Contains(strings.ToLower(entry+"\x00"+s.Providers[entry].Model), name) {
				r.Prefer = append(r.Prefer, entry)
			}
		}
	}
	switch {
	case p.Cost > max(p.Speed, p.Intelligence):
		r.Strategy = llm.ByCost
	case p.Speed > max(p.Cost, p.Intelligence):
		r.Strategy = llm.ByLatency
	case p.Intelligence > max(p.Cost, p.Speed):
		r.Strategy = llm.ByPriority
	}
}

// sampled is _meta["agentarmor/sampling"]: who answered in the client's place.
// Beside an error it says that nobody did.
type sampled struct {
	Provider  string     `json:"provider,omitempty"`
	Model     string     `json:"model,omitempty"`
	Degraded  bool       `json:"degraded"`
	Trace     string     `json:"trace,omitempty"`      // agentarmor://traces/{id}
	NotBefore *time.Time `json:"not_before,omitempty"` // when asking again makes sense
}

// sampledMeta is the member of _meta, and of the data of errors.
type sampledMeta struct {
	Sampling sampled `json:"agentarmor/sampling"`
}

// createMessageResult is the chain's answer as MCP spells it. A stop at one of
// the stop sequences is an endTurn too: the providers do not tell them apart.
func createMessageResult(resp *llm.Response) []byte {
	type block struct {
		Type  string          `json:"type"`
		Text  string          `json:"text,omitempty"`
		ID    string          `json:"id,omitempty"`
		Name  string          `json:"name,omitempty"`
		Input json.RawMessage `json:"input,omitempty"`
	}
	var blocks []block
	if resp.Text != "" {
		blocks = append(blocks, block{Type: "text", Text: resp.Text})
	}
	for _, c := range resp.ToolCalls {
		blocks = append(blocks, block{Type: "tool_use", ID: c.ID, Name: c.Name, Input: c.Arguments})
	}
	var content any = blocks
	if len(blocks) == 1 && blocks[0].Type == "text" {
		content = blocks[0]
	}
	raw, _ := json.Marshal(struct { // the chain has checked what is raw in it
		Role       string      `json:"role"`
		Content    any         `json:"content"`
		Model      string      `json:"model"`
		StopReason string      `json:"stopReason,omitempty"`
		Meta       sampledMeta `json:"_meta"`
	}{
		"assistant", content, resp.Model, stopReasons[resp.FinishReason],
		sampledMeta{sampled{Provider: resp.Provider, Model: resp.Model, Trace: resp.Trace.ID}},
	})
	return raw
}

var stopReasons = map[llm.FinishReason]string{
	llm.FinishStop: "endTurn", llm.FinishLength: "maxTokens", llm.FinishTools: "toolUse",
}
