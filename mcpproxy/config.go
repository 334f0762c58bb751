package mcpproxy

import (
	"encoding/json"
	"log/slog"
	"time"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/telemetry"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// Config is everything a Proxy is made of. The zero value is an endpoint
// without upstreams.
type Config struct {
	Version   string // of AgentArmor, for serverInfo and the status
	Upstreams []UpstreamConfig
	ToolNames string      // auto | safe | dotted; "" is auto
	StateDir  string      // where catalogs are remembered; "" remembers nothing
	Anew      bool        // for Check: what is remembered of lists is written, not read; definitions that changed are reported
	Accept    bool        // with Anew: and taken for known
	Limits    wire.Limits // of both hops
	OneClient bool        // the transport is stdio: there is exactly one client
	Log       *slog.Logger
	Tracer    *telemetry.Tracer // nil: no traces
	Alerts    AlertConfig
	LLM       *llm.Chain      // answers llm.complete; nil: no model is configured. Its owner closes it after the Proxy
	Chaos     *chaos.Injector // breaks what is behind the endpoint; nil: never. Its owner closes it before the Proxy
}

// UpstreamConfig is one entry of mcpServers, expanded and validated.
type UpstreamConfig struct {
	Name     string
	Command  string // stdio; or URL
	Args     []string
	Env      map[string]string // beside the filtered environment
	Cwd      string
	URL      string
	Type     string // stdio | http | sse; "" is guessed: a URL path ending in /sse is sse
	Headers  map[string]string
	Disabled bool
	Prefix   *string // nil: Name; "" lists the names unprefixed
	Protocol string  // auto | legacy | 2026-07-28; "" is auto
	Sharing  string  // shared | session; "" is shared
	Sampling string  // client | chain | refuse; "" is client

	StartupTimeout time.Duration // 0: 120 s
	CallTimeout    time.Duration // 0: 60 s
	MaxCallTime    time.Duration // 0: 10 min

	Concurrency   int  // calls at a time; 0: 16
	Queue         *int // calls that may wait for one to end; nil: 64
	RateLimit     Rate
	Retry         RetryConfig
	Breaker       BreakerConfig // of the server, and of each tool
	Probe         ProbeConfig
	DistrustHints bool   // readOnlyHint and idempotentHint decide nothing
	OnOutage      string // keep | hide the tools; "" is keep
	OnChange      string // allow | warn | quarantine a tool whose definition changed; "" is warn

	Allow []string              // patterns of original tool names; empty allows all
	Deny  []string              // wins over Allow
	Tools map[string]ToolConfig // by original name
}

// Rate is a limit of calls per time; the zero value is none.
type Rate struct {
	Calls float64
	Per   time.Duration
}

// RetryConfig says how often, how fast and how many of its calls an upstream
// is tried again.
type RetryConfig struct {
	Attempts  *int          // retries of one call; nil: 2
	Base, Max time.Duration // of the backoff; 0: 200 ms, 5 s
	Budget    *float64      // retries per call, over recent calls; nil: 0.2
}

// BreakerConfig overrides the defaults of a breaker; zero fields keep them.
type BreakerConfig struct {
	Enabled     *bool   // nil: true
	Failures    int     // in a row
	FailureRate float64 // of at least MinCalls within Window
	MinCalls    int
	Window      time.Duration
	OpenFor     time.Duration // doubles with each failed trial …
	MaxOpenFor  time.Duration // … up to this
	Successes   int           // trials that close it
}

// ProbeConfig says how an upstream is probed; zero fields keep the defaults.
type ProbeConfig struct {
	Every     time.Duration   // while ready; 0: 30 s
	EveryDown time.Duration   // while not; 0: 5 s
	Timeout   time.Duration   // 0: 5 s, never more than the interval
	Misses    int             // in a row, until it counts as down; 0: 3
	Tool      string          // the server's canary, instead of a ping
	Arguments json.RawMessage // of Tool, an object
	Expect    string          // what the text of Tool's result must contain
	NoAuto    bool            // read-only tools without arguments are not called by themselves
}

// ToolConfig overrides an upstream's settings for one tool.
type ToolConfig struct {
	CallTimeout time.Duration // 0: the upstream's
	Idempotent  *bool         // nil: the hints decide
	Cache       time.Duration // how long a good result may be used again; 0: not
	Breaker     BreakerConfig // zero fields are the upstream's
	Probe       *ToolProbe
	Fallback    []FallbackStep // tried in this order
}

// ToolProbe is a harmless synthetic call.
type ToolProbe struct {
	Arguments json.RawMessage // an object
	Expect    string          // what the text of its result must contain
}

// FallbackStep stands in for a call that could not be served; exactly one of
// Tool, Cached and Result is set.
type FallbackStep struct {
	Tool      string          // name of another tool, as clients see it
	Arguments json.RawMessage // of Tool: an object whose strings are templates over the call's arguments; nil: those of the call
	Cached    time.Duration   // the last good result, at most so old
	Result    json.RawMessage // a string is the text of the result, an object the whole result
}

func (u *UpstreamConfig) startupTimeout() time.Duration {
	return orDefault(u.StartupTimeout, 2*time.Minute)
}
func (u *UpstreamConfig) callTimeout() time.Duration { return orDefault(u.CallTimeout, time.Minute) }
func (u *UpstreamConfig) maxCallTime() time.Duration { return orDefault(u.MaxCallTime, 10*time.Minute) }

func orDefault(d, def time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return def
}

// Stdio tells whether the upstream is a process.
func (u *UpstreamConfig) Stdio() bool { return u.Command != "" }
