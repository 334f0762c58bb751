package builtin

import (
	"context"
	"fmt"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// EventsURI is the resource of what happened lately.
const EventsURI = "agentarmor://events"

// EventQuery selects events; zero fields select all.
type EventQuery struct {
	Upstream, Tool, Kind string
	Since                uint64 // only events with a higher number
	Limit                int    // the newest that many
}

const (
	resourceEvents = 100 // events in the resource
	toolEvents     = 20  // events that armor.status returns unless it is asked for more
	maxEvents      = 1000
)

func addEvents(s *server.MCPServer, src Source) {
	s.AddResource(mcp.NewResource(EventsURI, "AgentArmor events",
		mcp.WithResourceDescription("What happened to the servers behind this endpoint lately, oldest first"), mcp.WithMIMEType("application/json"),
	), func(_ context.Context, r mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
		return contents(r.Params.URI, src.Events(EventQuery{Limit: resourceEvents}))
	})
}

// eventArguments are those of armor.status that select events.
func eventArguments(src Source) []mcp.ToolOption {
	return []mcp.ToolOption{
		mcp.WithString("kind", mcp.Description("section events: only events of this kind"), mcp.Enum(src.EventKinds...)),
		mcp.WithString("tool", mcp.Description("section events: only events of this tool, by its name at the server")),
		mcp.WithInteger("limit", mcp.Description(fmt.Sprintf("sections events and traces: the newest so many, %d if left out", toolEvents)), mcp.Min(1), mcp.Max(maxEvents)),
		mcp.WithInteger("since_seq", mcp.Description("section events: only events after this number; last_seq of an answer leads to the next"), mcp.Min(0)),
	}
}
