package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/mcpproxy"
)

// toolKeys wraps the keys of one tool of one server into a file.
func toolKeys(keys string) string { return upstream("tools: {settings: {t: {" + keys + "}}}") }

// Each key reaches the configuration, and changes nothing beside it.
func TestHealthKeys(t *testing.T) {
	type server = mcpproxy.UpstreamConfig
	type tool = mcpproxy.ToolConfig
	retry := func(r mcpproxy.RetryConfig) server { return server{Retry: r} }
	breaker := func(b mcpproxy.BreakerConfig) server { return server{Breaker: b} }
	probe := func(p mcpproxy.ProbeConfig) server { return server{Probe: p} }
	of := func(t tool) server { return server{Tools: map[string]tool{"t": t}} }
	step := func(s mcpproxy.FallbackStep) server { return of(tool{Fallback: []mcpproxy.FallbackStep{s}}) }
	for src, want := range map[string]server{
		upstream("concurrency: 3"):               {Concurrency: 3},
		upstream("queue: 0"):                     {Queue: new(0)},
		upstream("queue: 7"):                     {Queue: new(7)},
		upstream(`rate_limit: ""`):               {},
		upstream("rate_limit: 10/s"):             {RateLimit: mcpproxy.Rate{Calls: 10, Per: time.Second}},
		upstream("rate_limit: 0.5/m"):            {RateLimit: mcpproxy.Rate{Calls: 0.5, Per: time.Minute}},
		upstream("rate_limit: '${NONE:-5/h}'"):   {RateLimit: mcpproxy.Rate{Calls: 5, Per: time.Hour}},
		upstream("retry: {attempts: 0}"):         retry(mcpproxy.RetryConfig{Attempts: new(0)}),
		upstream("retry: {attempts: 4}"):         retry(mcpproxy.RetryConfig{Attempts: new(4)}),
		upstream("retry: {base: 1s}"):            retry(mcpproxy.RetryConfig{Base: time.Second}),
		upstream("retry: {max: 1m}"):             retry(mcpproxy.RetryConfig{Max: time.Minute}),
		upstream("retry: {budget: 0}"):           retry(mcpproxy.RetryConfig{Budget: new(0.0)}),
		upstream("breaker: {enabled: false}"):    breaker(mcpproxy.BreakerConfig{Enabled: new(false)}),
		upstream("breaker: {failures: 5}"):       breaker(mcpproxy.BreakerConfig{Failures: 5}),
		upstream("breaker: {failure_rate: 0.1}"): breaker(mcpproxy.BreakerConfig{FailureRate: 0.1}),
		upstream("breaker: {min_calls: 20}"):     breaker(mcpproxy.BreakerConfig{MinCalls: 20}),
		upstream("breaker: {window: 5m}"):        breaker(mcpproxy.BreakerConfig{Window: 5 * time.Minute}),
		upstream("breaker: {open_for: 1s}"):      breaker(mcpproxy.BreakerConfig{OpenFor: time.Second}),
		upstream("breaker: {open_for: 10m}"):     breaker(mcpproxy.BreakerConfig{OpenFor: 10 * time.Minute}),
		upstream("breaker: {max_open_for: 1h}"):  breaker(mcpproxy.BreakerConfig{MaxOpenFor: time.Hour}),
		upstream("breaker: {successes: 1}"):      breaker(mcpproxy.BreakerConfig{Successes: 1}),
		upstream("probe: {every: 1m}"):           probe(mcpproxy.ProbeConfig{Every: time.Minute}),
		upstream("probe: {every_down: 1s}"):      probe(mcpproxy.ProbeConfig{EveryDown: time.Second}),
		upstream("probe: {timeout: 1s}"):         probe(mcpproxy.ProbeConfig{Timeout: time.Second}),
		upstream("probe: {misses: 2}"):           probe(mcpproxy.ProbeConfig{Misses: 2}),
		upstream("probe: {auto: false}"):         probe(mcpproxy.ProbeConfig{NoAuto: true}),
		upstream("probe: {auto: true}"):          {},
		upstream("probe: {tool: ok, arguments: {b: 1, a: x}, expect: fine}"): probe(mcpproxy.ProbeConfig{
			Tool: "ok", Arguments: []byte(`{"b":1,"a":"x"}`), Expect: "fine"}),
		upstream(`probe: {tool: "", arguments: {}, expect: ""}`):                {},
		upstream("trust_hints: false"):                                          {DistrustHints: true},
		upstream("trust_hints: true"):                                           {},
		upstream("on_outage: hide"):                                             {OnOutage: "hide"},
		upstream("on_change: quarantine"):                                       {OnChange: "quarantine"},
		upstream("sampling: refuse"):                                            {Sampling: "refuse"},
		toolKeys("idempotent: true"):                                            of(tool{Idempotent: new(true)}),
		toolKeys("idempotent: false"):                                           of(tool{Idempotent: new(false)}),
		toolKeys("cache: 1m"):                                                   of(tool{Cache: time.Minute}),
		toolKeys("idempotent: false, cache: 0s"):                                of(tool{Idempotent: new(false)}),
		toolKeys("breaker: {failures: 9}"):                                      of(tool{Breaker: mcpproxy.BreakerConfig{Failures: 9}}),
		toolKeys("probe: {}"):                                                   of(tool{Probe: &mcpproxy.ToolProbe{Arguments: []byte(`{}`)}}),
		toolKeys("probe: {arguments: {q: ['${HOME}', null]}, expect: $$1}"):     of(tool{Probe: &mcpproxy.ToolProbe{Arguments: []byte(`{"q":["/home/u",null]}`), Expect: "$1"}}),
		toolKeys("fallback: []"):                                                of(tool{}),
		toolKeys("fallback: [{tool: a__b}]"):                                    step(mcpproxy.FallbackStep{Tool: "a__b"}),
		toolKeys("fallback: [{tool: a__b, arguments: {q: 'is {{.q}}', n: 1}}]"): step(mcpproxy.FallbackStep{Tool: "a__b", Arguments: []byte(`{"q":"is {{.q}}","n":1}`)}),
		toolKeys("fallback: [{cached: 10m}]"):                                   step(mcpproxy.FallbackStep{Cached: 10 * time.Minute}),
		toolKeys("fallback: [{result: sorry}]"):                                 step(mcpproxy.FallbackStep{Result: []byte(`"sorry"`)}),
		toolKeys("fallback: [{result: {content: [{type: text, text: x}]}}]"):    step(mcpproxy.FallbackStep{Result: []byte(`{"content":[{"type":"text","text":"x"}]}`)}),
	} {
		s, err := parseSettings("f", []byte(src), contractEnv)
		if err != nil {
			t.Errorf("%s\n%v", src, err)
			continue
		}
		if len(s.warnings) > 0 {
			t.Errorf("%s: %q", src, s.warnings)
		}
		want.Name, want.Command = "a", "x"
		if diff := cmp.Diff(want, s.proxy.Upstreams[0]); diff != "" {
			t.Errorf("%s\n%s", src, diff)
		}
	}
}

