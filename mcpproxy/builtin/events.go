package builtin

import (
	"context"
	"fmt"
	"slices"
	"strings"

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

// eventsSection answers armor.status for section events.
func (src Source) eventsSection(r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	q := EventQuery{
		Upstream: r.GetString("upstream", ""), Tool: r.GetString("tool", ""), Kind: r.GetString("kind", ""),
		Since: uint64(max(0, r.GetInt("since_seq", 0))), Limit: r.GetInt("limit", toolEvents),
	}
	switch {
	case q.Kind != "" && !slices.Contains(src.EventKinds, q.Kind):
		return mcp.NewToolResultError(fmt.Sprintf("no kind %q: use one of %s", q.Kind, strings.Join(src.EventKinds, ", "))), nil
	case badLimit(q.Limit):
		return wantLimit(), nil
	}
	return structured(src.Events(q))
}

func badLimit(n int) bool { return n < 1 || n > maxEvents }

func wantLimit() *mcp.CallToolResult {
	return mcp.NewToolResultError(fmt.Sprintf("limit must be 1 to %d", maxEvents))
}
