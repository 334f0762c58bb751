package mcpproxy

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// silentTool is a legacy upstream that never answers a call by itself.
func silentTool() *fakeServer {
	srv := newLegacyServer()
	srv.silent("tools/call")
	return srv
}

func (p *fakePeer) progressOf(id uint64, rest string) {
	p.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + string(wire.AppendToken(nil, id)) + rest + `}}`)
}

func cancelledUpstream(t *testing.T, srv *fakeServer, id uint64, reason string) {
	t.Helper()
	synctest.Wait()
	want := []string{fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a%d","reason":"%s"}}`, id, reason)}
	if diff := cmp.Diff(want, srv.peer().sent("notifications/cancelled")); diff != "" {
		t.Error(diff)
	}
}

func TestProgressComesUnderTheClientsToken(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		c.send(callT1("1", `,"_meta":{"progressToken":"\u0061bc"}`))
		synctest.Wait()
		p := srv.peer()
		id := p.lastID(t, "tools/call")
		p.progressOf(id, `,"progress":1.0,"x":[1, 2]`)
		p.result(id, `{}`)
		p.progressOf(id, `,"progress":2`)
		want := []string{
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"\u0061bc","progress":1.0,"x":[1, 2]}}`,
			`{"jsonrpc":"2.0","id":1,"result":{}}`,
		}
		if diff := cmp.Diff(want, c.take()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestProgressNobodyAskedForIsDropped(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		c.send(callT1("1", ""))
		synctest.Wait()
		srv.peer().progressOf(srv.peer().lastID(t, "tools/call"), `,"progress":1`)
		if got := c.take(); got != nil {
			t.Error(got)
		}
	})
}

// CASES 13: progress extends the timeout, and the cap holds.
func TestProgressExtendsTheBudgetUpToTheCap(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		st := r.client(`{}`).send(callT1("1", ""))
		synctest.Wait()
		id := srv.peer().lastID(t, "tools/call")
		for range 9 {
			settle(200 * time.Millisecond)
			srv.peer().progressOf(id, `,"progress":1`)
		}
		if got := st.text(); got != "" {
			t.Fatalf("ended after 1.8 s: %s", got)
		}
		settle(200 * time.Millisecond)
		wantPart(t, st.text(), "fake__t1 is unavailable: fake: timeout after 2s. It may have been executed", `"isError":true`,
			`"agentarmor/call":{"upstream":"fake","outcome":"timeout","executed":"maybe","reason":"timeout after 2s"}`)
		cancelledUpstream(t, srv, id, "timeout after 2s")
	}, func(c *Config) {
		c.Upstreams[0].CallTimeout, c.Upstreams[0].MaxCallTime = time.Second, 2*time.Second
	})
}

func TestTimeoutOfOneTool(t *testing.T) {
	for _, c := range []struct {
		tool ToolConfig
		says string
	}{
		{ToolConfig{}, "It may have been executed: check before you repeat it."},
		{ToolConfig{Idempotent: new(true)}, "It may have been executed; to repeat it does no harm."},
	} {
		srv := silentTool()
		bubble(t, srv, func(t *testing.T, r *rig) {
			st := r.client(`{}`).send(callT1("1", ""))
			settle(100 * time.Millisecond)
			wantPart(t, st.text(), "timeout after 100ms. "+c.says)
		}, func(cfg *Config) {
			c.tool.CallTimeout = 100 * time.Millisecond
			cfg.Upstreams[0].Tools = map[string]ToolConfig{"t1": c.tool}
		})
	}
}

// A call that waits for its upstream says, after its budget, that it was not executed.
func TestBudgetCoversTheWaitForTheUpstream(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		srv.silent("initialize")
		srv.peer().exit("gone")
		settle(3 * time.Second)
		st, left := c.send(callT1("1", "")), c.send(callT1("2", ""))
		synctest.Wait()
		left.leave()
		settle(time.Minute)
		wantPart(t, st.text(), "It was not executed.", `"executed":"no"`)
		if left.text() != "dropped" || srv.count("tools/call") != 0 {
			t.Errorf("%q, %d calls sent", left.text(), srv.count("tools/call"))
		}
	})
}

func TestCancelReachesTheUpstreamUnderItsOwnID(t *testing.T) {
	for name, cancel := range map[string]func(c *testClient, st *testStream){
		"the client left this request": func(_ *testClient, st *testStream) { st.leave() },
		"user": func(c *testClient, _ *testStream) {
			c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"user"}}`)
		},
		"the client left": func(c *testClient, _ *testStream) { c.close() },
	} {
		t.Run(name, func(t *testing.T) {
			srv := silentTool()
			bubble(t, srv, func(t *testing.T, r *rig) {
				c := r.client(`{}`)
				st := c.send(callT1("1", ""))
				synctest.Wait()
				cancel(c, st)
				if name == "the client left this request" {
					name = "the client closed the stream"
				}
				cancelledUpstream(t, srv, srv.peer().lastID(t, "tools/call"), name)
				if st.text() != "dropped" {
					t.Error(st.text())
				}
				if got := c.take(); got != nil {
					t.Error(got)
				}
			})
		})
	}
}