// What cannot be meant is refused where it stands, with what to do instead.
func TestHealthMistakes(t *testing.T) {
	for _, c := range []struct{ src, want string }{
		{upstream("concurrency: 10001"), "1:43: mcpServers.a.concurrency: must be at most 10000"},
		{upstream("queue: 100001"), "mcpServers.a.queue: must be at most 100000"},
		{upstream("rate_limit: /s"), `mcpServers.a.rate_limit: not a rate; write it like "10/s"`},
		{upstream("rate_limit: 1e3/s"), "mcpServers.a.rate_limit: not a rate"},
		{upstream("retry: {attempts: 101}"), "retry.attempts: must be at most 100"},
		{upstream("retry: {base: 2s, max: 1s}"), "1:44: mcpServers.a.retry.base: is longer than max, 1s; change one of them"},
		{upstream("retry: {base: 6s}"), "retry.base: is longer than max, 5s; change one of them"},
		{upstream("retry: {max: 100ms}"), "retry.max: is shorter than base, 200ms; change one of them"},
		{upstream("breaker: {failure_rate: 0}"), "1:54: mcpServers.a.breaker.failure_rate: must be more than 0; to switch the breaker off write enabled: false"},
		{upstream("breaker: {failures: 1000001}"), "breaker.failures: must be at most 1000000"},
		{upstream("breaker: {open_for: 2m, max_open_for: 1m}"), "breaker.open_for: is longer than max_open_for, 1m0s"},
		{upstream("breaker: {max_open_for: 10s}"), "breaker.max_open_for: is shorter than open_for, 30s"},
		{upstream("breaker: {max_open_for: 1m}, tools: {settings: {t: {breaker: {open_for: 2m}}}}"), "t.breaker.open_for: is longer than max_open_for, 1m0s"},
		{upstream("breaker: {open_for: 4m}, tools: {settings: {t: {breaker: {max_open_for: 1m}}}}"), "t.breaker.max_open_for: is shorter than open_for, 4m0s"},
		{upstream("probe: {every: 2s, timeout: 3s}"), "1:58: mcpServers.a.probe.timeout: is longer than every, 2s; change one of them"},
		{upstream("probe: {timeout: 31s}"), "probe.timeout: is longer than every, 30s"},
		{upstream("probe: {arguments: {a: 1}}"), "mcpServers.a.probe.arguments: goes with probe.tool"},
		{upstream("probe: {expect: ok}"), "mcpServers.a.probe.expect: goes with probe.tool"},
		{upstream("probe: {tool: t, arguments: {a: 0x1f}}"), "1:62: mcpServers.a.probe.arguments.a: not a number in JSON; write it in decimal"},
		{toolKeys("idempotent: false, cache: 1m"), "t.cache: a result of a tool with idempotent: false is never used again"},
		{toolKeys("idempotent: false, fallback: [{result: x}, {cached: 1m}]"), "t.fallback[1].cached: a result of a tool with idempotent: false"},
		{upstream("trust_hints: false, tools: {settings: {t: {cache: 1m}}}"), "t.cache: with trust_hints: false this needs idempotent: true"},
		{toolKeys("fallback: [{cached: 1m, arguments: {}}]"), "t.fallback[0].arguments: goes with tool"},
		{toolKeys("fallback: [{arguments: {}}]"), "t.fallback[0]: needs exactly one of"},
		{toolKeys("fallback: [{tool: ''}]"), "t.fallback[0].tool: must not be empty"},
		{toolKeys("fallback: [{result: {content: x}}]"), "t.fallback[0].result.content: must be a list"},
		{toolKeys("fallback: [{tool: b__t, arguments: {q: [1, '{{.a']}}]"), "t.fallback[0].arguments.q[1]: not a template: unclosed action"},
		{toolKeys("fallback: [{tool: b__t, arguments: {q: '{{printf .a}}'}}]"), "arguments.q: not a template: the function printf is not available"},
		{toolKeys("fallback: [{tool: b__t, arguments: {q: '{{range .a}}{{end}}'}}]"), "arguments.q: not a template: "},
		{toolKeys("fallback: [{tool: b__t, arguments: {q: '{{.a}} ${ODD}'}}]"), "arguments.q: not a template: once its variables are filled in"},
		{toolKeys("fallback: [{tool: b__t, arguments: {q: '${NONE}'}}]"), "arguments.q: the environment variable NONE is not set"},
		{toolKeys("fallback: [{result: {content: ['${NONE}']}}]"), "result.content[0]: the environment variable NONE is not set"},
		{toolKeys("fallback: [{tool: a__t}]"), "1:71: mcpServers.a.tools.settings.t.fallback[0].tool: is this tool itself; name another one"},
		{toolKeys("fallback: [{tool: a.t}]"), "t.fallback[0].tool: is this tool itself"},
		{upstream("prefix: p, tools: {settings: {t: {fallback: [{tool: p__t}]}}}"), "t.fallback[0].tool: is this tool itself"},
		{upstream("prefix: '', tools: {settings: {t: {fallback: [{tool: t}]}}}"), "t.fallback[0].tool: is this tool itself"},
	} {
		env := lookup(func(name string) (string, bool) {
			if name == "ODD" {
				return "{{hunter2", true
			}
			return contractEnv(name)
		})
		_, err := parseSettings("f", []byte(c.src), env)
		ce, ok := errors.AsType[*configError](err)
		if !ok || len(ce.issues) != 1 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\n got %v\nwant %s", c.src, err, c.want)
			continue
		}
		if ce.issues[0].line == 0 || ce.issues[0].col == 0 || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", c.src, err)
		}
	}
}

