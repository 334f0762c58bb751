package mcpproxy

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// statusOfFake is the status of the only upstream, as a client reads it.
func statusOfFake(t *testing.T, r *rig) (u struct {
	State       health.State            `json:"state"`
	Reason      string                  `json:"reason"`
	NextAttempt *time.Time              `json:"next_attempt"`
	Restarts    int                     `json:"restarts"`
	Breaker     health.BreakerSnapshot  `json:"breaker"`
	Window      windowStatus            `json:"window"`
	Degraded    map[string]degradedTool `json:"degraded_tools"`
}) {
	t.Helper()
	synctest.Wait()
	raw, err := json.Marshal(r.p.Status().Upstreams["fake"])
	if err == nil {
		err = json.Unmarshal(raw, &u)
	}
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// noRetry keeps the tests of breakers apart from those of retries.
func noRetry(u *UpstreamConfig) { u.Retry.Attempts = new(0) }

// CASES 22: what the tool or the server answers is no outage, however often.
func TestAnswersOpenNoBreaker(t *testing.T) {
	guarded(t, noRetry, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		for name, do := range map[string]reply{
			"isError":   func(p *fakePeer, id uint64) { p.result(id, `{"content":[],"isError":true}`) },
			"arguments": func(p *fakePeer, id uint64) { p.error(id, -32602, "bad arguments") },
			"unknown":   func(p *fakePeer, id uint64) { p.error(id, -32002, "no such thing") },
			"own code":  func(p *fakePeer, id uint64) { p.error(id, 42, "mine") },
		} {
			s.does("plain", do)
			for range 30 {
				if st := c.call("plain"); strings.Contains(st.text(), "agentarmor/call") {
					t.Fatalf("%s: %s", name, st.text())
				}
			}
		}
		s.does("plain", good)
		wantPart(t, c.call("plain").text(), `"fine"`)
		u := statusOfFake(t, r)
		if u.State != health.Ready || u.Breaker.State != health.BreakerClosed || u.Window.ErrorRate != 0 || u.Window.Calls != 121 {
			t.Errorf("%+v", u)
		}
	})
}

// One broken tool on a healthy server: its breaker opens, the rest works, and
// one live call after another closes it again.
func TestToolBreaker(t *testing.T) {
	guarded(t, noRetry, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("plain", broken)
		for range 3 {
			wantPart(t, c.call("plain").text(), `"code":-32603,"message":"boom"`)
		}
		open := c.call("plain")
		wantAccount(t, open.text(), map[string]any{"outcome": "open", "executed": "no"})
		wantPart(t, open.text(), "breaker is open", "It was not executed", "Do not retry before")
		if s.called("plain") != 3 {
			t.Errorf("an open breaker has let %d calls pass", s.called("plain")-3)
		}
		wantPart(t, c.call("find").text(), `"fine"`)
		u := statusOfFake(t, r)
		if u.State != health.Degraded || u.Breaker.State != health.BreakerClosed ||
			u.Degraded["plain"].Name != "fake__plain" || u.Degraded["plain"].Breaker.State != health.BreakerOpen || len(u.Degraded) != 1 {
			t.Errorf("%+v", u)
		}
		settle(36 * time.Second) // 30 s + 20 %
		s.does("plain", hangs)
		trial, refused := c.call("plain"), c.call("plain")
		if trial.text() != "" || s.called("plain") != 4 {
			t.Errorf("%d calls: a half-open breaker takes one at a time", s.called("plain")-3)
		}
		wantAccount(t, refused.text(), map[string]any{"outcome": "open"})
		s.peer().result(s.peer().lastID(t, "tools/call"), `{"content":[]}`)
		s.does("plain", good)
		for range 2 {
			wantPart(t, c.call("plain").text(), `"fine"`)
		}
		if u := statusOfFake(t, r); u.State != health.Ready || len(u.Degraded) != 0 {
			t.Errorf("afterwards: %+v", u)
		}
	})
}

