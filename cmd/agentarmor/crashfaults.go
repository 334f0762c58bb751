package main

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"

	"github.com/agentarmor/agentarmor/chaos"
)

// crashCall is one request that has arrived at a fake server or model.
type crashCall struct {
	target  string // mcp/tools or llm/<name>
	op      chaos.Op
	tool    string // with chaos.ToolCall
	step    string // which step of which run it is for; "": none
	attempt int    // at this target for this step, from 1
}

// decider says what a call meets. Each lane has one of its own.
type decider interface {
	decide(c crashCall) chaos.Decision
	close()
}

// evenFaults meet a share of the calls, independent of each other. They follow
// from the seed, the step and the attempt alone: whatever else happens, the
// first attempt of a step meets the same in both lanes.
type evenFaults struct {
	rate float64
	seed int64
}

func (f evenFaults) close() {}

func (f evenFaults) decide(c crashCall) chaos.Decision {
	if c.step == "" {
		return chaos.Decision{}
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %s %d", c.target, c.step, c.attempt)
	r := rand.New(rand.NewPCG(uint64(f.seed), h.Sum64()))
	if r.Float64() >= f.rate {
		return chaos.Decision{}
	}
	fault := &chaos.Injected{ID: "even"}
	switch r.IntN(4) {
	case 0:
		return chaos.Decision{Action: chaos.Answer, Status: http.StatusServiceUnavailable, Cause: fault}
	case 1: // before the work
		return chaos.Decision{Action: chaos.Die, Cause: fault}
	case 2: // after it
		return chaos.Decision{Action: chaos.Break, Cause: fault}
	}
	return chaos.Decision{Action: chaos.Garble, Change: func(b []byte) []byte { return b[:len(b)/2] }, Cause: fault}
}

// scenarioFaults are those of a scenario of chaos.
type scenarioFaults struct{ *chaos.Injector }

// newScenarioFaults begins a scenario.
func newScenarioFaults(name string, o chaos.Options) (*scenarioFaults, error) {
	o.Enabled, o.MaxTTL, o.Targets = true, cmp.Or(o.MaxTTL, chaos.DefaultMaxTTL), crashTargets
	inj := chaos.New(o)
	begun, err := inj.Scenario(name, "", min(scenarioTime, o.MaxTTL), o.Seed)
	if err == nil {
		err = visible(begun)
	}
	if err != nil {
		inj.Close()
		return nil, usage("--scenario: %v", err)
	}
	return &scenarioFaults{inj}, nil
}

// visible refuses what would change nothing: its agents know the tools without their list.
func visible(faults []chaos.Active) error {
	for _, f := range faults {
		if f.Fault == chaos.SchemaDrift && slices.ContainsFunc(f.Targets, func(target string) bool { return strings.HasPrefix(target, "mcp/") }) {
			return fmt.Errorf("%s on %s does not show in a crash test, whose agents list no tools", f.Fault, f.Target)
		}
	}
	return nil
}

func (f *scenarioFaults) close() { f.Close() }

func (f *scenarioFaults) decide(c crashCall) chaos.Decision {
	return f.Decide(chaos.Call{Target: c.target, Op: c.op, Tool: c.tool})
}

// crashTargets is what can be broken in the crash test.
func crashTargets() []string {
	targets := []string{chaos.Server(crashServer)}
	for _, name := range crashModels {
		targets = append(targets, chaos.Provider(name))
	}
	for _, kind := range []stepKind{readStep, putStep, appendStep, lookStep} {
		targets = append(targets, chaos.Tool(crashServer, kind.tool()))
	}
	return targets
}
