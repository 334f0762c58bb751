package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

const contract = "../../fixtures/agentarmor.yaml"

var contractEnv = mapEnv(map[string]string{"GITHUB_TOKEN": "gh", "REMOTE_TOKEN": "rt", "HOME": "/home/u"})

func mustLoad(t *testing.T, file string) *settings {
	t.Helper()
	s, err := loadSettings(file, contractEnv)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The commented example loads, and its values are the defaults it says.
func TestContract(t *testing.T) {
	got := mustLoad(t, contract)
	want := newSettings(contract, nil, newDocument(), contractEnv)
	want.proxy.ToolNames = "auto"
	want.proxy.Limits = wire.Limits{}.Filled()
	want.proxy.Upstreams = []mcpproxy.UpstreamConfig{
		{
			Name: "github", Command: "npx", Args: []string{"-y", "@modelcontextprotocol/server-github"},
			Env: map[string]string{"GITHUB_TOKEN": "gh"}, Prefix: new("github"),
			Protocol: "auto", Sharing: "shared", Sampling: "client",
			StartupTimeout: 2 * time.Minute, CallTimeout: time.Minute, MaxCallTime: maxCallTime,
			Concurrency: 16, Queue: new(64), OnOutage: "keep", OnChange: "warn",
			Retry: mcpproxy.RetryConfig{Attempts: new(2), Base: retryBase, Max: retryMax, Budget: new(0.2)},
			Breaker: mcpproxy.BreakerConfig{
				Enabled: new(true), Failures: 3, FailureRate: 0.5, MinCalls: 10, Window: time.Minute,
				OpenFor: breakerOpenFor, MaxOpenFor: breakerOpenMax, Successes: 3,
			},
			Probe: mcpproxy.ProbeConfig{Every: probeEvery, EveryDown: 5 * time.Second, Timeout: 5 * time.Second, Misses: 3},
			Allow: []string{"*"}, Tools: map[string]mcpproxy.ToolConfig{
				"create_issue":  {CallTimeout: 20 * time.Second, Idempotent: new(false), Breaker: mcpproxy.BreakerConfig{Failures: 5}},
				"search_issues": {Probe: &mcpproxy.ToolProbe{Arguments: []byte(`{"q":"is:open"}`)}},
			},
		},
		{
			Name: "remote", URL: "https://mcp.example.com/mcp", Type: "http",
			Headers: map[string]string{"Authorization": "Bearer rt"},
		},
	}
	want.llm.options = llm.Options{
		Strategy: llm.ByPriority, Timeout: llmTimeout, Attempts: 4,
		Backoff:         llm.Backoff{Base: llmBackoffBase, Max: llmBackoffMax, Jitter: 0.2},
		Breaker:         health.BreakerOptions{Failures: 2, OpenFor: llmOpenFor, Successes: 2},
		Queue:           llm.Queue{Size: 64, Wait: 30 * time.Second},
		DegradedMessage: "I cannot reach a language model right now. Your message was received; please try again shortly.",
	}
	want.chaos = chaos.Options{MaxTTL: chaos.DefaultMaxTTL, Scenarios: map[string][]chaos.Spec{}}
	want.proxy.Alerts.Rules = mcpproxy.AlertRules{
		BreakerOpen: new(true), BreakersIn60s: new(2), PrimaryErrorRate: new(0.03), FailoversPerHour: new(5),
		NoHealthyProvider: new(true), CrashLoop: new(true), DefinitionChanged: new(true),
	}
	want.llm.entries = want.llm.chain(contractEnv)
	want.llm.entries[0].Timeout = 20 * time.Second
	got.source = nil
	warnings := got.warnings
	got.warnings = nil
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(settings{}, logSettings{}, llmSettings{}, llmEntry{})); diff != "" {
		t.Error(diff)
	}
	if got.proxy.StateDir != "/home/u/.local/state/agentarmor" {
		t.Errorf("StateDir = %q", got.proxy.StateDir)
	}
	if len(warnings) != 0 {
		t.Errorf("warnings: %q", warnings)
	}
}

