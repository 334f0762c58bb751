package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentarmor/agentarmor/fixtures/fakellm"
	"github.com/agentarmor/agentarmor/llm"
)

// demoModels are the providers of the demo: fakes on loopback, behind the real
// chain.
type demoModels struct {
	gemini  *fakellm.Server
	servers []*httptest.Server
	chain   *llm.Chain
}

func fakeModels() (*demoModels, error) {
	m := &demoModels{gemini: fakellm.NewGemini(fakellm.Options{Reply: fakellm.Reply{Text: "Hello from Gemini."}})}
	groq := fakellm.NewOpenAI(fakellm.Options{Reply: fakellm.Reply{Text: "Hello from Groq."}})
	m.servers = []*httptest.Server{httptest.NewServer(m.gemini), httptest.NewServer(groq)}
	first, err := llm.NewGemini(llm.ProviderOptions{Name: "gemini", Model: "gemini-2.5-flash", APIKey: "demo", BaseURL: m.servers[0].URL})
	if err != nil {
		m.close()
		return nil, err
	}
	second, err := llm.NewOpenAI(llm.ProviderOptions{Name: "groq", Model: "llama-3.1-8b-instant", APIKey: "demo", BaseURL: m.servers[1].URL + "/v1"})
	if err == nil {
		m.chain, err = llm.New([]llm.Entry{{Name: "gemini", Provider: first}, {Name: "groq", Provider: second}}, llm.Options{})
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *demoModels) close() {
	if m.chain != nil {
		_ = m.chain.Close() // of idle connections
	}
	for _, s := range m.servers {
		s.Close()
	}
}

// complete asks a model and wants the answer of one provider.
func (d *demonstration) complete(ctx context.Context, provider string) (string, error) {
	res, err := d.client.CallTool(ctx, mcp.CallToolRequest{Params: mcp.CallToolParams{
		Name: "llm.complete", Arguments: map[string]any{"prompt": "Say hello."},
	}})
	if err != nil {
		return "", err
	}
	raw, err := json.Marshal(res.StructuredContent)
	if err != nil {
		return "", err
	}
	var answer struct {
		Text     string
		Provider string
		Trace    struct {
			Attempts []struct {
				Provider, Class, Next string
				Status                int
			}
		}
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return "", err
	}
	var steps []string
	for _, a := range answer.Trace.Attempts {
		steps = append(steps, fmt.Sprintf("%s: %s (HTTP %d), %s", a.Provider, a.Class, a.Status, a.Next))
	}
	text := answer.Text + "  [" + strings.Join(steps, "; ") + "]"
	if answer.Provider != provider {
		return text, fmt.Errorf("%s answered instead of %s: %s", answer.Provider, provider, text)
	}
	return text, nil
}
