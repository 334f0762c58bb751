package mcpproxy

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// When a broken tool is tried again is no matter of the others: their calls are
// retried as ever, and told nothing of that time.
func TestRetryBesideABrokenTool(t *testing.T) {
	guarded(t, nil, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		r.p.upstream("fake").guard.tool("plain").breaker.Trip()
		synctest.Wait()
		s.does("find", overloaded, good)
		st := c.call("find")
		settle(time.Second)
		wantPart(t, st.text(), `"fine"`)
		s.does("read", fails(wire.Error{Kind: wire.TooLarge, Err: errGone}))
		wantAccount(t, c.call("read").text(), map[string]any{"outcome": "too_large", "retry_at": nil})
	})
}

// A call whose time is over is sent before that is decided, or not at all.
func TestExpiryAndSendExclude(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted()
		s.does("plain", hangs)
		r := newRig(t, Config{Upstreams: []UpstreamConfig{{Name: "fake", Command: "fake", Protocol: "legacy", Breaker: BreakerConfig{Enabled: new(false)}}}},
			map[string]*fakeServer{"fake": s.fakeServer})
		defer r.end()
		up := r.p.upstream("fake")
		conn := up.shared.live()
		wrong := 0
		for n := range 3000 {
			c := &testClient{r: r, s: &wire.Session{}}
			st := &testStream{c: c}
			req := &request{method: "tools/call", id: fmt.Appendf(nil, "%d", n), c: &client{s: c.s}, st: st, params: []byte(`{"name":"fake__plain"}`)}
			k := &call{p: r.p, r: req, in: up.shared, target: target{up: up, key: "name", name: "plain", raw: []byte(`"plain"`), asClients: "fake__plain"}}
			k.tool, k.trying = up.guard.tool("plain"), true
			k.budget.start(time.Hour, time.Hour, func() {})
			before := len(s.peer().sent("tools/call"))
			var wg sync.WaitGroup
			var ready atomic.Int32
			for _, f := range []func(){k.expire, func() {
				for range n % 64 {
					ready.Add(1)
				}
				k.send(conn)
			}} {
				wg.Go(func() {
					for ready.Add(1); ready.Load() < 2; {
					}
					f()
				})
			}
			wg.Wait()
			sent := len(s.peer().sent("tools/call")) > before
			if told := accountOf(t, st.text())["executed"]; sent != (told == "maybe") {
				wrong++
			}
		}
		if wrong > 0 {
			t.Errorf("%d calls were sent and told not to be, or the other way round", wrong)
		}
	})
}

// What ends because its client has left says nothing about the server.
func TestNothingCountsOnceTheClientHasLeft(t *testing.T) {
	guarded(t, nil, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		up := r.p.upstream("fake")
		k := &call{p: r.p, r: &request{method: "tools/call", c: &client{}}, in: up.shared, target: target{up: up, name: "plain"}}
		k.tool, k.trying, k.sent = up.guard.tool("plain"), true, true
		k.end()
		k.settle(health.Lost, 0, "its wait was cancelled")
		if u := statusOfFake(t, r); u.Breaker.ConsecutiveFailures != 0 || u.Window.Calls != 0 {
			t.Errorf("%+v", u)
		}
	})
}

// A step that was repeated may have had its effect with an attempt before the
// last.
func TestFallbackAfterARepeatedStep(t *testing.T) {
	paired(t, func(fake, other *UpstreamConfig) {
		fake.Tools = steps(FallbackStep{Tool: "other__find"}, FallbackStep{Tool: "other__plain"})
		other.Retry = RetryConfig{}
	}, func(t *testing.T, p *pair) {
		p.fake.does("plain", notSent)
		p.other.does("find", overloaded, func(p *fakePeer, id uint64) { p.error(id, -32602, "bad arguments") })
		st := p.c.call("plain")
		settle(time.Second)
		wantAccount(t, st.text(), map[string]any{"outcome": "not_sent", "executed": "maybe"})
		if n := p.other.called("plain"); n != 0 {
			t.Error("the next tool was called after a step that may have been executed")
		}
	})
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

// A session that is lost again after it was renewed, or cannot be renewed, is a
// server that fails; the call was not executed, and is made again where it may.
func TestSessionThatStaysLost(t *testing.T) {
	gone := fails(wire.Error{Kind: wire.SessionLost, Status: 404})
	guarded(t, nil, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("plain", gone)
		s.does("find", gone, gone, good)
		for range 3 {
			st := c.call("plain")
			settle(time.Second)
			wantAccount(t, st.text(), map[string]any{"outcome": "session_lost", "executed": "no"})
		}
		if u := statusOfFake(t, r); u.Window.ErrorRate != 1 || u.Restarts == 0 {
			t.Errorf("%+v", u)
		}
		settle(time.Minute)
		st := c.call("find")
		settle(10 * time.Second)
		wantAccount(t, st.text(), map[string]any{"outcome": "ok", "attempts": 2})
	})
	guarded(t, noRetry, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("plain", gone)
		s.fail("initialize", &wire.Error{Kind: wire.HTTPStatus, Status: 503})
		st := c.call("plain")
		settle(time.Second)
		wantAccount(t, st.text(), map[string]any{"outcome": "session_lost", "executed": "no"})
	})
}
