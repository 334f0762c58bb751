package mcpproxy

import (
	"log/slog"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// Config is everything a Proxy is made of. The zero value is an endpoint
// without upstreams.
type Config struct {
	Version   string // of AgentArmor, for serverInfo and the status
	Upstreams []UpstreamConfig
	ToolNames string      // auto | safe | dotted; "" is auto
	StateDir  string      // where catalogs are remembered; "" remembers nothing
	Anew      bool        // what is remembered is written, not read
	Limits    wire.Limits // of both hops
	OneClient bool        // the transport is stdio: there is exactly one client
	Log       *slog.Logger
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

	Allow []string              // patterns of original tool names; empty allows all
	Deny  []string              // wins over Allow
	Tools map[string]ToolConfig // by original name
}

// ToolConfig overrides an upstream's settings for one tool.
type ToolConfig struct {
	CallTimeout time.Duration // 0: the upstream's
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
