package main

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy"
)

// newChain builds the chain of models, with the faults of inj. What models are told and what happens to
// them is the proxy's, which is built later and takes the chain.
func newChain(s *llmSettings, env lookup, inj *chaos.Injector, later *atomic.Pointer[mcpproxy.Proxy]) (*llm.Chain, error) {
	var entries []llm.Entry
	for _, e := range s.chain(env) {
		if e.skipped() {
			continue
		}
		e.Transport = inj.Transport(chaos.Provider(e.Name), llm.DefaultTransport())
		entry, err := e.Entry()
		if err != nil {
			return nil, usage("%v", err)
		}
		entries = append(entries, entry)
	}
	o := s.options
	tell := func(what func(*mcpproxy.Proxy)) {
		if p := later.Load(); p != nil {
			what(p)
		}
	}
	o.OnEvent = func(e llm.Event) { tell(func(p *mcpproxy.Proxy) { p.LLMEvent(e) }) }
	o.OnTrace = func(t *llm.Trace) { tell(func(p *mcpproxy.Proxy) { p.LLMTrace(t) }) }
	if !s.quiet {
		o.SystemNote = func() (note string) {
			tell(func(p *mcpproxy.Proxy) { note = p.SystemNote() })
			return note
		}
	}
	return llm.New(entries, o)
}

// modelCheck is one entry of the chain as check reports it.
type modelCheck struct {
	Name   string `json:"name"`
	API    string `json:"api"`
	Model  string `json:"model"`
	Usable bool   `json:"usable"`
	Reason string `json:"reason,omitempty"` // why it is not
}

// checkModels tells which models will be asked, as far as that is known without asking.
func checkModels(s *llmSettings, env lookup) []modelCheck {
	models := []modelCheck{}
	for _, e := range s.chain(env) {
		m := modelCheck{Name: e.Name, API: e.API, Model: e.Model, Usable: !e.skipped()}
		switch {
		case m.Usable:
		case e.KeyVariable != "":
			m.Reason = "no key: set " + e.KeyVariable
		default:
			m.Reason = "its api_key is empty"
		}
		models = append(models, m)
	}
	return models
}

// printModels writes them for people.
func printModels(w io.Writer, models []modelCheck) {
	usable := 0
	for _, m := range models {
		if m.Usable {
			usable++
		}
	}
	fmt.Fprintf(w, "llm.complete: %d of %s usable\n", usable, count(len(models), "model"))
	for _, m := range models {
		fmt.Fprintf(w, "  %s: %s", m.Name, m.Model)
		if !m.Usable {
			fmt.Fprintf(w, " (%s)", m.Reason)
		}
		fmt.Fprintln(w)
	}
}
