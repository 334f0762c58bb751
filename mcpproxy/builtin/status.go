package builtin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// StatusURI is the resource of the whole status; one upstream's is below it.
const StatusURI = "agentarmor://status"

// UpstreamOf returns the name in the URI of one upstream's status, which may
// be percent-encoded; ok is false for any other URI.
func UpstreamOf(uri string) (name string, ok bool) {
	name, ok = strings.CutPrefix(uri, StatusURI+"/")
	if plain, err := url.PathUnescape(name); err == nil {
		name = plain
	}
	return name, ok
}

var sections = []string{"summary", "upstreams", "events", "llm", "traces", "alerts"}

func addStatus(s *server.MCPServer, src Source) {
	s.AddTool(mcp.NewTool("armor.status", append([]mcp.ToolOption{
		mcp.WithDescription("Tells which MCP servers behind this endpoint work, which are down or starting, why, and when they are tried again, what happened lately, and how the models behind llm.complete do. Call it when a tool is unavailable."),
		mcp.WithString("section", mcp.Description("summary (default): one line per server; upstreams: everything known about each server; events: what happened lately; llm: the models behind llm.complete; traces: how calls of llm.complete went; alerts: what a person should look at, now or within the last hour"), mcp.Enum(sections...)),
		mcp.WithString("upstream", mcp.Description("name of one server: everything known about it alone; section events: what happened to it")),
		readOnly("Status of the servers behind AgentArmor"),
		mcp.WithString("trace", mcp.Description("section traces: everything about the call with this trace id")),
	}, eventArguments(src)...)...), src.statusTool)
	s.AddResource(mcp.NewResource(StatusURI, "AgentArmor status",
		mcp.WithResourceDescription("State of every server behind this endpoint"), mcp.WithMIMEType("application/json"),
	), func(_ context.Context, r mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
		return contents(r.Params.URI, src.Status())
	})
	s.AddResourceTemplate(mcp.NewResourceTemplate(StatusURI+"/{upstream}", "AgentArmor status of one server",
		mcp.WithTemplateDescription("State of one server behind this endpoint"), mcp.WithTemplateMIMEType("application/json"),
	), func(_ context.Context, r mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
		name, _ := UpstreamOf(r.Params.URI)
		status, ok := src.Upstream(name)
		if !ok {
			return nil, fmt.Errorf("no upstream %q: %w", name, server.ErrResourceNotFound)
		}
		return contents(r.Params.URI, status)
	})
}

func contents(uri string, v any) ([]mcp.ResourceContents, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, err
	}
	return []mcp.ResourceContents{mcp.TextResourceContents{URI: uri, MIMEType: "application/json", Text: string(b)}}, nil
}

func (src Source) statusTool(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	a, err := src.readStatusArguments(r)
	if err != nil {
		return mcp.NewToolResultError(err.Error()), nil
	}
	switch a.Section {
	case "events":
		return structured(src.Events(EventQuery{Upstream: a.Upstream, Tool: a.Tool, Kind: a.Kind, Since: a.since(), Limit: a.limit()}))
	case "llm":
		return structured(src.models())
	case "alerts":
		return structured(src.Alerts())
	case "traces":
		return src.tracesSection(a)
	}
	if status, ok := src.Upstream(a.Upstream); ok {
		return structured(status)
	}
	if a.Section == "summary" {
		return structured(summaryOf(src.Status()))
	}
	return structured(src.Status())
}

// structured returns v as structuredContent and, for clients that show text
// only, the same JSON as text.
func structured(v any) (*mcp.CallToolResult, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return mcp.NewToolResultStructured(json.RawMessage(b), string(b)), nil
}

// Summarizer is a status document that knows its short form.
type Summarizer interface{ Short() any }

func summaryOf(v any) any {
	if s, ok := v.(Summarizer); ok {
		return s.Short()
	}
	return v
}
