package mcpproxy

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// retry is callT1 with a raw requestState and answers.
func retry(id, state, responses string) string {
	return callT1(id, `,`+askingMeta+`,"requestState":`+state+`,"inputResponses":`+responses)
}

const accept = `{"a1":{"action":"accept"}}`

// park makes a call that waits for a client's input.
func (r *rig) park(srv *fakeServer, principal string) *testStream {
	r.t.Helper()
	st := r.modern(principal, callT1("1", ","+askingMeta))
	synctest.Wait()
	p := srv.peer()
	p.sayVia(p.lastID(r.t, "tools/call"), elicitation)
	settle(parkBatch)
	wantPart(r.t, st.text(), `"resultType":"input_required"`)
	return st
}

// Questions within 25 ms go out together, later ones with the next round.
func TestQuestionsAreBatched(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		st := r.modern("", callT1("1", ","+askingMeta))
		synctest.Wait()
		p := srv.peer()
		p.say(elicitation)
		settle(parkBatch - time.Millisecond)
		p.say(strings.Replace(sampling, "q1", "q2", 1))
		if st.text() != "" {
			t.Fatalf("too early: %s", st.text())
		}
		settle(time.Millisecond)
		wantPart(t, st.text(), `"inputRequests":{"a1":{"method":"elicitation/create","params":{"message":"?"}},"a2":{"method":"sampling/createMessage","params":{"messages":[]}}}`)
		p.say(strings.Replace(sampling, "q1", "q3", 1))
		// What is missing is asked again, with what has come meanwhile.
		again := r.modern("", retry("2", stateOf(t, st), accept))
		settle(parkBatch)
		wantPart(t, again.text(), `"a2":`, `"a3":`)
		wantPart(t, p.responses(), `"id":"q1","result":{"action":"accept"}`)
		last := r.modern("", retry("3", stateOf(t, again), `{"a2":{"model":"m"},"a3":{"model":"n"}}`))
		wantPart(t, p.responses(), `"id":"q2","result":{"model":"m"}`, `"id":"q3","result":{"model":"n"}`)
		p.result(p.lastID(t, "tools/call"), done)
		wantPart(t, last.text(), `"id":3,"result":{`, `"done"`, `"resultType":"complete"`)
	})
}

func TestBadStatesAreRefused(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		state := stateOf(t, r.park(srv, "alice"))
		last := state[len(state)-2]
		flipped := state[:len(state)-2] + string(last^1) + `"`
		for name, try := range map[string]func() *testStream{
			"foreign principal": func() *testStream { return r.modern("bob", retry("2", state, accept)) },
			"tampered":          func() *testStream { return r.modern("alice", retry("2", flipped, accept)) },
			"other arguments": func() *testStream {
				return r.modern("alice", strings.Replace(retry("2", state, accept), `"arguments":{}`, `"arguments":{"x":1}`, 1))
			},
			"unknown":  func() *testStream { return r.modern("alice", retry("2", `"v1.00.00"`, accept)) },
			"not ours": func() *testStream { return r.modern("alice", retry("2", `"x"`, accept)) },
		} {
			got := try().text()
			if !strings.Contains(got, `"code":-32602,"message":"requestState is not valid`) {
				t.Errorf("%s: %s", name, got)
			}
		}
		good := r.modern("alice", retry("2", state, accept))
		if good.text() != "" {
			t.Fatalf("the good one: %s", good.text())
		}
		wantPart(t, r.modern("alice", retry("3", state, accept)).text(), `"code":-32602`) // single use
		srv.peer().result(srv.peer().lastID(t, "tools/call"), done)
		wantPart(t, good.text(), `"done"`)
	})
}

func TestParkedCallExpires(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		state := stateOf(t, r.park(srv, ""))
		settle(parkLife - time.Second)
		if n := srv.count("notifications/cancelled"); n != 0 {
			t.Fatal("cancelled too early: the budget does not pause")
		}
		settle(2 * time.Second)
		cancelledUpstream(t, srv, srv.peer().lastID(t, "tools/call"), "the client did not bring the input asked for")
		wantPart(t, srv.peer().responses(), `"id":"q1","error":{"code":-32601`)
		wantPart(t, r.modern("", retry("2", state, accept)).text(), `"code":-32602`)
		if n := len(r.p.parking.calls); n != 0 {
			t.Errorf("%d calls are parked", n)
		}
	})
}

func TestParkedCallsOfAPrincipalAreBounded(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		for range parkMax {
			r.park(srv, "alice")
		}
		st := r.modern("alice", callT1("1", ","+askingMeta))
		synctest.Wait()
		srv.peer().sayVia(srv.peer().lastID(t, "tools/call"), elicitation)
		settle(parkBatch)
		wantPart(t, st.text(), `"isError":true`, "too many calls of this client wait for input", `"executed":"maybe"`)
		r.park(srv, "bob")
	}, func(c *Config) { c.Limits = wire.Limits{} })
}

