package mcpproxy

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

const (
	elicitation = `{"jsonrpc":"2.0","id":"q1","method":"elicitation/create","params":{"message":"?"}}`
	sampling    = `{"jsonrpc":"2.0","id":"q1","method":"sampling/createMessage","params":{"messages":[]}}`
	rootsList   = `{"jsonrpc":"2.0","id":"q1","method":"roots/list"}`
	everything  = `{"sampling":{},"elicitation":{},"roots":{}}`
)

// responses are the answers that an upstream has got to its requests.
func (p *fakePeer) responses() string {
	synctest.Wait()
	return strings.Join(p.sent(""), "\n")
}

func TestQuestionReachesTheCallItCameWith(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		a, b := r.client(everything), r.client(everything)
		a.send(callT1("1", ""))
		synctest.Wait()
		via := srv.peer().lastID(t, "tools/call")
		b.send(callT1("1", ""))
		synctest.Wait()
		srv.peer().sayVia(via, elicitation)
		want := []string{`{"jsonrpc":"2.0","id":"s1","method":"elicitation/create","params":{"message":"?"}}`}
		if diff := cmp.Diff(want, a.take()); diff != "" {
			t.Error(diff)
		}
		a.send(`{"jsonrpc":"2.0","id":"s1","result":{"action":"accept","content":{"n":9007199254740993}}}`)
		if got := srv.peer().responses(); got != `{"jsonrpc":"2.0","id":"q1","result":{"action":"accept","content":{"n":9007199254740993}}}` {
			t.Error(got)
		}
		if got := b.take(); got != nil {
			t.Errorf("the other client got %v", got)
		}
	})
}

func TestClientsErrorReachesTheUpstream(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(everything)
		c.send(callT1("1", ""))
		synctest.Wait()
		srv.peer().say(sampling)
		synctest.Wait()
		c.send(`{"jsonrpc":"2.0","id":"s1","error":{"code":-1,"message":"User rejected"}}`)
		if got := srv.peer().responses(); got != `{"jsonrpc":"2.0","id":"q1","error":{"code":-1,"message":"User rejected"}}` {
			t.Error(got)
		}
	})
}

// With several candidates, or none, a question is refused, and nobody sees it.
func TestQuestionsOfUnknownCauseAreRefused(t *testing.T) {
	for name, prepare := range map[string]func(r *rig, a, b *testClient){
		"no call": func(*rig, *testClient, *testClient) {},
		"calls of two clients": func(_ *rig, a, b *testClient) {
			a.send(callT1("1", ""))
			b.send(callT1("1", ""))
		},
		"two modern calls": func(r *rig, _, _ *testClient) {
			r.modern("p", callT1("1", ","+askingMeta))
			r.modern("p", callT1("2", ","+askingMeta))
		},
		"a foreign call that was given up": func(_ *rig, a, b *testClient) {
			a.send(callT1("1", ""))
			synctest.Wait()
			a.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
			b.send(callT1("1", ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := silentTool()
			bubble(t, srv, func(t *testing.T, r *rig) {
				a, b := r.client(everything), r.client(everything)
				prepare(r, a, b)
				synctest.Wait()
				srv.peer().say(elicitation)
				wantPart(t, srv.peer().responses(), `"id":"q1","error":{"code":-32601,"message":"AgentArmor: elicitation/create refused: `)
				settle(time.Second)
				for _, hop := range r.hops() {
					if strings.HasPrefix(hop, "→ client") && strings.Contains(hop, "elicitation/create") {
						t.Error(hop)
					}
				}
			})
		})
	}
}

// A stream that is no call's, or no longer, says that no other call was the cause.
func TestQuestionOnAStreamOfAnEndedCall(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		a, b := r.client(everything), r.client(everything)
		first := a.send(callT1("1", ""))
		synctest.Wait()
		via := srv.peer().lastID(t, "tools/call")
		b.send(callT1("1", ""))
		synctest.Wait()
		srv.peer().result(via, `{"content":[]}`)
		wantPart(t, first.text(), `"result"`)
		for _, via := range []uint64{via, srv.peer().lastID(t, "tools/list")} {
			srv.peer().sayVia(via, elicitation)
		}
		if got := b.take(); got != nil {
			t.Errorf("the other client got %v", got)
		}
		wantPart(t, srv.peer().responses(), `"id":"q1","error":{"code":-32601`)
	})
}

// A single client that is the only one there can be is asked also between calls.
func TestOnlyClientIsAskedBetweenCalls(t *testing.T) {
	bubble(t, silentTool(), func(t *testing.T, r *rig) {
		c := r.client(everything)
		r.p.ups()[0].shared.live().message(wire.Message{ID: []byte("1"), Method: "sampling/createMessage"}, 0)
		wantPart(t, strings.Join(c.take(), ""), "sampling/createMessage")
	}, func(c *Config) { c.OneClient = true })
}

