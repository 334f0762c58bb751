package builtin

import (
	"context"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

func addList(s *server.MCPServer, src Source) {
	s.AddTool(mcp.NewTool("chaos.list",
		mcp.WithDescription("Lists the faults that are injected on purpose: what they do to whom, how often they have hit, and when they end; also what can be broken, and the ready-made scenarios."),
		readOnly("Injected faults"),
	), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return structured(src.chaosStatus(true))
	})
}