// Each key of breaker changes when the breaker of a tool opens or closes.
func TestBreakerConfig(t *testing.T) {
	fail := func(n int) func(c *testClient, s *scripted) {
		return func(c *testClient, s *scripted) {
			s.does("plain", broken)
			for range n {
				c.call("plain").text()
			}
		}
	}
	mixed := func(c *testClient, s *scripted) { // one of two fails, never two in a row
		for range 4 {
			s.does("plain", good)
			c.call("plain").text()
			s.does("plain", broken)
			c.call("plain").text()
		}
	}
	slowly := func(c *testClient, s *scripted) {
		s.does("plain", good)
		for range 4 {
			c.call("plain").text()
		}
		settle(30 * time.Second)
		fail(2)(c, s)
	}
	opened := func(n int, then ...time.Duration) func(c *testClient, s *scripted) { // and n trials fail
		return func(c *testClient, s *scripted) {
			fail(3)(c, s)
			for _, d := range then {
				settle(d)
				c.call("plain").text()
			}
		}
	}
	closing := func(c *testClient, s *scripted) { // one good trial
		fail(3)(c, s)
		settle(37 * time.Second)
		s.does("plain", good)
		c.call("plain").text()
	}
	for _, tt := range []struct {
		name        string
		key         func(b *BreakerConfig)
		do          func(c *testClient, s *scripted)
		wait        time.Duration
		without, is health.BreakerState
	}{
		{"enabled", func(b *BreakerConfig) { b.Enabled = new(false) }, fail(5), 0, "open", "off"},
		{"failures", func(b *BreakerConfig) { b.Failures = 5 }, fail(4), 0, "open", "closed"},
		{"failure_rate", func(b *BreakerConfig) { b.MinCalls, b.FailureRate = 4, 0.9 }, mixed, 0, "closed", "closed"},
		{"min_calls", func(b *BreakerConfig) { b.MinCalls = 4 }, mixed, 0, "closed", "open"},
		{"window", func(b *BreakerConfig) { b.MinCalls, b.FailureRate, b.Window = 2, 0.6, 10*time.Second }, slowly, 0, "closed", "open"},
		{"open_for", func(b *BreakerConfig) { b.OpenFor = 2 * time.Second }, fail(3), 3 * time.Second, "open", "half_open"},
		{"max_open_for", func(b *BreakerConfig) { b.MaxOpenFor = 30 * time.Second }, opened(1, 37*time.Second), 37 * time.Second, "open", "half_open"},
		{"successes", func(b *BreakerConfig) { b.Successes = 1 }, closing, 0, "half_open", "closed"},
	} {
		state := func(edit func(*UpstreamConfig)) (s health.BreakerState) {
			guarded(t, func(u *UpstreamConfig) { noRetry(u); edit(u) }, func(t *testing.T, r *rig, srv *scripted, c *testClient) {
				tt.do(c, srv)
				settle(tt.wait)
				s = r.p.upstream("fake").guard.tool("plain").breaker.Snapshot().State
			})
			return s
		}
		if got := state(func(*UpstreamConfig) {}); got != tt.without {
			t.Errorf("without %s: %s, want %s", tt.name, got, tt.without)
		}
		if got := state(func(u *UpstreamConfig) { tt.key(&u.Breaker) }); got != tt.is {
			t.Errorf("%s of the upstream: %s, want %s", tt.name, got, tt.is)
		}
		if got := state(func(u *UpstreamConfig) {
			var b BreakerConfig
			tt.key(&b)
			u.Tools = map[string]ToolConfig{"plain": {Breaker: b}}
		}); got != tt.is {
			t.Errorf("%s of the tool: %s, want %s", tt.name, got, tt.is)
		}
	}
}

