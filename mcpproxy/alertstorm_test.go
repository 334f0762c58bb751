package mcpproxy

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
)

// manyTools is a listing of n tools, tool0 and so on.
func manyTools(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`{"name":"tool%d","inputSchema":{"type":"object"}}`, i))
	}
	return `{"tools":[` + strings.Join(list, ",") + `]}`
}

// fails has the tool called until its breaker is open.
func (r *rig) fails(c *testClient, tool string) {
	for range 3 {
		c.send(strings.Replace(callT1("1", ""), "t1", tool, 1)).text()
	}
}

func (r *rig) toldOf(rule, to string) (n int) {
	for _, line := range r.told() {
		if strings.HasPrefix(line, rule+"|") && strings.Contains(line, "|"+to+"|") {
			n++
		}
	}
	return n
}

// A storm of breakers is told at a pace, does not drive out what concerns more
// than one tool, and what had no room is found when there is some.
func TestAlertsOfAStorm(t *testing.T) {
	const broken = 2 * maxAlerts
	srv := failingServer()
	srv.result("tools/list", manyTools(broken))
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		for i := range broken {
			r.fails(c, fmt.Sprintf("tool%d", i))
		}
		r.p.publish(event.Event{Kind: event.UpstreamState, Upstream: "fake", To: string(health.CrashLoop)})
		if n := r.toldOf(ruleBreakerOpen, alertRaised); n != alertBurst {
			t.Errorf("%d were told at once", n)
		}
		for _, rule := range []string{ruleBreakersIn60s, ruleCrashLoop} {
			if n := r.toldOf(rule, alertRaised); n != 1 {
				t.Errorf("%s was told %d times: %q", rule, n, r.told())
			}
		}
		s := r.p.Status()
		raw, err := json.Marshal(s.Short())
		if err != nil {
			t.Fatal(err)
		}
		wantPart(t, string(raw), fmt.Sprintf(`"%d more: see section alerts"]`, len(s.Alerts)-shortAlerts))
		if len(s.Alerts) != maxAlerts+1 || s.Alerts[0].Rule != ruleCrashLoop {
			t.Errorf("%d alerts, the last %+v", len(s.Alerts), s.Alerts[0])
		}
		settle(time.Minute)
		if n := r.toldOf(ruleBreakerOpen, alertRaised); n < alertBurst+5 || n > alertBurst+7 {
			t.Errorf("%d were told after a minute", n)
		}

		// Half of them work again: the others take their places.
		srv.result("tools/call", `{"content":[]}`)
		for range 8 {
			settle(2 * time.Minute)
			for i := range maxAlerts {
				c.send(strings.Replace(callT1("1", ""), "t1", fmt.Sprintf("tool%d", i), 1)).text()
			}
		}
		settle(3 * alertEvery)
		holding := map[string]bool{}
		for _, one := range r.p.Status().Alerts {
			if one.Resolved == nil && one.Rule == ruleBreakerOpen {
				holding[one.Tool] = true
			}
		}
		if len(holding) < maxAlerts-2 || holding["tool0"] || !holding[fmt.Sprintf("tool%d", broken-1)] {
			t.Errorf("%d hold: %v", len(holding), holding)
		}
	})
}

// What happens while the alerts are held up is found afterwards, if it still holds.
func TestAlertsFindWhatWasMissed(t *testing.T) {
	srv := failingServer()
	var held chan struct{} // of the bubble
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		r.opens("held") // its line in the log is not taken
		for range 300 {
			r.p.publish(event.Event{Kind: event.ConfigReloaded})
		}
		r.fails(c, "t1")
		r.opens("closed again")
		close(held)
		settle(3 * alertEvery)
		got := strings.Join(r.told(), "\n")
		wantPart(t, got, "breaker_open|fake|t1||raised|the breaker of fake's tool t1 has opened: the server answered with an error")
		if strings.Contains(got, "closed again") || r.toldOf(ruleBreakersIn60s, alertRaised) != 0 {
			t.Error(got)
		}
		before := len(r.told())
		settle(time.Hour)
		if n := r.toldOf(ruleBreakerOpen, alertRaised); n != 2 || len(r.told()) != before {
			t.Errorf("told %q", r.told())
		}
	}, func(c *Config) {
		held = make(chan struct{})
		c.Log = slog.New(heldLog{slog.DiscardHandler, held})
	})
}

// heldLog does not take a line about an alert before it is let go.
type heldLog struct {
	slog.Handler
	held <-chan struct{}
}

func (h heldLog) Enabled(context.Context, slog.Level) bool { return true }

func (h heldLog) Handle(_ context.Context, line slog.Record) error {
	if line.Message == "alert" {
		<-h.held
	}
	return nil
}

