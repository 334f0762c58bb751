package mcpproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/fixtures/fakellm"
	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/builtin"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// withFaults runs f with a rig that chaos is switched on for.
func withFaults(t *testing.T, srv *fakeServer, f func(t *testing.T, r *rig, inj *chaos.Injector), edit ...func(*Config)) {
	t.Helper()
	inj := chaos.New(chaos.Options{Enabled: true, Seed: 1})
	bubble(t, srv, func(t *testing.T, r *rig) {
		defer inj.Close()
		f(t, r, inj)
	}, append(edit, func(c *Config) { c.Chaos = inj })...)
}

func inject(t *testing.T, inj *chaos.Injector, s chaos.Spec) {
	t.Helper()
	if s.TTL == 0 {
		s.TTL = chaos.Duration(10 * time.Minute)
	}
	if _, err := inj.Inject(s); err != nil {
		t.Fatal(err)
	}
}

// chaosCall is a call of one of the tools of chaos.
func chaosCall(id int, tool, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, tool, arguments)
}

func t1Server() *fakeServer {
	srv := newLegacyServer()
	srv.result("tools/call", `{"content":[{"type":"text","text":"done"}]}`)
	srv.result("prompts/get", `{"messages":[]}`)
	return srv
}

// Whatever a fault has a part in says so: in _meta, in events and in metrics.
// What it has none in is untouched.
func TestInjectedIsMarked(t *testing.T) {
	withFaults(t, t1Server(), func(t *testing.T, r *rig, inj *chaos.Injector) {
		c := r.client(`{}`)
		for n, s := range []chaos.Spec{
			{Fault: chaos.Latency, Delay: chaos.Duration(time.Second)},
			{Fault: chaos.ToolError},
			{Fault: chaos.Corrupt},
			{Fault: chaos.Drop},
			{Fault: chaos.Kill, Count: 1},
			{Fault: chaos.Hang},
		} {
			s.Target = "mcp/fake/t1"
			inject(t, inj, s)
			st := c.send(callT1(fmt.Sprint(n), ""))
			settle(2 * time.Minute)
			wantPart(t, st.text(), `"agentarmor/call":{"upstream":"fake",`, fmt.Sprintf(`"injected":"f%d"`, n+1))
			if _, err := inj.Clear("all"); err != nil {
				t.Error(err)
			}
			r.p.upstream("fake").guard.tool("t1").breaker.Reset()
			settle(time.Minute)
		}
		for _, e := range r.p.events.Recent(event.History) {
			if e.Kind == event.CallFailed && e.Injected == "" {
				t.Errorf("not marked: %+v", e)
			}
		}
		w := httptest.NewRecorder()
		r.p.metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for _, outcome := range []string{"ok", "tool_error", "malformed", "lost", "timeout"} {
			wantPart(t, w.Body.String(), fmt.Sprintf(`agentarmor_calls_total{injected="true",outcome=%q,tool="t1",upstream="fake"}`, outcome))
		}
		if strings.Contains(w.Body.String(), `agentarmor_calls_total{injected="false"`) {
			t.Error("an injected call is counted as a usual one")
		}
		if got := c.send(callT1("99", "")).text(); strings.Contains(got, "_meta") {
			t.Errorf("touched without a fault: %s", got)
		}
	})
}

// A call that is served at last tells that a fault was injected on its way.
func TestRetriedCallIsMarked(t *testing.T) {
	withFaults(t, t1Server(), func(t *testing.T, r *rig, inj *chaos.Injector) {
		inject(t, inj, chaos.Spec{Target: "mcp/fake/t1", Fault: chaos.Corrupt, Count: 1})
		st := r.client(`{}`).send(callT1("1", ""))
		settle(10 * time.Second)
		wantPart(t, st.text(), `"text":"done"`, `"outcome":"ok"`, `"attempts":2`, `"injected":"f1"`)
		w := httptest.NewRecorder()
		r.p.metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		wantPart(t, w.Body.String(), `agentarmor_retries_total{injected="true",upstream="fake"} 1`)
	}, func(c *Config) {
		c.Upstreams[0].Tools = map[string]ToolConfig{"t1": {Idempotent: new(true)}}
	})
}

