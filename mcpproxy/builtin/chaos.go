package builtin

import (
	"context"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/agentarmor/agentarmor/chaos"
)

// ChaosURI is the resource of the faults that are active.
const ChaosURI = "agentarmor://chaos"

// ChaosTools are the names of the tools that break things. While chaos is off
// they say so, and are in no list.
var ChaosTools = []string{"chaos.inject", "chaos.clear", "chaos.list"}

func addChaos(s *server.MCPServer, src Source) {
	s.AddResource(mcp.NewResource(ChaosURI, "AgentArmor chaos",
		mcp.WithResourceDescription("The faults that are injected on purpose: what they do to whom, how often they have hit, and when they end"), mcp.WithMIMEType("application/json"),
	), func(_ context.Context, r mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
		return contents(r.Params.URI, src.chaosStatus(false))
	})
	addInject(s, src)
	addClear(s, src)
	addList(s, src)
}

// chaosStatus is what is broken on purpose.
type chaosStatus struct {
	Enabled   bool           `json:"enabled"`
	Seed      int64          `json:"seed,omitempty"`
	MaxTTL    chaos.Duration `json:"max_ttl,omitempty"`
	Active    []chaos.Active `json:"active"`
	Scenarios []string       `json:"scenarios,omitempty"`
	Targets   []string       `json:"targets,omitempty"` // what can be broken
	Text      string         `json:"text,omitempty"`
}

func (src Source) chaosStatus(targets bool) chaosStatus {
	i := src.Chaos
	c := chaosStatus{Enabled: i.Enabled(), Active: i.List()}
	if !c.Enabled {
		c.Text = chaos.ErrOff.Error()
		return c
	}
	c.Seed, c.MaxTTL, c.Scenarios = i.Seed(), chaos.Duration(i.MaxTTL()), i.Scenarios()
	if targets {
		c.Targets = i.Targets()
	}
	return c
}
