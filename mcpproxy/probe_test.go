package mcpproxy

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// probed runs a test on an upstream that is left alone after its start, with a
// ping that works.
func probed(t *testing.T, edit func(*UpstreamConfig), f func(t *testing.T, r *rig, s *scripted, c *testClient)) {
	t.Helper()
	guarded(t, func(u *UpstreamConfig) {
		noRetry(u)
		if edit != nil {
			edit(u)
		}
	}, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.result("ping", `{}`)
		s.forget()
		f(t, r, s, c)
	})
}

// forget empties the log of what has come.
func (s *scripted) forget() {
	s.fakeServer.mu.Lock()
	s.log = nil
	s.fakeServer.mu.Unlock()
	s.mu.Lock()
	s.calls, s.args = map[string]int{}, nil
	s.mu.Unlock()
}

// mute has the server answer nothing but calls.
func (s *scripted) mute() {
	s.silent("ping")
	s.silent("tools/list")
	s.silent("server/discover")
}

// probes is how many probes of the server have come.
func (s *scripted) probes() int { return s.count("ping") + s.count("tools/list") }

// goesDown is 1 if the server's breaker opens within a time.
func goesDown(r *rig, within time.Duration) int {
	for end := time.Now().Add(within); time.Now().Before(end); settle(time.Second) {
		if !r.p.upstream("fake").shared.breaker.Closed() {
			return 1
		}
	}
	return 0
}

// Each key of probe changes what the server is asked, or what follows.
func TestProbeConfig(t *testing.T) {
	canary := func(u *UpstreamConfig) { u.Probe.Tool = "find" }
	after := func(d time.Duration, prepare func(s *scripted), count func(r *rig, s *scripted) int) func(t *testing.T, r *rig, s *scripted) int {
		return func(t *testing.T, r *rig, s *scripted) int {
			prepare(s)
			settle(d)
			return count(r, s)
		}
	}
	nothing := func(*scripted) {}
	pings := func(_ *rig, s *scripted) int { return s.count("ping") }
	down := func(prepare func(s *scripted)) func(t *testing.T, r *rig, s *scripted) int {
		return func(t *testing.T, r *rig, s *scripted) int {
			prepare(s)
			defer settle(3 * time.Second) // slow answers
			return goesDown(r, time.Minute)
		}
	}
	slow := func(s *scripted) { // 2 s late
		s.set("ping", func(p *fakePeer, id uint64, _ wire.Message) { time.Sleep(2 * time.Second); p.result(id, `{}`) })
		s.silent("tools/list")
	}
	for _, tt := range []struct {
		name        string
		base, edit  func(u *UpstreamConfig)
		see         func(t *testing.T, r *rig, s *scripted) int
		without, is int
	}{
		{"every", nil, func(u *UpstreamConfig) { u.Probe.Every = 2 * time.Minute }, after(10*time.Minute, nothing, pings), 20, 5},
		{"every_down", func(u *UpstreamConfig) { u.Probe.Misses = 1000 }, func(u *UpstreamConfig) { u.Probe.EveryDown = 20 * time.Second },
			after(10*time.Minute, (*scripted).mute, func(_ *rig, s *scripted) int { return s.probes() / 10 }), 12, 3},
		{"timeout", nil, func(u *UpstreamConfig) { u.Probe.Timeout = time.Second }, down(slow), 0, 1},
		{"misses", nil, func(u *UpstreamConfig) { u.Probe.Misses = 20 }, down((*scripted).mute), 1, 0},
		{"tool", nil, canary, after(10*time.Minute, nothing, pings), 20, 0},
		{"tool itself", nil, canary, after(10*time.Minute, nothing, func(_ *rig, s *scripted) int { return s.called("find") }), 0, 20},
		{"arguments", canary, func(u *UpstreamConfig) { u.Probe.Arguments = raw(`{"q":1}`) }, after(time.Minute, nothing, func(_ *rig, s *scripted) int {
			return strings.Count(s.lastArgs(), `"q":1`)
		}), 0, 1},
		{"expect", canary, func(u *UpstreamConfig) { u.Probe.Expect = "splendid" }, down(nothing), 0, 1},
		{"auto", nil, func(u *UpstreamConfig) { u.Probe.NoAuto = true }, func(t *testing.T, r *rig, s *scripted) int {
			r.p.upstream("fake").guard.tool("read").breaker.Trip()
			settle(10 * time.Minute)
			return s.called("read")
		}, 3, 0},
	} {
		see := func(edits ...func(u *UpstreamConfig)) (n int) {
			probed(t, func(u *UpstreamConfig) {
				for _, edit := range edits {
					if edit != nil {
						edit(u)
					}
				}
			}, func(t *testing.T, r *rig, s *scripted, _ *testClient) { n = tt.see(t, r, s) })
			return n
		}
		if got := see(tt.base); got != tt.without {
			t.Errorf("without %s: %d, want %d", tt.name, got, tt.without)
		}
		if got := see(tt.base, tt.edit); got != tt.is {
			t.Errorf("with %s: %d, want %d", tt.name, got, tt.is)
		}
	}
}