// The tools and the resource, from the discovery of what there is to the end of
// a fault.
func TestChaosTools(t *testing.T) {
	withFaults(t, t1Server(), func(t *testing.T, r *rig, _ *chaos.Injector) {
		c := r.client(`{}`)
		c.send(`{"jsonrpc":"2.0","id":"sub","method":"resources/subscribe","params":{"uri":"agentarmor://chaos"}}`)
		wantPart(t, c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).text(), `"chaos.inject"`, `"chaos.clear"`, `"chaos.list"`)
		wantPart(t, c.send(chaosCall(2, "chaos.list", `{}`)).text(), `"targets":["mcp/fake","mcp/fake/t1"]`, `"scenarios":["corrupt_results",`, `"enabled":true`)
		wantPart(t, c.send(chaosCall(3, "chaos.inject", `{"target":"mcp/*/t*","fault":"error","status":500,"ttl":"1m","dry_run":true}`)).text(),
			`"targets":["mcp/fake/t1"]`, `"injected":[]`)
		settle(2 * time.Second)
		c.take()
		wantPart(t, c.send(chaosCall(4, "chaos_inject", `{"target":"mcp/fake/t1","fault":"tool_error","message":"no disk","ttl":"1m","count":2}`)).text(),
			`"id":"f1"`, `"targets":["mcp/fake/t1"]`, `"left":"1m0s"`)
		wantPart(t, c.send(callT1("5", "")).text(), `no disk`, `"isError":true`)
		settle(2 * time.Second)
		wantPart(t, strings.Join(c.take(), "\n"), `notifications/resources/updated","params":{"uri":"agentarmor://chaos"}`)
		wantPart(t, c.send(`{"jsonrpc":"2.0","id":6,"method":"resources/read","params":{"uri":"agentarmor://chaos"}}`).text(),
			`\"hits\": 1`, `\"id\": \"f1\"`, `\"left\": \"58s\"`, `\"seed\"`)
		wantPart(t, c.send(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"armor.status"}}`).text(), `"chaos":{"enabled":true,"active":1}`)
		wantPart(t, c.send(chaosCall(8, "chaos.clear", `{"which":"mcp/fake/*"}`)).text(), `"cleared":[{"id":"f1"`, `"active":0`)
		if got := c.send(callT1("9", "")).text(); !strings.Contains(got, "done") || strings.Contains(got, "injected") {
			t.Error(got)
		}
		wantPart(t, c.send(chaosCall(10, "chaos.inject", `{"scenario":"corrupt_results","ttl":"30s","seed":3}`)).text(), `"id":"f2"`, `"id":"f4"`, `"seed":3`, `"seed":5`)
		settle(time.Minute)
		wantPart(t, c.send(chaosCall(11, "chaos.list", `{}`)).text(), `"active":[]`)
		var kinds []string
		for _, e := range r.p.events.Recent(event.History) {
			if e.Kind == event.ChaosInjected || e.Kind == event.ChaosCleared {
				kinds = append(kinds, fmt.Sprint(e.Kind, " ", e.Injected, " ", e.To))
			}
		}
		want := "chaos.injected f1 tool_error, chaos.cleared f1 cleared, chaos.injected f2 corrupt, chaos.injected f3 truncate, chaos.injected f4 tool_error"
		if got := strings.Join(kinds, ", "); !strings.HasPrefix(got, want) || strings.Count(got, "expired") != 3 {
			t.Error(got)
		}
	})
}

// What is wrong is said, and nothing is injected.
func TestChaosRefuses(t *testing.T) {
	withFaults(t, t1Server(), func(t *testing.T, r *rig, inj *chaos.Injector) {
		c := r.client(`{}`)
		for arguments, want := range map[string]string{
			`{}`: "target is missing",
			`{"target":"mcp/nobody","fault":"hang","ttl":"1m"}`:                                      `unknown target: \"mcp/nobody\" matches none of mcp/fake, mcp/fake/t1`,
			`{"target":"mcp/fake","fault":"hang"}`:                                                   "ttl is missing",
			`{"target":"mcp/fake","fault":"hang","ttl":"11m"}`:                                       "at most 10m0s",
			`{"target":"mcp/fake","fault":"hang","ttl":"soon"}`:                                      `is no duration such as 30s`,
			`{"target":"mcp/fake","fault":"hang","ttl":5}`:                                           `ttl must be a duration such as \"30s\"`,
			`{"target":"mcp/fake","fault":"hang","ttl":"1m","probability":2}`:                        "probability must be 0 to 1",
			`{"target":"mcp/fake","fault":"hang","ttl":"1m","probability":null}`:                     "probability is null: give it a value, or leave it out",
			`{"target":"mcp/fake","fault":"hang","ttl":"1m","probability":"x"}`:                      "probability must be a number",
			`{"target":"mcp/fake","fault":"explode","ttl":"1m"}`:                                     `unknown fault \"explode\": use one of kill, error`,
			`{"target":"mcp/fake","fault":"hang","ttl":"1m","size":3}`:                               `there is no argument \"size\": use fault, scenario, target`,
			`{"target":"mcp/fake","fault":"hang","ttl":"1m","scenario":"everything"}`:                "a scenario takes target, ttl and seed only",
			`{"target":"mcp/fake","fault":"hang","ttl":"1m","scenario":"everything","dry_run":true}`: "a scenario takes target, ttl and seed only",
			`{"scenario":"everything"}`:                                                              "ttl is missing",
			`{"scenario":"everything","ttl":"1m","count":3}`:                                         "a scenario takes target, ttl and seed only",
			`{"scenario":"doom","ttl":"1m"}`:                                                         `unknown scenario \"doom\"`,
			`{"scenario":"provider_outage","ttl":"1m"}`:                                              "unknown target",
		} {
			if got := c.send(chaosCall(1, "chaos.inject", arguments)).text(); !strings.Contains(got, want) || !strings.Contains(got, `"isError":true`) {
				t.Errorf("%s: no %q in %s", arguments, want, got)
			}
		}
		if len(inj.List()) != 0 {
			t.Error("something is injected")
		}
		wantPart(t, c.send(chaosCall(1, "chaos.clear", `{"which":"f7"}`)).text(), `no fault \"f7\": none is active`, `"isError":true`)
		wantPart(t, c.send(chaosCall(1, "chaos.clear", `{"id":"f7"}`)).text(), `there is no argument \"id\": use which`)
	})
}

