package chaos

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// waited is how long a decision holds a call, at most an hour.
func waited(d Decision) time.Duration {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	_ = d.Wait(ctx)
	return time.Since(began)
}

func TestLatencyDistributions(t *testing.T) {
	const n = 400
	delays := func(s Spec) (list []time.Duration, sum time.Duration) {
		s.Target, s.Fault, s.Delay = "mcp/up", Latency, Duration(100*time.Millisecond)
		i := on(t, s)
		for range n {
			d := i.Decide(toolCall("t")).delays[0].wait
			list, sum = append(list, d), sum+d
		}
		slices.Sort(list)
		return list, sum / n
	}
	const ms = Duration(time.Millisecond)
	for name, c := range map[string]struct {
		spec                    Spec
		least, most, mean, fine time.Duration
	}{
		"fixed":   {Spec{}, 100, 100, 100, 0},
		"uniform": {Spec{Jitter: 50 * ms}, 50, 150, 100, 5},
		"normal":  {Spec{Jitter: 20 * ms, Distribution: Normal}, 0, 200, 100, 5},
		"pareto":  {Spec{Distribution: Pareto, Shape: 3}, 100, 3000, 150, 20},
	} {
		list, mean := delays(c.spec)
		if list[0] < c.least*time.Millisecond || list[n-1] > c.most*time.Millisecond || (mean-c.mean*time.Millisecond).Abs() > c.fine*time.Millisecond {
			t.Errorf("%s: %v … %v, mean %v", name, list[0], list[n-1], mean)
		}
		if name != "fixed" && list[0] == list[n-1] {
			t.Errorf("%s: always the same", name)
		}
	}
	_, heavy := delays(Spec{Distribution: Pareto, Shape: 1.2})
	_, usual := delays(Spec{Distribution: Pareto})
	if heavy <= usual {
		t.Errorf("the shape turns nothing: %v, %v", heavy, usual)
	}
}

// What waits goes on when the fault ends, or when nobody wants it any more.
func TestWaitsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, s := range map[string]Spec{"hang": {Target: "mcp/up", Fault: Hang}, "latency": {Target: "mcp/up", Fault: Latency, Delay: 5 * minute}} {
			i := on(t, s)
			if d := waited(i.Decide(toolCall("t"))); d != time.Minute {
				t.Errorf("%s: the end by TTL after %v", name, d)
			}
			i.Close()
			i = on(t, s)
			time.AfterFunc(time.Second, func() { i.Clear("all") })
			if d := waited(i.Decide(toolCall("t"))); d != time.Second {
				t.Errorf("%s: the end by Clear after %v", name, d)
			}
			i.Close()
			i = on(t, s)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			d := i.Decide(toolCall("t"))
			if err := d.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
			i.Close()
		}
	})
}

func TestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := on(t, Spec{Target: "mcp/up", Fault: RateLimit, Limit: 2, Per: Duration(10 * time.Second)})
		defer i.Close()
		if got := actions(i, toolCall("t"), 2); hits(got) != 0 {
			t.Error(got)
		}
		time.Sleep(4 * time.Second)
		if d := i.Decide(toolCall("u")); d.Status != 429 || d.RetryAfter != 6*time.Second {
			t.Errorf("%+v", d)
		}
		time.Sleep(6 * time.Second)
		if got := actions(i, toolCall("t"), 3); !slices.Equal(got, []Action{Pass, Pass, Answer}) {
			t.Error(got)
		}
		i.Clear("all")
		i.Inject(Spec{Target: "mcp/up", Fault: RateLimit, RetryAfter: 2500 * Duration(time.Millisecond), TTL: minute})
		if d := i.Decide(toolCall("t")); d.Status != 429 || d.RetryAfter != 3*time.Second { // a header has whole ones
			t.Errorf("%+v", d)
		}
	})
}

func TestFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := on(t, Spec{Target: "mcp/up", Fault: Flap, Up: Duration(3 * time.Second), Down: Duration(2 * time.Second)})
		defer i.Close()
		var got strings.Builder
		for range 11 {
			if i.Decide(Call{Target: "mcp/up", Op: Connect}).Action == Refuse {
				got.WriteByte('-')
			} else {
				got.WriteByte('+')
			}
			time.Sleep(time.Second)
		}
		if got.String() != "--+++--+++-" {
			t.Error(got.String())
		}
	})
}

func TestErrorParameters(t *testing.T) {
	d := on(t, Spec{Target: "mcp/up", Fault: Error}).Decide(toolCall("t"))
	if d.Status != 503 || d.RetryAfter != 0 || d.Text != "Service Unavailable" {
		t.Errorf("%+v", d)
	}
	d = on(t, Spec{Target: "mcp/up", Fault: Error, Status: 498, RetryAfter: minute}).Decide(toolCall("t"))
	if d.Status != 498 || d.RetryAfter != time.Minute || d.Text != "HTTP status 498" {
		t.Errorf("%+v", d)
	}
}