// Every key of the contract is decoded strictly: a letter more, and it is unknown.
func TestContractKeysAreStrict(t *testing.T) {
	root, issues := parse(must(os.ReadFile(contract)), false)
	if issues != nil {
		t.Fatal(issues)
	}
	named := map[string]bool{ // mappings whose keys are names
		"mcpServers": true, "mcpServers.github.env": true, "mcpServers.remote.headers": true, "mcpServers.github.tools.settings": true,
		"mcpServers.github.tools.settings.search_issues.probe.arguments": true,
	}
	keys := 0
	var walk func(n *node)
	walk = func(n *node) {
		for i := range n.members {
			m := &n.members[i]
			if !named[n.path] {
				keys++
				m.key += "x"
				if err := decodeTree(root); err == nil || !strings.Contains(err.Error(), m.val.path+": unknown key, did you mean") {
					t.Errorf("%sx: %v", m.val.path, err)
				}
				m.key = strings.TrimSuffix(m.key, "x")
			}
			walk(m.val)
		}
		for _, item := range n.items {
			walk(item)
		}
	}
	walk(root)
	if keys < 100 {
		t.Errorf("only %d keys seen", keys)
	}
}

// decodeTree returns the mistakes of a tree, nil if there are none.
func decodeTree(root *node) error {
	d := &decoder{env: contractEnv}
	d.root(root, newDocument())
	if d.issues == nil {
		return nil
	}
	return newConfigError("f", d.issues)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestFixturesLoad(t *testing.T) {
	files := must(filepath.Glob("../../fixtures/*.yaml"))
	if len(files) < 2 {
		t.Fatalf("fixtures: %q", files)
	}
	for _, file := range files {
		mustLoad(t, file)
	}
}

// upstream wraps the keys of one server into a file.
func upstream(keys string) string { return "mcpServers: {a: {command: x, " + keys + "}}" }

// A value that each key refuses, and why.
func TestValidation(t *testing.T) {
	tool := func(keys string) string { return upstream("tools: {settings: {t: {" + keys + "}}}") }
	chain := func(keys string) string {
		return "llm: {chain: [{name: n, provider: gemini, model: m, " + keys + "}]}"
	}
	for src, want := range map[string]string{
		"listen: localhost":                 "1:9: listen: must be host:port",
		"listen: 127.0.0.1:99999":           "listen: the port must be",
		"listen: :7717":                     "listen: an address other than loopback needs auth.tokens",
		"listen: example.com:80":            "listen: an address other than loopback",
		"listen: [1]":                       "listen: must be a single value, not a list",
		"tool_names: dots":                  "tool_names: must be one of auto, safe, dotted",
		"catalog_cache: 1":                  "catalog_cache: must be true or false, not a number",
		"state_dir: {}":                     "state_dir: must be a single value",
		"log: info":                         "log: must be a mapping, not a string",
		"log: {level: trace}":               "log.level: must be one of debug, info, warn, error",
		"log: {format: text}":               "log.format: must be one of auto, tint, json",
		"auth: {tokens: abc}":               "auth.tokens: must be a list, not a string",
		`auth: {tokens: ["${NONE:-}"]}`:     "auth.tokens[0]: an empty token",
		`auth: {tokens: ["a b"]}`:           "auth.tokens[0]: a token has visible ASCII",
		"allowed_origins: ['*']":            "allowed_origins[0]: an origin is scheme://host",
		"allowed_origins: ['http://x/']":    "allowed_origins[0]: an origin is",
		"limits: {message: 64 megs}":        "limits.message: not a size",
		"limits: {message: -1}":             "limits.message: not a size",
		"limits: {message: 0}":              "limits.message: must be at least 1024 bytes",
		"limits: {message: 99999999999GiB}": "limits.message: too large",
		"limits: {session_idle: 0s}":        "limits.session_idle: must be more than 0",
		"limits: {sessions: 0}":             "limits.sessions: must be at least 1",
		"limits: {queue: 1.5}":              "limits.queue: must be a whole number",
		"limits: {queue: many}":             "limits.queue: must be a number, not a string",
		"mcpServers: [a]":                   "mcpServers: must be a mapping, not a list",
		"mcpServers: {a: x}":                "mcpServers.a: must be a mapping, not a string",
		"mcpServers: {a: {}}":               "mcpServers.a: needs a command or a url",
		"mcpServers: {' ': {command: x}}":   "an empty name",
		"mcpServers: {a: {command: x}}\nservers: {a: {command: y}}": "2:11: servers.a: duplicate name",
		"mcpServers: {a: {command: ''}}":                            "mcpServers.a.command: must not be empty",
		"mcpServers: {a: {command: x, url: 'http://h'}}":            "mcpServers.a: has both a command and a url",
		"mcpServers: {a: {command: x, type: http}}":                 "mcpServers.a: type http needs a url",
		"mcpServers: {a: {url: 'http://h', type: stdio}}":           "mcpServers.a: type stdio needs a command",
		"mcpServers: {a: {url: 'http://h', args: [x]}}":             "mcpServers.a.args: goes with command",
		"mcpServers: {a: {url: 'http://h', serverUrl: 'http://i'}}": "mcpServers.a.serverUrl: a second URL",
		"mcpServers: {a: {url: h}}":                                 "mcpServers.a.url: must be an http or https URL",
		"mcpServers: {a: {url: 'http://h', type: ws}}":              "mcpServers.a.type: must be one of http, sse, stdio",
		"mcpServers: {a: {url: 'http://h', headers: {'a b': c}}}":   "mcpServers.a.headers.a b: not the name of an HTTP header",
		`mcpServers: {a: {url: 'http://h', headers: {a: "b\nc"}}}`:  "mcpServers.a.headers.a: a header's value",
		upstream("args: x"):                                         "mcpServers.a.args: must be a list",
		upstream("args: [[x]]"):                                     "mcpServers.a.args[0]: must be a single value",
		upstream(`args: ["a\0"]`):                                   "mcpServers.a.args[0]: must not contain a NUL",
		upstream("env: [x]"):                                        "mcpServers.a.env: must be a mapping",
		upstream("env: {A=B: x}"):                                   "mcpServers.a.env.A=B: not the name of an environment variable",
		upstream("env: {A: {}}"):                                    "mcpServers.a.env.A: must be a single value",
		upstream("headers: {a: b}"):                                 "mcpServers.a.headers: goes with url",
		upstream("cwd: []"):                                         "mcpServers.a.cwd: must be a single value",
		upstream("disabled: 'yes'"):                                 "mcpServers.a.disabled: must be true or false",
		upstream("disabled: '${NONE:-off}'"):                        "mcpServers.a.disabled: must be true or false",
		upstream("prefix: a.b"):                                     "mcpServers.a.prefix: a prefix has at most 40",
		upstream("prefix: " + strings.Repeat("p", 41)):              "mcpServers.a.prefix: a prefix has at most 40",
		upstream("protocol: 2025-11-25"):                            "mcpServers.a.protocol: must be one of auto, legacy, 2026-07-28",
		upstream("sharing: own"):                                    "mcpServers.a.sharing: must be one of shared, session",
		upstream("sampling: never"):                                 "mcpServers.a.sampling: must be one of client, chain, refuse",
		upstream("startup_timeout: 0s"):                             "mcpServers.a.startup_timeout: must be more than 0",
		upstream("call_timeout: 45"):                                "mcpServers.a.call_timeout: a duration needs a unit",
		upstream("call_timeout: -1s"):                               "mcpServers.a.call_timeout: a duration cannot be negative",
		upstream("call_timeout: 11m"):                               "mcpServers.a.call_timeout: is longer than max_call_time, 10m0s",
		upstream("max_call_time: soon"):                             "mcpServers.a.max_call_time: not a duration",
		upstream("concurrency: 0"):                                  "mcpServers.a.concurrency: must be at least 1",
		upstream("queue: -1"):                                       "mcpServers.a.queue: must be at least 0",
		upstream("rate_limit: 10"):                                  "mcpServers.a.rate_limit: not a rate",
		upstream("rate_limit: 0/s"):                                 "mcpServers.a.rate_limit: not a rate",
		upstream("rate_limit: 10/d"):                                "mcpServers.a.rate_limit: not a rate",
		upstream("retry: 2"):                                        "mcpServers.a.retry: must be a mapping",
		upstream("retry: {attempts: -1}"):                           "retry.attempts: must be at least 0",
		upstream("retry: {base: 0s}"):                               "retry.base: must be more than 0",
		upstream("retry: {max: x}"):                                 "retry.max: not a duration",
		upstream("retry: {budget: 2}"):                              "retry.budget: must be between 0 and 1",
		upstream("breaker: {enabled: 1}"):                           "breaker.enabled: must be true or false",
		upstream("breaker: {failures: 0}"):                          "breaker.failures: must be at least 1",
		upstream("breaker: {failure_rate: 1.1}"):                    "breaker.failure_rate: must be between 0 and 1",
		upstream("breaker: {failure_rate: .nan}"):                   "breaker.failure_rate: must be a number",
		upstream("breaker: {min_calls: 0}"):                         "breaker.min_calls: must be at least 1",
		upstream("breaker: {window: 0s}"):                           "breaker.window: must be more than 0",
		upstream("breaker: {open_for: 1}"):                          "breaker.open_for: a duration needs a unit",
		upstream("breaker: {max_open_for: 0s}"):                     "breaker.max_open_for: must be more",
		upstream("breaker: {successes: 0}"):                         "breaker.successes: must be at least 1",
		upstream("probe: {every: 0s}"):                              "probe.every: must be more than 0",
		upstream("probe: {every_down: 5}"):                          "probe.every_down: a duration needs a unit",
		upstream("probe: {timeout: x}"):                             "probe.timeout: not a duration",
		upstream("probe: {misses: 0}"):                              "probe.misses: must be at least 1",
		upstream("probe: {tool: []}"):                               "probe.tool: must be a single value",
		upstream("probe: {arguments: x}"):                           "probe.arguments: must be a mapping",
		upstream("probe: {arguments: {a: ['${NONE}']}}"):            "probe.arguments.a[0]: the environment variable NONE is not set",
		upstream("probe: {expect: []}"):                             "probe.expect: must be a single value",
		upstream("probe: {auto: x}"):                                "probe.auto: must be true or false",
		upstream("trust_hints: x"):                                  "trust_hints: must be true or false",
		upstream("on_outage: drop"):                                 "on_outage: must be one of keep, hide",
		upstream("on_change: ask"):                                  "on_change: must be one of allow, warn, quarantine",
		upstream("tools: {allow: ['']}"):                            "tools.allow[0]: an empty pattern",
		upstream("tools: {deny: ['[']}"):                            "tools.deny[0]: not a valid pattern",
		upstream("tools: {settings: []}"):                           "tools.settings: must be a mapping",
		tool("call_timeout: 0s"):                                    "t.call_timeout: must be more than 0",
		tool("call_timeout: 1h"):                                    "t.call_timeout: is longer than max_call_time",
		tool("idempotent: x"):                                       "t.idempotent: must be true or false",
		tool("cache: -1s"):                                          "t.cache: a duration cannot be negative",
		tool("breaker: {failures: 0}"):                              "t.breaker.failures: must be at least 1",
		tool("probe: {every: 1s}"):                                  "t.probe.every: unknown key",
		tool("fallback: {}"):                                        "t.fallback: must be a list",
		tool("fallback: [{tool: a, result: b}]"):                    "t.fallback[0]: needs exactly one of tool, cached and result",
		tool("fallback: [{cached: 1}]"):                             "t.fallback[0].cached: a duration needs a unit",
		"llm: {strategy: best}":                                     "llm.strategy: must be one of priority, health, latency, cost",
		"llm: {timeout: 0s}":                                        "llm.timeout: must be more than 0",
		"llm: {attempts: 0}":                                        "llm.attempts: must be at least 1",
		"llm: {backoff: {base: 0s}}":                                "llm.backoff.base: must be more than 0",
		"llm: {backoff: {max: x}}":                                  "llm.backoff.max: not a duration",
		"llm: {backoff: {jitter: -0.1}}":                            "llm.backoff.jitter: must be between 0 and 1",
		"llm: {breaker: {successes: 0}}":                            "llm.breaker.successes: must be at least 1",
		"llm: {hedge_after: -1s}":                                   "llm.hedge_after: a duration cannot be negative",
		"llm: {queue: {size: -1}}":                                  "llm.queue.size: must be at least 0",
		"llm: {queue: {wait: 30}}":                                  "llm.queue.wait: a duration needs a unit",
		"llm: {degraded_message: []}":                               "llm.degraded_message: must be a single value",
		"llm: {tool_status_in_system_prompt: x}":                    "llm.tool_status_in_system_prompt: must be true or false",
		"llm: {chain: {}}":                                          "llm.chain: must be a list",
		"llm: {chain: [{name: n, provider: gemini}]}":               "llm.chain[0]: needs a model",
		"llm: {chain: [{name: n, provider: openai, model: m}, {name: n, provider: openai, model: m}]}": "llm.chain[1].name: duplicate name",
		"llm: {chain: [{name: '', provider: gemini, model: m}]}":                                       "llm.chain[0].name: must not be empty",
		"llm: {chain: [{name: n, provider: groq, model: m}]}":                                          "llm.chain[0].provider: must be one of gemini, openai",
		chain("api_key: '${NONE}'"):                                                                    "llm.chain[0].api_key: the environment variable NONE is not set",
		chain("base_url: x"):                                                                           "llm.chain[0].base_url: must be an http or https URL",
		chain("timeout: 0s"):                                                                           "llm.chain[0].timeout: must be more than 0",
		chain("rpm: -1"):                                                                               "llm.chain[0].rpm: must be at least 0",
		chain("tpm: x"):                                                                                "llm.chain[0].tpm: must be a number",
		chain("price: {input: -1}"):                                                                    "llm.chain[0].price.input: must be at least 0",
		chain("price: {output: x}"):                                                                    "llm.chain[0].price.output: must be a number",
		"chaos: {enabled: x}":                                                                          "chaos.enabled: must be true or false",
		"chaos: {seed: 1.5}":                                                                           "chaos.seed: must be a whole number",
		"chaos: {max_ttl: 0s}":                                                                         "chaos.max_ttl: must be more than 0",
		"chaos: {scenarios: []}":                                                                       "chaos.scenarios: must be a mapping",
		"chaos: {scenarios: {a: []}}":                                                                  "chaos.scenarios.a: needs at least one fault",
		"chaos: {scenarios: {a: [{target: llm/x, fault: eror}]}}":                                      "chaos.scenarios.a[0].fault: must be one of",
		"chaos: {scenarios: {a: [{target: x, fault: error}]}}":                                         `chaos.scenarios.a[0]: target "x" is none`,
		"chaos: {scenarios: {a: [{target: llm/x, fault: hang, status: 500}]}}":                         "chaos.scenarios.a[0]: status is no parameter of hang",
		"chaos: {scenarios: {a: [{target: llm/x, fault: hang, probability: 2}]}}":                      "chaos.scenarios.a[0].probability: must be between 0 and 1",
		"chaos: {max_ttl: 1m, scenarios: {a: [{target: llm/x, fault: hang, ttl: 2m}]}}":                "chaos.scenarios.a[0]: ttl must be more than 0 and at most 1m0s",
		"chaos: {scenarios: {a: [{target: llm/x, fault: hang, tll: 1m}]}}":                             "chaos.scenarios.a[0].tll: unknown key, did you mean \"ttl\"?",
		"alerts: {webhook: x}":                                                                         "alerts.webhook: must be an http or https URL",
		"alerts: {rules: {breaker_open: x}}":                                                           "alerts.rules.breaker_open: must be true or false",
		"alerts: {rules: {breakers_in_60s: -1}}":                                                       "alerts.rules.breakers_in_60s: must be at least 0",
		"alerts: {rules: {primary_error_rate: 2}}":                                                     "alerts.rules.primary_error_rate: must be between",
		"alerts: {rules: {failovers_per_hour: x}}":                                                     "alerts.rules.failovers_per_hour: must be a number",
		"alerts: {rules: {no_healthy_provider: x}}":                                                    "alerts.rules.no_healthy_provider: must be true",
		"alerts: {rules: {crash_loop: x}}":                                                             "alerts.rules.crash_loop: must be true or false",
		"alerts: {rules: {definition_changed: x}}":                                                     "alerts.rules.definition_changed: must be true",
		"context_servers: {}":                                                                          `context_servers: unknown key, did you mean "mcpServers"?`,
		upstream("enabled: false"):                                                                     `mcpServers.a.enabled: unknown key, did you mean "disabled"?`,
	} {
		_, err := parseSettings("f", []byte(src), contractEnv)
		ce, ok := errors.AsType[*configError](err)
		if !ok || len(ce.issues) != 1 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", src, err, want)
			continue
		}
		if ce.issues[0].line == 0 || ce.issues[0].col == 0 {
			t.Errorf("%s: no place in %v", src, err)
		}
	}
}