// A fallback to a tool that no server here can have is a warning: the server may come later.
func TestFallbackTargets(t *testing.T) {
	for tool, warned := range map[string]bool{
		"b__find": false, "b.find": false, "p__find": false, "github_com_x__find": false, // its prefix, cleaned
		"find": true, "off__find": true, "bfind": true,
	} {
		src := `mcpServers:
  a: {command: x, tools: {settings: {t: {fallback: [{cached: 1m}, {tool: ` + tool + `}]}}}}
  b: {command: x}
  c: {command: x, prefix: p}
  github.com/x: {command: x}
  off: {command: x, disabled: true}
`
		s := must(parseSettings("f", []byte(src), contractEnv))
		if (len(s.warnings) > 0) != warned {
			t.Errorf("%s: %q", tool, s.warnings)
		}
		if warned && !strings.HasPrefix(s.warnings[0], "f:2:74: mcpServers.a.tools.settings.t.fallback[1].tool: no server here has such a tool") {
			t.Errorf("%s: %q", tool, s.warnings)
		}
		// Where a server lists its tools unprefixed, any name may be one of them.
		if s := must(parseSettings("f", []byte(src+"  bare: {command: x, prefix: ''}\n"), contractEnv)); len(s.warnings) > 0 {
			t.Errorf("%s beside a server without prefix: %q", tool, s.warnings)
		}
	}
}

