package main

import (
	"net/http/httptest"

	"github.com/agentarmor/agentarmor/fixtures/fakellm"
	"github.com/agentarmor/agentarmor/llm"
)

// demoModels are the providers of the demo: fakes on loopback.
type demoModels struct {
	gemini, groq *httptest.Server
}

func newDemoModels() *demoModels {
	o := fakellm.Options{Respond: converse}
	return &demoModels{httptest.NewServer(fakellm.NewGemini(o)), httptest.NewServer(fakellm.NewOpenAI(o))}
}

func (m *demoModels) close() {
	m.gemini.Close()
	m.groq.Close()
}

// settings are those of production but for the addresses.
func (m *demoModels) settings() *llmSettings {
	entry := func(api, name, model, url string) llmEntry {
		return llmEntry{Spec: llm.Spec{API: api, ProviderOptions: llm.ProviderOptions{Name: name, Model: model, APIKey: "none", BaseURL: url}}}
	}
	return &llmSettings{
		entries: []llmEntry{
			entry("gemini", "gemini", "gemini-2.5-flash", m.gemini.URL),
			entry("openai", "groq", "llama-3.1-8b-instant", m.groq.URL+"/v1"),
		},
	}
}