// The outcome that comes while the client is away is kept, also a failure: the
// client must not repeat what may have been executed.
func TestOutcomeWaitsForTheClient(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(p *fakePeer, id uint64)
		want string
	}{
		"result": {func(p *fakePeer, id uint64) { p.result(id, done) }, `"done"`},
		"error":  {func(p *fakePeer, id uint64) { p.error(id, -7, "no") }, `"code":-7`},
		"lost":   {func(p *fakePeer, _ uint64) { p.exit("gone") }, `"executed":"maybe"`},
	} {
		t.Run(name, func(t *testing.T) {
			srv := silentTool()
			bubble(t, srv, func(t *testing.T, r *rig) {
				st := r.park(srv, "")
				state := stateOf(t, st)
				tt.end(srv.peer(), srv.peer().lastID(t, "tools/call"))
				synctest.Wait()
				wantPart(t, r.modern("", retry("2", state, accept)).text(), `"id":2`, tt.want)
			})
		})
	}
}

// A server that gives up its question at once leaves nothing to park for.
func TestAnswerBeforeTheBatchWins(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		st := r.modern("", callT1("1", ","+askingMeta))
		synctest.Wait()
		srv.peer().say(elicitation)
		srv.peer().result(srv.peer().lastID(t, "tools/call"), done)
		settle(time.Second)
		wantPart(t, st.text(), `"done"`)
	})
}

func TestWithdrawnQuestionIsNotAskedAgain(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		state := stateOf(t, r.park(srv, ""))
		srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q1"}}`)
		st := r.modern("", retry("2", state, accept))
		settle(time.Second)
		if st.text() != "" || srv.peer().responses() != "" {
			t.Errorf("%q, %q", st.text(), srv.peer().responses())
		}
		srv.peer().result(srv.peer().lastID(t, "tools/call"), done)
		wantPart(t, st.text(), `"done"`)
	})
}

func TestRetryBringsItsOwnProgressToken(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		state := stateOf(t, r.park(srv, ""))
		again := r.modern("", strings.Replace(retry("2", state, accept), `"_meta":{`, `"_meta":{"progressToken":"new",`, 1))
		synctest.Wait()
		srv.peer().progressOf(srv.peer().lastID(t, "tools/call"), `,"progress":1`)
		wantPart(t, strings.Join(again.c.take(), ""), `"progressToken":"new","progress":1`)
		settle(time.Minute) // the budget runs again
		wantPart(t, again.text(), "timeout after 1m0s")
	})
}

// A second request of the same id cannot take over; the first stays whole.
func TestRetryWithAnIDInUse(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.session("stdio")
		first := c.send(callT1("1", ","+askingMeta))
		synctest.Wait()
		srv.peer().say(elicitation)
		settle(parkBatch)
		running := c.send(callT1("2", ","+askingMeta))
		synctest.Wait()
		id := srv.peer().lastID(t, "tools/call")
		wantPart(t, c.send(retry("2", stateOf(t, first), accept)).text(), `"code":-32600`)
		wantPart(t, c.send(callT1("2", ","+askingMeta)).text(), `"code":-32600`) // still the first one's
		srv.peer().result(id, done)
		wantPart(t, running.text(), `"done"`)
		if got := c.send(callT1("2", ","+askingMeta)).text(); got != "" {
			t.Errorf("the id is not free again: %s", got)
		}
	})
}

func TestClosedSessionGivesUpItsParkedCalls(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.session("stdio")
		c.send(callT1("1", ","+askingMeta))
		synctest.Wait()
		srv.peer().say(elicitation)
		settle(parkBatch)
		c.close()
		if n := srv.count("notifications/cancelled"); n != 1 || len(r.p.parking.calls) != 0 {
			t.Errorf("%d cancelled, %d parked", n, len(r.p.parking.calls))
		}
	})
}

func TestCloseGivesUpParkedCalls(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		r.park(srv, "")
		r.end()
		if n := srv.count("notifications/cancelled"); n != 1 || len(r.p.parking.calls) != 0 {
			t.Errorf("%d cancelled, %d parked", n, len(r.p.parking.calls))
		}
	})
}

