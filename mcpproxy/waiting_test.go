package mcpproxy

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// waits are the ways in which a call waits at the guard.
var waits = map[string]struct {
	edit func(u *UpstreamConfig)
	do   func(s *scripted, c *testClient) *testStream
}{
	"next attempt": {nil, func(s *scripted, c *testClient) *testStream {
		s.does("plain", fails(wire.Error{Kind: wire.NotSent, RetryAfter: 40 * time.Second, Err: errGone}), good)
		return c.call("plain")
	}},
	"queue": {func(u *UpstreamConfig) { u.Concurrency = 1 }, func(s *scripted, c *testClient) *testStream {
		s.does("read", hangs)
		c.call("read")
		return c.call("plain")
	}},
	"token": {func(u *UpstreamConfig) { u.RateLimit = Rate{2, time.Minute} }, func(s *scripted, c *testClient) *testStream {
		c.call("read").text()
		c.call("read").text()
		return c.call("plain")
	}},
}

// A call that is cancelled while it waits leaves nothing behind.
func TestCancelledWhileItWaits(t *testing.T) {
	for name, w := range waits {
		t.Run(name, func(t *testing.T) {
			guarded(t, w.edit, func(t *testing.T, r *rig, s *scripted, c *testClient) {
				st := w.do(s, c)
				settle(time.Second)
				st.leave()
				r.wantAllFree(t)
				n := s.called("plain")
				settle(time.Minute)
				if st.text() != "dropped" || s.called("plain") != n {
					t.Errorf("%q, and %d more attempts", st.text(), s.called("plain")-n)
				}
				s.does("plain", good)
				wantPart(t, c.call("plain").text(), `"fine"`)
			})
		})
	}
}

// The token of a call that left is another's: the next waits no longer for it.
func TestTokenIsGivenBack(t *testing.T) {
	guarded(t, waits["token"].edit, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		waits["token"].do(s, c).leave()
		st := c.call("plain")
		settle(31 * time.Second)
		wantPart(t, st.text(), `"fine"`)
	})
}

// Close answers who waits, at once and honestly, and nothing comes after it.
func TestCloseEndsWhoWaits(t *testing.T) {
	for name, w := range waits {
		t.Run(name, func(t *testing.T) {
			guarded(t, w.edit, func(t *testing.T, r *rig, s *scripted, c *testClient) {
				st := w.do(s, c)
				settle(time.Second)
				n, began := s.called("plain"), time.Now()
				r.end()
				wantPart(t, st.text(), `"isError":true`)
				wantAccount(t, st.text(), map[string]any{"outcome": "not_sent", "executed": "no"})
				settle(time.Hour)
				if s.called("plain") != n || time.Since(began) > time.Hour+time.Second {
					t.Errorf("%d more attempts; it took %v", s.called("plain")-n, time.Since(began)-time.Hour)
				}
				r.wantAllFree(t)
			})
		})
	}
}

// An upstream that a reload removes first serves who waits for it; who must
// wait longer than that is told.
func TestRemovedWhileACallWaits(t *testing.T) {
	for name, w := range waits {
		t.Run(name, func(t *testing.T) {
			guarded(t, w.edit, func(t *testing.T, r *rig, s *scripted, c *testClient) {
				st := w.do(s, c)
				settle(20 * time.Second)
				if err := r.p.Reload(Config{}); err != nil {
					t.Fatal(err)
				}
				settle(15 * time.Second)
				if name == "token" {
					wantPart(t, st.text(), `"fine"`)
					return
				}
				if st.text() != "" {
					t.Errorf("it was not drained: %s", st.text())
				}
				settle(20 * time.Second)
				if name == "next attempt" {
					wantPart(t, st.text(), `"fine"`)
					return
				}
				wantAccount(t, st.text(), map[string]any{"outcome": "not_sent", "executed": "no"})
				wantPart(t, st.text(), "is unavailable: fake is stopped. It was not executed")
			})
		})
	}
}

