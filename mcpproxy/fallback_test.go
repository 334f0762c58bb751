package mcpproxy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// speaksModern makes the server one of 2026-07-28 alone.
func (s *scripted) speaksModern() {
	s.error("initialize", -32601)
	s.result("server/discover", discover1)
	s.silent("subscriptions/listen")
}

// pair is an endpoint whose upstream fake is not always able, and other.
type pair struct {
	*rig
	fake, other *scripted
	c           *testClient // of fake, legacy
}

// paired runs a test on a pair. edit may change both configurations.
func paired(t *testing.T, edit func(fake, other *UpstreamConfig), f func(t *testing.T, p *pair)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &pair{fake: newScripted(), other: newScripted()}
		ups := []UpstreamConfig{
			{Name: "fake", URL: "http://127.0.0.1/mcp", Protocol: "legacy", Retry: RetryConfig{Attempts: new(0)}},
			{Name: "other", URL: "http://127.0.0.1/mcp", Protocol: "legacy", Retry: RetryConfig{Attempts: new(0)}},
		}
		edit(&ups[0], &ups[1])
		for i, s := range []*scripted{p.fake, p.other} {
			if ups[i].Protocol == wire.Modern {
				s.speaksModern()
			}
		}
		p.rig = newRig(t, Config{Upstreams: ups}, map[string]*fakeServer{"fake": p.fake.fakeServer, "other": p.other.fakeServer})
		defer p.end()
		p.c = p.client(`{"elicitation":{}}`)
		f(t, p)
		p.wantAllFree(t)
	})
}

// wantAllFree fails if a call that has ended still holds something.
func (r *rig) wantAllFree(t *testing.T) {
	t.Helper()
	synctest.Wait()
	for _, up := range r.p.ups() {
		active, queued := up.guard.places.load()
		for _, in := range up.instances() {
			if conn := in.live(); conn != nil {
				active -= len(conn.routed())
			}
		}
		if active > 0 || queued > 0 || up.guard.waiting() {
			t.Errorf("%s: %d places are taken by nobody, %d calls wait, %v", up.cfg.Name, active, queued, up.guard.waiting())
		}
	}
}

// steps gives the tools of an upstream fallbacks.
func steps(s ...FallbackStep) map[string]ToolConfig {
	return map[string]ToolConfig{"plain": {Fallback: s}, "find": {Fallback: s}}
}

// withSteps is an edit of a pair that does only that to fake.
func withSteps(s ...FallbackStep) func(fake, other *UpstreamConfig) {
	return func(fake, _ *UpstreamConfig) { fake.Tools = steps(s...) }
}

// lastArgs are the arguments of the newest tools/call.
func (s *scripted) lastArgs() string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.args) == 0 {
		return ""
	}
	return s.args[len(s.args)-1]
}

func raw(s string) json.RawMessage { return json.RawMessage(s) }

// Each kind of step answers and says so.
func TestFallbackKinds(t *testing.T) {
	for _, tt := range []struct {
		name string
		step FallbackStep
		want string // of the answer
		sent string // to other
		from map[string]any
	}{
		{"tool with a template", FallbackStep{Tool: "other__find", Arguments: raw(`{"q":"{{.query}}!","n":"{{.limit}}","m":"{{.missing}}"}`)},
			`"fine"`, `{"q":"a \"b\"!","n":9007199254740993}`, map[string]any{"answered_from": "tool", "tool": "other__find"}},
		{"tool with the same arguments", FallbackStep{Tool: "other.find"},
			`"fine"`, `{"query":"a \"b\"","limit":9007199254740993}`, map[string]any{"answered_from": "tool", "tool": "other__find"}},
		{"text", FallbackStep{Result: raw(`"closed today"`)},
			`{"content":[{"type":"text","text":"closed today"}],"_meta"`, "", map[string]any{"answered_from": "result", "tool": nil}},
		{"whole result", FallbackStep{Result: raw(`{"content":[{"type":"text","text":"x"}],"isError":true,"_meta":{"a":1}}`)},
			`"isError":true,"_meta":{"a":1,"agentarmor/call"`, "", map[string]any{"answered_from": "result"}},
		{"structured", FallbackStep{Result: raw("{\"n\":\n1}")},
			`"structuredContent":{"n":1}`, "", map[string]any{"answered_from": "result"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			paired(t, withSteps(tt.step), func(t *testing.T, p *pair) {
				p.fake.does("plain", notSent)
				got := p.c.call("plain", `{"query":"a \"b\"","limit":9007199254740993}`).text()
				wantPart(t, got, tt.want)
				wantAccount(t, got, map[string]any{"upstream": "fake", "outcome": "not_sent", "executed": "no", "age_ms": nil})
				wantAccount(t, got, tt.from)
				if sent := p.other.lastArgs(); sent != tt.sent {
					t.Errorf("other got %s", sent)
				}
				if strings.Contains(got, "\n") {
					t.Errorf("a message of two lines: %q", got)
				}
			})
		})
	}
}

