package mcpproxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
)

// told are the alerts that were published, as "rule subject state: text".
func (r *rig) told() (lines []string) {
	synctest.Wait()
	for _, e := range r.p.events.Find(event.Filter{Kind: event.Alert}).Events {
		lines = append(lines, strings.Join([]string{e.Rule, e.Upstream, e.Tool, e.Provider, e.To, e.Text}, "|"))
	}
	return lines
}

func (r *rig) wantTold(want ...string) {
	r.t.Helper()
	if diff := cmp.Diff(want, r.told()); diff != "" {
		r.t.Error(diff)
	}
}

// failingServer is an upstream that answers calls of its tool with an internal error.
func failingServer() *fakeServer {
	srv := newLegacyServer()
	srv.error("tools/call", -32603)
	return srv
}

// An opened breaker is an event, a line in the log, a log message to clients and
// in the status, and so is its end.
func TestAlertOfABreaker(t *testing.T) {
	var log bytes.Buffer
	srv := failingServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		for range 4 {
			c.send(callT1("1", "")).text()
		}
		const text = "the breaker of fake's tool t1 has opened: the server answered with an error"
		r.wantTold("breaker_open|fake|t1||raised|" + text)
		var heard []string
		for _, l := range logsOf(c.take()) {
			if strings.Contains(l, `"event":"alert"`) {
				heard = append(heard, l)
			}
		}
		if want := []string{`warning {"event":"alert","upstream":"fake","tool":"t1","rule":"breaker_open","to":"raised","reason":"` + text + `"}`}; !slices.Equal(heard, want) {
			t.Errorf("clients heard %q", heard)
		}
		wantPart(t, log.String(), `level=WARN msg=alert rule=breaker_open upstream=fake tool=t1 to=raised reason="`+text+`"`)
		s := r.p.Status()
		if len(s.Alerts) != 1 || s.Alerts[0].Resolved != nil || s.Alerts[0].Since.IsZero() || s.Alerts[0].Text != text {
			t.Errorf("status: %+v", s.Alerts)
		}
		raw, err := json.Marshal(s.Short())
		if err != nil {
			t.Fatal(err)
		}
		wantPart(t, string(raw), `"alerts":["`+text+`"]`)
		wantPart(t, c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"armor.status","arguments":{"section":"alerts"}}}`).text(), `"structuredContent":{"alerts":[{"rule":"breaker_open","upstream":"fake","tool":"t1",`)

		srv.result("tools/call", `{"content":[]}`)
		for range 4 {
			settle(2 * time.Minute)
			c.send(callT1("1", "")).text()
		}
		settle(3 * alertEvery)
		r.wantTold("breaker_open|fake|t1||raised|"+text, "breaker_open|fake|t1||resolved|"+text)
		wantPart(t, log.String(), `level=INFO msg="alert is resolved"`)
		if s := r.p.Status(); len(s.Alerts) != 1 || s.Alerts[0].Resolved == nil {
			t.Errorf("status: %+v", s.Alerts)
		}
		settle(2 * time.Hour)
		if s := r.p.Status(); len(s.Alerts) != 0 {
			t.Errorf("status: %+v", s.Alerts)
		}
	}, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
}

// opens publishes a breaker that opens; the state of things does not follow.
func (r *rig) opens(tool string) {
	r.p.publish(event.Event{Kind: event.BreakerChanged, Upstream: "fake", Tool: tool, From: "closed", To: "open"})
	synctest.Wait()
}

func TestAlertOfManyBreakers(t *testing.T) {
	off := func(c *Config) { c.Alerts.Rules.BreakerOpen = new(false) }
	bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
		r.opens("a")
		r.opens("b")
		settle(openings + time.Second)
		r.opens("a")
		r.opens("c")
		r.opens("c") // again is not another one
		r.wantTold()
		r.opens("")
		const text = "breakers_in_60s||||%s|3 breakers have opened within 60 s: fake's tool a, fake's tool c, the server fake"
		r.wantTold(fmt.Sprintf(text, "raised"))
		settle(openings + 3*alertEvery)
		r.wantTold(fmt.Sprintf(text, "raised"), fmt.Sprintf(text, "resolved"))
	}, off)
	for limit, want := range map[int]int{0: 0, 3: 0, 1: 1} {
		bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
			for _, tool := range []string{"a", "b", "c"} {
				r.opens(tool)
			}
			if got := r.told(); len(got) != want {
				t.Errorf("limit %d: %q", limit, got)
			}
		}, off, func(c *Config) { c.Alerts.Rules.BreakersIn60s = &limit })
	}
}

// What comes and goes is told once in a while, and counted.
func TestAlertsDoNotFlap(t *testing.T) {
	bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
		for range 5 {
			r.opens("a") // it does not hold: the breaker is closed
			settle(time.Minute / 2)
		}
		if got := r.told(); len(got) != 2 {
			t.Errorf("told %q", got)
		}
		if s := r.p.Status(); len(s.Alerts) != 1 || s.Alerts[0].Count != 5 {
			t.Errorf("status: %+v", s.Alerts)
		}
		settle(alertQuiet)
		r.opens("a")
		settle(3 * alertEvery)
		if got := r.told(); len(got) != 4 {
			t.Errorf("told %q", got)
		}
		for i := range 3 * maxAlerts {
			r.opens(fmt.Sprint(i))
		}
		if s := r.p.Status(); len(s.Alerts) > maxAlerts {
			t.Errorf("%d alerts are kept", len(s.Alerts))
		}
	})
}

// What comes up again soon and stays is told again, not for ever held back.
func TestAlertThatComesBackIsTold(t *testing.T) {
	srv := failingServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		r.opens("t1") // it does not hold yet
		settle(3 * alertEvery)
		c := r.client(`{}`)
		for range 3 {
			c.send(callT1("1", "")).text()
		}
		settle(time.Minute)
		if got := r.told(); len(got) != 2 {
			t.Errorf("told %q", got)
		}
		settle(alertQuiet)
		if got := r.told(); len(got) != 3 || !strings.Contains(got[2], "|raised|") {
			t.Errorf("told %q", got)
		}
	})
}

func TestAlertOfACrashLoop(t *testing.T) {
	srv := newLegacyServer()
	var down atomic.Bool
	srv.onStart = func(p *fakePeer) {
		if down.Load() {
			p.exit("exit status 3")
		}
	}
	on := func(c *Config) { c.Alerts.Rules.BreakerOpen = new(false) }
	off := func(c *Config) { on(c); c.Alerts.Rules.CrashLoop = new(false) }
	for want, edit := range map[int]func(*Config){2: on, 0: off} {
		down.Store(true)
		bubble(t, srv, func(t *testing.T, r *rig) {
			settle(time.Hour)
			if r.p.Status().Upstreams["fake"].State != health.CrashLoop {
				t.Fatal("it does not crash")
			}
			down.Store(false)
			settle(time.Hour)
			got := r.told()
			if len(got) != want || want > 0 && (!strings.HasPrefix(got[0], "crash_loop|fake|||raised|the server fake is in a crash loop: it ends again and again") || !strings.HasPrefix(got[1], "crash_loop|fake|||resolved|")) {
				t.Errorf("told %q", got)
			}
		}, edit)
	}
}

// A server that is gone is told of, though no breaker has opened, unless it is back soon.
func TestAlertOfAServerThatIsAway(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		settle(time.Minute)
		srv.peer().exit("killed")
		settle(time.Minute)
		r.wantTold() // it was started again
		repair := srv.broken()
		settle(5 * time.Second)
		r.wantTold()
		settle(time.Minute)
		const text = "breaker_open|fake|||%s|the server fake is out of service: refused"
		r.wantTold(fmt.Sprintf(text, alertRaised))
		repair()
		settle(10 * time.Minute)
		r.wantTold(fmt.Sprintf(text, alertRaised), fmt.Sprintf(text, alertResolved))
	})
}

// What is real is told, whatever chaos has had told just before.
func TestRealAlertAfterAnInjectedOne(t *testing.T) {
	bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
		opens := func(fault string) (told int) {
			r.p.publish(event.Event{Kind: event.BreakerChanged, Upstream: "fake", Tool: "t1", From: "closed", To: "open", Injected: fault})
			return len(r.told())
		}
		for n, fault := range []string{"f1", "f2", "", ""} {
			if got, want := opens(fault), max(1, min(n, 2)); got != want {
				t.Errorf("%d alerts told after opening %d", got, n)
			}
			time.Sleep(time.Second)
		}
		if one := r.p.Status().Alerts[0]; one.Injected != "" || time.Since(one.Since) > 3*time.Second {
			t.Errorf("%+v", one)
		}
	})
}

// The alert of a changed definition does not repeat what the server says.
func TestAlertOfADefinition(t *testing.T) {
	for policy, want := range map[string]string{"warn": "accepted", "quarantine": "quarantined"} {
		srv := newLegacyServer()
		bubble(t, srv, func(t *testing.T, r *rig) {
			srv.result("tools/list", `{"tools":[{"name":"t1","description":"SECRET ORDERS","inputSchema":{"type":"object"}}]}`)
			srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			settle(time.Second)
			got := r.told()
			if len(got) == 0 || got[0] != "definition_changed|fake|t1||raised|the definition of fake's tool t1 has changed; it is "+want {
				t.Errorf("%s: told %q", policy, got)
			}
			srv.result("tools/list", oneTool)
			srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			settle(alertQuiet + 3*alertEvery)
			if s := r.p.Status(); len(s.Alerts) != 1 || s.Alerts[0].Resolved == nil {
				t.Errorf("%s: %+v", policy, s.Alerts)
			}
			if raw := fmt.Sprint(r.told()); strings.Contains(raw, "SECRET") {
				t.Error(raw)
			}
		}, func(c *Config) { c.Upstreams[0].OnChange = policy })
	}
}

// What is removed from the configuration is not held up by its alerts.
func TestAlertsEndWithTheirUpstream(t *testing.T) {
	bubble(t, failingServer(), func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		for range 3 {
			c.send(callT1("1", "")).text()
		}
		if err := r.p.Reload(Config{}); err != nil {
			t.Fatal(err)
		}
		settle(3 * alertEvery)
		if got := r.told(); len(got) != 2 || !strings.Contains(got[1], "resolved") {
			t.Errorf("told %q", got)
		}
	})
}

// askModels has so many calls of llm.complete answered.
func askModels(t *testing.T, r *rig, calls int) {
	t.Helper()
	c := r.client(`{}`)
	for range calls {
		c.send(complete("1", `{"prompt":"p"}`, "")).text()
		settle(time.Second)
	}
}

func TestAlertsOfModels(t *testing.T) {
	every := func(n, status int) *llm.Fake {
		return llm.NewFake("gemini").Script(func(i int, _ *llm.Request) llm.Step {
			if i%n == 0 {
				return llm.Step{Status: status}
			}
			return llm.Step{}
		})
	}
	groq := func() *llm.Fake { return llm.NewFake("groq") }
	none := func(*Config) {}
	for name, c := range map[string]struct {
		chain []*llm.Fake
		calls int
		edit  func(*Config)
		want  []string
	}{
		"a rate over 3 %": {[]*llm.Fake{every(25, 503), groq()}, 30, none, []string{"primary_error_rate|||gemini|raised|4 % of the requests to gemini fail"}},
		"below":           {[]*llm.Fake{every(50, 503), groq()}, 60, none, nil},
		"too few calls":   {[]*llm.Fake{every(10, 503), groq()}, 15, none, nil},
		"a higher limit":  {[]*llm.Fake{every(25, 503), groq()}, 30, func(c *Config) { c.Alerts.Rules.PrimaryErrorRate = new(0.1) }, nil},
		"no limit":        {[]*llm.Fake{every(25, 503), groq()}, 30, func(c *Config) { c.Alerts.Rules.PrimaryErrorRate = new(0.0) }, nil},
		"failovers":       {[]*llm.Fake{every(2, 413), groq()}, 12, none, []string{"failovers_per_hour||||raised|another model than the first one has answered 6 times within an hour"}},
		"failovers off":   {[]*llm.Fake{every(2, 413), groq()}, 12, func(c *Config) { c.Alerts.Rules.FailoversPerHour = new(0) }, nil},
		"nobody": {[]*llm.Fake{every(1, 503)}, 2, none, []string{
			"breaker_open|||gemini|raised|the breaker of the provider gemini has opened", "no_healthy_provider||||raised|no model can be asked: gemini is down"}},
		"nobody, off": {[]*llm.Fake{every(1, 503)}, 2, func(c *Config) {
			c.Alerts.Rules.NoHealthyProvider, c.Alerts.Rules.BreakerOpen = new(false), new(false)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			models(t, quick, c.chain, func(t *testing.T, r *rig) {
				askModels(t, r, c.calls)
				r.wantTold(c.want...)
			}, c.edit)
		})
	}
}

// A recovered chain resolves its alerts without another call.
func TestAlertsOfModelsEnd(t *testing.T) {
	models(t, quick, []*llm.Fake{llm.NewFake("gemini", llm.Step{Status: 401})}, func(t *testing.T, r *rig) {
		askModels(t, r, 1)
		settle(3 * time.Minute)
		const text = "no_healthy_provider||||%s|no model can be asked: gemini is auth"
		r.wantTold(fmt.Sprintf(text, "raised"), fmt.Sprintf(text, "resolved"))
	})
}

// An alert that a fault of chaos has caused names it.
func TestAlertIsMarkedAsInjected(t *testing.T) {
	inj := chaos.New(chaos.Options{Enabled: true, Seed: 1})
	bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
		f, err := inj.Inject(chaos.Spec{Target: "mcp/fake/t1", Fault: chaos.Error, TTL: chaos.Duration(time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		c := r.client(`{}`)
		for range 3 {
			c.send(callT1("1", "")).text()
		}
		settle(time.Second)
		s := r.p.Status()
		if len(s.Alerts) == 0 || s.Alerts[0].Injected != f.ID {
			t.Errorf("%+v", s.Alerts)
		}
		inj.Close()
	}, func(c *Config) { c.Chaos = inj })
}