// A half-open breaker gets its trial back however that ends.
func TestTrialIsGivenBack(t *testing.T) {
	for name, do := range map[string]func(r *rig, s *scripted, c *testClient){
		"cancelled": func(r *rig, s *scripted, c *testClient) {
			s.does("plain", hangs)
			c.call("plain").leave()
		},
		"throttled": func(r *rig, s *scripted, c *testClient) {
			s.does("plain", fails(wire.Error{Kind: wire.HTTPStatus, Status: 429, RetryAfter: 2 * time.Second}))
			c.call("plain")
			settle(3 * time.Second)
		},
		"asks": func(r *rig, s *scripted, c *testClient) {
			s.does("plain", hangs)
			c.call("plain")
			synctest.Wait()
			s.peer().sayVia(s.peer().lastID(r.t, "tools/call"), elicitation)
		},
		"parked": func(r *rig, s *scripted, c *testClient) {
			s.does("plain", hangs)
			r.modern("", callPlain("1", askingMeta))
			synctest.Wait()
			s.peer().sayVia(s.peer().lastID(r.t, "tools/call"), elicitation)
			settle(parkBatch)
		},
		"no connection": func(r *rig, s *scripted, c *testClient) {
			s.onDial = func(n int, _ string) error {
				if n == 2 {
					time.Sleep(3 * time.Second)
					return &wire.Error{Kind: wire.NotSent, Err: errGone}
				}
				return nil
			}
			s.peer().exit("over")
			c.call("plain")
			settle(10 * time.Second)
		},
		"session lost": func(r *rig, s *scripted, c *testClient) {
			s.does("plain", fails(wire.Error{Kind: wire.SessionLost, Status: 404}))
			c.call("plain")
			settle(time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			guarded(t, func(u *UpstreamConfig) {
				noRetry(u)
				u.Protocol, u.Breaker.Successes = "auto", 1
			}, func(t *testing.T, r *rig, s *scripted, _ *testClient) {
				c := r.client(`{"elicitation":{}}`)
				b := r.p.upstream("fake").guard.tool("plain").breaker
				b.Trip()
				settle(37 * time.Second)
				do(r, s, c)
				synctest.Wait()
				if b.Snapshot().State == health.BreakerOpen { // the trial was a failure
					settle(2 * time.Minute)
				}
				s.does("plain", good)
				wantPart(t, r.client(`{}`).call("plain").text(), `"fine"`)
			})
		})
	}
}

// A call that waits for a person holds no place, and takes none away from
// others when it goes on or ends.
func TestPlacesOfCallsThatAsk(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { u.Concurrency, u.Protocol = 1, "auto" }, func(t *testing.T, r *rig, s *scripted, _ *testClient) {
		c := r.client(`{"elicitation":{}}`)
		s.does("plain", hangs)
		asks := c.call("plain")
		synctest.Wait()
		peer := s.peer()
		first := peer.lastID(t, "tools/call")
		peer.sayVia(first, elicitation)
		parked := r.modern("", callPlain("1", askingMeta))
		synctest.Wait()
		second := peer.lastID(t, "tools/call")
		peer.sayVia(second, elicitation)
		settle(parkBatch)
		wantPart(t, parked.text(), "input_required")
		s.does("find", hangs)
		third, fourth := c.call("find"), c.call("find")
		if n := s.called("find"); n != 1 {
			t.Fatalf("%d calls at a time", n)
		}
		peer.result(first, done)
		peer.result(second, done)
		wantPart(t, asks.text(), `"done"`)
		if n := s.called("find"); n != 1 {
			t.Errorf("%d calls at a time: a place was given back twice", n)
		}
		peer.result(peer.lastID(t, "tools/call"), done)
		wantPart(t, third.text(), `"done"`)
		if n := s.called("find"); n != 2 {
			t.Errorf("%d calls", n)
		}
		peer.result(peer.lastID(t, "tools/call"), done)
		wantPart(t, fourth.text(), `"done"`)
		back := r.modern("", strings.Replace(retry("2", stateOf(t, parked), accept), "fake__t1", "fake__plain", 1))
		wantPart(t, back.text(), `"done"`)
		r.wantAllFree(t)
	})
}