// The last good result stands in for a read, as long as it is not too old, and
// says how old it is.
func TestFallbackCached(t *testing.T) {
	paired(t, withSteps(FallbackStep{Cached: time.Minute}), func(t *testing.T, p *pair) {
		for _, tool := range []string{"find", "plain"} {
			p.fake.does(tool, tells("first"), tells("second"), notSent)
			wantPart(t, p.c.call(tool, `{"a":1,"b":2}`).text(), "first")
			wantPart(t, p.c.call(tool, `{"a":1,"b":2}`).text(), "second")
		}
		settle(30 * time.Second)
		old := p.c.call("find", `{ "b": 2, "a": 1 }`).text()
		wantPart(t, old, `"second"`)
		wantAccount(t, old, map[string]any{"answered_from": "cached", "age_ms": 30000, "stale": true, "outcome": "not_sent", "executed": "no"})
		for name, st := range map[string]*testStream{
			"other arguments":              p.c.call("find", `{"a":2,"b":2}`),
			"a tool that is no read":       p.c.call("plain", `{"a":1,"b":2}`),
			"nobody else's, once too old ": func() *testStream { settle(31 * time.Second); return p.c.call("find", `{"a":1,"b":2}`) }(),
		} {
			if !strings.Contains(st.text(), "is unavailable") {
				t.Errorf("%s: %s", name, st.text())
			}
		}
	})
}

// Steps are tried in their order, each that fails gives way to the next.
func TestFallbackOrder(t *testing.T) {
	last := FallbackStep{Result: raw(`"the last"`)}
	for _, tt := range []struct {
		name string
		step FallbackStep
		does reply // of other's find
		prep func(p *pair)
	}{
		{"isError", FallbackStep{Tool: "other__find"}, func(p *fakePeer, id uint64) { p.result(id, `{"content":[],"isError":true}`) }, nil},
		{"error", FallbackStep{Tool: "other__find"}, broken, nil},
		{"server gone", FallbackStep{Tool: "other__find"}, good, func(p *pair) {
			p.other.onDial = func(int, string) error { return &wire.Error{Kind: wire.NotSent, Err: errGone} }
			p.other.peer().exit("over")
			settle(100 * time.Millisecond)
		}},
		{"breaker open", FallbackStep{Tool: "other__find"}, good, func(p *pair) { p.p.upstream("other").guard.tool("find").breaker.Trip() }},
		{"unknown tool", FallbackStep{Tool: "nowhere__find"}, good, nil},
		{"itself", FallbackStep{Tool: "fake__plain"}, good, nil},
		{"an own tool", FallbackStep{Tool: "armor.status"}, good, nil},
		{"template without its argument", FallbackStep{Tool: "other__find", Arguments: raw(`{"q":"x {{.nothing}}"}`)}, good, nil},
		{"nothing cached", FallbackStep{Cached: time.Hour}, good, nil},
		{"nested", FallbackStep{Tool: "other__plain"}, good, func(p *pair) { p.other.does("plain", notSent) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			paired(t, func(fake, other *UpstreamConfig) {
				fake.Tools = steps(tt.step, last)
				other.Tools = steps(FallbackStep{Result: raw(`"of the step"`)})
			}, func(t *testing.T, p *pair) {
				p.fake.does("plain", notSent)
				p.other.does("find", tt.does)
				if tt.prep != nil {
					tt.prep(p)
				}
				st := p.c.call("plain")
				settle(10 * time.Second)
				wantPart(t, st.text(), `"the last"`)
				wantAccount(t, st.text(), map[string]any{"answered_from": "result", "tool": nil})
			})
		})
	}
}

