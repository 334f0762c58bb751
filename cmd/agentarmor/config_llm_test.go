package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
)

var llmFields = cmp.AllowUnexported(llmSettings{}, llmEntry{})

// entryKeys adds keys to one entry of a chain.
func entryKeys(keys string) string {
	return "llm: {chain: [{name: n, provider: openai, model: m, base_url: 'http://127.0.0.1:1/v1'" + keys + "}]}"
}

// Each key reaches the options, and changes nothing beside it.
func TestLLMKeys(t *testing.T) {
	options := func(o llm.Options) llmSettings { return llmSettings{options: o} }
	backoff := func(b llm.Backoff) llmSettings { return options(llm.Options{Backoff: b}) }
	breaker := func(b health.BreakerOptions) llmSettings { return options(llm.Options{Breaker: b}) }
	entry := func(change func(*llmEntry)) llmSettings {
		e := llmEntry{open: true, Spec: llm.Spec{API: "openai", ProviderOptions: llm.ProviderOptions{Name: "n", Model: "m", BaseURL: "http://127.0.0.1:1/v1"}}}
		change(&e)
		return llmSettings{entries: []llmEntry{e}}
	}
	key := func(key, variable string) llmSettings {
		return entry(func(e *llmEntry) { e.open, e.APIKey, e.KeyVariable = false, key, variable })
	}
	for src, want := range map[string]llmSettings{
		"llm: {}":                                    {},
		"llm:":                                       {},
		"llm: {strategy: health}":                    options(llm.Options{Strategy: llm.ByHealth}),
		"llm: {strategy: latency}":                   options(llm.Options{Strategy: llm.ByLatency}),
		"llm: {strategy: cost}":                      options(llm.Options{Strategy: llm.ByCost}),
		"llm: {timeout: 30s}":                        options(llm.Options{Timeout: 30 * time.Second}),
		"llm: {attempts: 1}":                         options(llm.Options{Attempts: 1}),
		"llm: {backoff: {base: 1s}}":                 backoff(llm.Backoff{Base: time.Second}),
		"llm: {backoff: {max: 9s}}":                  backoff(llm.Backoff{Max: 9 * time.Second}),
		"llm: {backoff: {jitter: 0.5}}":              backoff(llm.Backoff{Jitter: 0.5}),
		"llm: {backoff: {jitter: 0}}":                backoff(llm.Backoff{Jitter: -1}),
		"llm: {breaker: {failures: 3}}":              breaker(health.BreakerOptions{Failures: 3}),
		"llm: {breaker: {failure_rate: 1}}":          breaker(health.BreakerOptions{FailureRate: 1}),
		"llm: {breaker: {min_calls: 5}}":             breaker(health.BreakerOptions{MinCalls: 5}),
		"llm: {breaker: {window: 5m}}":               breaker(health.BreakerOptions{Window: 5 * time.Minute}),
		"llm: {breaker: {open_for: 20s}}":            breaker(health.BreakerOptions{OpenFor: 20 * time.Second}),
		"llm: {breaker: {max_open_for: 1m}}":         breaker(health.BreakerOptions{MaxOpenFor: time.Minute}),
		"llm: {breaker: {successes: 1}}":             breaker(health.BreakerOptions{Successes: 1}),
		"llm: {hedge_after: 2s}":                     options(llm.Options{HedgeAfter: 2 * time.Second}),
		"llm: {hedge_after: 0s}":                     {},
		"llm: {queue: {size: 3}}":                    options(llm.Options{Queue: llm.Queue{Size: 3}}),
		"llm: {queue: {size: 0}}":                    options(llm.Options{Queue: llm.Queue{Size: -1}}),
		"llm: {queue: {wait: 5s}}":                   options(llm.Options{Queue: llm.Queue{Wait: 5 * time.Second}}),
		"llm: {queue: {wait: 0s, size: 9}}":          options(llm.Options{Queue: llm.Queue{Size: -1}}),
		"llm: {degraded_message: Later.}":            options(llm.Options{DegradedMessage: "Later."}),
		"llm: {tool_status_in_system_prompt: false}": {quiet: true},
		"llm: {tool_status_in_system_prompt: true}":  {},
		"llm: {chain: []}":                           {entries: []llmEntry{}},
		"llm: {chain: }":                             {},

		entryKeys(""):                                    entry(func(*llmEntry) {}),
		entryKeys(", api_key:"):                          entry(func(*llmEntry) {}),
		entryKeys(", api_key: k"):                        key("k", ""),
		entryKeys(", api_key: ''"):                       key("", ""),
		entryKeys(", api_key: '${GEMINI}'"):              key("hunter2", "GEMINI"),
		entryKeys(", api_key: '${NONE:-}'"):              key("", "NONE"),
		entryKeys(", api_key: '${env:NONE:-${GEMINI}}'"): key("hunter2", "NONE"),
		entryKeys(", api_key: '${LINE}'"):                key("hunter3", "LINE"),
		entryKeys(", timeout: 5s"):                       entry(func(e *llmEntry) { e.Timeout = 5 * time.Second }),
		entryKeys(", rpm: 15"):                           entry(func(e *llmEntry) { e.RPM = 15 }),
		entryKeys(", tpm: 90000"):                        entry(func(e *llmEntry) { e.TPM = 90000 }),
		entryKeys(", price: {input: 0.3}"):               entry(func(e *llmEntry) { e.Price.Input = 0.3 }),
		entryKeys(", price: {output: 2.5}"):              entry(func(e *llmEntry) { e.Price.Output = 2.5 }),
	} {
		s, err := parseSettings("f", []byte(src), keyEnv)
		if err != nil {
			t.Errorf("%s\n%v", src, err)
			continue
		}
		if len(s.warnings) > 0 {
			t.Errorf("%s: %q", src, s.warnings)
		}
		if diff := cmp.Diff(want, s.llm, llmFields); diff != "" {
			t.Errorf("%s\n%s", src, diff)
		}
		if _, err := newChain(&s.llm, keyEnv, nil, nil); err != nil {
			t.Errorf("%s: %v", src, err)
		}
	}
}

