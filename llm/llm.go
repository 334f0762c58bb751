package llm

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// Provider is one model behind one API. It makes exactly one HTTP request per
// call: retries, waits and fallbacks are the [Chain]'s.
//
// Generate asks the model. With emit nil the answer comes whole; otherwise the
// answer is streamed and emit is called with each piece of text, in order, from
// the calling goroutine and never after Generate has returned. Generate only
// reads the request, which other providers may read at the same time. It
// returns within 50 ms of the end of ctx and leaves no goroutine and no
// connection in use behind.
//
// Every error is an [*Error]: for an HTTP answer that is one made by
// [HTTPError], for a connection that failed one made by [TransportError]. No
// error contains the key. A successful HTTP answer without any text or tool
// call is no error here: the chain judges contents (see [Response]). A stream that
// ends without a finish reason is an error of class [ClassLost].
//
// Implementations are safe for concurrent use. A Provider that has something
// to release implements io.Closer, which [Chain.Close] calls.
type Provider interface {
	Info() Info
	Generate(ctx context.Context, r *Request, emit func(text string)) (*Response, error)
}

// Info is what is known about a provider without asking it.
type Info struct {
	Name   string // of the chain entry, unique: "gemini"
	API    string // "gemini", "openai", "fake"
	Model  string // the model that is asked for
	Limits Limits
}

// Limits are what a model cannot do. The zero value has no known limit.
type Limits struct {
	Context  int  // tokens of prompt and answer together; 0: unknown
	NoVision bool // refuses images
	NoTools  bool // refuses tools
	NoSchema bool // cannot be held to a schema; it is told the schema in words, and the chain checks the answer
}

// ProviderOptions are what [NewGemini] and [NewOpenAI] need to know.
type ProviderOptions struct {
	Name    string // default: the API's name
	Model   string
	APIKey  string // sent in a header; never part of a URL, an error or a log
	BaseURL string // default: the API's public address
	// Transport carries the requests; default: one of the package's own, shared by all providers.
	Transport http.RoundTripper
	Limits    *Limits // default: what is known about the model
}

// Role is who says a [Message].
type Role string

// The roles of a conversation.
const (
	RoleSystem    Role = "system"
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool" // the result of a tool call
)

// Message is one turn of a conversation.
type Message struct {
	Role      Role       `json:"role"`
	Parts     []Part     `json:"parts,omitempty"`
	ToolCalls []ToolCall `json:"tool_calls,omitempty"` // of an assistant
	// ToolCallID and Name say which [ToolCall] a message of [RoleTool] answers.
	ToolCallID string `json:"tool_call_id,omitempty"`
	Name       string `json:"name,omitempty"`
}

// Part is a piece of a message: a text or an image.
type Part struct {
	Text  string `json:"text,omitempty"`
	Image *Image `json:"image,omitempty"`
}

// Image is a picture, inline or by address. Gemini takes inline data only: it
// reports an image by address as [ClassRejected].
type Image struct {
	MIMEType string `json:"mime_type,omitempty"` // of Data: "image/png"
	Data     []byte `json:"data,omitempty"`
	URL      string `json:"url,omitempty"`
}

// System returns a message that instructs the model.
func System(text string) Message { return Message{Role: RoleSystem, Parts: []Part{{Text: text}}} }

// User returns a message of the user, with images if there are any.
func User(text string, images ...Image) Message {
	m := Message{Role: RoleUser, Parts: []Part{{Text: text}}}
	for i := range images {
		m.Parts = append(m.Parts, Part{Image: &images[i]})
	}
	return m
}

// Assistant returns a message that the model has said before.
func Assistant(text string, calls ...ToolCall) Message {
	m := Message{Role: RoleAssistant, ToolCalls: calls}
	if text != "" {
		m.Parts = []Part{{Text: text}}
	}
	return m
}

// ToolResult returns the answer to a tool call.
func ToolResult(c ToolCall, text string) Message {
	return Message{Role: RoleTool, ToolCallID: c.ID, Name: c.Name, Parts: []Part{{Text: text}}}
}

// Text returns the texts of a message, joined.
func (m Message) Text() string {
	var s strings.Builder
	for _, p := range m.Parts {
		s.WriteString(p.Text)
	}
	return s.String()
}

// Tool is a function that the model may call.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"` // JSON schema of an object
}

// ToolCall is a call that the model asks for.
type ToolCall struct {
	ID        string          `json:"id"` // made up where the API has none, unique in the response
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"` // an object
}

// The values of [Request.ToolChoice] beside a tool's name.
const (
	ToolsAuto     = "auto"
	ToolsNone     = "none"
	ToolsRequired = "required"
)

// Request is one question to a model. It is not changed by anybody.
type Request struct {
	Messages    []Message
	Tools       []Tool
	ToolChoice  string          // "" is [ToolsAuto]
	Schema      json.RawMessage // JSON schema that the text of the answer satisfies; none if empty
	Temperature *float64        // nil: the model's default
	TopP        *float64        // nil: the model's default
	MaxTokens   int             // of the answer; 0: the model's default
	Stop        []string        // the answer ends before any of these; 4 at most, as OpenAI has it (Gemini: 5)
	Seed        *int            // the same answer to the same request, as far as the API can

	// Prefer names what is tried first, in order: entries or models. The rest
	// of the chain follows.
	Prefer []string
	// Strategy orders the others; "": the chain's own does.
	Strategy Strategy
	// Timeout is the budget of the whole chain for this request, if it is
	// shorter than the chain's.
	Timeout time.Duration
	// Bare keeps the chain's SystemNote out of the request, where who gets the
	// answer is not to know it.
	Bare bool
}

// Prompt returns a request of one user message.
func Prompt(text string) *Request { return &Request{Messages: []Message{User(text)}} }

// FinishReason is why a model stopped.
type FinishReason string

// The finish reasons, the same for every API.
const (
	FinishStop    FinishReason = "stop"           // done, or a stop sequence
	FinishLength  FinishReason = "length"         // out of tokens: the text is cut
	FinishTools   FinishReason = "tool_calls"     // it waits for the results of tool calls
	FinishBlocked FinishReason = "content_filter" // a filter refused the prompt or the answer
	FinishUnknown FinishReason = "unknown"        // a reason that this package does not know
)

// Usage counts the tokens of one answer. Zero where the API does not say.
type Usage struct {
	Input  int `json:"input_tokens"`
	Output int `json:"output_tokens"` // with what the model thought
	Total  int `json:"total_tokens"`
}

// Response is an answer. A provider fills the fields up to Header; it reports
// an empty or blocked answer as it is, with nothing in Text and the finish
// reason that was given. The chain adds the rest.
type Response struct {
	Text         string
	ToolCalls    []ToolCall
	FinishReason FinishReason
	Usage        Usage
	Model        string      // that really answered, as the API says; "" if it does not
	Status       int         // HTTP status
	Header       http.Header // of the HTTP answer; nil if there was none

	Provider  string        // name of the entry that answered; "" if degraded
	Degraded  bool          // no model could be reached: Text is the configured apology
	NotBefore time.Time     // with Degraded: when asking again makes sense; zero: with a longer Timeout
	Latency   time.Duration // of the whole call
	Trace     *Trace        // how the answer was had
}
