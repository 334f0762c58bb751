// Package builtin holds AgentArmor's own tools and resources, one file each.
// They are answered by an mcp-go MCPServer; the endpoint hands it the messages
// and lists its entries beside those of the upstreams.
package builtin

import (
	"context"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/llm"
)

// Source is where the own tools and resources get what they tell. Its funcs are
// called concurrently and return values that marshal to JSON.
type Source struct {
	Status   func() any                    // the whole status document
	Upstream func(name string) (any, bool) // that of one upstream; false: no such upstream
	Events   func(q EventQuery) any        // what happened lately
	Alerts   func() any                    // what a person should look at, in "alerts"

	EventKinds []string // of which events are

	Chaos *chaos.Injector // what is broken on purpose; nil: nothing ever
	LLM   *llm.Chain      // answers llm.complete; nil: no model is configured
}

// New returns the server of everything AgentArmor itself offers.
func New(version string, src Source) *server.MCPServer {
	s := server.NewMCPServer("agentarmor", version,
		server.WithToolCapabilities(true), server.WithPromptCapabilities(true), server.WithResourceCapabilities(true, true),
		server.WithLogging(), server.WithCompletions(), server.WithRecovery(),
		server.WithInstructions("AgentArmor")) // replaced by the endpoint's own
	addStatus(s, src)
	addEvents(s, src)
	addComplete(s, src)
	addLLM(s, src)
	addTraces(s, src)
	addChaos(s, src)
	return s
}

// readOnly sets every annotation: the tool looks and changes nothing.
func readOnly(title string) mcp.ToolOption {
	return mcp.WithToolAnnotation(mcp.ToolAnnotation{
		Title: title, ReadOnlyHint: new(true), DestructiveHint: new(false), IdempotentHint: new(true), OpenWorldHint: new(false),
	})
}

type progressKey struct{}

// WithProgress returns a context in which a tool that has something to tell
// before its result tells it by tell.
func WithProgress(ctx context.Context, tell func(message string)) context.Context {
	return context.WithValue(ctx, progressKey{}, tell)
}

// progress is what WithProgress was given; nil: nobody wants to hear.
func progress(ctx context.Context) func(message string) {
	tell, _ := ctx.Value(progressKey{}).(func(string))
	return tell
}