// keyEnv has keys of all kinds.
var keyEnv = mapEnv(map[string]string{"GEMINI": "hunter2", "LINE": "hunter3\n", "SPLIT": "hunter4\nhunter5"})

// What cannot be meant is refused where it stands. Nothing of a key is said.
func TestLLMMistakes(t *testing.T) {
	for _, c := range []struct{ src, want string }{
		{"llm: {strategy: priorty}", "1:17: llm.strategy: must be one of priority, health, latency, cost; did you mean priority?"},
		{"llm: {attempts: 101}", "1:17: llm.attempts: must be at most 100"},
		{"llm: {backoff: {base: 9s}}", "1:23: llm.backoff.base: is longer than max, 8s; change one of them"},
		{"llm: {backoff: {max: 100ms}}", "llm.backoff.max: is shorter than base, 800ms"},
		{"llm: {breaker: {enabled: false}}", "1:17: llm.breaker.enabled: unknown key"},
		{"llm: {breaker: {failure_rate: 0}}", "1:31: llm.breaker.failure_rate: must be more than 0"},
		{"llm: {breaker: {max_open_for: 10s}}", "llm.breaker.max_open_for: is shorter than open_for, 15s"},
		{"llm: {hedge_after: 1m}", "1:20: llm.hedge_after: is longer than timeout, 50s"},
		{"llm: {queue: {size: 100001}}", "llm.queue.size: must be at most 100000"},
		{"llm: {degraded_message: ' '}", "1:25: llm.degraded_message: must not be empty"},
		{"llm: {timeout: 10s, chain: [{name: n, provider: gemini, model: m, api_key: k, timeout: 11s}]}", "1:88: llm.chain[0].timeout: is longer than llm.timeout, 10s"},
		{"llm: {chain: [x]}", "1:15: llm.chain[0]: must be a mapping, not a string"},
		{entryKeys(", key: hunter2"), "llm.chain[0].key: unknown key"},
		{entryKeys(", rpm: 2147483648"), "llm.chain[0].rpm: must be at most 2147483647"},
		{entryKeys(", api_key: '${SPLIT}'"), "1:97: llm.chain[0].api_key: a key has visible ASCII characters only"},
		{entryKeys(", api_key: 'hunter2 x'"), "llm.chain[0].api_key: a key has visible ASCII characters only"},
		{"llm: {chain: [{name: n, provider: openai, model: m, base_url: 'https://u:hunter2@h/v1'}]}", "1:63: llm.chain[0].base_url: must have no user, query or fragment; the key goes into api_key"},
		{"llm: {chain: [{name: n, provider: openai, model: m, base_url: 'https://h/v1?key=${GEMINI}'}]}", "llm.chain[0].base_url: must have no user"},
	} {
		_, err := parseSettings("f", []byte(c.src), keyEnv)
		ce, ok := errors.AsType[*configError](err)
		if !ok || len(ce.issues) != 1 || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s\n got %v\nwant %s", c.src, err, c.want)
		}
	}
}