// Without chaos its tools are in no list and do nothing, and no connection is wrapped.
func TestChaosIsOff(t *testing.T) {
	for name, inj := range map[string]*chaos.Injector{"none": nil, "off": chaos.New(chaos.Options{})} {
		t.Run(name, func(t *testing.T) {
			bubble(t, t1Server(), func(t *testing.T, r *rig) {
				c := r.client(`{}`)
				for _, list := range []string{"tools/list", "resources/list"} {
					if got := c.send(`{"jsonrpc":"2.0","id":1,"method":"` + list + `"}`).text(); strings.Contains(got, `"chaos.inject"`) || strings.Contains(got, `"agentarmor://chaos"`) {
						t.Errorf("listed: %s", got)
					}
				}
				for _, tool := range []string{"chaos.inject", "chaos.clear"} {
					wantPart(t, c.send(chaosCall(2, tool, `{}`)).text(), `chaos is off: set chaos.enabled`, `"isError":true`)
				}
				wantPart(t, c.send(chaosCall(3, "chaos.list", `{}`)).text(), `"enabled":false`, `chaos is off`)
				wantPart(t, c.send(`{"jsonrpc":"2.0","id":4,"method":"resources/read","params":{"uri":"agentarmor://chaos"}}`).text(), `\"enabled\": false`)
				if _, wrapped := r.p.upstream("fake").shared.live().peer.(*chaosPeer); wrapped {
					t.Error("a connection is wrapped")
				}
			}, func(c *Config) { c.Chaos = inj })
		})
	}
}