// A step cannot ask a person, where the question would come to a retry.
func TestFallbackThatAsks(t *testing.T) {
	for _, protocol := range []string{"legacy", wire.Modern} {
		paired(t, func(fake, other *UpstreamConfig) {
			fake.Tools = steps(FallbackStep{Tool: "other__find"}, FallbackStep{Result: raw(`"the last"`)})
			other.Protocol = protocol
		}, func(t *testing.T, p *pair) {
			p.fake.does("plain", notSent)
			if protocol == wire.Modern {
				p.other.does("find", func(p *fakePeer, id uint64) {
					p.result(id, `{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{}}}}`)
				})
			} else {
				p.other.does("find", func(p *fakePeer, id uint64) {
					p.sayVia(id, elicitation)
					if strings.Contains(p.responses(), `"code":-32601`) {
						p.result(id, `{"content":[],"isError":true}`)
					}
				})
			}
			st := p.modern("", callPlain("1", askingMeta))
			settle(time.Second)
			wantPart(t, st.text(), `"the last"`, `"resultType":"complete"`)
		})
	}
}

// callPlain is a call of fake__plain with _meta.
func callPlain(id, meta string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"fake__plain","arguments":{},` + meta + `}}`
}

// What may have been done is not done again by another tool, not by the second
// step either; a repeatable tool may.
func TestFallbackDoesNothingTwice(t *testing.T) {
	tools := withSteps(FallbackStep{Tool: "other__plain"}, FallbackStep{Tool: "other__find"})
	paired(t, tools, func(t *testing.T, p *pair) {
		p.fake.does("plain", lost)
		got := p.c.call("plain").text()
		wantAccount(t, got, map[string]any{"outcome": "lost", "executed": "maybe", "answered_from": nil})
		if p.other.called("plain")+p.other.called("find") > 0 {
			t.Error("another tool was called after an attempt that may have been executed")
		}
		p.fake.does("find", lost)
		got = p.c.call("find").text()
		wantAccount(t, got, map[string]any{"outcome": "lost", "executed": "maybe", "answered_from": "tool", "tool": "other__plain"})
	})
	for name, does := range map[string]reply{"lost": lost, "an error of its own": func(p *fakePeer, id uint64) { p.error(id, -7, "no") }} {
		paired(t, tools, func(t *testing.T, p *pair) {
			p.fake.does("plain", notSent)
			p.other.does("plain", does)
			got := p.c.call("plain").text()
			wantAccount(t, got, map[string]any{"outcome": "not_sent", "executed": "maybe"})
			wantPart(t, got, "It may have been executed")
			if n := p.other.called("find"); n != 0 {
				t.Errorf("%s: the next tool was called after a step that may have been executed", name)
			}
		})
	}
	paired(t, tools, func(t *testing.T, p *pair) {
		p.fake.does("plain", notSent)
		p.other.does("plain", func(p *fakePeer, id uint64) { p.error(id, -32602, "bad arguments") })
		wantAccount(t, p.c.call("plain").text(), map[string]any{"answered_from": "tool", "tool": "other__find", "executed": "no"})
	})
}

// A client that leaves, or cancels, ends the step where it is.
func TestFallbackIsCancelled(t *testing.T) {
	for name, leave := range map[string]func(p *pair, st *testStream, id string){
		"closed stream": func(_ *pair, st *testStream, _ string) { st.leave() },
		"cancelled": func(p *pair, _ *testStream, id string) {
			p.c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
		},
		"session": func(p *pair, _ *testStream, _ string) { p.c.close() },
	} {
		t.Run(name, func(t *testing.T) {
			paired(t, withSteps(FallbackStep{Tool: "other__plain"}, FallbackStep{Tool: "other__find"}), func(t *testing.T, p *pair) {
				p.fake.does("plain", notSent)
				p.other.does("plain", hangs)
				st := p.c.call("plain")
				id := fmt.Sprint(lastCallID.Load())
				if p.other.called("plain") != 1 {
					t.Fatal("the step was not called")
				}
				// The step's own id is not for clients to use.
				p.c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"step"}}`)
				if st.text() != "" {
					t.Fatal(st.text())
				}
				leave(p, st, id)
				synctest.Wait()
				if got := st.text(); got != "dropped" {
					t.Errorf("an answer: %s", got)
				}
				cancelledUpstream(t, p.other.fakeServer, p.other.peer().lastID(t, "tools/call"), "the client closed the stream")
				if p.other.called("find") != 0 {
					t.Error("the next step was tried")
				}
			})
		})
	}
}