// A failure that takes many calls with it is one failure.
func TestOneLossIsOneFailure(t *testing.T) {
	guarded(t, noRetry, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("plain", hangs)
		for range 10 {
			c.call("plain")
		}
		synctest.Wait()
		s.peer().exit("it crashed")
		s.does("plain", good)
		settle(2 * time.Second)
		wantPart(t, c.call("plain").text(), `"fine"`)
	})
}

// A tool that takes its server down each time is not called for ever.
func TestToolThatKillsItsServer(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { noRetry(u); u.URL, u.Command = "", "fake" }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("plain", func(p *fakePeer, _ uint64) { p.exit("segmentation fault") })
		for range 7 {
			c.call("plain").text()
			settle(4 * time.Second)
		}
		if n := s.called("plain"); n != 3 {
			t.Errorf("it was called %d times", n)
		}
	})
}

// The server plane opens by calls that fail, and one good probe closes it.
func TestServerBreakerIsClosedByAProbe(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { noRetry(u); u.Protocol = "legacy" }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.fail("ping", &wire.Error{Kind: wire.HTTPStatus, Status: 503})
		s.onDial = func(n int, _ string) error {
			if n < 4 {
				return &wire.Error{Kind: wire.HTTPStatus, Status: 503}
			}
			return nil
		}
		for _, tool := range []string{"plain", "read", "find"} {
			s.does(tool, overloaded)
			c.call(tool).text()
		}
		u := statusOfFake(t, r)
		if u.State != health.Down || u.Breaker.State != health.BreakerOpen || u.NextAttempt == nil {
			t.Errorf("%+v", u)
		}
		s.does("find", good)
		wantPart(t, c.call("find").text(), `"isError":true`, "fake is down")
		if s.called("find") != 1 {
			t.Error("an agent's call was the trial")
		}
		s.result("ping", `{}`)
		settle(12 * time.Second)
		if u := statusOfFake(t, r); u.State != health.Ready || u.Breaker.State != health.BreakerClosed {
			t.Errorf("after a good probe: %+v", u)
		}
		wantPart(t, c.call("find").text(), `"fine"`)
	})
}

// A server that answers nothing, not even a ping, is down after three probes;
// it is started anew after as many more, but not while a call is under way.
func TestHungServer(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { noRetry(u); u.CallTimeout = 40 * time.Second }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		settle(time.Second)
		s.silent("ping")
		s.silent("tools/list")
		s.does("plain", hangs)
		st := c.call("plain")
		settle(41 * time.Second)
		wantAccount(t, st.text(), map[string]any{"outcome": "timeout", "executed": "maybe"})
		settle(16 * time.Second)
		u := statusOfFake(t, r)
		if u.State != health.Down || u.Breaker.State != health.BreakerOpen || !strings.Contains(u.Reason, "probes in a row have failed") {
			t.Errorf("%+v", u)
		}
		began := time.Now()
		refused := c.call("find")
		wantAccount(t, refused.text(), map[string]any{"outcome": "open", "executed": "no"})
		if time.Since(began) != 0 {
			t.Errorf("an open breaker took %v to say so", time.Since(began))
		}
		s.result("ping", `{}`)
		s.result("tools/list", oneTool)
		settle(5 * time.Second)
		if u := statusOfFake(t, r); u.State != health.Ready || u.Restarts != 0 {
			t.Errorf("after it answers: %+v", u)
		}
	})
}

func TestUnresponsiveServerIsStartedAnew(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { u.URL, u.Command = "", "fake" }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		peer := s.peer()
		s.set("ping", func(p *fakePeer, id uint64, _ wire.Message) {
			if p != peer {
				p.result(id, `{}`)
			}
		})
		list := s.get("tools/list")
		s.set("tools/list", func(p *fakePeer, id uint64, m wire.Message) {
			if p != peer {
				list(p, id, m)
			}
		})
		settle(3 * time.Minute)
		if u := statusOfFake(t, r); !peer.isClosed() || u.State != health.Ready || u.Restarts != 1 {
			t.Errorf("closed %v, %+v", peer.isClosed(), u)
		}
	})
}

