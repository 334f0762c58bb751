package llm

import (
	"fmt"
	"os"
	"strings"
	"time"
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
	for _, s := range DefaultChain(os.Getenv) {
		if s.APIKey == "" {
			continue
		}
		e, err := s.Entry()
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	if len(entries) == 0 {
		return nil, newError(ClassNone, "no model is configured: set %s", keyVariables)
	}
	return New(entries, Options{})
}

// Spec is an [Entry] in words, as a config file holds it.
type Spec struct {
	API         string // "gemini" or "openai"
	KeyVariable string // where the APIKey comes from, for messages; "" if from nowhere
	ProviderOptions
	Timeout  time.Duration // as in Entry
	RPM, TPM int
	Price    Price
}

// DefaultChain returns the chain of [FromEnv] with the keys that getenv knows.
// An entry whose key is not set is there too, with an empty APIKey.
func DefaultChain(getenv func(string) string) []Spec {
	key := func(name string) string { return strings.TrimSpace(getenv(name)) }
	google := "GEMINI_API_KEY"
	if key(google) == "" && key("GOOGLE_API_KEY") != "" {
		google = "GOOGLE_API_KEY"
	}
	gemini := func(name, model string) Spec {
		return Spec{API: "gemini", KeyVariable: google, ProviderOptions: ProviderOptions{Name: name, Model: model, APIKey: key(google)}}
	}
	groq := func(name, model string) Spec {
		return Spec{API: "openai", KeyVariable: "GROQ_API_KEY", ProviderOptions: ProviderOptions{
			Name: name, Model: model, APIKey: key("GROQ_API_KEY"), BaseURL: GroqURL}}
	}
	first := gemini("gemini", "gemini-2.5-flash")
	first.Price = Price{Input: 0.30, Output: 2.50}
	return []Spec{
		first,
		gemini("gemini-lite", "gemini-3.5-flash-lite"),
		groq("groq", "llama-3.1-8b-instant"),
		groq("groq-oss", "openai/gpt-oss-20b"),
	}
}

// Entry returns the entry with a provider of its own.
func (s Spec) Entry() (e Entry, err error) {
	if err := checkKey(s.APIKey); err != nil && s.KeyVariable != "" {
		return e, fmt.Errorf("llm: %s: %s %w", s.Name, s.KeyVariable, err)
	}
	e = Entry{Name: s.Name, Timeout: s.Timeout, RPM: s.RPM, TPM: s.TPM, Price: s.Price}
	switch s.API {
	case "gemini":
		e.Provider, err = NewGemini(s.ProviderOptions)
	case "openai":
		e.Provider, err = NewOpenAI(s.ProviderOptions)
	default:
		err = fmt.Errorf("llm: %s: unknown API %q", s.Name, s.API)
	}
	return e, err
}
