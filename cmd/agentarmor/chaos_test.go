package main

import (
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/fixtures/fakellm"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy"
)

// The models of the configuration meet the faults of their entries.
func TestModelsMeetFaults(t *testing.T) {
	web := httptest.NewServer(fakellm.NewOpenAI(fakellm.Options{}))
	defer web.Close()
	s := &llmSettings{options: llm.Options{Attempts: 1, Queue: llm.Queue{Size: -1}}}
	for _, name := range []string{"first", "second"} {
		s.entries = append(s.entries, llmEntry{open: true, Spec: llm.Spec{API: "openai", ProviderOptions: llm.ProviderOptions{Name: name, Model: "m", BaseURL: web.URL}}})
	}
	inj := chaos.New(chaos.Options{Enabled: true})
	defer inj.Close()
	c := must(newChain(s, mapEnv(nil), inj, new(atomic.Pointer[mcpproxy.Proxy])))
	defer c.Close()
	answeredBy := func(want string) {
		t.Helper()
		if r, err := c.Complete(t.Context(), llm.Prompt("p")); err != nil || r.Provider != want {
			t.Errorf("answered by %+v, %v, want %s", r, err, want)
		}
	}
	_, err := inj.Inject(chaos.Spec{Target: "llm/first", Fault: chaos.Error, Status: 503, TTL: chaos.Duration(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	answeredBy("second")
	if _, err := inj.Clear("all"); err != nil {
		t.Fatal(err)
	}
	answeredBy("first")
}