// A fault's schema is flat, and each argument is described and known.
func TestInjectSchema(t *testing.T) {
	withFaults(t, t1Server(), func(t *testing.T, r *rig, _ *chaos.Injector) {
		answer := r.client(`{}`).send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).text()
		var m struct {
			Result struct {
				Tools []struct {
					Name        string
					Annotations map[string]any
					InputSchema struct {
						Properties           map[string]struct{ Type, Description string }
						AdditionalProperties *bool
						Required             []string
					}
				}
			}
		}
		if err := json.Unmarshal([]byte(answer), &m); err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, tool := range m.Result.Tools {
			hints := fmt.Sprint(tool.Annotations["readOnlyHint"], tool.Annotations["destructiveHint"], tool.Annotations["idempotentHint"], tool.Annotations["openWorldHint"])
			want, ok := map[string]string{"chaos.inject": "false true false false", "chaos.clear": "false false true false", "chaos.list": "true false true false"}[tool.Name]
			if !ok {
				continue
			}
			seen++
			if hints != want {
				t.Errorf("%s: hints %s", tool.Name, hints)
			}
			for name, p := range tool.InputSchema.Properties {
				if p.Description == "" || !regexp.MustCompile(`^(string|number|integer|boolean)$`).MatchString(p.Type) {
					t.Errorf("%s %s: %+v", tool.Name, name, p)
				}
			}
			if tool.Name == "chaos.inject" && (len(tool.InputSchema.Properties) != 20 || *tool.InputSchema.AdditionalProperties) {
				t.Errorf("%+v", tool.InputSchema)
			}
		}
		if seen != len(builtin.ChaosTools) {
			t.Errorf("%d tools", seen)
		}
	})
}

// A drifted definition is seen at once, and so is its way back.
func TestSchemaDriftIsTold(t *testing.T) {
	withFaults(t, t1Server(), func(t *testing.T, r *rig, inj *chaos.Injector) {
		c := r.client(`{}`)
		inject(t, inj, chaos.Spec{Target: "mcp/fake/t1", Fault: chaos.SchemaDrift})
		settle(time.Second)
		wantPart(t, strings.Join(c.take(), "\n"), "notifications/tools/list_changed", `"event":"definition.changed"`, `"injected":"f1"`)
		wantPart(t, c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).text(), `"required":["drift"]`)
		if _, err := inj.Clear("all"); err != nil {
			t.Fatal(err)
		}
		settle(time.Second)
		if got := c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).text(); strings.Contains(got, `"drift"]`) {
			t.Error(got)
		}
	})
}

// A client that leaves a call that a fault holds back leaves nothing of it behind,
// and the server never hears of it.
func TestHeldCallIsCancelled(t *testing.T) {
	srv := t1Server()
	withFaults(t, srv, func(t *testing.T, r *rig, inj *chaos.Injector) {
		c := r.client(`{}`)
		inject(t, inj, chaos.Spec{Target: "mcp/fake/t1", Fault: chaos.Hang})
		st := c.send(callT1("1", ""))
		settle(time.Second)
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		if st.text() != "dropped" {
			t.Error(st.text())
		}
		st = c.send(callT1("2", ""))
		settle(time.Second)
		if _, err := inj.Clear("all"); err != nil {
			t.Fatal(err)
		}
		wantPart(t, st.text(), `"text":"done"`, `"injected":"f1"`) // goes on
		if n := srv.count("tools/call"); n != 1 {
			t.Errorf("the server got %d calls", n)
		}
	})
}

// A process that is killed has not answered, however fast it was.
func TestKilledProcessHasNotAnswered(t *testing.T) {
	srv := t1Server()
	withFaults(t, srv, func(t *testing.T, r *rig, inj *chaos.Injector) {
		breaks(true, func(p *fakePeer, id uint64, _ wire.Message) bool {
			p.result(id, `{"content":[]}`) // before the signal
			return true
		})(r, srv)
		for n, fault := range []chaos.Kind{chaos.Kill, chaos.Drop} {
			inject(t, inj, chaos.Spec{Target: "mcp/fake/t1", Fault: fault, Count: 1})
			wantPart(t, r.client(`{}`).send(callT1(fmt.Sprint(n), "")).text(), `"outcome":"lost"`)
			settle(time.Minute)
		}
	})
}

