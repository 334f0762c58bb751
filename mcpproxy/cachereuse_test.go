package mcpproxy

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// cached gives the tools of an upstream results that may be used again.
func cached(u *UpstreamConfig) {
	u.Retry.Attempts = new(0)
	u.Tools = map[string]ToolConfig{}
	for _, tool := range []string{"plain", "find", "read"} {
		u.Tools[tool] = ToolConfig{Cache: 10 * time.Second}
	}
}

func TestFreshResultIsUsedAgain(t *testing.T) {
	guarded(t, cached, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("find", tells("one"), tells("two"))
		first := c.call("find", `{"q":1}`).text()
		if accountOf(t, first) != nil {
			t.Errorf("not as it came: %s", first)
		}
		settle(4 * time.Second)
		again := c.call("find", `{"q": 1}`).text()
		wantPart(t, again, `"one"`)
		wantAccount(t, again, map[string]any{"outcome": "ok", "executed": "no", "answered_from": "cache", "age_ms": 4000, "stale": false})
		settle(7 * time.Second)
		wantPart(t, c.call("find", `{"q":1}`).text(), `"two"`)
		if n := s.called("find"); n != 2 {
			t.Errorf("called %d times", n)
		}
	})
}

// A fresh result costs the upstream nothing: no token, no place, not even a
// server.
func TestFreshResultNeedsNoServer(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) {
		cached(u)
		u.RateLimit, u.Concurrency, u.Queue = Rate{1, time.Minute}, 1, new(0)
	}, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		c.call("find").text()
		s.onDial = func(int, string) error { return &wire.Error{Kind: wire.NotSent, Err: errGone} }
		s.peer().exit("over")
		settle(time.Second)
		for range 3 {
			wantAccount(t, c.call("find").text(), map[string]any{"answered_from": "cache"})
		}
	})
}

// What is not sure to be the answer to the next call is not kept.
func TestResultsThatAreNotKept(t *testing.T) {
	for _, tt := range []struct {
		name, tool string
		edit       func(u *UpstreamConfig)
		first      reply
	}{
		{"of a tool that may change something", "plain", nil, good},
		{"of one whose hints are not trusted", "find", func(u *UpstreamConfig) { u.DistrustHints = true }, good},
		{"without cache", "find", func(u *UpstreamConfig) { u.Tools = nil }, good},
		{"isError", "find", nil, func(p *fakePeer, id uint64) { p.result(id, `{"content":[],"isError":true}`) }},
		{"error", "find", nil, broken},
		{"after a question", "find", nil, func(p *fakePeer, id uint64) { p.sayVia(id, elicitation) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			guarded(t, func(u *UpstreamConfig) {
				cached(u)
				if tt.edit != nil {
					tt.edit(u)
				}
			}, func(t *testing.T, r *rig, s *scripted, _ *testClient) {
				c := r.client(`{"elicitation":{}}`)
				s.does(tt.tool, tt.first, good)
				st := c.call(tt.tool)
				if st.text() == "" {
					c.send(`{"jsonrpc":"2.0","id":"s1","result":{"action":"accept"}}`)
					s.peer().result(s.peer().lastID(t, "tools/call"), done)
					wantPart(t, st.text(), `"done"`)
				}
				wantPart(t, c.call(tt.tool).text(), `"fine"`)
				if n := s.called(tt.tool); n != 2 {
					t.Errorf("called %d times", n)
				}
			})
		})
	}
}

// The result of a call that brings a person's input is that person's, and such
// a call is not answered by another's.
func TestResultsOfInputAreNotKept(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { cached(u); u.Protocol = "auto" }, func(t *testing.T, r *rig, s *scripted, _ *testClient) {
		find := func(more string) *testStream {
			return r.modern("", strings.Replace(callPlain("1", askingMeta+more), "fake__plain", "fake__find", 1))
		}
		find(`,"inputResponses":{"a":{"action":"accept"}}`).text()
		if got := find("").text(); accountOf(t, got) != nil {
			t.Errorf("a person's input was kept: %s", got)
		}
		if got := find(`,"inputResponses":{"a":{"action":"accept"}}`).text(); accountOf(t, got) != nil {
			t.Errorf("a person's input was not brought: %s", got)
		}
		wantAccount(t, find("").text(), map[string]any{"answered_from": "cache"})
	})
}

// Nobody is answered with what another principal, or with sharing: session
// another session, was told.
func TestResultsHaveAScope(t *testing.T) {
	for _, sharing := range []string{"shared", "session"} {
		guarded(t, func(u *UpstreamConfig) { cached(u); u.Sharing = sharing }, func(t *testing.T, r *rig, s *scripted, _ *testClient) {
			client := func(principal, id string) *testClient {
				c := r.session("http")
				c.s.Principal, c.s.ID = principal, id
				c.hello(`{}`)
				return c
			}
			alice, also, bob := client("alice", "1"), client("alice", "2"), client("bob", "3")
			from := func(c *testClient) any { return accountOf(t, c.call("find").text())["answered_from"] }
			if got := from(alice); got != nil {
				t.Errorf("the first: %v", got)
			}
			if got := from(bob); got != nil {
				t.Errorf("%s: bob was told what alice was", sharing)
			}
			if got := from(alice); got != "cache" {
				t.Errorf("%s: alice again: %v", sharing, got)
			}
			if got := from(also); (got == "cache") != (sharing == "shared") {
				t.Errorf("%s: another session of alice: %v", sharing, got)
			}
			stateless := func(principal string) any {
				st := r.modern(principal, strings.Replace(callPlain("1", askingMeta), "fake__plain", "fake__find", 1))
				settle(time.Second)
				return accountOf(t, st.text())["answered_from"]
			}
			if got := stateless("carol"); got != nil {
				t.Errorf("%s: carol was told what others were", sharing)
			}
			if got := stateless("carol"); got != "cache" {
				t.Errorf("%s: carol again: %v", sharing, got)
			}
		})
	}
}

// The late answer to a call whose client has left serves nobody.
func TestResultsOfCancelledCallsAreNotKept(t *testing.T) {
	guarded(t, cached, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("find", hangs, good)
		st := c.call("find")
		synctest.Wait()
		st.leave()
		s.peer().result(s.peer().lastID(t, "tools/call"), done) // too late
		wantPart(t, c.call("find").text(), `"fine"`)
		if st.text() != "dropped" {
			t.Error(st.text())
		}
	})
}
