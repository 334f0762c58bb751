package mcpproxy

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// What passes between two legacy peers keeps its spelling, byte for byte.
func TestBytesPassAsTheyAre(t *testing.T) {
	const args = `{"z":1,"a":9007199254740993,"e":1.50E+2,"s":"\u00e9\/\ud83d 😀","z":2}`
	srv := newLegacyServer()
	srv.result("tools/call", `{"structuredContent":{"b":1e400,"a":"\u2028"},"content":[{"type":"odd","x":null}],"_meta":{"k":-0.0}}`)
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		st := c.send(`{"jsonrpc":"2.0","id":1.50,"method":"tools/call","params":{"x":[ ],"name":"fake__t1","arguments":` + args + `,"_meta":{"own":{"q":1}},"task":null}}`)
		want := `{"jsonrpc":"2.0","id":1.50,"result":{"structuredContent":{"b":1e400,"a":"\u2028"},"content":[{"type":"odd","x":null}],"_meta":{"k":-0.0}}}`
		if diff := cmp.Diff(want, st.text()); diff != "" {
			t.Error(diff)
		}
		wantPart(t, srv.peer().sent("tools/call")[0], `"params":{"x":[ ],"name":"t1","arguments":`+args+`,"_meta":{"own":{"q":1},"progressToken":"p`, `},"task":null}}`)
	})
}

func TestUpstreamErrorsPassAsTheyAre(t *testing.T) {
	srv := newLegacyServer()
	const object = `{"message":"no \u00e9","code":-32077,"data":{"b":1,"a":9007199254740993}}`
	srv.on["tools/call"] = func(p *fakePeer, id uint64, _ wire.Message) {
		p.end(id)
		p.ev.Answer(id, wire.Message{ID: wire.AppendID(nil, id), Error: []byte(object)})
	}
	bubble(t, srv, func(t *testing.T, r *rig) {
		if got := r.client(`{}`).send(callT1("1", "")).text(); got != `{"jsonrpc":"2.0","id":1,"error":`+object+`}` {
			t.Error(got)
		}
	})
}

// Each request here is answered by the endpoint itself.
func TestRefusals(t *testing.T) {
	srv := newLegacyServer()
	srv.silent("tools/call")
	meta := func(version, caps string) string {
		return `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + version + `"` + caps + `}`
	}
	const caps = `,"io.modelcontextprotocol/clientCapabilities":{}`
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		c.send(callT1("1", ""))
		for _, tt := range []struct{ name, method, params, want string }{
			{"id in use", "tools/call", `{"name":"fake__t1"}`, `"code":-32600,"message":"request id 1 is already in use"`},
			{"unknown method", "tools/nothing", `{}`, `"code":-32601`},
			{"unknown tool", "tools/call", `{"name":"fake__t9"}`, `"code":-32602,"message":"unknown tool: fake__t9"`},
			{"no name", "tools/call", `{}`, `"code":-32602`},
			{"a name that is no string", "tools/call", `{"name":7}`, `"code":-32602`},
			{"arguments that are no object", "tools/call", `{"name":"fake__t1","arguments":[]}`, `"code":-32602`},
			{"two names", "tools/call", `{"name":"fake__t1","name":"other"}`, `"code":-32602,"message":"a member of params stands twice"`},
			{"two uris", "resources/read", `{"uri":"a:b","uri":"c:d"}`, `"code":-32602,"message":"a member of params stands twice"`},
			{"two sets of arguments", "tools/call", `{"name":"fake__t1","arguments":{},"arguments":{"a":1}}`, `"code":-32602,"message":"a member of params stands twice"`},
			{"two _metas", "tools/list", `{"_meta":{},"_meta":{}}`, `"code":-32602,"message":"a member of params stands twice"`},
			{"cursor", "tools/list", `{"cursor":"x"}`, `"code":-32602`},
			{"unknown resource", "resources/read", `{"uri":"agentarmor-up://x/y"}`, `"data":{"uri":"agentarmor-up://x/y"}`},
			{"legacy code of it", "resources/read", `{"uri":"agentarmor-up://x/y"}`, `"code":-32002`},
			{"modern code of it", "resources/read", `{"uri":"agentarmor-up://x/y",` + askingMeta + `}`, `"code":-32602`},
			{"status of no upstream", "resources/read", `{"uri":"agentarmor://status/%2e%2e%2fx"}`, `"code":-32002,"message":"unknown resource: agentarmor://status/%2e%2e%2fx"`},
			{"a subscription to that", "resources/subscribe", `{"uri":"agentarmor://status/x"}`, `"code":-32002,"message":"unknown resource: agentarmor://status/x","data":{"uri":"agentarmor://status/x"}`},
			{"modern code of that", "resources/read", `{"uri":"agentarmor://status/x",` + askingMeta + `}`, `"code":-32602`},
			{"an own tool with an id in use", "tools/call", `{"name":"armor.status"}`, `"code":-32600,"message":"request id 1 is already in use"`},
			{"no such trace", "resources/read", `{"uri":"agentarmor://traces/x"}`, `"code":-32002,"message":"unknown resource: agentarmor://traces/x; the last 1,000 traces are kept"`},
			{"long method", strings.Repeat("m", 1000), `{}`, `"message":"Method not found: ` + strings.Repeat("m", 97) + `…"`},
			{"unknown prompt", "prompts/get", `{"name":"p"}`, `"code":-32602`},
			{"completion of nothing", "completion/complete", `{"ref":{"type":"x"}}`, `"code":-32602`},
			{"level", "logging/setLevel", `{"level":"loud"}`, `"code":-32602`},
			{"listen of a legacy client", "subscriptions/listen", `{}`, `"code":-32601`},
			{"other revision", "tools/list", `{` + meta("2031-01-01", caps) + `}`, `"code":-32022,"message":"Unsupported protocol version","data":{"supported":["2026-07-28","2025-11-25"`},
			{"no capabilities", "tools/list", `{` + meta("2026-07-28", "") + `}`, `"code":-32602`},
			{"no _meta in discover", "server/discover", `{}`, `"code":-32602`},
			{"log level", "tools/list", `{` + meta("2026-07-28", caps+`,"io.modelcontextprotocol/logLevel":"loud"`) + `}`, `"code":-32602`},
			{"modern ping", "ping", `{` + askingMeta + `}`, `"code":-32601`},
			{"modern setLevel", "logging/setLevel", `{"level":"info",` + askingMeta + `}`, `"code":-32601`},
			{"modern subscribe", "resources/subscribe", `{"uri":"a:b",` + askingMeta + `}`, `"code":-32601`},
		} {
			st := c.send(`{"jsonrpc":"2.0","id":1,"method":"` + tt.method + `","params":` + tt.params + `}`)
			if !strings.Contains(st.text(), tt.want) {
				t.Errorf("%s: no %s in %s", tt.name, tt.want, st.text())
			}
		}
		wantPart(t, c.send(`{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"agentarmor://status/%66ake"}}`).text(), `"result":{"contents":[{`)
		if n := srv.count("tools/call"); n != 1 {
			t.Errorf("%d calls reached the upstream", n)
		}
	})
}

