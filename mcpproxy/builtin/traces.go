package builtin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/agentarmor/agentarmor/llm"
)

// tracesURI is what the URI of a trace begins with.
const tracesURI = "agentarmor://traces/"

// TraceOf returns the id in the URI of a trace; ok is false for any other URI.
func TraceOf(uri string) (id string, ok bool) { return strings.CutPrefix(uri, tracesURI) }

func addTraces(s *server.MCPServer, src Source) {
	s.AddResourceTemplate(mcp.NewResourceTemplate(tracesURI+"{id}", "AgentArmor trace",
		mcp.WithTemplateDescription("How one of the last 1,000 calls of a model went: every attempt, and why the next one followed"), mcp.WithTemplateMIMEType("application/json"),
	), func(_ context.Context, r mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
		id, _ := TraceOf(r.Params.URI)
		t := src.trace(id)
		if t == nil {
			return nil, fmt.Errorf("no trace %q: %w", id, server.ErrResourceNotFound)
		}
		return contents(r.Params.URI, t)
	})
}

func (src Source) trace(id string) *llm.Trace {
	if src.LLM == nil {
		return nil
	}
	return src.LLM.Trace(id)
}

// traceLine is a trace in a list.
type traceLine struct {
	ID        string    `json:"id"`
	Started   time.Time `json:"started"`
	Outcome   llm.Class `json:"outcome"`
	Provider  string    `json:"provider,omitempty"`
	Model     string    `json:"model,omitempty"`
	LatencyMS float64   `json:"latency_ms"`
	Attempts  int       `json:"attempts"` // and providers passed over
}

// tracesSection answers armor.status for section traces.
func (src Source) tracesSection(a *statusArguments) (*mcp.CallToolResult, error) {
	if id := a.Trace; id != "" {
		t := src.trace(id)
		if t == nil {
			return mcp.NewToolResultError(fmt.Sprintf("no trace %q among the last 1,000; section traces without trace lists the newest", id)), nil
		}
		return structured(t)
	}
	list := struct {
		Traces []traceLine `json:"traces"` // newest first
	}{[]traceLine{}}
	if src.LLM != nil {
		for _, t := range src.LLM.Traces(a.limit()) {
			list.Traces = append(list.Traces, traceLine{t.ID, t.Started, t.Outcome, t.Provider, t.Model, t.LatencyMS, len(t.Attempts) + t.Omitted})
		}
	}
	return structured(list)
}
