package main

import (
	"math/rand/v2"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy"
)

// pace is how the agents of a crash test live, and with which settings
// AgentArmor does.
type pace struct {
	workers  int           // runs at a time, at most
	spread   time.Duration // over which the runs begin; 0: one after the other
	think    time.Duration // before a step, in the mean
	patience time.Duration // with one step, whatever the agent is told
	pause    time.Duration // before a repeat or a look, at least: what the server is still at ends sooner
	upstream mcpproxy.UpstreamConfig
	model    time.Duration // timeout of one
	chain    llm.Options
}

// quickScale is how much faster a test of even faults lives than production:
// all defaults of time are divided by it.
const quickScale = 20

// quickPace is for faults that do not depend on time.
func quickPace() pace {
	fast := func(d time.Duration) time.Duration { return d / quickScale }
	return pace{
		workers: 8, patience: fast(2 * time.Minute), pause: fast(time.Second), model: fast(20 * time.Second),
		upstream: mcpproxy.UpstreamConfig{
			CallTimeout: fast(time.Minute), MaxCallTime: fast(maxCallTime),
			Retry:   mcpproxy.RetryConfig{Base: fast(retryBase), Max: fast(retryMax)},
			Breaker: mcpproxy.BreakerConfig{Window: fast(time.Minute), OpenFor: fast(breakerOpenFor), MaxOpenFor: fast(breakerOpenMax)},
			Probe:   mcpproxy.ProbeConfig{Every: fast(probeEvery), EveryDown: fast(5 * time.Second), Timeout: fast(5 * time.Second)},
		},
		chain: llm.Options{
			Timeout: fast(llmTimeout), Backoff: llm.Backoff{Base: fast(llmBackoffBase), Max: fast(llmBackoffMax)},
			Breaker: health.BreakerOptions{OpenFor: fast(llmOpenFor)}, Queue: llm.Queue{Wait: fast(30 * time.Second)},
		},
	}
}

// scenarioTime is how long the faults of a scenario last.
const scenarioTime = 30 * time.Second

// scenarioPace is for faults that come and go: real time, agents that come
// one by one, take their time and have patience for longer than the faults last.
func scenarioPace(runs int) pace {
	return pace{
		workers: 64, spread: min(20*time.Second, time.Duration(runs)*200*time.Millisecond), think: 200 * time.Millisecond, patience: time.Minute, pause: time.Second / 2, model: 5 * time.Second,
		upstream: mcpproxy.UpstreamConfig{
			CallTimeout: 5 * time.Second,
			Breaker:     mcpproxy.BreakerConfig{OpenFor: 5 * time.Second, MaxOpenFor: 10 * time.Second},
			Probe:       mcpproxy.ProbeConfig{EveryDown: time.Second},
		},
		chain: llm.Options{Timeout: 20 * time.Second, Breaker: health.BreakerOptions{OpenFor: 5 * time.Second}},
	}
}

// thinking is how long an agent thinks before a step.
func (p *pace) thinking() time.Duration {
	return time.Duration(rand.ExpFloat64() * float64(p.think))
}