// probeOf is an edit that gives a tool a probe.
func probeOf(tool string, p ToolProbe) func(u *UpstreamConfig) {
	return func(u *UpstreamConfig) { u.Tools = map[string]ToolConfig{tool: {Probe: &p}} }
}

// A configured probe finds out that a tool is broken, and that it works again,
// without a call of a client.
func TestProbeOfATool(t *testing.T) {
	probed(t, probeOf("plain", ToolProbe{Arguments: raw(`{"dry":true}`), Expect: "fine"}), func(t *testing.T, r *rig, s *scripted, c *testClient) {
		settle(10*time.Minute + time.Second)
		if n := s.called("plain"); n < 17 || n > 21 {
			t.Errorf("%d probes in 10 minutes", n)
		}
		if got := s.lastArgs(); got != `{"dry":true}` {
			t.Errorf("its arguments were %s", got)
		}
		for name, does := range map[string]reply{
			"lacks":                tells("sorry"),
			"answered with an err": broken,
			"was not answered":     hangs,
			"its probe failed: no": func(p *fakePeer, id uint64) { p.result(id, `{"content":[{"type":"text","text":"no"}],"isError":true}`) },
		} {
			s.does("plain", does)
			settle(3 * time.Minute)
			u := statusOfFake(t, r)
			if got := u.Degraded["plain"]; u.State != health.Degraded || got.Breaker.State == health.BreakerClosed || !strings.Contains(got.LastError, name) {
				t.Errorf("%s: %+v", name, u)
			}
			refused := c.call("plain")
			wantAccount(t, refused.text(), map[string]any{"outcome": "open", "executed": "no"})
			s.does("plain", good)
			settle(6 * time.Minute)
			if u := statusOfFake(t, r); u.State != health.Ready || len(u.Degraded) != 0 {
				t.Errorf("%s, afterwards: %+v", name, u)
			}
		}
	})
}

// Beside the traffic of clients, and while a call is under way, nobody is probed.
func TestNoProbeBesideTraffic(t *testing.T) {
	probed(t, probeOf("find", ToolProbe{}), func(t *testing.T, r *rig, s *scripted, c *testClient) {
		for range 30 {
			c.call("find").text()
			settle(20 * time.Second)
		}
		if n, m := s.probes(), s.called("find"); n != 0 || m != 30 {
			t.Errorf("%d probes of the server, %d of the tool", n, m-30)
		}
	})
	probed(t, func(u *UpstreamConfig) {
		probeOf("find", ToolProbe{})(u)
		u.CallTimeout = 9 * time.Minute
	}, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("find", hangs, good)
		c.call("find")
		settle(9*time.Minute - time.Second)
		if n, m := s.probes(), s.called("find"); n != 0 || m != 1 {
			t.Errorf("while a call is under way: %d probes of the server, %d of the tool", n, m-1)
		}
		settle(2 * time.Minute)
		if n, m := s.probes(), s.called("find"); n == 0 || m == 1 {
			t.Errorf("after it: %d probes of the server, %d of the tool", n, m-1)
		}
	})
}

// A server that wants to be left alone is; the end of a call that began
// before changes nothing.
func TestNoProbeWhileThrottled(t *testing.T) {
	probed(t, probeOf("find", ToolProbe{}), func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("read", hangs)
		c.call("read") // times out meanwhile
		s.does("plain", fails(wire.Error{Kind: wire.HTTPStatus, Status: 429, RetryAfter: 5 * time.Minute}))
		c.call("plain").text()
		s.forget()
		settle(5*time.Minute - time.Second)
		if u := statusOfFake(t, r); u.State != health.Throttled {
			t.Errorf("%+v", u)
		}
		if n, m := s.probes(), s.called("find"); n+m != 0 {
			t.Errorf("%d probes of the server, %d of the tool", n, m)
		}
		settle(2 * time.Minute)
		if n, m := s.probes(), s.called("find"); n == 0 || m == 0 {
			t.Errorf("afterwards: %d probes of the server, %d of the tool", n, m)
		}
	})
}

