package mcpproxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// answers gives one answer after the other, the last one for ever.
func answers(script ...func(p *fakePeer, id uint64)) func(*fakePeer, uint64, wire.Message) {
	n := 0 // one list request at a time
	return func(p *fakePeer, id uint64, _ wire.Message) {
		f := script[min(n, len(script)-1)]
		n++
		f(p, id)
	}
}

func refuse(code int) func(*fakePeer, uint64) {
	return func(p *fakePeer, id uint64) { p.error(id, code, "boom") }
}

func give(result string) func(*fakePeer, uint64) {
	return func(p *fakePeer, id uint64) { p.result(id, result) }
}

const threeTools = `{"tools":[{"name":"a"},{"name":"b"},{"name":"c"}]}`

// CASES 6: "no tools" is never published from an error.
func TestFailingListIsNoEmptyList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.on["tools/list"] = answers(refuse(-32603), refuse(-32603), give(threeTools))
		srv.result("resources/list", `{"resources":[{"uri":"x:1","name":"x"}]}`)
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy"})
		synctest.Wait()
		s := h.status()
		if s.State != health.Degraded || !strings.Contains(s.Reason, "tools/list: error -32603: boom") || h.live() == nil {
			t.Errorf("after the first error: %+v", s)
		}
		settle(5 * time.Second)
		if diff := cmp.Diff([]int{3}, h.toolCounts()); diff != "" || h.state() != health.Ready {
			t.Errorf("%s: %s", h.state(), diff)
		}
		if n := len(h.listing().Resources); n != 1 {
			t.Errorf("%d resources: what came before the tools is lost", n)
		}
		if srv.count("resources/list") != 1 || srv.count("initialize") != 1 {
			t.Errorf("what was well was asked again: %v", srv.log)
		}
		h.end()
	})
}

func TestFailingListKeepsTheLastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.on["tools/list"] = answers(give(oneTool), refuse(-32603), give(threeTools))
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy"})
		synctest.Wait()
		srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		synctest.Wait()
		if h.state() != health.Degraded || len(h.listing().Tools) != 1 {
			t.Errorf("%s, %d tools", h.state(), len(h.listing().Tools))
		}
		settle(time.Second)
		if diff := cmp.Diff([]int{1, 3}, h.toolCounts()); diff != "" {
			t.Error(diff)
		}
		if !slices.Equal(h.told, []bool{false, true}) {
			t.Errorf("told %v: the announcement was lost with the error", h.told)
		}
		h.end()
	})
}

func TestOneListNeverCostsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.error("resources/list", -32603)
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy"})
		synctest.Wait()
		if diff := cmp.Diff([]int{1}, h.toolCounts()); diff != "" || h.state() != health.Degraded {
			t.Errorf("%s: %s", h.state(), diff)
		}
		h.end()
	})
}

// The remembered tools stay when the first list of a new run fails.
func TestRememberedToolsSurviveAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.error("tools/list", -32603)
		old := &listing{Protocol: wire.Legacy}
		for e := range wire.Elements(wire.Get([]byte(threeTools), "tools")) {
			old.Tools = append(old.Tools, e)
		}
		h := supervise(t, srv, UpstreamConfig{}, func(o *instanceOptions) { o.remembered = old })
		synctest.Wait()
		if diff := cmp.Diff([]int{3}, h.toolCounts()); diff != "" || h.state() != health.Degraded {
			t.Errorf("%s: %s", h.state(), diff)
		}
		h.end()
	})
}

func TestRelistIsCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.on["tools/list"] = func(p *fakePeer, id uint64, _ wire.Message) {
			time.Sleep(time.Second)
			p.result(id, oneTool)
		}
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy"})
		settle(1500 * time.Millisecond)
		for range 50 {
			srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			settle(10 * time.Millisecond)
		}
		settle(10 * time.Second)
		if n := srv.count("tools/list"); n != 3 {
			t.Errorf("%d lists, want the first, one running and one queued", n)
		}
		if !slices.Equal(h.told, []bool{false, true, true}) || len(h.messages) != 0 {
			t.Errorf("told %v, forwarded %v", h.told, h.messages)
		}
		h.end()
	})
}

