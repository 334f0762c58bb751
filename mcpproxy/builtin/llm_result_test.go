package builtin

import (
	"strings"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/llm"
)

// TestTooShortATimeout holds that a degraded answer without a time to wait for
// names none.
func TestTooShortATimeout(t *testing.T) {
	c := answered(&llm.Response{Text: "The timeout of 1ns was too short.", Degraded: true, Trace: &llm.Trace{}})
	if c.Text != "The timeout of 1ns was too short." || c.NotBefore != nil {
		t.Errorf("%+v", c)
	}
	c = answered(&llm.Response{Text: "Sorry.", Degraded: true, NotBefore: time.Unix(9, 0), Trace: &llm.Trace{}})
	if !strings.Contains(c.Text, "Do not retry before") {
		t.Errorf("%+v", c)
	}
}

// TestNobodyTakesIt holds that no other model is proposed for a request that is
// wrong by itself.
func TestNobodyTakesIt(t *testing.T) {
	chain, err := llm.New([]llm.Entry{{Provider: llm.NewFake("p")}}, llm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := llm.Prompt("x")
	r.Schema = []byte(`{"type":7}`)
	_, err = chain.Complete(t.Context(), r)
	want := "No answer: rejected: the response schema: at '/type': value must be one of 'array', 'boolean', 'integer', 'null', 'number', 'object', 'string'. Change the request."
	if c := failed(err); c.Text != want {
		t.Errorf("%s", c.Text)
	}
}