// Both generations are told of a tool's failure in their own way.
func TestToolErrorForModernServers(t *testing.T) {
	srv := newModernServer()
	srv.result("tools/call", `{"resultType":"complete","content":[]}`)
	withFaults(t, srv, func(t *testing.T, r *rig, inj *chaos.Injector) {
		inject(t, inj, chaos.Spec{Target: "mcp/fake/t1", Fault: chaos.ToolError})
		for _, st := range []*testStream{r.modern("", callT1("1", ","+askingMeta)), r.client(`{}`).send(callT1("1", ""))} {
			wantPart(t, st.text(), `"isError":true`, `"resultType":"complete"`, `"injected":"f1"`)
		}
	})
}

// What leaves a session forgotten over HTTP does so here: one new session, and
// the call is made again.
func TestInjected404LosesTheSession(t *testing.T) {
	srv := t1Server()
	withFaults(t, srv, func(t *testing.T, r *rig, inj *chaos.Injector) {
		inject(t, inj, chaos.Spec{Target: "mcp/fake/t1", Fault: chaos.Error, Status: 404, Count: 1})
		st := r.client(`{}`).send(callT1("1", ""))
		settle(5 * time.Second)
		wantPart(t, st.text(), `"text":"done"`)
		if n := srv.count("initialize"); n != 2 {
			t.Errorf("%d handshakes", n)
		}
	}, func(c *Config) {
		c.Upstreams[0].Command, c.Upstreams[0].URL = "", "http://fake.example/mcp"
	})
}