func TestPages(t *testing.T) {
	page := func(n int, next string) string {
		return fmt.Sprintf(`{"tools":[{"name":"t%d"}]%s}`, n, next)
	}
	for _, tt := range []struct {
		name  string
		pages map[string]string // by raw cursor
		want  string
	}{
		{"two, the cursor as it came", map[string]string{
			"": page(1, `,"nextCursor":"a\u0062\/"`), `"a\u0062\/"`: page(2, ""),
		}, "t1 t2"},
		{"an empty cursor is one, null is none", map[string]string{
			"": page(1, `,"nextCursor":""`), `""`: page(2, `,"nextCursor":null`),
		}, "t1 t2"},
		{"a repeated cursor ends it", map[string]string{
			"": page(1, `,"nextCursor":"x"`), `"x"`: page(2, `,"nextCursor":"y"`), `"y"`: page(3, `,"nextCursor":"x"`),
		}, "t1 t2 t3"},
		{"a cursor to itself adds nothing", map[string]string{
			"": page(1, `,"nextCursor":""`), `""`: page(1, `,"nextCursor":""`),
		}, "t1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newLegacyServer()
				srv.on["tools/list"] = func(p *fakePeer, id uint64, m wire.Message) {
					p.result(id, tt.pages[string(wire.Get(m.Params, "cursor"))])
				}
				h := supervise(t, srv, UpstreamConfig{Protocol: "legacy"})
				synctest.Wait()
				var names []string
				for _, raw := range h.listing().Tools {
					name, _ := wire.String(wire.Get(raw, "name"))
					names = append(names, name)
				}
				if got := strings.Join(names, " "); got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				h.end()
			})
		})
	}
}

func TestEndlessPagesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		n := 0
		srv.on["tools/list"] = func(p *fakePeer, id uint64, _ wire.Message) {
			n++
			p.result(id, fmt.Sprintf(`{"tools":[{"name":"t%d"}],"nextCursor":"%d"}`, n, n))
		}
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy"})
		synctest.Wait()
		if n != maxPages || len(h.listing().Tools) != maxPages || h.state() != health.Ready {
			t.Errorf("%d pages, %d tools, %s", n, len(h.listing().Tools), h.state())
		}
		h.end()
	})
}

// The first list has what is left of the start's time, each later try that of
// a call.
func TestHangingListHasABudget(t *testing.T) {
	const startup = 10 * time.Second
	for _, budget := range []time.Duration{100 * time.Millisecond, 45 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			srv := newLegacyServer()
			srv.silent("tools/list")
			h := supervise(t, srv, UpstreamConfig{Protocol: "legacy", StartupTimeout: startup, CallTimeout: budget})
			settle(startup - time.Millisecond)
			if h.state() != health.Starting {
				t.Errorf("before %v: %s", startup, h.state())
			}
			settle(2 * time.Millisecond)
			if s := h.status(); s.State != health.Degraded || !strings.Contains(s.Reason, errStartup.Error()) {
				t.Errorf("after %v: %+v", startup, s)
			}
			settle(600*time.Millisecond + budget) // the pause before the second try is 0.5 s ± 20 %
			if s := h.status(); !strings.Contains(s.Reason, "no answer within "+budget.String()) {
				t.Errorf("after %v more: %+v", budget, s)
			}
			if n := len(srv.peer().sent("notifications/cancelled")); n != 2 {
				t.Errorf("cancelled %d times", n)
			}
			h.end()
		})
	}
}

// A server that is slow to start may be slow to list, too.
func TestFirstListIsPartOfTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.on["tools/list"] = func(p *fakePeer, id uint64, _ wire.Message) {
			time.Sleep(8 * time.Second)
			p.result(id, oneTool)
		}
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy", CallTimeout: 2 * time.Second})
		settle(8*time.Second + time.Millisecond)
		if h.state() != health.Ready || srv.count("tools/list") != 1 {
			t.Errorf("%s after %d lists", h.state(), srv.count("tools/list"))
		}
		srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		settle(2*time.Second + time.Millisecond)
		if s := h.status(); s.State != health.Degraded || !strings.Contains(s.Reason, "no answer within 2s") {
			t.Errorf("a later list: %+v", s)
		}
		h.end()
		settle(8 * time.Second) // until the fake server is done with it
	})
}

func TestMalformedListIsAnError(t *testing.T) {
	for _, result := range []string{`{}`, `{"tools":{}}`, `[]`} {
		synctest.Test(t, func(t *testing.T) {
			srv := newLegacyServer()
			srv.result("tools/list", result)
			h := supervise(t, srv, UpstreamConfig{Protocol: "legacy"})
			synctest.Wait()
			if h.state() != health.Degraded || len(h.listings) != 0 {
				t.Errorf("%s: %s, %v", result, h.state(), h.toolCounts())
			}
			h.end()
		})
	}
}

func TestOnlyWhatIsDeclaredIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.result("initialize", strings.Replace(initOK, fakeCaps, `{"prompts":{},"completions":null}`, 1))
		srv.result("prompts/list", `{"prompts":[{"name":"p"}]}`)
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy"})
		synctest.Wait()
		l := h.listing()
		if len(l.Prompts) != 1 || srv.count("tools/list")+srv.count("resources/list") != 0 || h.state() != health.Ready {
			t.Errorf("%+v after %v", l, srv.log)
		}
		h.end()
	})
}

