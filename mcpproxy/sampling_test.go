package mcpproxy

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

const (
	sampleParams = `{"messages":[{"role":"user","content":{"type":"text","text":"Say hi."}}],"maxTokens":10}`
	sampleAsk    = `{"jsonrpc":"2.0","id":"q1","method":"sampling/createMessage","params":` + sampleParams + `}`
	sampleInput  = `{"method":"sampling/createMessage","params":` + sampleParams + `}`
	elicitInput  = `{"method":"elicitation/create","params":{"message":"?"}}`
)

// byChain has a chain of fakes sample for the upstream.
func byChain(fakes ...*llm.Fake) func(*Config) {
	return func(c *Config) {
		var entries []llm.Entry
		for _, f := range fakes {
			entries = append(entries, llm.Entry{Provider: f})
		}
		chain, err := llm.New(entries, llm.Options{Attempts: 1, Queue: llm.Queue{Size: -1},
			SystemNote: func() string { return "github is down" }})
		if err != nil {
			panic(err)
		}
		c.LLM = chain
		c.Upstreams[0].Sampling = "chain"
	}
}

// samplingPair is a client and an upstream of some generation, and a call between them
// in which the upstream samples.
type samplingPair struct {
	*rig
	srv    *fakeServer
	client *testClient // legacy; nil: each request of a modern one is its own
	call   *testStream
}

// inPairs runs f for all four pairs; the client declares caps.
func inPairs(t *testing.T, caps string, f func(t *testing.T, p *samplingPair), edit ...func(*testing.T, *Config)) {
	for name, of := range map[string]struct {
		srv    func() *fakeServer
		modern bool
	}{
		"2025 2025": {silentTool, false}, "2025 2026": {silentModern, false}, "2026 2025": {silentTool, true}, "2026 2026": {silentModern, true},
	} {
		t.Run(name, func(t *testing.T) {
			srv := of.srv()
			bubble(t, srv, func(t *testing.T, r *rig) {
				p := &samplingPair{rig: r, srv: srv}
				if of.modern {
					p.call = r.modern("", callT1("1", `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":`+caps+`}`))
				} else {
					p.client = r.client(caps)
					p.call = p.client.send(callT1("1", ""))
				}
				synctest.Wait()
				f(t, p)
			}, func(c *Config) {
				for _, e := range edit {
					e(t, c)
				}
			})
		})
	}
}

func silentModern() *fakeServer {
	s := newModernServer()
	s.silent("tools/call")
	return s
}

// ask has the upstream ask for a sample, in the way of its generation.
func (p *samplingPair) ask() {
	peer := p.srv.peer()
	id := peer.lastID(p.t, "tools/call")
	if p.srv.get("server/discover") == nil {
		peer.sayVia(id, sampleAsk)
	} else {
		peer.result(id, `{"resultType":"input_required","inputRequests":{"s":`+sampleInput+`},"requestState":"st"}`)
	}
	synctest.Wait()
}

// got is what the upstream has got for its question.
func (p *samplingPair) got() string {
	if p.srv.get("server/discover") == nil {
		return p.srv.peer().responses()
	}
	synctest.Wait()
	sent := p.srv.peer().sent("tools/call")
	return string(wire.Get([]byte(sent[len(sent)-1]), "params"))
}

func (p *samplingPair) clientSaw(what string) bool {
	for _, hop := range p.hops() {
		if strings.HasPrefix(hop, "→ client") && strings.Contains(hop, what) {
			return true
		}
	}
	return false
}