// What a tool's probe meets in transport concerns the server.
func TestProbeOfAToolIsThrottled(t *testing.T) {
	for status, want := range map[int]health.State{429: health.Throttled, 401: health.NeedsAuth} {
		probed(t, probeOf("find", ToolProbe{}), func(t *testing.T, r *rig, s *scripted, c *testClient) {
			s.does("find", fails(wire.Error{Kind: wire.HTTPStatus, Status: status, RetryAfter: time.Hour}))
			settle(3 * time.Minute)
			u := statusOfFake(t, r)
			if n := s.called("find"); u.State != want || n != 1 || len(u.Degraded) != 0 {
				t.Errorf("%d: %d probes, %+v", status, n, u)
			}
		})
	}
}

// Of all tools only one that is read-only and needs no arguments is called by
// itself, and only while its breaker is not closed.
func TestNothingElseIsCalledByItself(t *testing.T) {
	for name, edit := range map[string]func(u *UpstreamConfig){
		"": nil, "distrusted": func(u *UpstreamConfig) { u.DistrustHints = true },
	} {
		probed(t, edit, func(t *testing.T, r *rig, s *scripted, c *testClient) {
			settle(30 * time.Minute)
			if n := s.count("tools/call"); n != 0 {
				t.Errorf("%d calls while all is well", n)
			}
			for _, tool := range []string{"plain", "find", "read"} {
				s.does(tool, broken)
				for range 3 {
					c.call(tool).text()
				}
			}
			s.forget()
			settle(30 * time.Minute)
			if s.called("plain")+s.called("find") > 0 || (s.called("read") > 0) != (name == "") {
				t.Errorf("%s: called by itself: %v", name, s.calls)
			}
			s.does("read", good)
			settle(6 * time.Minute)
			closed := s.called("read")
			settle(24 * time.Minute)
			if n := s.called("read"); n != closed {
				t.Errorf("%s: %d calls of a tool that works", name, n-closed)
			}
			s.fakeServer.mu.Lock()
			defer s.fakeServer.mu.Unlock()
			for _, method := range s.log {
				if !slices.Contains([]string{"ping", "tools/call"}, method) {
					t.Errorf("%s: the server was asked for %s", name, method)
				}
			}
		})
	}
}

// A broken tool that is probed is tried by its probes alone: an agent's call
// is never the trial, and is told when the next one is.
func TestProbedToolIsTriedByProbesAlone(t *testing.T) {
	probed(t, nil, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("read", broken)
		for range 3 {
			c.call("read").text()
		}
		s.does("read", good)
		for range 60 { // 30 s ± 20 % open, then three probes
			settle(time.Second)
			n := s.called("read")
			st := c.call("read")
			if open := !r.p.upstream("fake").guard.tool("read").breaker.Closed(); open && (s.called("read") != n || !strings.Contains(st.text(), "Do not retry before")) {
				t.Fatalf("a call was the trial: %s", st.text())
			} else if !open {
				wantPart(t, st.text(), `"fine"`)
				if n != 6 {
					t.Errorf("%d probes have closed it", n-3)
				}
				return
			}
		}
		t.Error("it was never closed")
	})
}

// Each generation is asked in its own way, every second time for a list: some
// servers ignore the other.
func TestProbesOfBothGenerations(t *testing.T) {
	for protocol, ask := range map[string]string{"legacy": "ping", wire.Modern: "server/discover"} {
		synctest.Test(t, func(t *testing.T) {
			s := newScripted()
			s.result("ping", `{}`)
			if protocol == wire.Modern {
				s.speaksModern()
			}
			u := UpstreamConfig{Name: "fake", URL: "http://127.0.0.1/mcp", Protocol: protocol}
			r := newRig(t, Config{Upstreams: []UpstreamConfig{u}}, map[string]*fakeServer{"fake": s.fakeServer})
			defer r.end()
			s.forget()
			settle(10 * time.Minute)
			if n := s.count(ask); n != 20 || s.count("tools/list") != 0 {
				t.Errorf("%s: %d times %s, %d lists", protocol, n, ask, s.count("tools/list"))
			}
			s.mute()
			s.forget()
			if goesDown(r, time.Minute) == 0 || s.count(ask) < 2 || s.count("tools/list") < 1 {
				t.Errorf("%s, silent: %d times %s, %d lists, %+v", protocol, s.count(ask), ask, s.count("tools/list"), statusOfFake(t, r))
			}
			s.result(ask, discover1)
			settle(11 * time.Second)
			if u := statusOfFake(t, r); u.State != health.Ready {
				t.Errorf("%s: it answers again, %+v", protocol, u)
			}
		})
	}
}