func TestFallbackProgress(t *testing.T) {
	paired(t, withSteps(FallbackStep{Tool: "other__plain"}), func(t *testing.T, p *pair) {
		p.fake.does("plain", notSent)
		p.other.does("plain", hangs)
		st := p.c.send(callPlain("1", `"_meta":{"progressToken":"mine"}`))
		synctest.Wait()
		peer := p.other.peer()
		id := peer.lastID(t, "tools/call")
		for range 3 { // longer than one budget
			settle(50 * time.Second)
			peer.progressOf(id, `,"progress":1`)
		}
		wantPart(t, strings.Join(p.c.take(), ""), `"progressToken":"mine","progress":1`)
		peer.result(id, done)
		wantPart(t, st.text(), `"done"`)
		peer.progressOf(id, `,"progress":2`)
		if len(p.c.take()) != 1 || st.late > 0 {
			t.Error("progress after the response")
		}
	})
}

// The answer of a step looks as that of the tool itself would: as the client's
// generation wants it, and with nothing else changed.
func TestFallbackGenerations(t *testing.T) {
	for _, protocol := range []string{"legacy", wire.Modern} {
		for _, step := range []FallbackStep{{Tool: "other__plain"}, {Cached: time.Hour}, {Result: raw(`"x"`)}} {
			paired(t, func(fake, other *UpstreamConfig) {
				fake.Protocol, other.Protocol = protocol, protocol
				fake.Tools = steps(step)
				cfg := fake.Tools["plain"]
				cfg.Idempotent = new(true)
				fake.Tools["plain"] = cfg
			}, func(t *testing.T, p *pair) {
				result := tells("ok")
				if protocol == wire.Modern {
					result = func(p *fakePeer, id uint64) {
						p.result(id, `{"resultType":"complete","content":[],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"theirs"},"k":"v"}}`)
					}
				}
				p.fake.does("plain", result, notSent)
				p.other.does("plain", result)
				p.c.call("plain").text()
				legacy, modern := p.c.call("plain").text(), p.modern("", callPlain("1", askingMeta)).text()
				where := fmt.Sprintf("%s, %+v: ", protocol, step)
				if own := protocol == wire.Modern && step.Result == nil; strings.Contains(legacy, "resultType") != own || strings.Contains(legacy, "serverInfo") {
					t.Error(where + legacy)
				}
				wantPart(t, where+modern, `"resultType":"complete"`, `/serverInfo":{"name":"agentarmor"`, `"agentarmor/call":{"upstream":"fake"`)
				if strings.Count(modern, "serverInfo") != 1 || strings.Count(modern, "resultType") != 1 {
					t.Error(where + modern)
				}
				if protocol == wire.Modern && step.Result == nil {
					wantPart(t, where+legacy, `"k":"v"`)
				}
			})
		}
	}
}

