package mcpproxy

import (
	"log/slog"
	"sync"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
	"github.com/agentarmor/agentarmor/mcpproxy/telemetry"
)

// LLMEvent takes what happens to the chain: it is for llm.Options.OnEvent.
func (p *Proxy) LLMEvent(e llm.Event) {
	defer p.alerts.nudge()
	out := event.Event{Provider: e.Provider, From: e.From, To: e.To, Text: e.Text, NextAttempt: e.Until, Injected: e.Injected}
	level, text := slog.LevelDebug, "provider is tried"
	switch e.Kind {
	case llm.EventBreaker:
		out.Kind = event.LLMBreaker
		level, text = providerLine(e)
	case llm.EventRest:
		out.Kind = event.LLMRest
		level, text = slog.LevelWarn, "provider is left alone"
		if e.To == string(llm.SkipThrottled) {
			level = slog.LevelInfo
		}
	case llm.EventFailover:
		out.Kind = event.LLMFailover
		level, text = slog.LevelInfo, "another provider has answered"
		p.metrics.LLMFailover(e.From, e.To, e.Injected != "")
	case llm.EventOutage:
		out.Kind = event.LLMOutage
		level, text = slog.LevelWarn, "no provider has answered"
	default:
		return
	}
	if !p.llmNews.is(e) {
		return
	}
	p.publishAs(out, level, text)
}

// providerLine says that a provider's breaker opens or closes; its trials in
// between are no news.
func providerLine(e llm.Event) (slog.Level, string) {
	switch from, to := health.BreakerState(e.From), health.BreakerState(e.To); {
	case to == health.BreakerClosed:
		return slog.LevelInfo, "provider has recovered"
	case to == health.BreakerOpen && from == health.BreakerClosed:
		return slog.LevelWarn, "provider is not asked: its breaker has opened"
	}
	return slog.LevelDebug, "provider is tried"
}

// llmNews holds back what every call of a crowd would tell again: one failover
// from a provider to another, and one outage, a minute is news.
type llmNews struct {
	mu   sync.Mutex
	told map[string]time.Time
}

const llmNewsEvery = time.Minute

func (n *llmNews) is(e llm.Event) bool {
	if e.Kind != llm.EventFailover && e.Kind != llm.EventOutage {
		return true
	}
	key, now := string(e.Kind)+" "+e.From+" "+e.To, time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if last, ok := n.told[key]; ok && now.Sub(last) < llmNewsEvery {
		return false
	}
	if n.told == nil {
		n.told = map[string]time.Time{}
	}
	n.told[key] = now // as many keys as pairs of configured providers
	return true
}

// LLMTrace counts a finished call of the chain: it is for llm.Options.OnTrace.
func (p *Proxy) LLMTrace(t *llm.Trace) {
	defer p.alerts.nudge()
	p.metrics.LLMCall(t.Provider, string(t.Outcome), t.Injected() != "", milliseconds(t.LatencyMS))
	for _, a := range t.Attempts {
		if a.Skipped != "" {
			continue
		}
		p.metrics.LLMRequest(a.Provider, string(a.Class), a.Injected != "")
		if a.Injected != "" {
			p.alerts.hit(a.Provider, a.Injected)
		}
		if a.Usage != nil {
			p.metrics.LLMTokens(a.Provider, a.Usage.Input, a.Usage.Output)
		}
	}
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// llmStatus is the state of the chain; nil: there is none.
func (p *Proxy) llmStatus() *llm.Status {
	if p.cfg.LLM == nil {
		return nil
	}
	return new(p.cfg.LLM.Status())
}

// llmGauges is the present state of the providers for the metrics.
func (p *Proxy) llmGauges() *telemetry.LLMGauges {
	s := p.llmStatus()
	if s == nil {
		return nil
	}
	g := &telemetry.LLMGauges{Healthy: s.Healthy, Queued: s.Queued, Breakers: map[string]string{}}
	for name, provider := range s.Providers {
		g.Breakers[name] = string(provider.Breaker.State)
	}
	return g
}