func TestChainSamplesForClientsThatCannot(t *testing.T) {
	f := llm.NewFake("gemini", llm.Step{Text: "hi"})
	inPairs(t, `{"elicitation":{}}`, func(t *testing.T, p *samplingPair) {
		p.ask()
		wantPart(t, p.got(), `{"role":"assistant","content":{"type":"text","text":"hi"},"model":"gemini-model","stopReason":"endTurn",`+
			`"_meta":{"agentarmor/sampling":{"provider":"gemini","model":"gemini-model","degraded":false,"trace":"`+p.p.cfg.LLM.Traces(1)[0].ID+`"}}}`)
		if p.srv.get("server/discover") != nil {
			wantPart(t, p.got(), `"requestState":"st","inputResponses":{"s":{"role"`, `"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{"tools":{}}}`)
		}
		if p.clientSaw("createMessage") || p.call.text() != "" {
			t.Error(p.hops())
		}
		p.srv.peer().result(p.srv.peer().lastID(t, "tools/call"), done)
		wantPart(t, p.call.text(), `"id":1,"result"`, `"done"`)
	}, func(_ *testing.T, c *Config) { byChain(f)(c) })
	for _, r := range f.Requests() {
		want := &llm.Request{Messages: []llm.Message{llm.User("Say hi.")}, MaxTokens: 10}
		r.Bare, r.Stop = false, nil // the note on what is down is not for servers
		if diff := cmp.Diff(want, r); diff != "" {
			t.Error(diff)
		}
	}
}

func TestClientsThatSampleAreAsked(t *testing.T) {
	f := llm.NewFake("gemini")
	inPairs(t, `{"sampling":{}}`, func(t *testing.T, p *samplingPair) {
		p.ask()
		settle(parkBatch)
		if !p.clientSaw("sampling/createMessage") || f.Calls() > 0 {
			t.Error(f.Calls(), p.hops())
		}
		if strings.Contains(strings.Join(p.srv.peer().sent("tools/call"), ""), `"tools":{}`) {
			t.Error("its capabilities were changed")
		}
	}, func(_ *testing.T, c *Config) { byChain(f)(c) })
}

// A request with tools is the chain's if the client samples without.
func TestClientsThatSampleWithoutTools(t *testing.T) {
	f := llm.NewFake("gemini")
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{"sampling":{}}`)
		c.send(callT1("1", ""))
		synctest.Wait()
		srv.peer().say(strings.Replace(sampleAsk, `"maxTokens"`, `"tools":[{"name":"t","inputSchema":{"type":"object"}}],"maxTokens"`, 1))
		wantPart(t, srv.peer().responses(), `"text":"ok"`)
		if got := c.take(); got != nil {
			t.Error(got)
		}
	}, byChain(f))
}

// Nothing but "sampling: chain" with a model behind it has the chain answer.
func TestWithoutTheChain(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"client":    func(c *Config) { c.Upstreams[0].Sampling = "client" },
		"default":   func(c *Config) { c.Upstreams[0].Sampling = "" },
		"refuse":    func(c *Config) { c.Upstreams[0].Sampling = "refuse" },
		"no chain":  func(c *Config) { c.LLM = nil },
		"no models": byChain(),
	} {
		t.Run(name, func(t *testing.T) {
			f := llm.NewFake("gemini")
			inPairs(t, `{}`, func(t *testing.T, p *samplingPair) {
				if declared := strings.Join(p.srv.peer().sent("tools/call"), ""); strings.Contains(declared, "sampling") {
					t.Error(declared)
				}
				p.ask()
				if f.Calls() > 0 {
					t.Error("the chain was asked")
				}
				if p.client != nil && p.srv.get("server/discover") != nil {
					wantPart(t, p.call.text(), `"error":{"code":-32601`)
				} else if p.client != nil {
					wantPart(t, p.got(), `"error":{"code":-32601`)
				}
			}, func(_ *testing.T, c *Config) { byChain(f)(c); edit(c) })
		})
	}
}

// A legacy upstream is told of sampling whoever its clients are; that of the only
// client waits for it.
func TestSamplingIsDeclared(t *testing.T) {
	for _, tt := range []struct {
		name, caps, want string
		one              bool
	}{
		{"only client lacks it", `{"roots":{}}`, `{"roots":{},"sampling":{"tools":{}}}`, true},
		{"only client has it", `{"sampling":{"context":{}}}`, `{"sampling":{"context":{}}}`, true},
		{"many clients", `{}`, `{"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true}}`, false},
	} {
		for _, sharing := range []string{"shared", "session"} {
			t.Run(tt.name+", "+sharing, func(t *testing.T) {
				srv := silentTool()
				bubble(t, srv, func(t *testing.T, r *rig) {
					c := r.client(tt.caps)
					want := tt.want
					if sharing == "session" && !tt.one {
						want = `{"sampling":{"tools":{}}}`
					}
					c.send(callT1("1", ""))
					settle(2 * time.Second)
					wantPart(t, srv.peer().sent("initialize")[0], `"capabilities":`+want+`,"clientInfo"`)
				}, byChain(llm.NewFake("f")), func(c *Config) { c.OneClient, c.Upstreams[0].Sharing = tt.one, sharing })
			})
		}
	}
}

// Where no model answers the upstream is told so; nothing is made up.
func TestChainThatHasNoAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		step llm.Step
		want []string
	}{
		"outage":   {llm.Step{Status: 503}, []string{"no language model can be reached, do not retry before 2000-", `"data":{"agentarmor/sampling":{"degraded":true,"trace":"`, `"not_before":"2000-`}},
		"rejected": {llm.Step{Status: 400}, []string{"no language model has answered: llm: f: rejected (HTTP 400)", `"data":{"agentarmor/sampling":{"provider":"f","degraded":false,"trace":"`}},
	} {
		t.Run(name, func(t *testing.T) {
			inPairs(t, `{}`, func(t *testing.T, p *samplingPair) {
				p.ask()
				got := p.got()
				if p.srv.get("server/discover") != nil { // which cannot be told but by its call's end
					got = p.call.text()
				}
				wantPart(t, got, append(tt.want, `"error":{"code":-32603,"message":"AgentArmor: not sampled: `)...)
				if strings.Contains(got, "I cannot reach") || p.srv.count("tools/call") != 1 {
					t.Error(got)
				}
			}, func(_ *testing.T, c *Config) { byChain(llm.NewFake("f", tt.step))(c) })
		})
	}
}

