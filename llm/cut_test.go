package llm_test

import (
	"testing"

	"github.com/agentarmor/agentarmor/llm"
)

// TestCutAnswers holds that half an answer is better than none, and worse than
// any whole one.
func TestCutAnswers(t *testing.T) {
	cut := func(text string) llm.Step {
		return llm.Step{Response: &llm.Response{Text: text, FinishReason: llm.FinishLength, Usage: llm.Usage{Output: 7}}}
	}
	for _, tt := range []struct {
		name  string
		steps []llm.Step
		text  string
		story string
	}{
		{"a whole one", []llm.Step{cut("half"), {}}, "ok", "a:cut b:ok"},
		{"only halves", []llm.Step{cut("half"), cut("other")}, "half", "a:cut b:cut"},
		{"nothing and a half", []llm.Step{cut(""), cut("other")}, "other", "a:cut b:cut"},
		{"a half and an outage", []llm.Step{cut("half"), {Status: 400}}, "half", "a:cut b:rejected"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := chain(t, llm.Options{}, llm.NewFake("a", tt.steps[0]), llm.NewFake("b", tt.steps[1]))
			resp, err := c.Complete(t.Context(), llm.Prompt("hi"))
			if err != nil || resp.Text != tt.text || story(resp.Trace) != tt.story || resp.Degraded {
				t.Fatalf("%+v, %v", resp, err)
			}
			if resp.Text != "ok" && (resp.FinishReason != llm.FinishLength || resp.Provider == "") {
				t.Errorf("%+v", resp)
			}
		})
	}
	both := chain(t, llm.Options{}, llm.NewFake("a", cut("")), llm.NewFake("b", cut("")))
	if resp, err := both.Complete(t.Context(), llm.Prompt("hi")); err == nil {
		t.Errorf("nothing at all: %+v", resp)
	}
}
