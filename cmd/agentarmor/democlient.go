package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentarmor/agentarmor/llm"
)

// demoClient is an MCP client that remembers its conversation with the models.
type demoClient struct {
	client *client.Client
	said   []map[string]any // messages of llm.complete
}

// toolAnswer is the answer of a tool, and what AgentArmor says of the call.
type toolAnswer struct {
	text string
	told struct {
		Attempts int
		Injected string
	}
}

// tool calls a tool and reads its structured content, if there is one that is
// wanted. What the tool says is wrong is the error.
func (c *demoClient) tool(ctx context.Context, name string, args map[string]any, into any) (a toolAnswer, err error) {
	r, err := c.client.CallTool(ctx, mcp.CallToolRequest{Params: mcp.CallToolParams{Name: name, Arguments: args}})
	if err != nil {
		return a, fmt.Errorf("%s: %w", name, err)
	}
	a.text = joinedText(r)
	if r.IsError {
		return a, fmt.Errorf("%s: %s", name, a.text)
	}
	if r.Meta != nil {
		remarshal(r.Meta.AdditionalFields["agentarmor/call"], &a.told)
	}
	if into != nil {
		remarshal(r.StructuredContent, into)
	}
	return a, nil
}

// listed returns the names of all tools.
func (c *demoClient) listed(ctx context.Context) (names []string, err error) {
	list, err := c.client.ListTools(ctx, mcp.ListToolsRequest{})
	if err != nil {
		return nil, err
	}
	for _, t := range list.Tools {
		names = append(names, t.Name)
	}
	return names, nil
}

// completion is the answer of llm.complete.
type completion struct {
	Text, Provider string
	Degraded       bool
	Trace          llm.Trace
}

// complete asks a model, with all that was said before.
func (c *demoClient) complete(ctx context.Context, question string) (got completion, err error) {
	c.said = append(c.said, map[string]any{"role": "user", "content": question})
	if _, err = c.tool(ctx, "llm.complete", map[string]any{"messages": c.said}, &got); err != nil {
		return got, err
	}
	if len(got.Trace.Attempts) == 0 {
		return got, errors.New("llm.complete: there is no trace")
	}
	c.said = append(c.said, map[string]any{"role": "assistant", "content": got.Text})
	return got, nil
}

func (c *demoClient) status(ctx context.Context) (*statusDocument, error) {
	raw, err := statusResource(ctx, c.client)
	if err != nil {
		return nil, err
	}
	return readDocument(raw)
}

// until reads the status until it is as wanted. Its error tells what it was last.
func (c *demoClient) until(ctx context.Context, wanted func(*statusDocument) bool) error {
	last := "none"
	for {
		doc, err := c.status(ctx)
		if err == nil {
			if wanted(doc) {
				return nil
			}
			last = doc.Summary.Text
			err = rest(ctx, 50*time.Millisecond)
		}
		if err != nil {
			return fmt.Errorf("%w; the status was: %s", err, last)
		}
	}
}