func TestSamplingEndsWithItsCall(t *testing.T) {
	f := llm.NewFake("f", llm.Step{Hang: true})
	inPairs(t, `{}`, func(t *testing.T, p *samplingPair) {
		p.ask()
		if now, _ := f.Running(); now != 1 {
			t.Fatalf("%d under way", now)
		}
		if p.client != nil {
			p.client.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		} else {
			p.call.leave()
		}
		synctest.Wait()
		if now, _ := f.Running(); now != 0 || len(p.p.ups()[0].sampler.under) != 0 {
			t.Errorf("%d under way", now)
		}
		if p.srv.get("server/discover") == nil { // it may wait all the same
			wantPart(t, p.got(), `"id":"q1","error":{"code":-32601`, callEnded)
		}
	}, func(_ *testing.T, c *Config) { byChain(f)(c) })
}

func TestSamplingEndsWithItsServer(t *testing.T) {
	for name, end := range map[string]func(p *fakePeer){
		"withdrawn": func(p *fakePeer) {
			p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q1"}}`)
		},
		"lost": func(p *fakePeer) { p.exit("gone") },
	} {
		t.Run(name, func(t *testing.T) {
			f, srv := llm.NewFake("f", llm.Step{Hang: true}), silentTool()
			bubble(t, srv, func(t *testing.T, r *rig) {
				st := r.client(`{}`).send(callT1("1", ""))
				synctest.Wait()
				p := srv.peer()
				p.say(sampleAsk)
				synctest.Wait()
				end(p)
				synctest.Wait()
				if now, _ := f.Running(); now != 0 || f.Calls() != 1 || p.responses() != "" {
					t.Errorf("%d under way, %s", now, p.responses())
				}
				settle(time.Minute) // the budget runs again
				if name == "withdrawn" {
					wantPart(t, st.text(), "timeout after 1m0s")
				}
			}, byChain(f))
		})
	}
}

func TestBudgetPausesWhileTheChainIsAsked(t *testing.T) {
	inPairs(t, `{}`, func(t *testing.T, p *samplingPair) {
		p.ask()
		settle(15 * time.Second)
		if p.call.text() != "" {
			t.Fatal(p.call.text())
		}
		wantPart(t, p.got(), `"text":"ok"`)
		settle(10 * time.Second)
		wantPart(t, p.call.text(), "timeout after 10s")
	}, func(_ *testing.T, c *Config) {
		byChain(llm.NewFake("f", llm.Step{Delay: 15 * time.Second}))(c)
		c.Upstreams[0].CallTimeout = 10 * time.Second
	})
}