func TestSeveralCallsOfOneClient(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		r.client(everything)
		c := r.client(everything)
		c.send(callT1("1", ""))
		c.send(callT1("2", ""))
		synctest.Wait()
		srv.peer().say(sampling)
		wantPart(t, strings.Join(c.take(), ""), `"id":"s1","method":"sampling/createMessage"`)
	})
}

// What an upstream asks beyond what one client may be asked at once is refused.
func TestQuestionsToOneClientAreBounded(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(everything)
		c.send(callT1("1", ""))
		synctest.Wait()
		for range maxAsks {
			srv.peer().say(sampling)
		}
		if got := srv.peer().responses(); got != "" || len(c.take()) != maxAsks {
			t.Fatal(got)
		}
		srv.peer().say(elicitation)
		wantPart(t, srv.peer().responses(), `"code":-32601`)
	})
}

func TestQuestionsThatCannotBeAsked(t *testing.T) {
	for _, tt := range []struct{ name, caps, question, want string }{
		{"capability missing", `{"sampling":{}}`, elicitation, "does not support elicitation"},
		{"forms only", everything, `{"jsonrpc":"2.0","id":"q1","method":"elicitation/create","params":{"mode":"url"}}`, "does not support elicitation"},
		{"unknown method", everything, `{"jsonrpc":"2.0","id":"q1","method":"odd/ask"}`, "method not supported: odd/ask"},
		{"refused by the configuration", everything, sampling, "sampling is refused by the configuration"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := silentTool()
			bubble(t, srv, func(t *testing.T, r *rig) {
				r.client(tt.caps).send(callT1("1", ""))
				synctest.Wait()
				srv.peer().say(tt.question)
				wantPart(t, srv.peer().responses(), `"code":-32601`, tt.want)
			}, func(c *Config) { c.Upstreams[0].Sampling = "refuse" })
		})
	}
}

// Before notifications/initialized a client is not asked.
func TestQuestionsWaitUntilTheClientIsReady(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.session("http")
		c.send(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":` + everything + `,"clientInfo":{"name":"x","version":"1"}}}`)
		c.send(callT1("1", ""))
		c.take()
		srv.peer().say(sampling)
		if got := c.take(); got != nil {
			t.Fatalf("asked too early: %v", got)
		}
		c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		wantPart(t, strings.Join(c.take(), ""), "sampling/createMessage")
	})
}

func TestUpstreamWithdrawsItsQuestion(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(everything)
		c.send(callT1("1", ""))
		synctest.Wait()
		srv.peer().say(elicitation)
		c.take()
		srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"reason":"no id"}}`)
		if got := c.take(); got != nil {
			t.Errorf("without an id: %v", got)
		}
		srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q1","reason":"too late"}}`)
		want := []string{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"s1","reason":"too late"}}`}
		if diff := cmp.Diff(want, c.take()); diff != "" {
			t.Error(diff)
		}
		c.send(`{"jsonrpc":"2.0","id":"s1","result":{"action":"accept"}}`)
		if got := srv.peer().responses(); got != "" {
			t.Errorf("answered all the same: %s", got)
		}
	})
}

func TestProgressOfAQuestionFindsItsWayBack(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(everything)
		c.send(callT1("1", ""))
		synctest.Wait()
		srv.peer().say(`{"jsonrpc":"2.0","id":"q1","method":"sampling/createMessage","params":{"messages":[],"_meta":{"k":1,"progressToken":7}}}`)
		wantPart(t, strings.Join(c.take(), ""), `"_meta":{"k":1,"progressToken":"s1"}`)
		c.send(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"s1","progress":0.10}}`)
		synctest.Wait()
		want := []string{`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":0.10}}`}
		if diff := cmp.Diff(want, srv.peer().sent("notifications/progress")); diff != "" {
			t.Error(diff)
		}
	})
}

// The budget stands still while a person thinks.
func TestBudgetPausesWhileTheClientIsAsked(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(everything)
		st := c.send(callT1("1", ""))
		synctest.Wait()
		srv.peer().say(elicitation)
		settle(time.Hour)
		if st.text() != "" {
			t.Fatal(st.text())
		}
		c.send(`{"jsonrpc":"2.0","id":"s1","result":{"action":"accept"}}`)
		settle(time.Minute)
		wantPart(t, st.text(), "timeout after 1m0s")
	})
}