// The trace of a call of a model names the fault of each attempt, and metrics
// and events are marked, too.
func TestInjectedProviderIsMarked(t *testing.T) {
	inj := chaos.New(chaos.Options{Enabled: true, Seed: 1})
	pipe, done := fakellm.Pipe(fakellm.NewOpenAI(fakellm.Options{}))
	defer done()
	first, err := llm.NewOpenAI(llm.ProviderOptions{Name: "first", Model: "m", BaseURL: "http://fake", Transport: inj.Transport("llm/first", pipe)})
	if err != nil {
		t.Fatal(err)
	}
	var proxy atomic.Pointer[Proxy]
	chain, err := llm.New([]llm.Entry{{Provider: first}, {Provider: llm.NewFake("second", llm.Step{Text: "hi"})}}, llm.Options{
		Attempts: 1, OnTrace: func(tr *llm.Trace) { proxy.Load().LLMTrace(tr) }, OnEvent: func(e llm.Event) { proxy.Load().LLMEvent(e) },
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{LLM: chain, Chaos: inj})
	if err != nil {
		t.Fatal(err)
	}
	proxy.Store(p)
	defer chain.Close()
	defer p.Close(context.Background())
	defer inj.Close()
	inject(t, inj, chaos.Spec{Target: "llm/first", Fault: chaos.Error, Count: 2})
	for range 3 {
		resp, err := chain.Complete(t.Context(), llm.Prompt("x"))
		if err != nil {
			t.Fatal(err)
		}
		if a := resp.Trace.Attempts[0]; a.Injected != "f1" { // failed, or was passed over because of that
			t.Errorf("%+v", a)
		}
		if a := resp.Trace.Attempts[len(resp.Trace.Attempts)-1]; a.Provider == "second" && a.Injected != "" {
			t.Errorf("%+v", a)
		}
	}
	w := httptest.NewRecorder()
	p.metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	wantPart(t, w.Body.String(), `agentarmor_llm_requests_total{injected="true",outcome="overloaded",provider="first"} 2`,
		`agentarmor_llm_calls_total{injected="true",outcome="ok",provider="second"} 3`, `agentarmor_llm_failovers_total{from="first",injected="true",to="second"} 3`)
	found := false
	for _, e := range p.events.Recent(event.History) {
		found = found || e.Kind == event.LLMBreaker && e.Injected == "f1"
	}
	if !found {
		t.Error("the breaker that opened is not marked")
	}
}

// lastState is the newest event about the state of the server.
func lastState(r *rig) (last event.Event) {
	for _, e := range r.p.events.Recent(event.History) {
		if e.Kind == event.UpstreamState {
			last = e
		}
	}
	return last
}

// What follows from a fault is marked, calls that are refused because of it too;
// what a failure of the server's own leads to is not, also
// while a fault is active.
func TestMarksFollowTheCause(t *testing.T) {
	srv := t1Server()
	withFaults(t, srv, func(t *testing.T, r *rig, inj *chaos.Injector) {
		c := r.client(`{}`)
		marked := func(what, id string, want bool) {
			t.Helper()
			got := c.send(callT1(id, "")).text()
			if strings.Contains(got, `"injected":"f`) != want || !strings.Contains(got, "unavailable") {
				t.Errorf("%s: %s", what, got)
			}
		}
		clear := func() {
			if _, err := inj.Clear("all"); err != nil {
				t.Error(err)
			}
		}
		inject(t, inj, chaos.Spec{Target: "mcp/fake", Fault: chaos.Error, Status: 401, Count: 1})
		marked("refused", "1", true)
		settle(time.Second)
		marked("refused for that", "2", true)
		if e := lastState(r); e.To != string(health.NeedsAuth) || e.Injected != "f1" {
			t.Errorf("%+v", e)
		}
		clear()
		settle(10 * time.Minute)
		inject(t, inj, chaos.Spec{Target: "mcp/fake/t1", Fault: chaos.Corrupt, Count: 3})
		for n := range 3 {
			marked("corrupt", fmt.Sprint(10+n), true)
		}
		marked("the tool's breaker", "20", true)
		clear()
		settle(10 * time.Minute)
		for n := range 3 {
			c.send(callT1(fmt.Sprint(30+n), "")).text()
		}
		// Its own failure, which a fault has but delayed.
		inject(t, inj, chaos.Spec{Target: "mcp/fake", Fault: chaos.Latency, Delay: chaos.Duration(time.Millisecond)})
		breaks(false, failsWith(wire.Error{Kind: wire.HTTPStatus, Status: 401}))(r, srv)
		c.send(callT1("60", ""))
		settle(time.Second)
		marked("refused for its own, beside a delay", "61", false)
		if e := lastState(r); e.To != string(health.NeedsAuth) || e.Injected != "" {
			t.Errorf("%+v", e)
		}
		heals(r, srv)
		clear()
		settle(10 * time.Minute)
		// Its own failure, beside an active fault that has hit it.
		inject(t, inj, chaos.Spec{Target: "mcp/fake/t1", Fault: chaos.Error, Status: 400, Count: 1})
		marked("hit", "40", true)
		breaks(false, failsWith(wire.Error{Kind: wire.HTTPStatus, Status: 401}))(r, srv)
		marked("its own", "41", false)
		settle(time.Second)
		marked("refused for its own", "42", false)
		if e := lastState(r); e.To != string(health.NeedsAuth) || e.Injected != "" {
			t.Errorf("%+v", e)
		}
		w := httptest.NewRecorder()
		r.p.metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		wantPart(t, w.Body.String(), `agentarmor_calls_total{injected="false",outcome="auth",tool="t1",upstream="fake"} 3`,
			`agentarmor_calls_total{injected="true",outcome="auth",tool="t1",upstream="fake"} 3`, `agentarmor_calls_total{injected="true",outcome="open",tool="t1",upstream="fake"} 1`,
			`agentarmor_transitions_total{injected="true",plane="tool breaker",to="open",upstream="fake"} 1`)
	}, func(c *Config) {
		c.Upstreams[0].Command, c.Upstreams[0].URL = "", "http://fake.example/mcp"
	})
}

// Likewise for a server that cannot be started, and for what its probes find.
func TestMarksOfStartsAndProbes(t *testing.T) {
	srv, down := t1Server(), atomic.Bool{}
	srv.onDial = func(int, string) error {
		if down.Load() {
			return errors.New("no such program")
		}
		return nil
	}
	withFaults(t, srv, func(t *testing.T, r *rig, inj *chaos.Injector) {
		refused := func(want string) {
			t.Helper()
			settle(time.Minute)
			got := r.client(`{}`).send(callT1("1", "")).text()
			_, fault, _ := strings.Cut(got, `"injected":"`)
			if fault, _, _ = strings.Cut(fault, `"`); fault != want || !strings.Contains(got, "unavailable") || lastState(r).Injected != want {
				t.Errorf("%s %+v", got, lastState(r))
			}
		}
		inject(t, inj, chaos.Spec{Target: "mcp/fake", Fault: chaos.Kill, Count: 1})
		down.Store(true)
		refused("") // killed by f1, but it is its own that it does not come back
		inject(t, inj, chaos.Spec{Target: "mcp/fake", Fault: chaos.Flap, Down: chaos.Duration(time.Hour)})
		down.Store(false)
		refused("f2")
		if _, err := inj.Clear("all"); err != nil {
			t.Fatal(err)
		}
		settle(10 * time.Minute)

		opened := func(want string) {
			t.Helper()
			settle(3 * time.Minute)
			last := event.Event{}
			for _, e := range r.p.events.Recent(event.History) {
				if e.Kind == event.BreakerChanged && e.Tool == "t1" && e.To == string(health.BreakerOpen) {
					last = e
				}
			}
			if last.Kind == "" || last.Injected != want {
				t.Errorf("%q: %+v", want, last)
			}
		}
		inject(t, inj, chaos.Spec{Target: "mcp/fake/t1", Fault: chaos.ToolError, TTL: chaos.Duration(5 * time.Minute)})
		opened("f3")
		settle(10 * time.Minute)
		srv.result("tools/call", `{"content":[],"isError":true}`)
		opened("")
	}, func(c *Config) {
		c.Upstreams[0].Tools = map[string]ToolConfig{"t1": {Probe: &ToolProbe{}}}
	})
}

// No server is left alone for longer than a real one could ask for.
func TestInjectedRetryAfterIsCapped(t *testing.T) {
	withFaults(t, t1Server(), func(t *testing.T, r *rig, inj *chaos.Injector) {
		c := r.client(`{}`)
		inject(t, inj, chaos.Spec{Target: "mcp/fake/t1", Fault: chaos.RateLimit, RetryAfter: chaos.Duration(5 * time.Hour), Count: 1})
		st := c.send(callT1("1", ""))
		wantPart(t, st.text(), `"outcome":"throttled"`, `"retry_at":"2000-01-01T00:10:01Z"`) // ten minutes, and no earlier
	}, func(c *Config) {
		c.Upstreams[0].Command, c.Upstreams[0].URL = "", "http://fake.example/mcp"
	})
}

// What a fault has told of credentials and of when to come back is over with it,
// and what its work has opened closes: as soon as it has ended all is as before.
func TestAllIsAsBeforeWhenAFaultEnds(t *testing.T) {
	for status, outcome := range map[int]string{401: "needs_auth", 429: "throttled", 503: "down", 500: "degraded"} {
		target := "mcp/fake"
		if outcome == "degraded" {
			target = "mcp/fake/t1"
		}
		withFaults(t, t1Server(), func(t *testing.T, r *rig, inj *chaos.Injector) {
			c := r.client(`{}`)
			inject(t, inj, chaos.Spec{Target: target, Fault: chaos.Error, Status: status, RetryAfter: chaos.Duration(9 * time.Minute)})
			for n := range 4 {
				c.send(callT1(fmt.Sprint(n), ""))
				settle(5 * time.Second)
			}
			if s := r.p.statusOf(r.p.ups()[0]); string(s.State) != outcome {
				t.Errorf("%d: %s", status, s.State)
			}
			if _, err := inj.Clear("all"); err != nil {
				t.Fatal(err)
			}
			settle(time.Second)
			wantPart(t, c.send(callT1("9", "")).text(), `"text":"done"`)
			if s := r.p.statusOf(r.p.ups()[0]); s.State != health.Ready || s.Breaker.State != health.BreakerClosed || len(s.Degraded) > 0 {
				t.Errorf("%d: %+v", status, s)
			}
		}, func(c *Config) {
			c.Upstreams[0].Command, c.Upstreams[0].URL = "", "http://fake.example/mcp"
			c.Upstreams[0].Retry.Attempts = new(1)
		})
	}
}
