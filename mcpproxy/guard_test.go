package mcpproxy

import (
	"encoding/json"
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

// scripted is an upstream whose tools do what the test says, call by call.
// "plain" may change something, "read" is read-only and is probed by itself,
// "find" is read-only and needs an argument.
type scripted struct {
	*fakeServer
	mu    sync.Mutex
	next  map[string][]reply // by tool; the last one stays
	calls map[string]int
	args  []string
}

// reply is how a tool answers one call.
type reply func(p *fakePeer, id uint64)

func newScripted() *scripted {
	s := &scripted{fakeServer: newLegacyServer(), next: map[string][]reply{}, calls: map[string]int{}}
	s.result("tools/list", `{"tools":[{"name":"plain","inputSchema":{"type":"object"}},`+
		`{"name":"read","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},`+
		`{"name":"find","inputSchema":{"type":"object","required":["q"]},"annotations":{"readOnlyHint":true}}]}`)
	s.on["tools/call"] = func(p *fakePeer, id uint64, m wire.Message) {
		name, _ := wire.String(wire.Get(m.Params, "name"))
		s.mu.Lock()
		s.calls[name]++
		s.args = append(s.args, string(wire.Get(m.Params, "arguments")))
		do := good
		if list := s.next[name]; len(list) > 0 {
			do = list[0]
			if len(list) > 1 {
				s.next[name] = list[1:]
			}
		}
		s.mu.Unlock()
		do(p, id)
	}
	return s
}

func (s *scripted) does(tool string, replies ...reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next[tool] = replies
}

func (s *scripted) called(tool string) int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[tool]
}

func good(p *fakePeer, id uint64)   { p.result(id, `{"content":[{"type":"text","text":"fine"}]}`) }
func hangs(*fakePeer, uint64)       {}
func broken(p *fakePeer, id uint64) { p.error(id, -32603, "boom") }
func tells(text string) reply {
	return func(p *fakePeer, id uint64) {
		p.result(id, `{"content":[{"type":"text","text":"`+text+`"}]}`)
	}
}
func fails(e wire.Error) reply { return func(p *fakePeer, id uint64) { p.fail(id, new(e)) } }

var (
	lost       = fails(wire.Error{Kind: wire.Lost, Err: errGone})
	notSent    = fails(wire.Error{Kind: wire.NotSent, Err: errGone})
	overloaded = fails(wire.Error{Kind: wire.HTTPStatus, Status: 503})
)

// guarded runs a test on one scripted upstream "fake" over HTTP.
func guarded(t *testing.T, edit func(*UpstreamConfig), f func(t *testing.T, r *rig, s *scripted, c *testClient)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newScripted()
		u := UpstreamConfig{Name: "fake", URL: "http://127.0.0.1/mcp", Protocol: "legacy"}
		if edit != nil {
			edit(&u)
		}
		r := newRig(t, Config{Upstreams: []UpstreamConfig{u}}, map[string]*fakeServer{"fake": s.fakeServer})
		defer r.end()
		f(t, r, s, r.client(`{}`))
	})
}

var lastCallID atomic.Int64