// A step needs no place of the call it stands in for, and the call itself is
// not made once it was given up.
func TestFallbackReleasesTheCall(t *testing.T) {
	paired(t, func(fake, _ *UpstreamConfig) {
		fake.Concurrency = 1
		fake.Tools = steps(FallbackStep{Tool: "fake__read"})
	}, func(t *testing.T, p *pair) {
		p.fake.does("plain", notSent)
		wantAccount(t, p.c.call("plain").text(), map[string]any{"answered_from": "tool", "tool": "fake__read"})
	})
	paired(t, func(fake, _ *UpstreamConfig) {
		fake.Tools, fake.CallTimeout = steps(FallbackStep{Tool: "other__find"}), 2*time.Second
	}, func(t *testing.T, p *pair) {
		p.other.does("find", hangs)
		slow := p.fake.on["initialize"]
		p.fake.set("initialize", func(p *fakePeer, id uint64, m wire.Message) { time.Sleep(3 * time.Second); slow(p, id, m) })
		p.fake.peer().exit("over")
		settle(1500 * time.Millisecond) // it connects
		st := p.c.call("plain")
		settle(10 * time.Second)
		if p.other.called("find") != 1 || p.fake.called("plain") != 0 {
			t.Errorf("the call was made after it was given up: %d, %d", p.other.called("find"), p.fake.called("plain"))
		}
		p.other.peer().result(p.other.peer().lastID(t, "tools/call"), done)
		wantAccount(t, st.text(), map[string]any{"answered_from": "tool", "executed": "no"})
	})
	paired(t, func(fake, _ *UpstreamConfig) { // from the queue
		fake.Concurrency, fake.CallTimeout = 1, 5*time.Second
		fake.Tools = map[string]ToolConfig{"plain": {Fallback: []FallbackStep{{Tool: "other__find"}}}, "find": {CallTimeout: 6 * time.Second}}
	}, func(t *testing.T, p *pair) {
		p.fake.does("find", hangs)
		p.other.does("find", hangs)
		p.c.call("find")
		st := p.c.call("plain")
		settle(8 * time.Second)
		if p.other.called("find") != 1 || p.fake.called("plain") != 0 {
			t.Errorf("the call was made after it was given up: %d, %d", p.other.called("find"), p.fake.called("plain"))
		}
		p.other.peer().result(p.other.peer().lastID(t, "tools/call"), done)
		wantAccount(t, st.text(), map[string]any{"outcome": "open", "answered_from": "tool", "executed": "no"})
	})
}

// Whatever the reason why a call is not served, its fallback answers.
func TestFallbackOfEveryFailure(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(u *UpstreamConfig)
		do   func(p *pair)
	}{
		"timeout": {nil, func(p *pair) { p.fake.does("plain", hangs) }},
		"breaker": {nil, func(p *pair) { p.p.upstream("fake").guard.tool("plain").breaker.Trip() }},
		"server breaker": {nil, func(p *pair) {
			p.fake.silent("ping")
			p.p.upstream("fake").shared.breaker.Trip()
			synctest.Wait()
		}},
		"rate limit":   {func(u *UpstreamConfig) { u.RateLimit = Rate{1, time.Hour} }, func(p *pair) { p.c.call("read") }},
		"queue":        {func(u *UpstreamConfig) { u.Concurrency, u.Queue = 1, new(0) }, func(p *pair) { p.fake.does("read", hangs); p.c.call("read") }},
		"auth":         {nil, func(p *pair) { p.fake.does("plain", fails(wire.Error{Kind: wire.HTTPStatus, Status: 401})) }},
		"throttled":    {nil, func(p *pair) { p.fake.does("plain", fails(wire.Error{Kind: wire.HTTPStatus, Status: 429})) }},
		"its sessions": {func(u *UpstreamConfig) { u.Sharing = "session" }, func(p *pair) { p.takeSessions() }},
	} {
		t.Run(name, func(t *testing.T) {
			paired(t, func(fake, _ *UpstreamConfig) {
				fake.Tools = steps(FallbackStep{Result: raw(`"instead"`)})
				if tt.edit != nil {
					tt.edit(fake)
				}
			}, func(t *testing.T, p *pair) {
				tt.do(p)
				st := p.c.call("plain")
				settle(time.Minute)
				wantPart(t, st.text(), `"instead"`)
			})
		})
	}
}

// takeSessions uses up the instances of fake.
func (p *pair) takeSessions() {
	for range maxPerSession {
		p.client(`{}`).call("find")
	}
	synctest.Wait()
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