func TestListingCarriesWhatTheServerSaid(t *testing.T) {
	for _, tt := range []struct {
		name, tools, resources string
		ttl                    int64
		public                 bool
	}{
		{"the minimum, all public", `,"ttlMs":9000,"cacheScope":"public"`, `,"ttlMs":500,"cacheScope":"public"`, 500, true},
		{"one private", `,"ttlMs":9000,"cacheScope":"private"`, `,"ttlMs":500,"cacheScope":"public"`, 500, false},
		{"zero counts", `,"ttlMs":9000,"cacheScope":"public"`, `,"ttlMs":0,"cacheScope":"public"`, 0, true},
		{"nothing said", ``, ``, 0, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			srv := newModernServer()
			srv.result("tools/list", strings.TrimSuffix(oneTool, "}")+tt.tools+"}")
			srv.result("resources/list", `{"resources":[]`+tt.resources+`}`)
			srv.result("resources/templates/list", `{"resourceTemplates":[]`+tt.resources+`}`)
			h := supervise(t, srv, UpstreamConfig{})
			synctest.Wait()
			l := h.listing()
			if l.TTL != tt.ttl || l.Public != tt.public {
				t.Errorf("%s: ttl %d, public %v", tt.name, l.TTL, l.Public)
			}
			if l.Protocol != wire.Modern || string(l.Capabilities) != fakeCaps || string(l.Server) != `{"name":"fake","version":"2"}` {
				t.Errorf("%+v", l)
			}
			h.end()
		})
	}
}

// A list refused with 429 is not asked again before the time that came with it.
func TestThrottledListWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.on["tools/list"] = answers(func(p *fakePeer, id uint64) {
			p.fail(id, &wire.Error{Kind: wire.HTTPStatus, Status: 429, RetryAfter: 30 * time.Second})
		}, give(oneTool))
		h := supervise(t, srv, UpstreamConfig{URL: "http://127.0.0.1/mcp", Protocol: "legacy"})
		settle(29 * time.Second)
		if srv.count("tools/list") != 1 || h.state() != health.Throttled {
			t.Errorf("%d lists, %s", srv.count("tools/list"), h.state())
		}
		settle(10 * time.Second)
		if diff := cmp.Diff([]int{1}, slices.Compact(h.toolCounts())); diff != "" || h.state() != health.Ready {
			t.Errorf("%s: %s", h.state(), diff)
		}
		h.end()
	})
}

// What changed while no listen stream was open is found by listing again.
func TestReopenedListenLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newModernServer()
		h := supervise(t, srv, UpstreamConfig{})
		synctest.Wait()
		srv.result("tools/list", threeTools)
		srv.peer().fail(h.live().listen.Load(), &wire.Error{Kind: wire.Lost})
		settle(2 * time.Second)
		if diff := cmp.Diff([]int{1, 3}, h.toolCounts()); diff != "" || srv.count("subscriptions/listen") != 2 {
			t.Errorf("%d streams: %s", srv.count("subscriptions/listen"), diff)
		}
		h.end()
	})
}

// Without list_changed, a modern server's own ttlMs says when to look again:
// at most every 30 s, and never for a list that asks not to be kept.
func TestAgedListsAreFetchedAgain(t *testing.T) {
	const plain = `"tools":{},"prompts":{"listChanged":true}`
	for _, tt := range []struct {
		name, caps, ttl string
		want            int // tools/list in 10 minutes
	}{
		{"a minute", plain, "60000", 11},
		{"two seconds", plain, "2000", 21},
		{"at once", plain, "0", 1},
		{"none given", plain, "null", 1},
		{"beyond any clock", plain, "9223372036854775807", 1},
		{"announced", `"tools":{"listChanged":true}`, "60000", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newModernServer()
				srv.result("server/discover", `{"supportedVersions":["2026-07-28"],"capabilities":{`+tt.caps+`}}`)
				srv.result("tools/list", `{"tools":[],"ttlMs":`+tt.ttl+`}`)
				srv.result("prompts/list", `{"prompts":[],"ttlMs":1000}`)
				h := supervise(t, srv, UpstreamConfig{})
				settle(10*time.Minute + time.Second)
				if n := srv.count("tools/list"); n != tt.want || srv.count("prompts/list") > 1 {
					t.Errorf("tools listed %d times, prompts %d, want %d and at most 1", n, srv.count("prompts/list"), tt.want)
				}
				h.end()
			})
		})
	}
}