// call calls a tool of fake and returns its stream.
func (c *testClient) call(tool string, args ...string) *testStream {
	a := `{}`
	if len(args) > 0 {
		a = args[0]
	}
	return c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"fake__%s","arguments":%s}}`, lastCallID.Add(1), tool, a))
}

// account is what an answer says in _meta["agentarmor/call"]; nil: nothing.
func accountOf(t *testing.T, answer string) map[string]any {
	t.Helper()
	var m struct {
		Result struct {
			Meta struct {
				Call map[string]any `json:"agentarmor/call"`
			} `json:"_meta"`
		} `json:"result"`
	}
	if err := json.Unmarshal([]byte(answer), &m); err != nil {
		t.Fatalf("%q: %v", answer, err)
	}
	return m.Result.Meta.Call
}

// wantAccount fails unless the answer accounts for the call with these members.
func wantAccount(t *testing.T, answer string, want map[string]any) {
	t.Helper()
	got := accountOf(t, answer)
	for key, v := range want {
		if fmt.Sprint(got[key]) != fmt.Sprint(v) {
			t.Errorf("%s is %v, want %v, in %s", key, got[key], v, answer)
		}
	}
}

func TestRetriesWhereTheClassAllowsIt(t *testing.T) {
	for _, tt := range []struct {
		tool, class string
		fault       reply
		retried     bool
	}{
		{"plain", "lost", lost, false},
		{"find", "lost", lost, true},
		{"plain", "not_sent", notSent, true},
		{"plain", "overloaded", overloaded, false},
		{"find", "overloaded", overloaded, true},
		{"find", "malformed", fails(wire.Error{Kind: wire.Malformed}), true},
		{"plain", "throttled", fails(wire.Error{Kind: wire.HTTPStatus, Status: 429, RetryAfter: 3 * time.Second}), true},
		{"find", "rejected", fails(wire.Error{Kind: wire.HTTPStatus, Status: 400}), false},
	} {
		t.Run(tt.tool+" "+tt.class, func(t *testing.T) {
			guarded(t, nil, func(t *testing.T, r *rig, s *scripted, c *testClient) {
				s.does(tt.tool, tt.fault, good)
				st := c.call(tt.tool)
				settle(10 * time.Second)
				if tt.retried {
					wantPart(t, st.text(), `"text":"fine"`)
					wantAccount(t, st.text(), map[string]any{"outcome": "ok", "executed": "yes", "attempts": 2})
				} else {
					wantPart(t, st.text(), `"isError":true`)
					wantAccount(t, st.text(), map[string]any{"outcome": tt.class})
				}
				if n := s.called(tt.tool); n != 1 && !tt.retried || n != 2 && tt.retried {
					t.Errorf("called %d times", n)
				}
			})
		})
	}
}

// What an earlier attempt may have done is not forgotten by a later one.
func TestRetryRemembersWhatMayBeDone(t *testing.T) {
	guarded(t, nil, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("find", overloaded, notSent)
		st := c.call("find")
		settle(10 * time.Second)
		wantAccount(t, st.text(), map[string]any{"outcome": "not_sent", "executed": "maybe", "attempts": 3})
	})
}

func TestRetryConfig(t *testing.T) {
	for _, tt := range []struct {
		name  string
		edit  func(*UpstreamConfig)
		calls int
		after time.Duration
	}{
		{"default", nil, 3, 720 * time.Millisecond}, // 200 ms + 400 ms, + 20 %
		{"attempts", func(u *UpstreamConfig) { u.Retry.Attempts = new(0) }, 1, 0},
		{"base", func(u *UpstreamConfig) { u.Retry.Base = time.Second }, 3, 3600 * time.Millisecond},
		{"max", func(u *UpstreamConfig) { u.Retry.Base, u.Retry.Max = time.Second, time.Second }, 3, 2400 * time.Millisecond},
		{"budget", func(u *UpstreamConfig) { u.Retry.Budget = new(0.0) }, 1, 0},
		{"trust_hints", func(u *UpstreamConfig) { u.DistrustHints = true }, 1, 0},
		{"idempotent", func(u *UpstreamConfig) { u.Tools = map[string]ToolConfig{"find": {Idempotent: new(false)}} }, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			guarded(t, tt.edit, func(t *testing.T, r *rig, s *scripted, c *testClient) {
				s.does("find", overloaded)
				st := c.call("find")
				settle(tt.after)
				if st.text() == "" || s.called("find") != tt.calls {
					t.Errorf("after %v: %d calls, answer %q", tt.after, s.called("find"), st.text())
				}
			})
		})
	}
}

// A tool that the configuration calls idempotent is retried whatever its hints.
func TestConfiguredIdempotence(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { u.Tools = map[string]ToolConfig{"plain": {Idempotent: new(true)}} },
		func(t *testing.T, r *rig, s *scripted, c *testClient) {
			s.does("plain", lost, good)
			st := c.call("plain")
			settle(time.Second)
			wantPart(t, st.text(), `"fine"`)
		})
}

// In an outage no more than the reserve and a fifth of the calls are retried.
func TestRetryBudgetHoldsInAnOutage(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { u.Breaker.Enabled = new(false) }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("find", overloaded)
		for range 200 {
			c.call("find")
			settle(10 * time.Millisecond)
		}
		settle(10 * time.Second)
		if n := s.called("find"); n > 200+retryReserve+40+5 || n < 230 {
			t.Errorf("200 calls became %d", n)
		}
	})
}

func TestNoRetryWithoutTimeForIt(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { u.CallTimeout = 5 * time.Second }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("plain", fails(wire.Error{Kind: wire.HTTPStatus, Status: 429, RetryAfter: 6*time.Second + time.Millisecond}))
		st := c.call("plain")
		at := time.Now().Add(7 * time.Second).UTC().Format(time.RFC3339) // a begun second is not over
		wantAccount(t, st.text(), map[string]any{"outcome": "throttled", "executed": "no", "retry_at": at})
		wantPart(t, st.text(), "Do not retry before "+at)
	})
}

// Calls that come while the server wants to be left alone wait for that time,
// and do not all come back at once.
func TestThrottledCallsAreSpread(t *testing.T) {
	guarded(t, nil, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("plain", fails(wire.Error{Kind: wire.HTTPStatus, Status: 429, RetryAfter: 10 * time.Second}), good)
		streams := []*testStream{c.call("plain")}
		settle(time.Second)
		for range 10 {
			streams = append(streams, c.call("plain"))
		}
		settle(9*time.Second + 50*time.Millisecond)
		early := s.called("plain")
		settle(3 * time.Second)
		if early > 5 || s.called("plain") != 12 {
			t.Errorf("%d calls at once, %d in all", early, s.called("plain"))
		}
		for _, st := range streams {
			wantPart(t, st.text(), `"fine"`)
		}
	})
}

// Waiting for a server that wants to be left alone is no attempt, and uses up
// none.
func TestThrottledAgainAndAgain(t *testing.T) {
	guarded(t, nil, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		refuse := fails(wire.Error{Kind: wire.HTTPStatus, Status: 429, RetryAfter: 4 * time.Second})
		s.does("find", refuse, refuse, refuse, refuse, good)
		var others []*testStream
		for range 4 {
			c.call("find")
			settle(100 * time.Millisecond)
			others = append(others, c.call("plain"))
			settle(5 * time.Second)
		}
		settle(20 * time.Second)
		for _, st := range others {
			wantPart(t, st.text(), `"fine"`)
		}
	})
}

func TestConcurrencyAndQueue(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { u.Concurrency, u.Queue = 2, new(1) }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("plain", hangs)
		a, b, waits, busy := c.call("plain"), c.call("plain"), c.call("plain"), c.call("plain")
		if n := s.called("plain"); n != 2 {
			t.Errorf("%d calls at a time", n)
		}
		wantAccount(t, busy.text(), map[string]any{"outcome": "open", "executed": "no", "reason": "it is busy: 2 calls are under way and 1 wait"})
		wantPart(t, busy.text(), "Do not retry before")
		first := s.peer().lastID(t, "tools/call") - 1
		s.peer().result(first, `{"content":[]}`)
		synctest.Wait()
		if n := s.called("plain"); n != 3 || waits.text() != "" {
			t.Errorf("%d calls after one has ended; %s", n, waits.text())
		}
		next := c.call("plain")
		next.leave() // gives its place in the queue back
		last := c.call("plain")
		if last.text() != "" {
			t.Errorf("no place in the queue: %s", last.text())
		}
		s.does("plain", good)
		s.peer().exit("over")
		settle(5 * time.Second)
		for _, st := range []*testStream{a, b, waits, last} {
			if st.text() == "" {
				t.Error("a call was not answered")
			}
		}
		if active, queued := r.p.upstream("fake").guard.places.load(); active != 0 || queued != 0 {
			t.Errorf("%d places taken, %d waiting", active, queued)
		}
	})
}

// The time in the queue is part of a call's budget.
func TestQueueTimeout(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { u.Concurrency, u.CallTimeout = 1, 3*time.Second }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("plain", hangs)
		c.call("plain")
		settle(time.Second)
		queued := c.call("plain")
		c.call("plain")
		settle(2 * time.Second) // the first is over, the second begins
		if s.called("plain") != 2 {
			t.Errorf("%d calls", s.called("plain"))
		}
		settle(time.Second)
		wantAccount(t, queued.text(), map[string]any{"outcome": "timeout"})
	})
}

func TestRateLimit(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { u.RateLimit, u.CallTimeout = Rate{2, time.Second}, 3*time.Second }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		var streams []*testStream
		for range 10 {
			streams = append(streams, c.call("plain"))
		}
		settle(time.Second)
		if n := s.called("plain"); n != 4 { // the quota at once, and what comes back meanwhile
			t.Errorf("%d calls in the first second", n)
		}
		settle(2 * time.Second)
		busy := 0
		for _, st := range streams {
			if strings.Contains(st.text(), "its rate limit of 2/s is used up") {
				wantAccount(t, st.text(), map[string]any{"outcome": "open", "executed": "no"})
				busy++
			}
		}
		if n := s.called("plain"); n+busy != 10 || busy < 3 {
			t.Errorf("%d calls, %d refused", n, busy)
		}
	})
}

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