func TestCancelledIDCanBeUsedAgain(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		c.send(callT1("1", ""))
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		st := c.send(callT1("1", ""))
		synctest.Wait()
		srv.peer().result(srv.peer().lastID(t, "tools/call"), `{}`)
		wantPart(t, st.text(), `"result":{}`)
	})
}

// CASES 1: every pending call fails at once when the server dies; a read is
// made again once it is back.
func TestDyingUpstreamFailsItsCalls(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		tool := c.send(callT1("1", ""))
		srv.silent("resources/read")
		read := c.send(`{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"x:y"}}`)
		synctest.Wait()
		srv.peer().exit("exit status 1")
		wantPart(t, tool.text(), `"isError":true`, `"outcome":"lost","executed":"maybe"`)
		settle(3 * time.Second)
		srv.peer().result(srv.peer().lastID(t, "resources/read"), `{"contents":[]}`)
		wantPart(t, read.text(), `"result":{"contents":[],"_meta":{"agentarmor/call":{"upstream":"fake","outcome":"ok","executed":"yes","attempts":2}}}`)
	})
}

func TestLostSessionIsRenewedOnce(t *testing.T) {
	srv := newLegacyServer()
	calls := 0
	srv.on["tools/call"] = func(p *fakePeer, id uint64, _ wire.Message) {
		p.s.mu.Lock()
		calls++
		n := calls
		p.s.mu.Unlock()
		if n == 2 {
			p.result(id, done)
			return
		}
		p.fail(id, &wire.Error{Kind: wire.SessionLost, Status: 404})
	}
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		st := c.send(callT1("1", ""))
		settle(time.Second)
		wantPart(t, st.text(), `"done"`)
		st = c.send(callT1("2", ""))
		settle(time.Second)
		st2 := st.text()
		wantPart(t, st2, `"isError":true`)
		if calls != 4 {
			t.Errorf("%d attempts for two calls", calls)
		}
	}, func(c *Config) {
		c.Upstreams[0].Command, c.Upstreams[0].URL, c.Upstreams[0].Type = "", "http://fake.invalid/mcp", "http"
	})
}

func TestCloseEndsCallsUnderWay(t *testing.T) {
	for name, srv := range map[string]*fakeServer{"legacy": silentTool(), "modern asks": modernIssues()} {
		t.Run(name, func(t *testing.T) {
			srv.result("tools/list", oneTool)
			synctest.Test(t, func(t *testing.T) {
				r := one(t, srv)
				st := r.client(`{"elicitation":{}}`).send(callT1("1", ""))
				synctest.Wait()
				if name != "legacy" {
					srv.peer().result(srv.peer().lastID(t, "tools/call"), `{"resultType":"input_required","inputRequests":{"who":{"method":"elicitation/create","params":{}}}}`)
					synctest.Wait()
				}
				r.end()
				wantPart(t, st.text(), `"isError":true`, `"executed":"maybe"`)
			})
		})
	}
}

