package chaos

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const second = Duration(time.Second)

// primary stands for the first provider of the chain: the others are there to
// answer for it.
const primary = "llm/"

// scenarios are the faults that are ready to be injected by name. A target of
// the caller takes the place of theirs, where it is of that kind: llm/* is an outage
// of all providers. The time to live is the caller's.
var scenarios = map[string][]Spec{
	// Every request is answered 503, as in an outage of the provider.
	"provider_outage": {{Target: primary, Fault: Error, Status: 503}},

	// Six of ten requests are told to come back in three seconds.
	"rate_limit_storm": {
		{Target: "llm/*", Fault: RateLimit, Probability: new(0.6), RetryAfter: 3 * second},
		{Target: "mcp/*/*", Fault: RateLimit, Probability: new(0.6), RetryAfter: 3 * second},
	},

	// Answers take two seconds at least, and some of them very long.
	"slow_provider": {{Target: primary, Fault: Latency, Delay: 2 * second, Distribution: Pareto, Shape: 1.5}},

	// The server dies once, in the midst of a call.
	"server_crash": {{Target: "mcp/*/*", Fault: Kill, Count: 1}},

	// The server goes down for three seconds in every eight.
	"flapping_server": {{Target: "mcp/*", Fault: Flap, Up: 5 * second, Down: 3 * second}},

	// One answer in five cannot be read, is cut, or is a failure of the tool.
	"corrupt_results": {
		{Target: "mcp/*/*", Fault: Corrupt, Probability: new(0.1)},
		{Target: "mcp/*/*", Fault: Truncate, Probability: new(0.05)},
		{Target: "mcp/*/*", Fault: ToolError, Probability: new(0.05)},
	},

	// A little of everything, everywhere.
	"everything": {
		{Target: "llm/*", Fault: Error, Status: 503, Probability: new(0.05)},
		{Target: "llm/*", Fault: RateLimit, Probability: new(0.03), RetryAfter: second},
		{Target: "llm/*", Fault: Drop, Probability: new(0.02)},
		{Target: "llm/*", Fault: Corrupt, Probability: new(0.02)},
		{Target: "llm/*", Fault: Latency, Probability: new(0.2), Delay: second / 4, Jitter: second / 10, Distribution: Normal},
		{Target: "mcp/*/*", Fault: Error, Status: 503, Probability: new(0.02)},
		{Target: "mcp/*/*", Fault: RateLimit, Probability: new(0.01), RetryAfter: second},
		{Target: "mcp/*/*", Fault: Drop, Probability: new(0.005)},
		{Target: "mcp/*/*", Fault: Kill, Probability: new(0.002)},
		{Target: "mcp/*/*", Fault: Hang, Probability: new(0.002)},
		{Target: "mcp/*/*", Fault: Corrupt, Probability: new(0.01)},
		{Target: "mcp/*/*", Fault: Truncate, Probability: new(0.01)},
		{Target: "mcp/*/*", Fault: ToolError, Probability: new(0.02)},
		{Target: "mcp/*/*", Fault: Latency, Probability: new(0.2), Delay: second / 20, Jitter: second / 50},
	},
}

// Scenarios are the names of all scenarios, in order.
func (i *Injector) Scenarios() []string {
	names := slices.Collect(maps.Keys(scenarios))
	for name := range i.o.Scenarios {
		if scenarios[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Scenario injects the faults of a scenario, each as far as it has targets.
// A target that is not "" replaces those of its kind: llm/gemini those of
// providers, mcp/github the mcp/* of the faults and, for faults of tools,
// mcp/*/*. ttl is the time to live of faults that name none. seed 0 is
// that of the injector. Either all faults that have targets are injected, or none.
func (i *Injector) Scenario(name, target string, ttl time.Duration, seed int64) ([]Active, error) {
	if !i.Enabled() {
		return nil, ErrOff
	}
	steps, err := i.steps(name, target, ttl, seed)
	if err != nil {
		return nil, err
	}
	begun := []Active{}
	for _, s := range steps {
		a, err := i.Inject(s)
		if err != nil {
			for _, b := range begun {
				_, _ = i.Clear(b.ID) // it may have expired
			}
			return nil, err
		}
		begun = append(begun, a)
	}
	return begun, nil
}

// PreviewScenario returns what Scenario would inject, and the targets that it
// matches now.
func (i *Injector) PreviewScenario(name, target string, ttl time.Duration, seed int64) (steps []Spec, targets []string, err error) {
	if !i.Enabled() {
		return nil, nil, ErrOff
	}
	if steps, err = i.steps(name, target, ttl, seed); err != nil {
		return nil, nil, err
	}
	for _, s := range steps {
		found, err := i.Preview(s.Target)
		if err != nil {
			return nil, nil, err
		}
		targets = append(targets, found...)
	}
	slices.Sort(targets)
	return steps, slices.Compact(targets), nil
}

// steps are the faults of a scenario that have targets.
func (i *Injector) steps(name, target string, ttl time.Duration, seed int64) ([]Spec, error) {
	all := i.o.Scenarios[name]
	if all == nil {
		all = scenarios[name]
	}
	if all == nil {
		return nil, fmt.Errorf("unknown scenario %q: use one of %s", name, strings.Join(i.Scenarios(), ", "))
	}
	if target != "" {
		if err := checkPattern(target); err != nil {
			return nil, err
		}
	}
	var steps []Spec
	none := errors.New("scenario " + name + " has no fault for " + target)
	for n, s := range all {
		switch s = s.at(target); s.Target {
		case "":
			continue
		case primary:
			s.Target = i.primary()
		}
		if s.TTL == 0 {
			s.TTL = Duration(ttl)
		}
		if s.Seed == 0 && seed != 0 {
			s.Seed = seed + int64(n)
		}
		if err := s.Validate(i.o.MaxTTL); err != nil {
			return nil, err
		}
		if _, err := i.Preview(s.Target); err != nil {
			none = err
			continue
		}
		steps = append(steps, s)
	}
	if steps == nil {
		return nil, none
	}
	return steps, nil
}

// at returns the fault at another target; Target is "" if it is not of that kind.
func (s Spec) at(target string) Spec {
	if target == "" {
		return s
	}
	want, have := segments(target), segments(s.Target)
	kind := have[0]
	if kind == "*" {
		kind = want[0]
	}
	switch {
	case want[0] != "*" && want[0] != kind, kind == "llm" && len(want) == 3:
		s.Target = ""
		return s
	case len(have) == 3 && len(want) == 2:
		target += "/*"
	}
	s.Target = kind + strings.TrimPrefix(target, want[0])
	return s
}

// primary is the target that [primary] stands for.
func (i *Injector) primary() string {
	for _, t := range i.Targets() {
		if strings.HasPrefix(t, "llm/") {
			return literal.Replace(t)
		}
	}
	return "llm/*"
}

// literal makes a pattern of a target that matches it alone.
var literal = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)