// Values that are fine, however odd they look.
func TestAccepted(t *testing.T) {
	for _, src := range []string{
		"listen: '[::1]:0'",
		"listen: localhost:1",
		"listen: 0.0.0.0:1\nauth: {tokens: [secret]}",
		"allowed_origins: ['vscode-webview://abc', 'http://127.0.0.1:3000']",
		"limits: {message: 1048576, queue: '${NONE:-7}'}",
		"mcpServers: {}",
		"mcpServers:",
		"mcpServers: {a__b: {command: x}, 'github.com/x/y': {command: x}, 工具: {command: x}}",
		upstream("prefix: ''"),
		upstream("prefix:"),
		upstream("disabled: '${NONE:-true}'"),
		upstream("env: {PORT: 8080, ON: true, GONE: }"),
		upstream("headers: {}"),
		upstream("call_timeout: 15m, max_call_time: 20m"),
		upstream("rate_limit: 0.5/m"),
		"llm: {chain: [{name: n, provider: openai, model: m, api_key: }]}",
	} {
		if _, err := parseSettings("f", []byte(src), contractEnv); err != nil {
			t.Errorf("%s\n%v", src, err)
		}
	}
}

// A value with quotes, colons or dollars stays one string, in YAML and JSON.
func TestExpandedAfterParsing(t *testing.T) {
	env := mapEnv(map[string]string{"ODD": "\": {}, x: [\n#"})
	for _, src := range []string{
		`{"mcpServers": {"a": {"command": "x", "env": {"K": "${ODD}", "P": "pa$$word$1"}}}}`,
		"mcpServers: {a: {command: x, env: {K: \"${ODD}\", P: pa$$word$1}}}",
	} {
		s, err := parseSettings("f", []byte(src), env)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"K": "\": {}, x: [\n#", "P": "pa$word$1"}
		if diff := cmp.Diff(want, s.proxy.Upstreams[0].Env); diff != "" {
			t.Error(diff)
		}
	}
}

