package telemetry

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// scrape returns the lines of AgentArmor's own metrics, and how many others there are.
func scrape(t *testing.T, m *Metrics) (own string, others int) {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	var b strings.Builder
	for line := range strings.Lines(w.Body.String()) {
		if strings.Contains(line, "agentarmor_") {
			b.WriteString(line)
		} else {
			others++
		}
	}
	return b.String(), others
}

const exposition = `# HELP agentarmor_breaker_state 0 closed, 1 half-open, 2 open; without a tool the server's.
# TYPE agentarmor_breaker_state gauge
agentarmor_breaker_state{tool="",upstream="git"} 1
agentarmor_breaker_state{tool="commit",upstream="git"} 2
agentarmor_breaker_state{tool="log",upstream="git"} 0
agentarmor_breaker_state{tool="other",upstream="git"} 2
# HELP agentarmor_call_duration_seconds How long calls of clients took, with all attempts and waiting.
# TYPE agentarmor_call_duration_seconds histogram
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="0.001"} 1
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="0.0025"} 1
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="0.005"} 1
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="0.01"} 1
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="0.025"} 1
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="0.05"} 1
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="0.1"} 1
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="0.25"} 2
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="0.5"} 3
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="1"} 3
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="2.5"} 3
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="5"} 3
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="10"} 3
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="30"} 3
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="60"} 3
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="120"} 3
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="300"} 3
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="600"} 3
agentarmor_call_duration_seconds_bucket{injected="false",upstream="git",le="+Inf"} 4
agentarmor_call_duration_seconds_sum{injected="false",upstream="git"} 1000.7505
agentarmor_call_duration_seconds_count{injected="false",upstream="git"} 4
# HELP agentarmor_calls_total Calls of clients by their final outcome, each once however many attempts it took.
# TYPE agentarmor_calls_total counter
agentarmor_calls_total{injected="false",outcome="ok",tool="-",upstream="git"} 1
agentarmor_calls_total{injected="false",outcome="ok",tool="log",upstream="git"} 2
agentarmor_calls_total{injected="false",outcome="timeout",tool="commit",upstream="git"} 1
# HELP agentarmor_fallbacks_total Calls answered by a fallback, by its kind.
# TYPE agentarmor_fallbacks_total counter
agentarmor_fallbacks_total{injected="false",kind="cached",upstream="git"} 1
# HELP agentarmor_in_flight Requests that wait for the upstream's answer.
# TYPE agentarmor_in_flight gauge
agentarmor_in_flight{upstream="git"} 2
agentarmor_in_flight{upstream="web"} 0
# HELP agentarmor_instances Processes or sessions of the upstream.
# TYPE agentarmor_instances gauge
agentarmor_instances{upstream="git"} 1
agentarmor_instances{upstream="web"} 0
# HELP agentarmor_queue_depth Requests that wait for their turn.
# TYPE agentarmor_queue_depth gauge
agentarmor_queue_depth{upstream="git"} 3
agentarmor_queue_depth{upstream="web"} 0
# HELP agentarmor_restarts_total Restarts of the upstream.
# TYPE agentarmor_restarts_total counter
agentarmor_restarts_total{upstream="git"} 4
agentarmor_restarts_total{upstream="web"} 0
# HELP agentarmor_retries_total Attempts after the first.
# TYPE agentarmor_retries_total counter
agentarmor_retries_total{injected="false",upstream="git"} 2
# HELP agentarmor_sessions Clients connected.
# TYPE agentarmor_sessions gauge
agentarmor_sessions 5
# HELP agentarmor_transitions_total Changes of state, by what changed and what it became.
# TYPE agentarmor_transitions_total counter
agentarmor_transitions_total{injected="false",plane="tool",to="open",upstream="git"} 2
agentarmor_transitions_total{injected="false",plane="upstream",to="down",upstream="git"} 1
# HELP agentarmor_upstream_state 1 for the state that the upstream is in.
# TYPE agentarmor_upstream_state gauge
agentarmor_upstream_state{state="degraded",upstream="git"} 1
agentarmor_upstream_state{state="disabled",upstream="web"} 1
`

func TestExposition(t *testing.T) {
	m := NewMetrics(func() Gauges {
		return Gauges{Sessions: 5, Upstreams: []UpstreamGauges{
			{Name: "git", State: "degraded", Breaker: "half_open", InFlight: 2, Queued: 3, Restarts: 4, Instances: 1,
				// The last two were never counted: they share a series, the worst of the two.
				Tools: map[string]string{"log": "closed", "commit": "open", "push": "off", "x": "closed", "y": "open"}},
			{Name: "web", State: "disabled", Breaker: "off"},
		}}
	})
	m.Call("git", "log").Observe("ok", false, 500*time.Microsecond)
	m.Call("git", "log").Observe("ok", false, 250*time.Millisecond)
	m.Call("git", "commit").Observe("timeout", false, 1000*time.Second)
	m.Call("git", "").Observe("ok", false, 500*time.Millisecond)
	m.Retry("git", false)
	m.Retry("git", false)
	m.Fallback("git", "cached", false)
	m.Transition("git", "log", "tool", "open", false)
	m.Transition("git", "commit", "tool", "open", false)
	m.Transition("git", "", "upstream", "down", false)
	own, others := scrape(t, m)
	if d := cmp.Diff(exposition, own); d != "" {
		t.Error(d)
	}
	if others < 50 {
		t.Errorf("%d lines about the process", others)
	}
}