// The budget of a call that has a fallback under way is over: no answer of a
// person starts it anew.
func TestBudgetOfAFallback(t *testing.T) {
	paired(t, withSteps(FallbackStep{Tool: "other__find"}), func(t *testing.T, p *pair) {
		p.fake.does("find", hangs)
		p.other.does("find", hangs)
		st := p.c.call("find")
		synctest.Wait()
		id := p.fake.peer().lastID(t, "tools/call")
		p.fake.peer().sayVia(id, elicitation)
		synctest.Wait()
		p.fake.peer().fail(id, &wire.Error{Kind: wire.Lost, Err: errGone})
		p.c.send(`{"jsonrpc":"2.0","id":"s1","result":{"action":"accept"}}`)
		peer := p.other.peer()
		for range 3 {
			settle(50 * time.Second)
			peer.progressOf(peer.lastID(t, "tools/call"), `,"progress":1`)
		}
		peer.result(peer.lastID(t, "tools/call"), done)
		wantPart(t, st.text(), `"done"`)
	})
}

// While a server's breaker is open its calls are told so at once: they wait
// for no token, and spend none.
func TestOpenServerCostsNoToken(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { u.RateLimit = Rate{10, time.Minute} }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.silent("ping")
		s.silent("tools/list")
		b := r.p.upstream("fake").shared.breaker
		b.Trip()
		synctest.Wait()
		for range 5 {
			wantAccount(t, c.call("plain").text(), map[string]any{"outcome": "open", "executed": "no"})
		}
		b.Reset()
		synctest.Wait()
		wantPart(t, c.call("plain").text(), `"fine"`)
	})
}

// Nothing of the endpoint runs on after Close, whatever was under way.
func TestCloseInTheMiddleOfEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted()
		u := UpstreamConfig{Name: "fake", URL: "http://127.0.0.1/mcp", Protocol: "legacy", Concurrency: 3, Queue: new(20), RateLimit: Rate{30, time.Second},
			Tools: steps(FallbackStep{Tool: "fake__read"}, FallbackStep{Cached: time.Hour})}
		r := newRig(t, Config{Upstreams: []UpstreamConfig{u}}, map[string]*fakeServer{"fake": s.fakeServer})
		c := r.client(`{}`)
		s.does("plain", overloaded, hangs, notSent, lost)
		s.does("find", overloaded, notSent, hangs)
		s.does("read", hangs)
		var all []*testStream
		for range 20 {
			all = append(all, c.call("plain"), c.call("find"))
			settle(20 * time.Millisecond)
		}
		r.p.Close(context.Background())
		for _, st := range all {
			if st.text() == "" {
				t.Error("a call was not answered")
			}
		}
		n := s.count("tools/call")
		settle(time.Hour)
		if s.count("tools/call") != n {
			t.Error("a call was made after Close")
		}
		r.wantAllFree(t)
	})
}

// A client that hears of a trial and leaves at once ends the call that is it:
// nobody is told anything while a lock of a call is held.
func TestTrialWhoseClientLeavesAtOnce(t *testing.T) {
	guarded(t, noRetry, func(t *testing.T, r *rig, s *scripted, _ *testClient) {
		c := &testClient{r: r}
		c.s = wire.NewSession("http", func(raw []byte, _ bool) error {
			if strings.Contains(string(raw), "half_open") {
				r.p.Closed(c.s)
			}
			return nil
		})
		c.hello(`{}`)
		c.send(`{"jsonrpc":"2.0","id":"level","method":"logging/setLevel","params":{"level":"debug"}}`)
		b := r.p.upstream("fake").guard.tool("plain").breaker
		b.Trip()
		settle(37 * time.Second)
		left := c.call("plain")
		if n := s.called("plain"); left.text() != "dropped" || n != 0 {
			t.Errorf("%d calls, %q", n, left.text())
		}
		wantPart(t, r.client(`{}`).call("plain").text(), `"fine"`)
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
		for n := range 1000 {
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

// A call that comes when the next start is due waits for it, whoever is first.
func TestCallAtTheMomentOfTheNextStart(t *testing.T) {
	for range 50 {
		srv := t1Server()
		bubble(t, srv, func(t *testing.T, r *rig) {
			c := r.client(`{}`)
			srv.peer().exit("killed")
			settle(time.Millisecond)
			in := r.p.upstream("fake").shared
			in.mu.Lock()
			in.lastPoke = time.Now() // none pulls it forward
			in.mu.Unlock()
			time.Sleep(time.Until(in.nextAttempt()))
			st := c.send(callT1("1", ""))
			settle(time.Second)
			wantPart(t, st.text(), `"text":"done"`)
		})
	}
}
