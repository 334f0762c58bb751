package telemetry

import (
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	maxPairs  = 2000    // of an upstream and a tool; the rest shares otherTool
	otherTool = "other" // label of tools beyond maxPairs
	noTool    = "-"     // label of methods other than tools/call
	maxLabel  = 128     // bytes of a label's value
)

// injectedLabel is "true" for what a fault that was injected on purpose had a part in.
const injectedLabel = "injected"

// durations are the upper bounds of the latency histogram, in seconds.
var durations = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

// Metrics counts what happens to calls and serves it to Prometheus. It has a
// registry of its own. A nil *Metrics does nothing.
type Metrics struct {
	calls       *prometheus.CounterVec
	took        *prometheus.HistogramVec
	transitions *prometheus.CounterVec
	retries     *prometheus.CounterVec
	fallbacks   *prometheus.CounterVec
	llm         llmMetrics
	handler     func() http.Handler // made at the first scrape

	mu    sync.RWMutex
	pairs map[pair]*CallMetrics
}

// pair is the labels that one CallMetrics counts under.
type pair struct{ upstream, tool string }

// NewMetrics returns metrics without any observation. snapshot returns the
// present state at each scrape; it may be called concurrently.
func NewMetrics(snapshot func() Gauges) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "agentarmor_" + name, Help: help}, labels)
	}
	m := &Metrics{
		calls: counter("calls_total", "Calls of clients by their final outcome, each once however many attempts it took.", "upstream", "tool", "outcome", injectedLabel),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "agentarmor_call_duration_seconds", Help: "How long calls of clients took, with all attempts and waiting.", Buckets: durations,
		}, []string{"upstream", injectedLabel}),
		transitions: counter("transitions_total", "Changes of state, by what changed and what it became.", "upstream", "plane", "to", injectedLabel),
		retries:     counter("retries_total", "Attempts after the first.", "upstream", injectedLabel),
		fallbacks:   counter("fallbacks_total", "Calls answered by a fallback, by its kind.", "upstream", "kind", injectedLabel),
		llm:         newLLMMetrics(counter),
		pairs:       map[pair]*CallMetrics{},
	}
	m.handler = sync.OnceValue(func() http.Handler {
		r := prometheus.NewRegistry()
		r.MustRegister(m.calls, m.took, m.transitions, m.retries, m.fallbacks, &gauges{m, snapshot},
			m.llm.calls, m.llm.took, m.llm.requests, m.llm.tokens, m.llm.failovers,
			collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
	})
	return m
}

// Handler answers a scrape in Prometheus' text format.
func (m *Metrics) Handler() http.Handler {
	if m == nil {
		return http.NotFoundHandler()
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.handler().ServeHTTP(w, r) })
}

// Call returns what counts the calls of one tool by its original name, the same
// each time; an empty tool stands for methods other than tools/call.
func (m *Metrics) Call(upstream, tool string) *CallMetrics {
	if m == nil {
		return nil
	}
	key := pairOf(upstream, tool)
	m.mu.RLock()
	c := m.pairs[key]
	m.mu.RUnlock()
	if c != nil {
		return c
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if key.tool != noTool && m.pairs[key] == nil && len(m.pairs) >= maxPairs {
		key.tool = otherTool
	}
	if c = m.pairs[key]; c == nil {
		c = &CallMetrics{calls: m.calls, took: m.took, pair: key, usual: m.took.WithLabelValues(key.upstream, "false")}
		m.pairs[key] = c
	}
	return c
}

func pairOf(upstream, tool string) pair {
	if tool == "" {
		tool = noTool
	}
	return pair{label(upstream), label(tool)}
}

// label makes a label's value of any text.
func label(s string) string { return text(s, maxLabel) }

// text returns at most n bytes of s, as valid UTF-8.
func text(s string, n int) string {
	return strings.ToValidUTF8(s[:min(len(s), n)], "")
}

// Retry counts an attempt after the first.
func (m *Metrics) Retry(upstream string, injected bool) {
	if m != nil {
		m.retries.WithLabelValues(label(upstream), strconv.FormatBool(injected)).Inc()
	}
}

// Fallback counts a call that was answered by a fallback of that kind.
func (m *Metrics) Fallback(upstream, kind string, injected bool) {
	if m != nil {
		m.fallbacks.WithLabelValues(label(upstream), label(kind), strconv.FormatBool(injected)).Inc()
	}
}

// Transition counts a change of the upstream's state or of a breaker of its:
// plane says which. Which tool's it was is told by events and the breaker state,
// not by a label.
func (m *Metrics) Transition(upstream, tool, plane, to string, injected bool) {
	if m != nil {
		m.transitions.WithLabelValues(label(upstream), label(plane), label(to), strconv.FormatBool(injected)).Inc()
	}
}

// CallMetrics counts the calls of one tool. A nil *CallMetrics does nothing.
type CallMetrics struct {
	calls *prometheus.CounterVec
	took  *prometheus.HistogramVec
	usual prometheus.Observer // of took: without an injected fault
	pair  pair

	mu       sync.Mutex                                    // held to replace outcomes
	outcomes atomic.Pointer[map[string]prometheus.Counter] // without an injected fault
}

// Observe counts one call of a client and the time it took, once its final outcome
// is known, whatever attempts were made. Outcomes are the names of health.Class: a
// small closed set. injected tells that a fault was injected into it.
func (c *CallMetrics) Observe(outcome string, injected bool, took time.Duration) {
	if c == nil {
		return
	}
	if injected {
		c.took.WithLabelValues(c.pair.upstream, "true").Observe(took.Seconds())
		c.calls.WithLabelValues(c.pair.upstream, c.pair.tool, label(outcome), "true").Inc()
		return
	}
	c.usual.Observe(took.Seconds())
	if seen := c.outcomes.Load(); seen != nil {
		if n, ok := (*seen)[outcome]; ok {
			n.Inc()
			return
		}
	}
	c.first(outcome).Inc()
}

// first returns the counter of an outcome that was not seen yet and keeps it.
func (c *CallMetrics) first(outcome string) prometheus.Counter {
	c.mu.Lock()
	defer c.mu.Unlock()
	outcomes := map[string]prometheus.Counter{}
	if seen := c.outcomes.Load(); seen != nil {
		maps.Copy(outcomes, *seen)
	}
	n := c.calls.WithLabelValues(c.pair.upstream, c.pair.tool, label(outcome), "false")
	outcomes[outcome] = n
	c.outcomes.Store(&outcomes)
	return n
}