// A tool error belongs to calls of tools.
func TestToolErrorHitsToolsAlone(t *testing.T) {
	i := on(t, Spec{Target: "mcp/up", Fault: ToolError, Message: "no disk"})
	if d := i.Decide(toolCall("t")); d.Action != FailTool || d.Text != "no disk" {
		t.Errorf("%+v", d)
	}
	if d := i.Decide(Call{Target: "mcp/up"}); d.Action != Pass {
		t.Errorf("%+v", d)
	}
	if d := on(t, Spec{Target: "mcp/up", Fault: ToolError}).Decide(toolCall("t")); d.Text == "" {
		t.Error("no text")
	}
}

func TestSchemaDrift(t *testing.T) {
	i := on(t, Spec{Target: "mcp/up/a*", Fault: SchemaDrift})
	if d := i.Decide(toolCall("a1")); d.Action != Pass {
		t.Errorf("a call: %+v", d)
	}
	d := i.Decide(Call{Target: "mcp/up", Op: ToolList})
	if d.Action != Transform {
		t.Fatalf("%+v", d)
	}
	got := string(d.Change([]byte(`{"tools":[{"name":"a1","inputSchema":{"type":"object","required":["x"]}},{"name":"b","inputSchema":{"type":"object"}},{"name":"a2","inputSchema":true}],"nextCursor":"c"}`)))
	want := `{"nextCursor":"c","tools":[{"inputSchema":{"properties":{"drift":{"type":"string"}},"required":["x","drift"],"type":"object"},"name":"a1"},{"inputSchema":{"type":"object"},"name":"b"},{"inputSchema":true,"name":"a2"}]}`
	if got != want {
		t.Error(got)
	}
	for _, odd := range []string{`[]`, `{"tools":7}`, `{"tools":[7]}`, ``} {
		if got := string(d.Change([]byte(odd))); got != odd {
			t.Errorf("%s became %s", odd, got)
		}
	}
}

func TestScenarios(t *testing.T) {
	all := []string{"llm/a", "llm/b", "mcp/up", "mcp/up/t"}
	i := New(Options{Enabled: true, Watcher: Watcher{Targets: func() []string { return all }}, Scenarios: map[string][]Spec{
		"mine": {{Target: "mcp/up", Fault: Hang, TTL: 2 * minute}, {Target: "mcp/gone", Fault: Hang}},
	}})
	defer i.Close()
	for _, name := range i.Scenarios() {
		began, err := i.Scenario(name, "", time.Minute, 9)
		if err != nil || len(began) == 0 {
			t.Errorf("%s: %v", name, err)
		}
		if name == "mine" && (len(began) != 1 || began[0].Spec.TTL != 2*minute || began[0].Spec.Seed != 9) {
			t.Errorf("%+v", began)
		}
		i.Clear("all")
	}
	for _, name := range []string{"provider_outage", "rate_limit_storm", "slow_provider", "server_crash", "flapping_server", "corrupt_results", "everything"} {
		if !slices.Contains(i.Scenarios(), name) {
			t.Errorf("no %s", name)
		}
	}
	for _, c := range []struct{ name, target, want string }{
		{"provider_outage", "llm/a", "llm/a"},
		{"server_crash", "mcp/up", "mcp/up/*"},
		{"server_crash", "mcp/up/t", "mcp/up/t"},
		{"server_crash", "llm/a", "error: scenario server_crash has no fault for llm/a"},
		{"server_crash", "mcp/none", "error: unknown target"},
		{"nonsense", "", "error: unknown scenario \"nonsense\": use one of corrupt_results"},
		{"rate_limit_storm", "mcp/up", "mcp/up/*"},
		{"provider_outage", "*/*", "llm/*"},
		{"everything", "*/up/t", "mcp/up/t"}, // no provider has tools
		{"server_crash", "*/*", "mcp/*/*"},
		{"provider_outage", "", "llm/a"}, // the others answer for it
		{"provider_outage", "llm/*", "llm/*"},
	} {
		steps, _, err := i.PreviewScenario(c.name, c.target, time.Minute, 0)
		got := ""
		if err != nil {
			got = "error: " + err.Error()
		} else {
			got = steps[0].Target
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s %s: %s", c.name, c.target, got)
		}
	}
	if _, err := i.Scenario("everything", "", 0, 0); err == nil || len(i.List()) != 0 {
		t.Error("injected without an end", err)
	}
}

// The first provider is hit alone, whatever it is called.
func TestPrimary(t *testing.T) {
	i := New(Options{Enabled: true, Watcher: Watcher{Targets: func() []string { return []string{"mcp/up", `llm/a[1]*\`, "llm/a1x", "llm/b"} }}})
	if _, targets, err := i.PreviewScenario("provider_outage", "", time.Minute, 0); err != nil || !slices.Equal(targets, []string{`llm/a[1]*\`}) {
		t.Error(targets, err)
	}
}