// A missed ping takes nothing down when the server answers something else.
func TestServerThatIgnoresPings(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { u.URL, u.Command = "", "fake" }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.silent("ping")
		settle(30 * time.Minute)
		if u := statusOfFake(t, r); u.State != health.Ready || u.Restarts != 0 {
			t.Errorf("%+v", u)
		}
	})
}

// A server whose requests are all refused is no MCP server any more, though it
// answers.
func TestServerThatRefusesEverything(t *testing.T) {
	guarded(t, nil, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		gone := &wire.Error{Kind: wire.HTTPStatus, Status: 404}
		list := s.get("tools/list")
		s.fail("ping", gone)
		settle(20 * time.Minute) // some servers refuse pings only
		if u := statusOfFake(t, r); u.State != health.Ready {
			t.Errorf("pings refused: %+v", u)
		}
		s.fail("tools/list", gone)
		settle(time.Minute)
		if u := statusOfFake(t, r); u.State != health.Down || !strings.Contains(u.Reason, "404") || u.NextAttempt == nil {
			t.Errorf("everything refused: %+v", u)
		}
		s.set("tools/list", list)
		settle(11 * time.Second)
		if u := statusOfFake(t, r); u.State != health.Ready {
			t.Errorf("afterwards: %+v", u)
		}
	})
}

// An attempt that starts nothing is no restart.
func TestRestartsAreWhatBeganAgain(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { u.URL, u.Command = "", "fake" }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.onDial = func(n int, _ string) error {
			if n < 5 {
				return errGone
			}
			return nil
		}
		s.peer().exit("it crashed")
		settle(time.Minute)
		if u := statusOfFake(t, r); u.State != health.Ready || u.Restarts != 1 {
			t.Errorf("%+v", u)
		}
	})
}

// What the server asks for, and what it refuses, is no error of its.
func TestErrorRateLeavesOutWhatNobodyGotWrong(t *testing.T) {
	guarded(t, noRetry, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("plain", fails(wire.Error{Kind: wire.HTTPStatus, Status: 429, RetryAfter: time.Second}), overloaded, good)
		for range 4 {
			c.call("plain").text()
			settle(5 * time.Second)
		}
		if u := statusOfFake(t, r); u.Window.Calls != 4 || u.Window.ErrorRate != 0.25 {
			t.Errorf("%+v", u.Window)
		}
	})
}

// A canary that the server does not list is a mistake of the configuration, not
// an outage.
func TestUnknownCanary(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { u.Probe.Tool = "nope" }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		settle(10 * time.Minute)
		if u := statusOfFake(t, r); u.State != health.Ready || s.called("nope") != 0 || s.count("ping") < 10 {
			t.Errorf("%+v, %d pings", u, s.count("ping"))
		}
	})
}

// Another server's tool of the same name is offered in place of one that only
// reads, and that was not executed.
func TestAlternatives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newScripted(), newScripted()
		noRetries := RetryConfig{Attempts: new(0)}
		r := newRig(t, Config{Upstreams: []UpstreamConfig{
			{Name: "fake", Command: "fake", Protocol: "legacy", Retry: noRetries},
			{Name: "other", Command: "fake", Protocol: "legacy", Retry: noRetries},
		}}, map[string]*fakeServer{"fake": one.fakeServer, "other": two.fakeServer})
		defer r.end()
		c := r.client(`{}`)
		const offer = "Alternative: other__find."
		one.does("find", notSent, lost)
		one.does("plain", notSent)
		wantPart(t, c.call("find").text(), "It was not executed.", offer)
		for what, st := range map[string]*testStream{"may have been executed": c.call("find"), "may change something": c.call("plain")} {
			if strings.Contains(st.text(), "Alternative") {
				t.Errorf("%s: %s", what, st.text())
			}
		}
	})
}