// However many tools there are or names that are called, there are no more than
// so many series; each upstream counts all the same.
func TestLabelsAreBounded(t *testing.T) {
	tools := map[string]string{}
	m := NewMetrics(func() Gauges { return Gauges{Upstreams: []UpstreamGauges{{Name: "up", Tools: tools}}} })
	for i := range 5000 {
		name := fmt.Sprintf("tool%d", i)
		tools[name] = "closed"
		m.Call("up", name).Observe("ok", false, time.Millisecond)
	}
	m.Call("late", "tool").Observe("ok", false, time.Millisecond)
	m.Call("late", "").Observe("ok", false, time.Millisecond)
	m.Call("up", strings.Repeat("long", 1000)+"\xff\n").Observe("ok", false, time.Millisecond)
	own, _ := scrape(t, m)
	for prefix, want := range map[string]int{"agentarmor_calls_total{": maxPairs + 3, "agentarmor_breaker_state{": maxPairs + 1} {
		if n := strings.Count(own, prefix); n != want {
			t.Errorf("%d series %s, want %d", n, prefix, want)
		}
	}
	for _, want := range []string{
		`agentarmor_calls_total{injected="false",outcome="ok",tool="other",upstream="up"} 3001`,
		`agentarmor_calls_total{injected="false",outcome="ok",tool="other",upstream="late"} 1`,
		`agentarmor_calls_total{injected="false",outcome="ok",tool="-",upstream="late"} 1`,
	} {
		if !strings.Contains(own, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}

func TestOddNamesAreCounted(t *testing.T) {
	m := NewMetrics(nil)
	m.Call("up", strings.Repeat("ä", 100)+"\xff").Observe("ok", false, 0)
	m.Call("up", "a\"b\n\xffc").Observe("ok", false, 0)
	own, _ := scrape(t, m)
	for _, want := range []string{`tool="` + strings.Repeat("ä", 64) + `",`, `tool="a\"b\nc",`} {
		if !strings.Contains(own, want) {
			t.Errorf("no %s in\n%s", want, own)
		}
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	m := NewMetrics(nil)
	c := m.Call("up", "tool")
	c.Observe("ok", false, time.Millisecond)
	c.Observe("lost", false, time.Millisecond)
	if n := testing.AllocsPerRun(100, func() {
		c.Observe("ok", false, time.Millisecond)
		c.Observe("lost", false, time.Minute)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		if m.Call("up", "tool") != c {
			t.Error("another handle")
		}
	}); n > 0 {
		t.Errorf("%v allocations for the handle", n)
	}
}

func TestConcurrentUse(t *testing.T) {
	m := NewMetrics(func() Gauges {
		return Gauges{Upstreams: []UpstreamGauges{{Name: "up", Tools: map[string]string{"tool1": "open"}}}}
	})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				m.Call("up", fmt.Sprint("tool", i%10)).Observe([]string{"ok", "lost", "timeout"}[(i+g)%3], false, time.Millisecond)
			}
			scrape(t, m)
		})
	}
	wg.Wait()
	own, _ := scrape(t, m)
	if want := `agentarmor_call_duration_seconds_count{injected="false",upstream="up"} 800`; !strings.Contains(own, want) {
		t.Errorf("no %s in\n%s", want, own)
	}
}

// What a fault was injected into never counts as a usual call.
func TestInjectedCallsHaveALabel(t *testing.T) {
	m := NewMetrics(func() Gauges { return Gauges{} })
	m.Call("up", "tool").Observe("lost", true, time.Second)
	m.Call("up", "tool").Observe("lost", false, time.Second)
	m.Retry("up", true)
	m.Fallback("up", "cached", true)
	m.Transition("up", "", "state", "down", true)
	m.LLMCall("p", "ok", true, time.Second)
	m.LLMRequest("p", "lost", true)
	m.LLMFailover("p", "q", true)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`calls_total{injected="true",outcome="lost",tool="tool",upstream="up"} 1`, `calls_total{injected="false",outcome="lost",tool="tool",upstream="up"} 1`,
		`call_duration_seconds_count{injected="true",upstream="up"} 1`, `call_duration_seconds_count{injected="false",upstream="up"} 1`,
		`retries_total{injected="true",upstream="up"} 1`, `fallbacks_total{injected="true",kind="cached",upstream="up"} 1`,
		`transitions_total{injected="true",plane="state",to="down",upstream="up"} 1`, `llm_calls_total{injected="true",outcome="ok",provider="p"} 1`,
		`llm_call_duration_seconds_count{injected="true",provider="p"} 1`, `llm_requests_total{injected="true",outcome="lost",provider="p"} 1`,
		`llm_failovers_total{from="p",injected="true",to="q"} 1`,
	} {
		if !strings.Contains(w.Body.String(), "agentarmor_"+want) {
			t.Errorf("no %s", want)
		}
	}
}

func TestNilMetrics(t *testing.T) {
	var m *Metrics
	m.Call("up", "tool").Observe("ok", false, time.Second)
	m.Retry("up", false)
	m.Fallback("up", "cached", false)
	m.Transition("up", "", "server", "open", false)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("status %d", w.Code)
	}
}

func BenchmarkObserve(b *testing.B) {
	c := NewMetrics(nil).Call("up", "tool")
	b.ReportAllocs()
	for b.Loop() {
		c.Observe("ok", false, 3*time.Millisecond)
	}
}