// A person and a model are asked at once: the budget stands still for both.
func TestBudgetPausesForClientAndChain(t *testing.T) {
	for name, delay := range map[string]time.Duration{"chain first": time.Second, "client first": 15 * time.Second} {
		t.Run(name, func(t *testing.T) {
			srv := silentTool()
			bubble(t, srv, func(t *testing.T, r *rig) {
				st := r.modern("", callT1("1", ","+elicits))
				synctest.Wait()
				srv.peer().say(sampleAsk)
				srv.peer().say(strings.Replace(elicitation, "q1", "q2", 1))
				settle(2 * time.Second)
				state := stateOf(t, st)
				if name == "chain first" {
					settle(time.Minute)
				}
				st = r.modern("", callT1("2", `,`+elicits+`,"requestState":`+state+`,"inputResponses":`+accept))
				if name == "client first" {
					settle(14 * time.Second)
				}
				wantPart(t, srv.peer().responses(), `"id":"q1","result":{"role"`, `"id":"q2","result":{"action":"accept"}`)
				if st.text() != "" {
					t.Fatal(st.text())
				}
				settle(10 * time.Second)
				wantPart(t, st.text(), "timeout after 10s")
			}, byChain(llm.NewFake("f", llm.Step{Delay: delay})), func(c *Config) { c.Upstreams[0].CallTimeout = 10 * time.Second })
		})
	}
}

// What the chain cannot answer goes on to a modern client; the answers meet again
// at the upstream.
func TestModernUpstreamAsksForSampleAndForm(t *testing.T) {
	for name, state := range map[string]string{"with a state": `,"requestState":"a.\"b"`, "without": ""} {
		t.Run(name, func(t *testing.T) {
			srv := silentModern()
			bubble(t, srv, func(t *testing.T, r *rig) {
				st := r.modern("alice", callT1("1", ","+elicits))
				synctest.Wait()
				srv.peer().result(srv.peer().lastID(t, "tools/call"),
					`{"resultType":"input_required","inputRequests":{"s1":`+sampleInput+`,"e":`+elicitInput+`,"s2":`+sampleInput+`}`+state+`}`)
				wantPart(t, st.text(), `"inputRequests":{"e":`+elicitInput+`}`)
				wrapped := stateOf(t, st)
				again := func(id, principal, state string) *testStream {
					return r.modern(principal, callT1(id, `,`+elicits+`,"requestState":`+state+`,"inputResponses":{"e":{"action":"accept"},"s1":{"forged":true}}`))
				}
				for _, bad := range []*testStream{
					again("2", "bob", wrapped), again("3", "alice", strings.Replace(wrapped, "u2.", "u1.", 1)), again("4", "alice", strings.Replace(wrapped, ".eyJ", ".eyK", 1)),
				} {
					wantPart(t, bad.text(), `"code":-32602`)
				}
				st = again("5", "alice", wrapped)
				synctest.Wait()
				sent := srv.peer().sent("tools/call")
				last := sent[len(sent)-1]
				wantPart(t, last, `"inputResponses":{"e":{"action":"accept"},"s1":{"role":"assistant"`, `"s2":{"role":"assistant"`)
				if wantPart(t, last, state); state == "" && strings.Contains(last, "requestState") {
					t.Error(last)
				}
				if strings.Contains(last, "forged") || strings.Contains(last, "u2.") || len(sent) != 2 {
					t.Error(sent)
				}
				// A sample more in the next round, with the client's own parameters in the way.
				srv.peer().result(srv.peer().lastID(t, "tools/call"), `{"resultType":"input_required","inputRequests":{"s3":`+sampleInput+`}}`)
				synctest.Wait()
				sent = srv.peer().sent("tools/call")
				last = sent[len(sent)-1]
				wantPart(t, last, `"inputResponses":{"s3":{"role"`)
				if strings.Contains(last, `"e":`) || strings.Contains(last, "requestState") {
					t.Error(last)
				}
				srv.peer().result(srv.peer().lastID(t, "tools/call"), done)
				wantPart(t, st.text(), `"id":5`, `"done"`)
			}, byChain(llm.NewFake("f")))
		})
	}
}

