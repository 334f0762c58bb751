package llm_test

import (
	"context"
	"fmt"

	"github.com/agentarmor/agentarmor/llm"
)

func ExampleChain_Complete() {
	chain, _ := llm.New([]llm.Entry{
		{Provider: llm.NewFake("gemini", llm.Step{Status: 503})},
		{Provider: llm.NewFake("groq", llm.Step{Text: "Rayleigh scattering."})},
	}, llm.Options{})
	resp, err := chain.Complete(context.Background(), llm.Prompt("Why is the sky blue?"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(resp.Text, resp.Degraded)
	for _, a := range resp.Trace.Attempts {
		fmt.Println(a.Provider, a.Class, a.Status, a.Next)
	}
	// Output:
	// Rayleigh scattering. false
	// gemini overloaded 503 asks groq
	// groq ok 200 answered
}
