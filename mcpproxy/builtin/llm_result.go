package builtin

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentarmor/agentarmor/llm"
)

// completion is the structuredContent of llm.complete. Its text is the text of
// the result.
type completion struct {
	Text         string           `json:"text"`
	Provider     string           `json:"provider,omitempty"`
	Model        string           `json:"model,omitempty"`
	Degraded     bool             `json:"degraded"`
	FinishReason llm.FinishReason `json:"finish_reason,omitempty"`
	Usage        *llm.Usage       `json:"usage,omitempty"`
	Note         string           `json:"note,omitempty"`
	NotBefore    *time.Time       `json:"not_before,omitempty"`
	Error        *problem         `json:"error,omitempty"`
	Trace        any              `json:"trace,omitempty"` // *llm.Trace or traceID
	injected     string           // the fault that chaos has injected, by its id
}

// problem is why there is no answer, where asking the same again does not help.
type problem struct {
	Class    llm.Class `json:"class"`
	Provider string    `json:"provider,omitempty"`
	Status   int       `json:"status,omitempty"`
	Partial  string    `json:"partial,omitempty"`
}

type traceID struct {
	ID string `json:"id"`
}

// answered is the account of a response.
func answered(r *llm.Response) completion {
	c := completion{Text: r.Text, Provider: r.Provider, Model: r.Model, Degraded: r.Degraded, FinishReason: r.FinishReason, Trace: r.Trace}
	if r.Usage != (llm.Usage{}) {
		c.Usage = &r.Usage
	}
	if r.Degraded && !r.NotBefore.IsZero() { // else the text says what to do
		at := r.NotBefore.Add(time.Second - 1).Truncate(time.Second).UTC() // never too early
		c.NotBefore = &at
		c.Text = fmt.Sprintf("%s No model answered (%s). Do not retry before %s.", r.Text, reasons(r.Trace), at.Format(time.RFC3339))
	}
	return c
}

// reasons tells in a few words why each provider did not answer.
func reasons(t *llm.Trace) string {
	var order []string
	why := map[string]string{}
	for _, a := range t.Attempts {
		if _, seen := why[a.Provider]; !seen {
			order = append(order, a.Provider)
		}
		switch {
		case a.Skipped == "":
			why[a.Provider] = string(a.Class)
		case why[a.Provider] == "":
			why[a.Provider] = string(a.Skipped)
		}
	}
	for i, name := range order {
		order[i] = name + ": " + why[name]
	}
	return short(strings.Join(order, ", "))
}

// advice is what to do about an error.
var advice = map[llm.Class]string{
	llm.ClassRejected: "Change the request, or name another model.",
	llm.ClassAuth:     "The configured key is refused: only the user can mend that.",
	llm.ClassGone:     "The configured models do not exist any more: only the user can mend that.",
	llm.ClassBlocked:  "Say it in other words.",
	llm.ClassEmpty:    "Say it in other words.",
	llm.ClassSchema:   "Make response_schema simpler, or say more plainly what is wanted.",
	llm.ClassCut:      "Ask for less, or raise max_tokens.",
}

// failed is the account of an error of the chain.
func failed(err error) completion {
	e, ok := errors.AsType[*llm.Error](err)
	if !ok {
		return completion{Text: "no answer: " + short(err.Error()), Error: &problem{Class: llm.ClassLost}}
	}
	c := completion{Error: &problem{Class: e.Class, Provider: e.Provider, Status: e.Status, Partial: e.Partial}}
	if e.Trace != nil {
		c.Trace = e.Trace
	}
	what, then := strings.TrimPrefix(e.Error(), "llm: "), advice[e.Class]
	if e.Class == llm.ClassRejected && e.Provider == "" {
		then = "Change the request." // no model was asked, and none would do
	}
	switch {
	case e.Class == llm.ClassNone:
		c.Text = noModel
	case strings.TrimSpace(e.Partial) != "":
		c.Text = fmt.Sprintf("The answer broke off (%s). %s Received until then: %s", short(what), cmp.Or(then, "Ask again for all of it."), e.Partial)
	default:
		c.Text = strings.TrimSuffix(fmt.Sprintf("No answer: %s. %s", strings.TrimSuffix(short(what), "."), then), " ")
	}
	return c
}

func failure(c completion) *mcp.CallToolResult {
	r := result(c)
	r.IsError = true
	return r
}

// result has the text of c for clients that show texts, and all of it as
// structuredContent. An injected fault is in _meta, where it is for all other tools.
func result(c completion) *mcp.CallToolResult {
	b, _ := json.Marshal(c) // texts, numbers and times always encode
	r := mcp.NewToolResultStructured(json.RawMessage(b), c.Text)
	if c.injected != "" {
		r.Meta = mcp.NewMetaFromMap(map[string]any{"agentarmor/call": map[string]string{"injected": c.injected}})
	}
	return r
}

// maxQuoted is the most bytes of a text of others in ours.
const maxQuoted = 200

// short is the beginning of a text that others have written.
func short(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	return strings.ToValidUTF8(s[:maxQuoted-len("…")], "") + "…"
}