// The file without a chain has the library's, and the written-out example is that one.
func TestDefaultChain(t *testing.T) {
	for name, env := range map[string]lookup{
		"gemini":  mapEnv(map[string]string{"GEMINI_API_KEY": "g"}),
		"google":  mapEnv(map[string]string{"GOOGLE_API_KEY": "g"}),
		"both":    mapEnv(map[string]string{"GEMINI_API_KEY": "g", "GROQ_API_KEY": "q"}),
		"neither": mapEnv(nil),
	} {
		want := map[string][]string{
			"gemini": {"gemini", "gemini-lite"}, "google": {"gemini", "gemini-lite"}, "neither": {},
			"both": {"gemini", "gemini-lite", "groq", "groq-oss"},
		}[name]
		s := must(parseSettings("f", []byte("llm: {strategy: cost}"), env))
		c := must(newChain(&s.llm, env, nil, nil))
		got := c.Status()
		if diff := cmp.Diff(want, got.Chain); diff != "" || got.Strategy != llm.ByCost {
			t.Errorf("%s: %s %s", name, got.Strategy, diff)
		}
		if names := s.llm.skippedEntries(); names != nil {
			t.Errorf("%s: nobody wrote down %q", name, names)
		}
	}
}

// An entry whose key is empty is left out; one without the key is asked without one.
func TestSkippedEntries(t *testing.T) {
	const src = `
llm:
  chain:
  - {name: first, provider: gemini, model: m, api_key: "${NONE:-}"}
  - {name: second, provider: openai, model: m, api_key: ""}
  - {name: third, provider: openai, model: local, base_url: "http://127.0.0.1:11434/v1"}
  - {name: public, provider: gemini, model: m}
`
	s := must(parseSettings("f", []byte(src), keyEnv))
	if diff := cmp.Diff([]string{"first", "second"}, s.llm.skippedEntries()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"f:7:6: llm.chain[3]: has no api_key, so the public API is asked without one"}, s.warnings); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"third", "public"}, must(newChain(&s.llm, keyEnv, nil, nil)).Status().Chain); diff != "" {
		t.Error(diff)
	}
	want := []modelCheck{
		{Name: "first", API: "gemini", Model: "m", Reason: "no key: set NONE"},
		{Name: "second", API: "openai", Model: "m", Reason: "its api_key is empty"},
		{Name: "third", API: "openai", Model: "local", Usable: true},
		{Name: "public", API: "gemini", Model: "m", Usable: true},
	}
	if diff := cmp.Diff(want, checkModels(&s.llm, keyEnv)); diff != "" {
		t.Error(diff)
	}
}

// A change of the chain, or of a key of it, is said to need a restart.
func TestLLMNeedsRestart(t *testing.T) {
	base := must(parseSettings("f", []byte(entryKeys(", api_key: a")), keyEnv))
	for src, want := range map[string]int{
		entryKeys(", api_key: a"): 0, entryKeys(", api_key: b"): 1, entryKeys(""): 1, "": 1,
		"llm: {attempts: 2}": 1,
	} {
		if keys := needRestart(base, must(parseSettings("f", []byte(src), keyEnv))); len(keys) != want || want == 1 && keys[0] != "llm" {
			t.Errorf("%s: %q", src, keys)
		}
	}
}

// sampling: chain is warned of where nobody could answer.
func TestSamplingNeedsModels(t *testing.T) {
	for src, want := range map[string]string{
		upstream("sampling: client"):                                    "",
		upstream("sampling: refuse"):                                    "",
		upstream("sampling: chain"):                                     "f:1:40: mcpServers.a.sampling: no model has a key",
		upstream("sampling: chain, disabled: true"):                     "",
		upstream("sampling: chain") + "\n" + entryKeys(""):              "",
		upstream("sampling: chain") + "\n" + entryKeys(", api_key: ''"): "f:1:40: mcpServers.a.sampling: no model has a key",
	} {
		s := must(parseSettings("f", []byte(src), keyEnv))
		if got := strings.Join(s.warnings, "\n"); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q", src, got)
		}
	}
	s := must(parseSettings("f", []byte(upstream("sampling: chain")), mapEnv(map[string]string{"GROQ_API_KEY": "k"})))
	if len(s.warnings) > 0 || s.proxy.Upstreams[0].Sampling != "chain" {
		t.Errorf("%q", s.warnings)
	}
}