func TestNullCursorIsNone(t *testing.T) {
	bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
		wantPart(t, r.client(`{}`).send(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":null}}`).text(), `"fake__t1"`)
	})
}

func TestStatelessRequestNeedsMeta(t *testing.T) {
	bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
		wantPart(t, r.modern("", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).text(), `"code":-32602`)
	})
}

func TestAmbiguousNameListsTheCandidates(t *testing.T) {
	bubbles(t, Config{}, map[string]*fakeServer{"a": newLegacyServer(), "b": newLegacyServer()}, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		wantPart(t, c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t1"}}`).text(),
			`"code":-32602`, "a__t1, b__t1")
	})
}

func TestOriginalSpellingsReachTheTool(t *testing.T) {
	srv := newLegacyServer()
	srv.result("tools/call", done)
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		for _, name := range []string{"fake__t1", "fake.t1", "t1"} {
			wantPart(t, c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+name+`"}}`).text(), `"done"`)
		}
		for _, sent := range srv.peer().sent("tools/call") {
			wantPart(t, sent, `"name":"t1"`)
		}
	})
}

func TestOwnToolInBothSpellings(t *testing.T) {
	bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
		for _, name := range []string{"armor.status", "armor_status"} {
			wantPart(t, r.client(`{}`).send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+name+`"}}`).text(), "fake", "ready")
		}
		c := r.session("http")
		c.send(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"claude-ai","version":"1"}}}`)
		wantPart(t, c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).text(), `"armor_status"`)
		wantPart(t, r.client(`{}`).send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).text(), `"armor.status"`)
	})
}

func TestCompletionIsMappedLikeItsPrompt(t *testing.T) {
	srv := newLegacyServer()
	srv.on["initialize"] = func(p *fakePeer, id uint64, _ wire.Message) {
		p.result(id, strings.Replace(initOK, `"logging":{}`, `"prompts":{},"completions":{}`, 1))
	}
	srv.result("prompts/list", `{"prompts":[{"name":"p1"}]}`)
	srv.result("completion/complete", `{"completion":{"values":["v"]}}`)
	bubble(t, srv, func(t *testing.T, r *rig) {
		got := r.client(`{}`).send(`{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"fake__p1"},"argument":{"name":"a","value":""}}}`).text()
		if got != `{"jsonrpc":"2.0","id":1,"result":{"completion":{"values":["v"]}}}` {
			t.Error(got)
		}
		wantPart(t, srv.peer().sent("completion/complete")[0], `"ref":{"type":"ref/prompt","name":"p1"}`)
		wantPart(t, r.modern("", `{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"agentarmor://status"},`+askingMeta+`}}`).text(), `"resultType":"complete"`)
	})
}

// The first list has all upstreams that are ready about as soon as the first.
func TestFirstListWaitsForTheOthers(t *testing.T) {
	after := func(d time.Duration) *fakeServer {
		srv := newLegacyServer()
		srv.on["initialize"] = func(p *fakePeer, id uint64, _ wire.Message) {
			time.Sleep(d)
			p.result(id, initOK)
		}
		srv.result("tools/call", done)
		return srv
	}
	servers := map[string]*fakeServer{"a": after(100 * time.Millisecond), "b": after(200 * time.Millisecond), "c": after(900 * time.Millisecond)}
	var ups []UpstreamConfig
	for _, name := range []string{"a", "b", "c"} {
		ups = append(ups, UpstreamConfig{Name: name, Command: "fake", Protocol: "legacy"})
	}
	bubbles(t, Config{Upstreams: ups}, servers, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		list := c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		late := c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"c__t1"}}`)
		settle(400 * time.Millisecond)
		got := list.text()
		wantPart(t, got, "a__t1", "b__t1")
		if strings.Contains(got, "c__t1") {
			t.Errorf("waited for the slow one: %s", got)
		}
		settle(time.Second)
		wantPart(t, late.text(), `"id":2,"result"`)
	})
}

