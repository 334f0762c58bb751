package main

import (
	"maps"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"

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

// The parameters of a fault have the same names in Go, in the configuration, as
// flags and as arguments of chaos.inject.
func TestParametersHaveOneName(t *testing.T) {
	var want []string
	for f := range reflect.TypeFor[chaos.Spec]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		want = append(want, name)
	}
	slices.Sort(want)
	same := func(where string, names []string, more ...string) {
		t.Helper()
		all := append(slices.Clone(want), more...)
		slices.Sort(all)
		slices.Sort(names)
		if diff := cmp.Diff(all, names); diff != "" {
			t.Errorf("-Spec +%s\n%s", where, diff)
		}
	}
	same("configuration", slices.Collect(maps.Keys((&decoder{}).faultFields(new(chaos.Spec), new(int)))))
	same("flags", append(flagsOf(t), "target", "fault"), "dry_run")
	same("arguments", argumentsOf(t), "scenario", "dry_run")
}

// flagsOf gives every flag of chaos inject, and returns those arguments that they become.
func flagsOf(t *testing.T) []string {
	t.Helper()
	cmd := (&app{}).injectCommand(&statusFlags{})
	for line := range strings.Lines(cmd.LocalFlags().FlagUsages()) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		name = strings.TrimPrefix(name, "--")
		if cmd.Flags().Set(name, "1") != nil { // a duration
			if err := cmd.Flags().Set(name, "1s"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	return slices.Collect(maps.Keys(given(cmd)))
}

// argumentsOf are those of chaos.inject.
func argumentsOf(t *testing.T) []string {
	t.Helper()
	list := must(serverlessDemo(t).ListTools(t.Context(), mcp.ListToolsRequest{}))
	at := slices.IndexFunc(list.Tools, func(tool mcp.Tool) bool { return tool.Name == "chaos.inject" })
	if at < 0 {
		t.Fatal("no chaos.inject")
	}
	return slices.Collect(maps.Keys(list.Tools[at].InputSchema.Properties))
}