// Without breakers a probe that is missed takes nothing away.
func TestMissedProbesWithoutBreaker(t *testing.T) {
	probed(t, func(u *UpstreamConfig) { u.Breaker.Enabled = new(false) }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.mute()
		for range 30 {
			settle(time.Minute)
			if u := statusOfFake(t, r); u.State != health.Ready || u.Restarts != 0 || u.Breaker.State != health.BreakerOff {
				t.Fatalf("%+v", u)
			}
		}
		wantPart(t, c.call("find").text(), `"fine"`)
	})
}

// With sharing: session each server is probed, but a tool only once for all.
func TestProbesOfSessions(t *testing.T) {
	probed(t, func(u *UpstreamConfig) {
		probeOf("find", ToolProbe{})(u)
		u.Sharing = "session"
	}, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		for range 4 {
			r.client(`{}`).call("plain").text()
		}
		settle(time.Minute)
		s.forget()
		settle(10 * time.Minute)
		if n, m := s.count("ping"), s.called("find"); n < 95 || n > 105 || m < 17 || m > 21 {
			t.Errorf("%d probes of 5 servers, %d of the tool", n, m)
		}
		s.does("find", broken)
		settle(3 * time.Minute)
		other := r.client(`{}`).call("find")
		wantAccount(t, other.text(), map[string]any{"outcome": "open"})
	})
}

// A canary that is refused is a probe that failed, not the end of the
// connection; a session it finds lost is renewed at once.
func TestCanaryInTransport(t *testing.T) {
	for name, tt := range map[string]struct {
		fault    wire.Error
		state    health.State
		restarts bool
	}{
		"refused":      {wire.Error{Kind: wire.HTTPStatus, Status: 400}, health.Down, false},
		"malformed":    {wire.Error{Kind: wire.Malformed, Err: errGone}, health.Down, false},
		"session lost": {wire.Error{Kind: wire.SessionLost, Status: 404}, health.Ready, true},
	} {
		probed(t, func(u *UpstreamConfig) { u.Probe.Tool, u.Probe.Arguments = "find", json.RawMessage(`{"q":1}`) }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
			s.does("find", fails(tt.fault))
			if tt.restarts {
				s.does("find", fails(tt.fault), good)
			}
			down := 0
			for range 500 {
				settle(100 * time.Millisecond)
				if r.p.upstream("fake").shared.tracker.Snapshot().State == health.Down {
					down++
				}
			}
			u := statusOfFake(t, r)
			if u.State != tt.state || u.Restarts > 0 != tt.restarts || tt.restarts && down > 0 {
				t.Errorf("%s: down for %d/10 s, %+v", name, down, u)
			}
			s.does("find", good)
			settle(10 * time.Second)
			if u := statusOfFake(t, r); u.State != health.Ready {
				t.Errorf("%s, afterwards: %+v", name, u)
			}
		})
	}
}

// The time that callers are told is that of the next probe, which follows at once
// when calls have opened the breaker.
func TestNextProbeIsSoon(t *testing.T) {
	guarded(t, noRetry, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		settle(40 * time.Second) // probes every 30 s
		s.silent("ping")
		s.silent("tools/list")
		for _, tool := range []string{"plain", "read", "find"} {
			s.does(tool, overloaded)
			c.call(tool).text()
		}
		u := statusOfFake(t, r)
		if u.State != health.Down || u.NextAttempt == nil || time.Until(*u.NextAttempt) > 5*time.Second {
			t.Errorf("%+v", u)
		}
	})
}

// The canary is asked as long as no list says that there is none.
func TestCanaryBeforeTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted()
		s.silent("tools/list")
		u := UpstreamConfig{Name: "fake", URL: "http://127.0.0.1/mcp", Protocol: "legacy", Probe: ProbeConfig{Tool: "find"}}
		r := newRig(t, Config{Upstreams: []UpstreamConfig{u}}, map[string]*fakeServer{"fake": s.fakeServer})
		defer r.end()
		settle(time.Minute)
		if n := s.called("find"); n == 0 || s.count("ping") > 0 {
			t.Errorf("%d calls of the canary, %d pings", n, s.count("ping"))
		}
	})
}