// A list waits for the first upstream, a second at most, and only then.
func TestFirstListWaits(t *testing.T) {
	for _, tt := range []struct {
		name  string
		delay time.Duration
		tools string
	}{
		{"until it comes", 500 * time.Millisecond, `"fake__t1"`},
		{"a second at most", 0, `"armor.status"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := newLegacyServer()
			srv.on["initialize"] = func(p *fakePeer, id uint64, _ wire.Message) {
				if tt.delay > 0 {
					time.Sleep(tt.delay)
					p.result(id, initOK)
				}
			}
			bubble(t, srv, func(t *testing.T, r *rig) {
				st := r.client(`{}`).send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
				call := r.client(`{}`).send(callT1("2", ""))
				if got := st.text(); got != "" {
					t.Fatalf("did not wait: %s", got)
				}
				settle(firstList)
				wantPart(t, st.text(), tt.tools)
				if tt.delay == 0 { // the name says whose tool it is: the call waits for that server
					settle(2 * time.Minute)
					wantPart(t, call.text(), `"isError":true`, `"executed":"no"`)
				}
				if call.text() == "" {
					t.Error("the call still waits")
				}
				again := r.client(`{}`).send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
				wantPart(t, again.text(), tt.tools)
			})
		})
	}
}

func TestInstructionsSayHowToBegin(t *testing.T) {
	bubbles(t, Config{}, nil, func(t *testing.T, r *rig) {
		got := r.session("stdio").send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`).text()
		wantPart(t, got, addServer, `"listChanged":true`, `"subscribe":true`, `"completions":{}`)
	})
}

// A link leads to the upstream that sent it, for the client that got it alone.
func TestLinksLeadToTheirSender(t *testing.T) {
	a, b := newLegacyServer(), newLegacyServer()
	b.result("resources/templates/list", `{"resourceTemplates":[{"name":"all","uriTemplate":"note:///{x}"}]}`)
	a.result("tools/call", `{"content":[{"type":"resource_link","name":"n","uri":"note:///1"}]}`)
	for name, srv := range map[string]*fakeServer{"a": a, "b": b} {
		srv.result("resources/read", `{"contents":[{"uri":"note:///1","text":"of `+name+`"}]}`)
	}
	bubbles(t, Config{}, map[string]*fakeServer{"a": a, "b": b}, func(t *testing.T, r *rig) {
		const read = `{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"note:///1"}}`
		c, other := r.client(`{}`), r.client(`{}`)
		c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__t1"}}`).text()
		wantPart(t, c.send(read).text(), "of a")
		wantPart(t, other.send(read).text(), "of b")
		c.close()
		if n := len(r.p.links.last) + len(r.p.links.ring); n != 0 {
			t.Errorf("%d links of a client that left", n)
		}
	})
}

func TestLinksAreBounded(t *testing.T) {
	var l links
	c := &client{s: &wire.Session{}}
	for i := range 2 * maxLinks {
		l.put(c, string(rune('a'))+time.Duration(i).String(), "up")
	}
	if len(l.last) != maxLinks || len(l.ring) != maxLinks {
		t.Errorf("%d and %d links", len(l.last), len(l.ring))
	}
}

// What is remembered of a disabled upstream is no reason not to wait for the others.
func TestDisabledUpstreamIsNotKnown(t *testing.T) {
	p, err := New(Config{Upstreams: []UpstreamConfig{{Name: "off", Command: "x", Disabled: true}, {Name: "on", Command: "x"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	p.ups()[0].list = &listing{}
	if !p.knowsNothing() {
		t.Error("the list of a disabled upstream counts")
	}
	p.ups()[1].list = &listing{}
	if p.knowsNothing() {
		t.Error("a remembered list does not count")
	}
}