func TestReloadKeepsTheUntouched(t *testing.T) {
	kept, gone, fresh := silentTool(), silentTool(), newLegacyServer()
	servers := map[string]*fakeServer{"kept": kept, "gone": gone, "fresh": fresh}
	ups := func(names ...string) (out []UpstreamConfig) {
		for _, n := range names {
			out = append(out, UpstreamConfig{Name: n, Command: "fake", Protocol: "legacy"})
		}
		return out
	}
	bubbles(t, Config{Upstreams: ups("kept", "gone")}, servers, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		call := func(id, up string) *testStream {
			return c.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + up + `__t1"}}`)
		}
		a, b, hung := call("1", "kept"), call("2", "gone"), call("5", "gone")
		synctest.Wait()
		if err := r.p.Reload(Config{Upstreams: ups("fresh", "kept")}); err != nil {
			t.Fatal(err)
		}
		settle(time.Second)
		first, _ := wire.ParseID(wire.Get([]byte(gone.peer().sent("tools/call")[0]), "id"))
		gone.peer().result(first, done) // what is under way may end
		wantPart(t, b.text(), `"done"`)
		settle(drainTime / 2)
		if got := hung.text(); got != "" {
			t.Errorf("cut short: %s", got)
		}
		settle(drainTime)
		wantPart(t, hung.text(), `"isError":true`, `"outcome":"lost"`)
		kept.peer().result(kept.peer().lastID(t, "tools/call"), done)
		wantPart(t, a.text(), `"done"`)
		if kept.count("initialize") != 1 || fresh.count("initialize") != 1 || !gone.peer().isClosed() {
			t.Errorf("kept %v, fresh %v", kept.log, fresh.log)
		}
		list := c.send(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`).text()
		wantPart(t, list, "kept__t1", "fresh__t1")
		if strings.Contains(list, "gone__t1") {
			t.Error(list)
		}
		wantPart(t, strings.Join(c.take(), "\n"), "notifications/tools/list_changed")
		wantPart(t, call("4", "gone").text(), `"code":-32602`)
	})
}

func TestReloadAfterCloseStartsNothing(t *testing.T) {
	srv := newLegacyServer()
	synctest.Test(t, func(t *testing.T) {
		r := one(t, srv)
		r.end()
		if r.p.Reload(Config{Upstreams: []UpstreamConfig{{Name: "fake", Command: "other"}}}) == nil {
			t.Error("reloaded")
		}
	})
}

func TestLongTargetLeavesRoomForTheReason(t *testing.T) {
	k := &call{target: target{up: &upstream{cfg: &UpstreamConfig{Name: "u"}}, asClients: strings.Repeat("é", 400)}, r: &request{method: "tools/call"}}
	got := k.text(account{reason: "because", retryAt: time.Unix(0, 0)}, nil)
	wantPart(t, got, "because", "Do not retry before 1970")
	if len(got) > 300 {
		t.Error(len(got))
	}
}

// A log or question that names no call is the only running one's; its stream gets it.
func TestLogsOfACallFollowItsLevel(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c, other := r.client(`{}`), r.client(`{}`)
		log := func(level string) {
			srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"` + level + `","data":1}}`)
		}
		set := func(c *testClient, level string) {
			c.send(`{"jsonrpc":"2.0","id":"l","method":"logging/setLevel","params":{"level":"` + level + `"}}`)
			c.take()
		}
		set(c, "error")
		set(other, "debug")
		wantPart(t, strings.Join(srv.peer().sent("logging/setLevel"), ""), `"debug"`)
		log("info")
		log("alert")
		if got := len(c.take()); got != 1 {
			t.Errorf("%d logs above error", got)
		}
		if got := len(other.take()); got != 2 {
			t.Errorf("%d logs above debug", got)
		}
		c.send(callT1("1", ""))
		synctest.Wait()
		log("info")
		log("error")
		if got := c.take(); len(got) != 1 {
			t.Errorf("of its own call: %v", got)
		}
		if got := other.take(); got != nil {
			t.Errorf("a foreign call's log: %v", got)
		}
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		quiet := r.modern("", callT1("1", ","+askingMeta))
		synctest.Wait()
		log("alert")
		if got := quiet.c.take(); got != nil {
			t.Errorf("without logLevel: %v", got)
		}
		quiet.leave()
		settle(2 * ghostLife) // what comes until then can be of the call that was given up
		asks := r.modern("", callT1("1", `,`+strings.Replace(askingMeta, `{`, `{"io.modelcontextprotocol/logLevel":"warning",`, 1)))
		synctest.Wait()
		log("info")
		log("warning")
		if got := asks.c.take(); len(got) != 1 {
			t.Errorf("with logLevel: %v", got)
		}
		other.close()
		set(c, "error")
		levels := srv.peer().sent("logging/setLevel")
		wantPart(t, levels[len(levels)-1], `"warning"`) // as the modern request wants it
	})
}
