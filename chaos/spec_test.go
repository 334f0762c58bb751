package chaos

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// Bad input is refused with a text that says what is wrong, and nothing is injected.
func TestBadSpecs(t *testing.T) {
	good := Spec{Target: "llm/x", Fault: Error, TTL: minute}
	for want, change := range map[string]func(*Spec){
		"target is missing":                                            func(s *Spec) { s.Target = "" },
		`target "x" is none: use llm/<entry>`:                          func(s *Spec) { s.Target = "x" },
		`target "http/x" is none`:                                      func(s *Spec) { s.Target = "http/x" },
		`target "llm/x/y" is none`:                                     func(s *Spec) { s.Target = "llm/x/y" },
		`target "llm/" is none`:                                        func(s *Spec) { s.Target = "llm/" },
		`target "mcp/[" is none`:                                       func(s *Spec) { s.Target = "mcp/[" },
		`unknown fault "boom": use one of kill, `:                      func(s *Spec) { s.Fault = "boom" },
		`unknown fault ""`:                                             func(s *Spec) { s.Fault = "" },
		"ttl is missing":                                               func(s *Spec) { s.TTL = 0 },
		"ttl must be more than 0 and at most 10m":                      func(s *Spec) { s.TTL = 11 * minute },
		"more than 0 and at most 10m0s, not -1m0s":                     func(s *Spec) { s.TTL = -minute },
		"probability must be 0 to 1, not 1.5":                          func(s *Spec) { s.Probability = new(1.5) },
		"probability must be 0 to 1, not -1":                           func(s *Spec) { s.Probability = new(-1.0) },
		"count must not be below 0":                                    func(s *Spec) { s.Count = -1 },
		"after must not be below 0":                                    func(s *Spec) { s.After = -1 },
		"status must be 400 to 599, not 200":                           func(s *Spec) { s.Status = 200 },
		"retry_after must be at most 24h0m0s":                          func(s *Spec) { s.RetryAfter = 1 << 62 },
		"retry_after must not be below 0":                              func(s *Spec) { s.RetryAfter = -1 },
		"delay is no parameter of error: it takes status, retry_after": func(s *Spec) { s.Delay = 1 },
		"status is no parameter of kill: it takes none of its own":     func(s *Spec) { s.Fault, s.Status = Kill, 500 },
		"latency needs a delay":                                        func(s *Spec) { s.Fault = Latency },
		`unknown distribution "odd"`:                                   func(s *Spec) { s.Fault, s.Delay, s.Distribution = Latency, 1, "odd" },
		"distribution fixed has no jitter":                             func(s *Spec) { s.Fault, s.Delay, s.Jitter, s.Distribution = Latency, 1, 1, Fixed },
		"distribution normal needs a jitter":                           func(s *Spec) { s.Fault, s.Delay, s.Distribution = Latency, 1, Normal },
		"distribution uniform has no shape":                            func(s *Spec) { s.Fault, s.Delay, s.Jitter, s.Shape = Latency, 1, 1, 1 },
		"message has more than 1000 characters":                        func(s *Spec) { s.Fault, s.Message = ToolError, strings.Repeat("é", 1001) },
		"shape must not be below 0":                                    func(s *Spec) { s.Fault, s.Delay, s.Distribution, s.Shape = Latency, 1, Pareto, math.NaN() },
		"unknown target: \"llm/y\" matches none of llm/x, mcp/up":      func(s *Spec) { s.Target = "llm/y" },
	} {
		i := New(Options{Enabled: true, Watcher: Watcher{Targets: func() []string { return []string{"llm/x", "mcp/up"} }}})
		s := good
		change(&s)
		if _, err := i.Inject(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
		if len(i.List()) != 0 || i.Any() {
			t.Errorf("%q: injected all the same", want)
		}
	}
}

func TestTargets(t *testing.T) {
	for _, c := range []struct {
		pattern, target string
		want            bool
	}{
		{"llm/gemini", "llm/gemini", true},
		{"llm/gem*", "llm/gemini", true},
		{"*/*", "llm/gemini", true},
		{"*/*", "mcp/up", true},
		{"*/*", "mcp/up/tool", false},
		{"llm/*", "mcp/gemini", false},
		{"mcp/up", "mcp/up/tool", false},
		{"mcp/up/create_*", "mcp/up/create_issue", true},
		{"mcp/up/create_*", "mcp/up/list", false},
		{"mcp/*/*", Tool("up", "a/b/c"), true},
		{"mcp/up/a/*", Tool("up", "a/b"), true},
		{"mcp/*", Server("a/b"), true},
		{"mcp/a?b", "mcp/axb", true},
	} {
		if got := matches(c.pattern, c.target); got != c.want {
			t.Errorf("%s %s: %v", c.pattern, c.target, got)
		}
	}
}

// A server's pattern hits all its requests, a tool's the calls of that tool.
func TestWhatPatternsHit(t *testing.T) {
	i := on(t, Spec{Target: "mcp/up", Fault: Error}, Spec{Target: "mcp/other/t*", Fault: Hang})
	for _, c := range []struct {
		call Call
		want Action
	}{
		{Call{Target: "mcp/up"}, Answer},
		{Call{Target: "mcp/up", Op: ToolList}, Answer},
		{toolCall("t"), Answer},
		{Call{Target: "mcp/up", Op: Connect}, Pass},
		{Call{Target: "mcp/other"}, Pass},
		{Call{Target: "mcp/other", Op: ToolList}, Pass},
		{Call{Target: "mcp/other", Op: ToolCall, Tool: "t1"}, Hold},
		{Call{Target: "mcp/other", Op: ToolCall, Tool: "x"}, Pass},
		{Call{Target: "llm/up"}, Pass},
	} {
		if got := i.Decide(c.call).Action; got != c.want {
			t.Errorf("%+v: %v", c.call, got)
		}
	}
}

func TestEveryFaultIsDescribed(t *testing.T) {
	if len(kinds) != len(Kinds) {
		t.Errorf("%d kinds, %d named", len(kinds), len(Kinds))
	}
	for _, k := range Kinds {
		if k.About() == "" || kinds[k].start == nil {
			t.Errorf("%s is not there", k)
		}
	}
}

// A fault is written in JSON as it is in the configuration.
func TestSpecAsJSON(t *testing.T) {
	const text = `{"target":"mcp/up","fault":"latency","probability":0.5,"ttl":"1m0s","delay":"250ms"}`
	var s Spec
	if err := json.Unmarshal([]byte(text), &s); err != nil || s.Delay != Duration(250*time.Millisecond) || s.TTL != minute {
		t.Errorf("%+v %v", s, err)
	}
	if b, err := json.Marshal(s); err != nil || string(b) != text {
		t.Errorf("%s %v", b, err)
	}
	if err := json.Unmarshal([]byte(`{"ttl":"soon"}`), &s); err == nil || !strings.Contains(err.Error(), `"soon" is no duration such as 30s`) {
		t.Error(err)
	}
}

// A long list of targets is cut.
func TestSomeTargets(t *testing.T) {
	i := New(Options{Enabled: true, Watcher: Watcher{Targets: func() []string { return []string{} }}})
	if _, err := i.Preview("mcp/up"); err == nil || !strings.HasSuffix(err.Error(), "there is nothing to break") {
		t.Error(err)
	}
	if got := some(slices.Repeat([]string{"x"}, 23)); !strings.HasSuffix(got, "x and 3 more") {
		t.Error(got)
	}
}