// Values for a tool come out as they went in, from both kinds of file.
func TestRawJSON(t *testing.T) {
	const want = `{"z":9007199254740993,"a":1.50,"e":-1.5e+2,"s":"a\"b\n${x} <&> é \\","l":[true,false,null,{}],"o":{"${V}":"v \"q\": {}"}}`
	env := mapEnv(map[string]string{"V": `v "q": {}`})
	const object = `{"z": 9007199254740993, "a": 1.50, "e": -1.5e+2, "s": "a\"b\n$${x} <&> é \\", "l": [true, false, null, {}], "o": {"${V}": "${V}"}}`
	for _, src := range []string{
		`{"mcpServers": {"a": {"command": "x", "probe": {"tool": "t", "arguments": ` + object + `}}}}`,
		"mcpServers: {a: {command: x, probe: {tool: t, arguments: " + object + "}}} # YAML",
		`
mcpServers:
  a:
    command: x
    probe:
      tool: t
      arguments:
        z: 9007199254740993
        a: 1.50
        e: -1.5e+2
        s: "a\"b\n$${x} <&> é \\"
        l:
        - true
        - false
        - ~
        - {}
        o: {"${V}": "${V}"}
`,
	} {
		s, err := parseSettings("f", []byte(src), env)
		if err != nil {
			t.Errorf("%s\n%v", src, err)
			continue
		}
		if got := string(s.proxy.Upstreams[0].Probe.Arguments); got != want {
			t.Errorf("%s\n got %s\nwant %s", src, got, want)
		}
	}
}
