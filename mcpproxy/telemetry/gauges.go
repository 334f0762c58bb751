package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Gauges is the present state of the endpoint.
type Gauges struct {
	Sessions  int // of clients
	Upstreams []UpstreamGauges
	LLM       *LLMGauges // nil: no chain
}

// UpstreamGauges is the present state of one upstream. Breakers are closed,
// half_open, open or off; one that is off has no series.
type UpstreamGauges struct {
	Name     string
	State    string
	Breaker  string            // of the server
	Tools    map[string]string // breakers of the tools that were called, by original name
	InFlight int               // requests that wait for an answer
	Queued   int               // requests that wait for their turn
	Restarts int               // since the start, never less than before
	// Instances is how many processes or sessions serve it.
	Instances int
}

// gauges reads the snapshot at each scrape.
type gauges struct {
	m        *Metrics
	snapshot func() Gauges
}

var _ prometheus.Collector = (*gauges)(nil)

var (
	sessions  = describe("sessions", "Clients connected.")
	state     = describe("upstream_state", "1 for the state that the upstream is in.", "upstream", "state")
	breaker   = describe("breaker_state", "0 closed, 1 half-open, 2 open; without a tool the server's.", "upstream", "tool")
	inFlight  = describe("in_flight", "Requests that wait for the upstream's answer.", "upstream")
	queued    = describe("queue_depth", "Requests that wait for their turn.", "upstream")
	instances = describe("instances", "Processes or sessions of the upstream.", "upstream")
	restarts  = describe("restarts_total", "Restarts of the upstream.", "upstream")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("agentarmor_"+name, help, labels, nil)
}

// Describe implements [prometheus.Collector].
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sessions, state, breaker, inFlight, queued, instances, restarts, llmBreaker, llmHealthy, llmQueued} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	if g.snapshot == nil {
		return
	}
	now := g.snapshot()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(value), labels...)
	}
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		send(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(sessions, now.Sessions)
	if now.LLM != nil {
		gauge(llmHealthy, now.LLM.Healthy)
		gauge(llmQueued, now.LLM.Queued)
		for name, state := range now.LLM.Breakers {
			if value, on := breakerValue(state); on {
				gauge(llmBreaker, value, label(name))
			}
		}
	}
	for _, u := range now.Upstreams {
		name := label(u.Name)
		gauge(state, 1, name, label(u.State))
		gauge(inFlight, u.InFlight, name)
		gauge(queued, u.Queued, name)
		gauge(instances, u.Instances, name)
		send(restarts, prometheus.CounterValue, u.Restarts, name)
		for tool, value := range g.breakers(u) {
			gauge(breaker, value, name, tool)
		}
	}
}

// breakers returns the states of the upstream's breakers by label; tools that
// share one are as bad as the worst of them.
func (g *gauges) breakers(u UpstreamGauges) map[string]int {
	values := map[string]int{}
	note := func(tool, state string) {
		if value, on := breakerValue(state); on {
			values[tool] = max(values[tool], value)
		}
	}
	note("", u.Breaker)
	g.m.mu.RLock()
	defer g.m.mu.RUnlock()
	for tool, state := range u.Tools {
		key := pairOf(u.Name, tool)
		if g.m.pairs[key] == nil {
			key.tool = otherTool
		}
		note(key.tool, state)
	}
	return values
}

func breakerValue(state string) (value int, on bool) {
	switch state {
	case "closed":
		return 0, true
	case "half_open":
		return 1, true
	case "open":
		return 2, true
	}
	return 0, false
}
