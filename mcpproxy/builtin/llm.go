package builtin

import (
	"context"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/agentarmor/agentarmor/llm"
)

// LLMURI is the resource of the chain of models.
const LLMURI = "agentarmor://llm"

// noModel is what the tool and the resource say without a chain.
const noModel = "No model is configured: set GEMINI_API_KEY or GROQ_API_KEY in the environment of AgentArmor, or name models under llm.chain in its configuration, and restart it."

func addLLM(s *server.MCPServer, src Source) {
	s.AddResource(mcp.NewResource(LLMURI, "AgentArmor models",
		mcp.WithResourceDescription("The models behind llm.complete: which can be asked now, how they did lately and what is left of their limits"), mcp.WithMIMEType("application/json"),
	), func(_ context.Context, r mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
		return contents(r.Params.URI, src.models())
	})
}

// models is the state of the chain; without one it says how to have one.
func (src Source) models() any {
	var s struct {
		llm.Status
		Text string `json:"text,omitempty"`
	}
	if src.LLM != nil {
		s.Status = src.LLM.Status()
	} else {
		s.Chain, s.Providers = []string{}, map[string]llm.ProviderStatus{}
	}
	if len(s.Chain) == 0 {
		s.Text = noModel
	}
	return s
}
