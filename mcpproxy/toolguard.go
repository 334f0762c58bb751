package mcpproxy

import (
	"cmp"
	"sync"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/telemetry"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// toolGuard is what is known of one tool of an upstream from its calls.
type toolGuard struct {
	name    string
	cfg     ToolConfig
	breaker *health.Breaker // nil: switched off
	window  health.Window
	metrics *telemetry.CallMetrics

	mu        sync.Mutex
	lastError string
	fault     string // that chaos has injected into that; "": none
	leftOut   string // the last warning about a fallback
	lastLoss  time.Time
	broken    time.Time // since when its breaker is not closed
	own       bool      // of its failures one at least was not the server's
	probed    time.Time // the last synthetic call of a configured probe
	used      time.Time // the last call of a client
}

// maxTools bounds the tools of one upstream that are watched one by one.
const maxTools = 10_000

// tool returns what guards a tool, made at its first call.
func (g *guard) tool(name string) *toolGuard {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.tools[name]
	if t == nil {
		cfg := g.cfg.Tools[name]
		t = &toolGuard{name: name, cfg: cfg, metrics: g.p.metrics.Call(g.cfg.Name, name)}
		if len(g.tools) >= maxTools {
			return t // known for this one call only
		}
		t.breaker = g.newBreaker(cfg.Breaker.over(g.cfg.Breaker), name)
		g.tools[name] = t
	}
	return t
}

// newBreaker returns the breaker of a tool, nil if it is switched off.
func (g *guard) newBreaker(c BreakerConfig, tool string) *health.Breaker {
	if !orNil(c.Enabled, true) {
		return nil
	}
	o := c.options()
	o.OnChange = func(from health.BreakerState, now health.BreakerSnapshot) { g.p.breakerChanged(g.up, tool, from, now) }
	return health.NewBreaker(o)
}

func (c *BreakerConfig) options() health.BreakerOptions {
	return health.BreakerOptions{
		Failures: c.Failures, FailureRate: c.FailureRate, MinCalls: c.MinCalls, Window: c.Window,
		OpenFor: c.OpenFor, MaxOpenFor: c.MaxOpenFor, Successes: c.Successes,
	}
}

// over fills what c leaves open from those of the upstream.
func (c BreakerConfig) over(up BreakerConfig) BreakerConfig {
	return BreakerConfig{
		Enabled:     cmp.Or(c.Enabled, up.Enabled),
		Failures:    cmp.Or(c.Failures, up.Failures),
		FailureRate: cmp.Or(c.FailureRate, up.FailureRate),
		MinCalls:    cmp.Or(c.MinCalls, up.MinCalls),
		Window:      cmp.Or(c.Window, up.Window),
		OpenFor:     cmp.Or(c.OpenFor, up.OpenFor),
		MaxOpenFor:  cmp.Or(c.MaxOpenFor, up.MaxOpenFor),
		Successes:   cmp.Or(c.Successes, up.Successes),
	}
}

// allow admits a call of a client. A tool that is probed is tried by its probes
// alone while it is broken.
func (t *toolGuard) allow(probes func() bool) (health.Permit, bool) {
	if !t.breaker.Closed() && probes() {
		return health.Permit{}, false
	}
	return t.breaker.Allow()
}

// note takes the outcome of an attempt that began at a time; crashed tells that
// a loss is the end of a process, which the tool may have caused.
func (t *toolGuard) note(class health.Class, code int, reason, fault string, began time.Time, crashed bool) health.Verdict {
	v := class.Tool(code)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used = time.Now()
	if v == health.Success {
		t.own = false
	}
	if v == health.Failure {
		t.lastError, t.fault = reason, fault
		t.own = t.own || class == health.UpstreamError || class == health.Lost && crashed
		if !newLoss(class, began, &t.lastLoss) {
			return health.Neutral
		}
	}
	return v
}

// newLoss tells whether a failure is news: the calls that are under way when a
// connection is lost all fail by the same event, which counts once.
func newLoss(class health.Class, began time.Time, last *time.Time) bool {
	if class != health.Lost && class != health.NotSent && class != health.SessionLost {
		return true
	}
	if !began.After(*last) {
		return false
	}
	*last = time.Now()
	return true
}

func (t *toolGuard) error() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lastError
}

// changed follows the breaker of the tool.
func (t *toolGuard) changed(from health.BreakerState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if from == health.BreakerClosed {
		t.broken = time.Now()
	}
}

// since is when the tool was last seen to break.
func (t *toolGuard) since() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.broken
}

// idempotent tells whether a call may be made again though it may have been
// executed: the configuration says so, or else the tool's own hints.
func (k *call) idempotent() bool {
	if k.r.method != "tools/call" {
		return true // a read
	}
	var definition []byte
	if k.entry != nil {
		definition = k.entry.raw
	}
	return k.up.cfg.idempotent(k.name, definition)
}

// idempotent tells the same of a tool with this definition, nil if it is not known.
func (u *UpstreamConfig) idempotent(tool string, definition []byte) bool {
	if yes := u.Tools[tool].Idempotent; yes != nil {
		return *yes
	}
	return !u.DistrustHints && (hinted(definition, "readOnlyHint") || hinted(definition, "idempotentHint"))
}

// hinted tells whether the annotations of a tool's definition have a hint.
func hinted(definition []byte, hint string) bool {
	return string(wire.Get(wire.Get(definition, "annotations"), hint)) == "true"
}
