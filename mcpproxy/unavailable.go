package mcpproxy

import (
	"fmt"
	"time"

	"github.com/agentarmor/agentarmor/health"
)

// unavailable is why there is no connection to use.
type unavailable struct {
	upstream string
	state    health.State
	reason   string
	retryAt  time.Time // zero: unknown or never
}

func (e *unavailable) Error() string {
	s := fmt.Sprintf("%s is %s", e.upstream, e.state)
	if e.reason != "" {
		s += " (" + e.reason + ")"
	}
	return s
}

func (in *instance) unavailable() *unavailable {
	s := in.tracker.Snapshot()
	e := &unavailable{upstream: in.o.cfg.Name, state: s.State, reason: s.Reason}
	if s.NextAttempt != nil {
		e.retryAt = *s.NextAttempt
	}
	return e
}
