package builtin

import (
	"context"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/agentarmor/agentarmor/chaos"
)

func addClear(s *server.MCPServer, src Source) {
	s.AddTool(mcp.NewTool("chaos.clear",
		mcp.WithDescription("Ends faults that were injected with chaos.inject. Calls that they hold back go on, and what they broke recovers by itself."),
		mcp.WithString("which", mcp.Description("Which faults: the id of one, the target of some (llm/gemini, mcp/github/*), or all"), mcp.DefaultString("all")),
		mcp.WithToolAnnotation(mcp.ToolAnnotation{
			Title: "End injected faults", ReadOnlyHint: new(false), DestructiveHint: new(false), IdempotentHint: new(true), OpenWorldHint: new(false),
		}),
	), src.clearChaos)
}

// clearChaos answers chaos.clear.
func (src Source) clearChaos(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	var args struct {
		Which *string `json:"which"`
	}
	if err := strictly(r.Params.RawArguments, &args, "which"); err != nil {
		return mcp.NewToolResultError(err.Error()), nil
	}
	which := "all"
	if args.Which != nil {
		which = *args.Which
	}
	gone, err := src.Chaos.Clear(which)
	if err != nil {
		return mcp.NewToolResultError(err.Error()), nil
	}
	return structured(struct {
		Cleared []chaos.Active `json:"cleared"`
		Active  int            `json:"active"` // that go on
	}{gone, len(src.Chaos.List())})
}