// A modern upstream gets its own state back, however the client spells it.
func TestStateOfAModernUpstreamIsWrapped(t *testing.T) {
	srv := modernIssues()
	srv.result("tools/list", oneTool)
	bubble(t, srv, func(t *testing.T, r *rig) {
		st := r.modern("alice", callT1("1", ","+askingMeta))
		synctest.Wait()
		srv.peer().result(srv.peer().lastID(t, "tools/call"), `{"resultType":"input_required","requestState":"a.b\u003cc\u003e\/é"}`)
		state := stateOf(t, st)
		wantPart(t, state, `"u1.`)
		plain, _ := wire.String([]byte(state))
		for name, bad := range map[string]struct{ principal, state string }{
			"foreign":  {"bob", state},
			"tampered": {"alice", strings.Replace(state, "a.b", "a.c", 1)},
			"bare":     {"alice", `"a.b<c>/é"`},
		} {
			if got := r.modern(bad.principal, retry("2", bad.state, `{}`)).text(); !strings.Contains(got, `"code":-32602`) {
				t.Errorf("%s: %s", name, got)
			}
		}
		r.modern("alice", retry("3", string(wire.AppendString(nil, plain)), `{"x":{"action":"accept"}}`))
		synctest.Wait()
		sent := srv.peer().sent("tools/call")
		wantPart(t, sent[len(sent)-1], `"requestState":"a.b<c>/é"`, `"inputResponses":{"x":{"action":"accept"}}`)
	})
}

func TestLegacyClientIsAskedInRounds(t *testing.T) {
	srv := modernIssues()
	srv.result("tools/list", oneTool)
	srv.result("tools/call", `{"resultType":"input_required","requestState":"s"}`)
	bubble(t, srv, func(t *testing.T, r *rig) {
		st := r.client(everything).send(callT1("1", ""))
		wantPart(t, st.text(), `"isError":true`, "asks for input without end")
		if n := srv.count("tools/call"); n != roundsMax+1 {
			t.Errorf("%d rounds", n)
		}
	})
}

func TestLegacyClientDeclines(t *testing.T) {
	for name, caps := range map[string]string{"by an error": everything, "by its capabilities": `{}`} {
		t.Run(name, func(t *testing.T) {
			srv := modernIssues()
			srv.result("tools/list", oneTool)
			bubble(t, srv, func(t *testing.T, r *rig) {
				c := r.client(caps)
				st := c.send(callT1("1", ""))
				synctest.Wait()
				srv.peer().result(srv.peer().lastID(t, "tools/call"), `{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{}}}}`)
				synctest.Wait()
				if caps == everything {
					c.send(`{"jsonrpc":"2.0","id":"s1","error":{"code":-1,"message":"no"}}`)
					wantPart(t, st.text(), `"id":1,"error":{"code":-1,"message":"no"}`)
				} else {
					wantPart(t, st.text(), `"id":1,"error":{"code":-32601`, "does not support elicitation/create")
				}
				if n := srv.count("tools/call"); n != 1 {
					t.Errorf("called %d times", n)
				}
			})
		})
	}
}

// -32042 is a code of 2025-11-25 only: a modern client is asked to visit the URLs.
func TestURLElicitationRequired(t *testing.T) {
	srv := newLegacyServer()
	const object = `{"code":-32042,"message":"visit","data":{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://x.invalid/?a=1","message":"Log in"}]}}`
	srv.on["tools/call"] = func(p *fakePeer, id uint64, _ wire.Message) {
		p.end(id)
		p.ev.Answer(id, wire.Message{ID: wire.AppendID(nil, id), Error: []byte(object)})
	}
	bubble(t, srv, func(t *testing.T, r *rig) {
		got := r.modern("", callT1("1", ","+askingMeta)).text()
		wantPart(t, got, `"result":{"resultType":"input_required","inputRequests":{"a1":{"method":"elicitation/create","params":{"mode":"url","elicitationId":"e","url":"https://x.invalid/?a=1","message":"Log in"}}},"_meta"`)
		got = r.modern("", callT1("1", ","+elicits)).text()
		wantPart(t, got, `"error":{"code":-32602`, "URL")
		got = r.client(`{}`).send(callT1("1", "")).text()
		wantPart(t, got, `"error":`+object)
		srv.result("tools/call", done)
		wantPart(t, r.modern("", callT1("2", ","+askingMeta+`,"inputResponses":{"a1":{"action":"accept"}}`)).text(), `"done"`)
		sent := srv.peer().sent("tools/call")
		if last := sent[len(sent)-1]; strings.Contains(last, "inputResponses") {
			t.Error(last)
		}
	})
}

func TestSignaturesDiffer(t *testing.T) {
	g := newParking()
	at := func(principal, method, name, args string, gen uint64) string {
		r := &request{c: &client{s: &wire.Session{Principal: principal}}, method: method, name: []byte(name), args: []byte(args)}
		return g.sign("t", r, gen)
	}
	seen := map[string]bool{}
	for _, s := range []string{at("p", "m", "n", "a", 1), at("q", "m", "n", "a", 1), at("p", "x", "n", "a", 1), at("p", "m", "na", "", 1), at("p", "m", "n", "a", 2)} {
		if seen[s] {
			t.Error(fmt.Sprint("two requests have one signature: ", s))
		}
		seen[s] = true
	}
}
