package llm

import (
	"cmp"
	"os"
)

// keyVariables are the variables that FromEnv reads, for messages.
const keyVariables = "GEMINI_API_KEY (or GOOGLE_API_KEY) or GROQ_API_KEY"

// GroqURL is where Groq's OpenAI-compatible API is.
const GroqURL = "https://api.groq.com/openai/v1"

// FromEnv returns the default chain with the default options: Gemini, then
// Groq, each followed by the successor of its model, as far as GEMINI_API_KEY (or
// GOOGLE_API_KEY) and GROQ_API_KEY are set. Without any it is an [*Error] of
// [ClassNone].
func FromEnv() (*Chain, error) {
	var entries []Entry
	gemini := cmp.Or(os.Getenv("GEMINI_API_KEY"), os.Getenv("GOOGLE_API_KEY"))
	groq := os.Getenv("GROQ_API_KEY")
	for _, d := range []struct {
		build func(ProviderOptions) (Provider, error)
		o     ProviderOptions
		price Price
	}{
		{NewGemini, ProviderOptions{Name: "gemini", Model: "gemini-2.5-flash", APIKey: gemini}, Price{Input: 0.30, Output: 2.50}},
		{NewGemini, ProviderOptions{Name: "gemini-lite", Model: "gemini-3.5-flash-lite", APIKey: gemini}, Price{}},
		{NewOpenAI, ProviderOptions{Name: "groq", Model: "llama-3.1-8b-instant", APIKey: groq, BaseURL: GroqURL}, Price{}},
		{NewOpenAI, ProviderOptions{Name: "groq-oss", Model: "openai/gpt-oss-20b", APIKey: groq, BaseURL: GroqURL}, Price{}},
	} {
		if d.o.APIKey == "" {
			continue
		}
		p, err := d.build(d.o)
		if err != nil {
			return nil, err
		}
		entries = append(entries, Entry{Provider: p, Price: d.price})
	}
	if len(entries) == 0 {
		return nil, newError(ClassNone, "no model is configured: set %s", keyVariables)
	}
	return New(entries, Options{})
}