func TestStateDir(t *testing.T) {
	for src, want := range map[string]string{
		"":                                    "/state/agentarmor",
		"state_dir: /x":                       "/x",
		"catalog_cache: false":                "",
		"catalog_cache: false\nstate_dir: /x": "",
	} {
		s, err := parseSettings("f", []byte(src), mapEnv(map[string]string{"XDG_STATE_HOME": "/state"}))
		if err != nil || s.proxy.StateDir != want {
			t.Errorf("%q: %q, %v; want %q", src, s.proxy.StateDir, err, want)
		}
	}
}

func TestLogLevel(t *testing.T) {
	for _, name := range logLevels {
		if got := logLevel(name).String(); !strings.EqualFold(got, name) {
			t.Errorf("%s is %s", name, got)
		}
	}
	if logLevel("") != slog.LevelInfo {
		t.Error("the default is not info")
	}
}

func FuzzParseSettings(f *testing.F) {
	f.Add(must(os.ReadFile(contract)), false)
	f.Add([]byte(`{"mcpServers": {"a": {"command": "x", "env": {"A": "${B:-c}"}}}, /* c */}`), true)
	f.Add([]byte("a: &x {b: *x}\n"), false)
	f.Add([]byte("? [a]\n: b\n<<: {c: d}"), false)
	f.Fuzz(func(t *testing.T, src []byte, isJSON bool) {
		file := "f.yaml"
		if isJSON {
			file = "f.json"
		}
		s, err := parseSettings(file, src, contractEnv)
		if (s == nil) == (err == nil) {
			t.Fatalf("settings %v with error %v", s, err)
		}
		if _, ok := errors.AsType[*configError](err); err != nil && !ok {
			t.Fatalf("%T: %v", err, err)
		}
	})
}

// Switching a server off is how one gets past a token that is not there yet.
func TestDisabledNeedsNoVariables(t *testing.T) {
	const src = `{"mcpServers": {"off": {"command": "x", "disabled": true, "env": {"T": "${NOT_SET}"}}, "on": {"command": "y", "env": {"T": %q}}}}`
	none := func(string) (string, bool) { return "", false }
	s, err := parseSettings("f.json", fmt.Appendf(nil, src, "t"), none)
	if err != nil || len(s.proxy.Upstreams) != 2 || !s.proxy.Upstreams[0].Disabled {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := parseSettings("f.json", fmt.Appendf(nil, src, "${NOT_SET}"), none); err == nil || !strings.Contains(err.Error(), "NOT_SET is not set") {
		t.Errorf("the other one's variable: %v", err)
	}
}
