package llm

import (
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/health"
)

// Status is a chain at one moment, as the status document shows it.
type Status struct {
	Strategy          Strategy                  `json:"strategy"`
	Chain             []string                  `json:"chain"` // the entries in their order
	Providers         map[string]ProviderStatus `json:"providers"`
	Healthy           int                       `json:"healthy"` // providers that would be asked now
	FailoversLastHour int                       `json:"failovers_last_hour"`
	Queued            int                       `json:"queued"` // calls that wait for a recovery
}

// ProviderStatus is one entry of a chain.
type ProviderStatus struct {
	State   string                 `json:"state"` // "ready", "degraded" (half-open), "down" (open), or a [Skip]
	Until   *time.Time             `json:"until,omitempty"`
	API     string                 `json:"api"`
	Model   string                 `json:"model"`
	Breaker health.BreakerSnapshot `json:"breaker"`
	Window  health.WindowSnapshot  `json:"window"`
	Limits  *LimitStatus           `json:"limits,omitempty"`
	// LastError is what the latest failure was, however long ago.
	LastError string `json:"last_error,omitempty"`
}

// Status returns the state of this moment.
func (c *Chain) Status() Status {
	now := time.Now()
	s := Status{
		Strategy: c.o.Strategy, Chain: []string{}, Providers: make(map[string]ProviderStatus, len(c.entries)),
		FailoversLastHour: c.hours.count(now), Queued: len(c.queue),
	}
	for _, e := range c.entries {
		p := e.status(now)
		if p.State == string(health.Ready) || p.State == string(health.Degraded) {
			s.Healthy++
		}
		s.Chain = append(s.Chain, e.Name)
		s.Providers[e.Name] = p
	}
	return s
}

func (e *entry) status(now time.Time) ProviderStatus {
	p := ProviderStatus{
		State: string(health.Ready), API: e.info.API, Model: e.info.Model,
		Breaker: e.breaker.Snapshot(), Window: e.window.Snapshot(), Limits: e.limits.status(now),
	}
	e.mu.Lock()
	if e.last != nil {
		p.LastError = strings.TrimPrefix(e.last.Error(), "llm: "+e.Name+": ")
	}
	e.mu.Unlock()
	if p.Breaker.State == health.BreakerHalfOpen {
		p.State = string(health.Degraded)
	}
	if why, until := e.blocked(now, need{input: 1}); why != "" {
		p.State, p.Until = string(why), new(until.UTC())
		if why == SkipOpen {
			p.State = string(health.Down)
		}
	}
	return p
}