func TestSamplingRoundsAreBounded(t *testing.T) {
	srv := silentModern()
	srv.result("tools/call", `{"resultType":"input_required","inputRequests":{"s":`+sampleInput+`}}`)
	bubble(t, srv, func(t *testing.T, r *rig) {
		wantPart(t, r.modern("", callT1("1", ","+elicits)).text(), `"isError":true`, "asks for input without end")
		if n := srv.count("tools/call"); n != roundsMax+1 {
			t.Errorf("%d rounds", n)
		}
	}, byChain(llm.NewFake("f")))
}

// Which of several calls has caused a request is of no matter if the chain
// answers for all of them.
func TestSamplingOfUnknownCause(t *testing.T) {
	for name, tt := range map[string]struct {
		other func(r *rig)
		want  string
	}{
		"all without":    {func(r *rig) { r.client(`{}`).send(callT1("1", "")) }, `"text":"ok"`},
		"a modern one":   {func(r *rig) { r.modern("", callT1("1", ","+elicits)) }, `"text":"ok"`},
		"one that could": {func(r *rig) { r.client(`{"sampling":{}}`).send(callT1("1", "")) }, `"code":-32601`},
	} {
		t.Run(name, func(t *testing.T) {
			srv := silentTool()
			bubble(t, srv, func(t *testing.T, r *rig) {
				srv.peer().say(sampleAsk) // of no call at all
				wantPart(t, srv.peer().responses(), `"error":{"code":-32601`)
				r.client(`{}`).send(callT1("1", ""))
				tt.other(r)
				synctest.Wait()
				srv.peer().say(strings.Replace(sampleAsk, "q1", "q2", 1))
				wantPart(t, srv.peer().responses(), tt.want)
				srv.peer().sayVia(srv.peer().lastID(t, "tools/list"), strings.Replace(sampleAsk, "q1", "q3", 1)) // of no client's
				wantPart(t, srv.peer().responses(), `"id":"q3","error":{"code":-32601`)
			}, byChain(llm.NewFake("f")))
		})
	}
}

// The only client there can be needs no call to have caused a request. What is
// under way ends with the connection or the endpoint.
func TestSamplingBetweenCalls(t *testing.T) {
	for name, end := range map[string]func(r *rig, p *fakePeer){
		"connection": func(_ *rig, p *fakePeer) { p.exit("gone") },
		"endpoint":   func(r *rig, _ *fakePeer) { r.end() },
	} {
		t.Run(name, func(t *testing.T) {
			f, srv := llm.NewFake("f", llm.Step{}, llm.Step{Hang: true}), silentTool()
			bubble(t, srv, func(t *testing.T, r *rig) {
				r.client(`{}`)
				srv.peer().say(sampleAsk)
				wantPart(t, srv.peer().responses(), `"text":"ok"`)
				srv.peer().say(sampleAsk)
				synctest.Wait()
				end(r, srv.peer())
				synctest.Wait()
				if now, _ := f.Running(); now != 0 || f.Calls() != 2 {
					t.Errorf("%d of %d under way", now, f.Calls())
				}
			}, byChain(f), func(c *Config) { c.OneClient = true })
		})
	}
}

func TestSamplingIsBounded(t *testing.T) {
	f, srv := llm.NewFake("f", llm.Step{Delay: time.Second}), silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		r.client(`{}`).send(callT1("1", ""))
		synctest.Wait()
		for i := range samplesBurst + 1 {
			srv.peer().say(strings.Replace(sampleAsk, "q1", fmt.Sprint("q", i), 1))
		}
		wantPart(t, srv.peer().responses(), fmt.Sprintf(`"id":"q%d","error":{"code":-32603,"message":"AgentArmor: not sampled: this server asks for too much at once"}`, samplesBurst))
		settle(time.Minute)
		if _, most := f.Running(); most != samplesAtOnce || f.Calls() != samplesBurst {
			t.Errorf("%d at once, %d in all", most, f.Calls())
		}
		srv.peer().say(strings.Replace(sampleAsk, "q1", "last", 1))
		settle(time.Second)
		wantPart(t, srv.peer().responses(), `"id":"last","result"`)
	}, byChain(f))
}
