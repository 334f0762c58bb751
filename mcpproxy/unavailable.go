package mcpproxy

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/agentarmor/agentarmor/health"
)

// stopped is the state of an upstream that a reload has removed or replaced,
// for who still waits for it; the status shows it no more.
const stopped health.State = "stopped"

// unavailable is why there is no connection to use.
type unavailable struct {
	upstream string
	state    health.State
	reason   string
	retryAt  time.Time // zero: unknown or never
	open     bool      // connected, but not to be called: the breaker is open
}

func (e *unavailable) Error() string {
	s := fmt.Sprintf("%s is %s", e.upstream, cmp.Or(phrases[e.state], string(e.state)))
	if e.reason != "" {
		s += " (" + e.reason + ")"
	}
	return s
}

// phrases are states in words, where their names are none.
var phrases = map[health.State]string{
	health.NeedsAuth: "refusing our credentials: check its headers or token",
	health.CrashLoop: "crashing again and again",
	health.Throttled: "asking to be left alone",
}

// class is the outcome of a call that met this.
func (e *unavailable) class() health.Class {
	switch {
	case e.state == health.Throttled:
		return health.RateLimited
	case e.state == health.NeedsAuth:
		return health.Auth
	case e.open:
		return health.Open
	}
	return health.NotSent
}

func (in *instance) unavailable() *unavailable {
	s := in.tracker.Snapshot()
	e := &unavailable{upstream: in.o.cfg.Name, state: s.State, reason: s.Reason, open: !in.breaker.Closed()}
	if s.NextAttempt != nil {
		e.retryAt = *s.NextAttempt
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.phase == ended && s.State != health.Disabled {
		e.state, e.reason, e.open, e.retryAt = stopped, "", false, time.Time{}
	}
	return e
}

// shut is why no call is sent over a connection that is there: the server's
// breaker is open. nil: it is not, or there is none.
func (in *instance) shut() *unavailable {
	if in.breaker.Closed() || in.live() != nil {
		return nil
	}
	in.mu.Lock()
	p := in.phase
	in.mu.Unlock()
	if u := in.unavailable(); p == serving && u.class() == health.Open {
		return u
	}
	return nil
}

// nextAttempt is when the server is tried again, zero if it is in service or not
// waiting: that of a degraded one is about a tool.
func (in *instance) nextAttempt() time.Time {
	if s := in.tracker.Snapshot(); s.NextAttempt != nil && !usable(s.State) {
		return *s.NextAttempt
	}
	return time.Time{}
}

// retryAt is when a call refused with err may be tried again, zero if unknown.
func retryAt(err error) time.Time {
	if u, ok := errors.AsType[*unavailable](err); ok {
		return u.retryAt
	}
	return time.Time{}
}
