package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// LLMGauges is the present state of the chain of language models.
type LLMGauges struct {
	Breakers map[string]string // by provider
	Healthy  int               // providers that would be asked now
	Queued   int               // calls that wait for a recovery
}

var (
	llmBreaker = describe("llm_breaker_state", "0 closed, 1 half-open, 2 open.", "provider")
	llmHealthy = describe("llm_healthy_providers", "Providers that would be asked now.")
	llmQueued  = describe("llm_queued", "Calls that wait until a provider can be asked.")
)

// llmMetrics counts what happens to calls of the chain. Providers come from
// the configuration and have one model each.
type llmMetrics struct {
	calls     *prometheus.CounterVec
	took      *prometheus.HistogramVec
	requests  *prometheus.CounterVec
	tokens    *prometheus.CounterVec
	failovers *prometheus.CounterVec
}

func newLLMMetrics(counter func(name, help string, labels ...string) *prometheus.CounterVec) llmMetrics {
	return llmMetrics{
		calls: counter("llm_calls_total", "Calls of the chain, by the provider that answered (\"-\": none) and the outcome.", "provider", "outcome", injectedLabel),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "agentarmor_llm_call_duration_seconds", Help: "How long calls of the chain took, with all attempts and waiting.", Buckets: durations,
		}, []string{"provider", injectedLabel}),
		requests:  counter("llm_requests_total", "Requests sent to providers, by how each ended.", "provider", "outcome", injectedLabel),
		tokens:    counter("llm_tokens_total", "Tokens that providers counted, by kind: input or output.", "provider", "kind"),
		failovers: counter("llm_failovers_total", "Calls that another provider than the first one answered.", "from", "to", injectedLabel),
	}
}

// noProvider is the label of a call that no provider answered.
const noProvider = "-"

// LLMCall counts a finished call of the chain by the provider that answered, ""
// if none did, and its outcome, a class of package llm or "degraded".
func (m *Metrics) LLMCall(provider, outcome string, injected bool, took time.Duration) {
	if m == nil {
		return
	}
	if provider == "" {
		provider = noProvider
	}
	m.llm.calls.WithLabelValues(label(provider), label(outcome), strconv.FormatBool(injected)).Inc()
	m.llm.took.WithLabelValues(label(provider), strconv.FormatBool(injected)).Observe(took.Seconds())
}

// LLMRequest counts one request to a provider and how it ended.
func (m *Metrics) LLMRequest(provider, outcome string, injected bool) {
	if m != nil {
		m.llm.requests.WithLabelValues(label(provider), label(outcome), strconv.FormatBool(injected)).Inc()
	}
}

// LLMTokens counts what one answer cost.
func (m *Metrics) LLMTokens(provider string, input, output int) {
	if m != nil {
		m.llm.tokens.WithLabelValues(label(provider), "input").Add(float64(max(0, input)))
		m.llm.tokens.WithLabelValues(label(provider), "output").Add(float64(max(0, output)))
	}
}

// LLMFailover counts a call that to has answered because from did not.
func (m *Metrics) LLMFailover(from, to string, injected bool) {
	if m != nil {
		m.llm.failovers.WithLabelValues(label(from), label(to), strconv.FormatBool(injected)).Inc()
	}
}