func TestClientThatLeavesRefusesItsQuestions(t *testing.T) {
	for name, leave := range map[string]func(r *rig, c *testClient){
		"closed":      func(_ *rig, c *testClient) { c.close() },
		"input ended": func(r *rig, c *testClient) { r.p.InputEnded(c.s) },
	} {
		t.Run(name, func(t *testing.T) {
			srv := silentTool()
			bubble(t, srv, func(t *testing.T, r *rig) {
				c := r.client(everything)
				c.send(callT1("1", ""))
				synctest.Wait()
				srv.peer().say(elicitation)
				synctest.Wait()
				leave(r, c)
				wantPart(t, srv.peer().responses(), `"code":-32601`, "the client left")
				if name == "input ended" {
					srv.peer().say(strings.Replace(elicitation, "q1", "q2", 1))
					wantPart(t, srv.peer().responses(), `"id":"q2","error"`)
				}
			})
		})
	}
}

// A question is void when its call is: the client is told, the upstream knows.
func TestCancelledCallVoidsItsQuestion(t *testing.T) {
	for name, srv := range map[string]*fakeServer{"legacy": silentTool(), "modern": modernIssues()} {
		t.Run(name, func(t *testing.T) {
			srv.result("tools/list", oneTool)
			bubble(t, srv, func(t *testing.T, r *rig) {
				c := r.client(everything)
				c.send(callT1("1", ""))
				synctest.Wait()
				if name == "legacy" {
					srv.peer().say(elicitation)
				} else {
					srv.peer().result(srv.peer().lastID(t, "tools/call"), `{"resultType":"input_required","inputRequests":{"who":{"method":"elicitation/create","params":{}}}}`)
				}
				c.take()
				c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
				wantPart(t, strings.Join(c.take(), ""), `"method":"notifications/cancelled","params":{"requestId":"s1"`)
				if n := len(r.p.clientOf(c.s).asks); n != 0 {
					t.Errorf("%d questions are left", n)
				}
				if name == "legacy" { // it may wait for the answer all the same
					wantPart(t, srv.peer().responses(), `"id":"q1","error":{"code":-32601`)
				}
			})
		})
	}
}

func TestURLElicitationIsCompletedForTheOneAsked(t *testing.T) {
	a, b := silentTool(), silentTool()
	bubbles(t, Config{}, map[string]*fakeServer{"a": a, "b": b}, func(t *testing.T, r *rig) {
		c, other := r.client(`{"elicitation":{"url":{}}}`), r.client(everything)
		c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__t1"}}`)
		synctest.Wait()
		a.peer().say(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"mode":"url","url":"https://x.invalid","elicitationId":"e1","message":"?"}}`)
		c.take()
		const complete = `{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e1"}}`
		b.peer().say(complete)
		if got := c.take(); got != nil {
			t.Errorf("another server completed it: %v", got)
		}
		a.peer().say(complete)
		if diff := cmp.Diff([]string{complete}, c.take()); diff != "" {
			t.Error(diff)
		}
		if got := other.take(); got != nil {
			t.Errorf("the other client got %v", got)
		}
	})
}

func TestRootsOfSeveralClientsAreTheirIntersection(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		a, b := r.client(everything), r.client(everything)
		srv.peer().say(rootsList)
		synctest.Wait()
		srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}`) // names no question
		a.send(`{"jsonrpc":"2.0","id":"s1","result":{"roots":[{"uri":"file:///a"},{"name":"both","uri":"file:///ab"}]}}`)
		b.send(`{"jsonrpc":"2.0","id":"s1","result":{"roots":[{"uri":"file:///ab","name":"both"},{"uri":"file:///b"}]}}`)
		got := srv.peer().responses()
		wantPart(t, got, `"id":"q1","result":{"roots":[{`, `"file:///ab"`)
		if strings.Contains(got, `"file:///a"`) || strings.Contains(got, `"file:///b"`) {
			t.Error(got)
		}
		r.client(`{}`) // has none
		srv.peer().say(strings.Replace(rootsList, "q1", "q2", 1))
		synctest.Wait()
		for _, c := range []*testClient{a, b} {
			c.send(`{"jsonrpc":"2.0","id":"s2","result":{"roots":[{"uri":"file:///ab"}]}}`)
		}
		wantPart(t, srv.peer().responses(), `"id":"q2","result":{"roots":[]}`)
	})
}

func TestRootsWaitForNoClientForEver(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		r.client(everything)
		srv.peer().say(rootsList)
		settle(rootsWait)
		wantPart(t, srv.peer().responses(), `"id":"q1","error"`)
	})
}

// Roots of sessions are nothing to a server that works for modern clients now.
func TestRootsAreNotGivenToForeignCalls(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(everything)
		r.modern("", callT1("1", ","+askingMeta))
		r.modern("", callT1("2", ","+askingMeta))
		synctest.Wait()
		srv.peer().say(rootsList)
		wantPart(t, srv.peer().responses(), `"code":-32601`)
		if got := c.take(); got != nil {
			t.Error(got)
		}
	})
}

func TestRootsChangesReachLegacyUpstreams(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		r.client(everything).send(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
		synctest.Wait()
		if srv.count("notifications/roots/list_changed") != 1 {
			t.Error(srv.log)
		}
	})
}