// survey finds what every rule about a state is about.
func TestAlertSurvey(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		srv.result("tools/list", `{"tools":[{"name":"t1","description":"new","inputSchema":{"type":"object"}}]}`)
		srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		settle(time.Second)
		srv.onStart = func(p *fakePeer) { p.exit("exit status 3") }
		srv.peer().exit("exit status 3")
		settle(time.Hour)
		a := r.p.alerts
		a.mu.Lock()
		a.all = nil // as if nothing had been heard
		a.mu.Unlock()
		a.full = true
		r.p.alerts.nudge()
		settle(2 * alertEvery)
		var got []string
		for _, one := range r.p.Status().Alerts {
			got = append(got, one.Rule+" "+one.Text)
		}
		want := []string{
			"definition_changed the definition of fake's tool t1 has changed; it is quarantined",
			"crash_loop the server fake is in a crash loop: it ends again and again right after its start, last: the process ended: exit status 3",
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("found %q", got)
		}
	}, func(c *Config) { c.Upstreams[0].OnChange = "quarantine" })
}

// Nothing is kept of breakers that no rule counts.
func TestAlertsCountNothingInVain(t *testing.T) {
	bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
		for i := range 100 {
			r.opens(fmt.Sprint(i))
		}
		if n := len(r.p.alerts.opened); n != 0 {
			t.Errorf("%d are kept", n)
		}
	}, func(c *Config) { c.Alerts.Rules.BreakersIn60s = new(0) })
}

// A second definition within the time in which nothing is told twice is told after it.
func TestAlertOfDefinitionsInARow(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		for i := range 3 {
			srv.result("tools/list", fmt.Sprintf(`{"tools":[{"name":"t1","description":"%d","inputSchema":{"type":"object"}}]}`, i))
			srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			settle(time.Second)
		}
		const line = "definition_changed|fake|t1||raised|the definition of fake's tool t1 has changed; it is accepted"
		r.wantTold(line)
		settle(alertQuiet + alertEvery)
		r.wantTold(line, line)
		settle(time.Hour)
		r.wantTold(line, line)
	})
}

// An alert is marked by what raised it: not by a fault that has hit something
// else, and not by one that raised it earlier.
func TestAlertsAreMarkedByTheirCause(t *testing.T) {
	bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
		opens := func(tool, fault string) {
			r.p.publish(event.Event{Kind: event.BreakerChanged, Upstream: "fake", Tool: tool, From: "closed", To: "open", Injected: fault})
			synctest.Wait()
		}
		injected := func(rule, tool string) string {
			for _, one := range r.p.Status().Alerts {
				if one.Rule == rule && one.Tool == tool {
					return one.Injected
				}
			}
			return "no such alert"
		}
		opens("a", "f1")
		opens("b", "")
		opens("c", "")
		if got := injected(ruleBreakersIn60s, ""); got != "" {
			t.Errorf("three breakers, one by chaos: %q", got)
		}
		settle(3 * alertEvery)
		opens("a", "")
		if got := injected(ruleBreakerOpen, "a"); got != "" {
			t.Errorf("a real failure after an injected one: %q", got)
		}
		settle(3 * alertEvery)
		opens("a", "f2")
		if got := injected(ruleBreakerOpen, "a"); got != "f2" {
			t.Errorf("an injected failure after a real one: %q", got)
		}
	})
}

// What chaos has done to a provider is in its error rate for five minutes, and
// in the number of failovers for an hour, however long the fault has been gone.
func TestAlertsOfModelsAreMarked(t *testing.T) {
	bad := llm.NewFake("gemini").Script(func(i int, _ *llm.Request) llm.Step {
		if i%2 == 0 {
			return llm.Step{Status: 413}
		}
		if i%19 == 0 {
			return llm.Step{Status: 503}
		}
		return llm.Step{}
	})
	for since, want := range map[time.Duration]string{
		time.Second:      "failovers_per_hour f1, primary_error_rate f1",
		10 * time.Minute: "failovers_per_hour f1, primary_error_rate ",
		2 * time.Hour:    "failovers_per_hour , primary_error_rate ",
	} {
		models(t, quick, []*llm.Fake{bad, llm.NewFake("groq")}, func(t *testing.T, r *rig) {
			r.p.LLMTrace(&llm.Trace{Attempts: []llm.Attempt{{Provider: "gemini", Class: llm.ClassOverloaded, Injected: "f1"}}})
			settle(since)
			askModels(t, r, 60)
			marks := map[string]string{}
			for _, one := range r.p.Status().Alerts {
				marks[one.Rule] = one.Injected
			}
			var got []string
			for _, rule := range sortedKeys(marks) {
				got = append(got, rule+" "+marks[rule])
			}
			if strings.Join(got, ", ") != want {
				t.Errorf("%v after the fault: %q, want %q", since, got, want)
			}
		})
	}
}
