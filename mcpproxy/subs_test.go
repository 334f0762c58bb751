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

func (c *testClient) subscribe(t *testing.T, method, uri string) {
	t.Helper()
	wantPart(t, c.send(`{"jsonrpc":"2.0","id":"sub","method":"resources/`+method+`","params":{"uri":"`+uri+`"}}`).text(), `"result":{}`)
	c.take()
}

func updatedNote(uri string) string {
	return `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"` + uri + `"}}`
}

// listen opens a modern listen with this filter.
func (r *rig) listen(filter string) *testStream {
	return r.modern("", `{"jsonrpc":"2.0","id":"L","method":"subscriptions/listen","params":{"notifications":`+filter+`,`+askingMeta+`}}`)
}

func TestSubscriptionsAreCounted(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		a, b := r.client(`{}`), r.client(`{}`)
		a.subscribe(t, "subscribe", "x:1")
		b.subscribe(t, "subscribe", "x:1")
		if n := srv.count("resources/subscribe"); n != 1 {
			t.Errorf("subscribed %d times", n)
		}
		srv.peer().say(updatedNote("x:1"))
		srv.peer().say(updatedNote("x:2"))
		for _, c := range []*testClient{a, b} {
			if diff := cmp.Diff([]string{updatedNote("x:1")}, c.take()); diff != "" {
				t.Error(diff)
			}
		}
		a.subscribe(t, "unsubscribe", "x:1")
		srv.peer().say(updatedNote("x:1"))
		if got := a.take(); got != nil {
			t.Errorf("after unsubscribe: %v", got)
		}
		if n := srv.count("resources/unsubscribe"); n != 0 {
			t.Error("the other still wants it")
		}
		b.close()
		if n := srv.count("resources/unsubscribe"); n != 1 {
			t.Errorf("unsubscribed %d times", n)
		}
	})
}

// Two upstreams have one URI: updates come under the name each client used.
func TestUpdatesComeUnderTheURIUsed(t *testing.T) {
	a, b := newLegacyServer(), newLegacyServer()
	for _, srv := range []*fakeServer{a, b} {
		srv.result("resources/list", `{"resources":[{"name":"r","uri":"x:1"}]}`)
	}
	bubbles(t, Config{}, map[string]*fakeServer{"a": a, "b": b}, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		uri := upURI("a", "x:1")
		c.subscribe(t, "subscribe", uri)
		b.peer().say(updatedNote("x:1"))
		a.peer().say(updatedNote("x:1"))
		a.peer().say(updatedNote("x:1/sub"))
		if diff := cmp.Diff([]string{updatedNote(uri), updatedNote("x:1/sub")}, c.take()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSubscriptionsAreBounded(t *testing.T) {
	bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		for i := range maxSubs {
			c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"agentarmor://events/%d"}}`, i))
		}
		wantPart(t, c.send(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"x:1"}}`).text(), `"code":-32602`)
	})
}

func TestListenHearsWhatItAskedFor(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		st := r.listen(`{"toolsListChanged":true,"promptsListChanged":false,"resourceSubscriptions":["x:1","agentarmor-up://no/1","x:1"]}`)
		const tag = `"_meta":{"io.modelcontextprotocol/subscriptionId":"L"}`
		want := []string{`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["x:1"]},` + tag + `}}`}
		if diff := cmp.Diff(want, st.c.take()); diff != "" {
			t.Error(diff)
		}
		other := r.listen(`{"promptsListChanged":true}`)
		other.c.take()
		srv.result("tools/list", threeTools)
		srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		srv.peer().say(updatedNote("x:1"))
		srv.peer().say(updatedNote("x:2"))
		settle(time.Second)
		want = []string{
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:1",` + tag + `}}`,
			`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{` + tag + `}}`,
		}
		if diff := cmp.Diff(want, st.c.take()); diff != "" {
			t.Error(diff)
		}
		if got := other.c.take(); got != nil {
			t.Errorf("the other listen: %v", got)
		}
		st.leave()
		if st.text() != "dropped" || srv.count("resources/unsubscribe") != 1 || len(r.p.listens) != 1 {
			t.Errorf("%q, %v, %d listens", st.text(), srv.log, len(r.p.listens))
		}
	})
}

func TestListensEndGracefully(t *testing.T) {
	for name, end := range map[string]func(r *rig, st *testStream){
		"with the endpoint": func(r *rig, _ *testStream) { r.end() },
		"with the input":    func(r *rig, st *testStream) { r.p.InputEnded(st.c.s) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
				c := r.session("stdio")
				st := c.send(`{"jsonrpc":"2.0","id":"L","method":"subscriptions/listen","params":{"notifications":{},` + askingMeta + `}}`)
				end(r, st)
				if got := st.text(); got != `{"jsonrpc":"2.0","id":"L","result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":"L"}}}` {
					t.Error(got)
				}
			})
		})
	}
}

func TestListenEndsWithItsSessionOrItsCancel(t *testing.T) {
	bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
		const listen = `{"jsonrpc":"2.0","id":"L","method":"subscriptions/listen","params":{"notifications":{},` + askingMeta + `}}`
		c := r.session("stdio")
		st := c.send(listen)
		wantPart(t, c.send(listen).text(), `"code":-32600`)
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"L"}}`)
		if st.text() != "dropped" {
			t.Error(st.text())
		}
		c.send(listen)
		c.close()
		if n := len(r.p.listens); n != 0 {
			t.Errorf("%d listens are left", n)
		}
	})
}

// list_changed: once for a burst, of what changed or was announced, not for a
// re-list of ours that finds the same.
func TestListChangesAreCoalesced(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c, fresh := r.client(`{}`), r.session("http")
		fresh.send(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`)
		fresh.take()
		for range 5 {
			srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		}
		settle(time.Second)
		if diff := cmp.Diff([]string{`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`}, c.take()); diff != "" {
			t.Error(diff)
		}
		if got := fresh.take(); got != nil {
			t.Errorf("before it is initialized: %v", got)
		}
		srv.peer().exit("restart")
		settle(10 * time.Second)
		if got := withoutLogs(c.take()); got != nil {
			t.Errorf("after a restart with the same list: %v", got)
		}
		srv.result("tools/list", threeTools)
		srv.result("resources/list", `{"resources":[{"name":"r","uri":"x:1"}]}`)
		srv.result("resources/templates/list", `{"resourceTemplates":[{"name":"r","uriTemplate":"x:{y}"}]}`)
		srv.peer().exit("restart")
		settle(30 * time.Second)
		want := []string{`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, `{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`}
		if diff := cmp.Diff(want, withoutLogs(c.take())); diff != "" {
			t.Error(diff)
		}
	})
}

// withoutLogs leaves out log messages.
func withoutLogs(got []string) (rest []string) {
	for _, m := range got {
		if !strings.Contains(m, `"method":"notifications/message"`) {
			rest = append(rest, m)
		}
	}
	return rest
}

func TestStatusUpdatesAreCoalesced(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		settle(2 * time.Second)
		all, upstream := r.client(`{}`), r.client(`{}`)
		all.subscribe(t, "subscribe", "agentarmor://status")
		upstream.subscribe(t, "subscribe", "agentarmor://status/fake")
		srv.peer().exit("gone")
		settle(500 * time.Millisecond)
		if got := withoutLogs(all.take()); got != nil {
			t.Fatalf("at once: %v", got)
		}
		settle(600 * time.Millisecond)
		if diff := cmp.Diff([]string{updatedNote("agentarmor://status")}, all.take()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{updatedNote("agentarmor://status/fake")}, withoutLogs(upstream.take())); diff != "" {
			t.Error(diff)
		}
	})
}

// sessionOwn makes the upstream run once per session.
func sessionOwn(c *Config) {
	c.Upstreams[0].Sharing = "session"
	c.Limits.SessionIdle = time.Hour
}

func TestEverySessionHasItsOwnInstance(t *testing.T) {
	srv := newLegacyServer()
	srv.result("tools/call", done)
	bubble(t, srv, func(t *testing.T, r *rig) {
		a, b := r.client(`{"sampling":{}}`), r.client(`{}`)
		for _, c := range []*testClient{a, b, a} {
			wantPart(t, c.send(callT1("1", "")).text(), `"done"`)
		}
		for _, principal := range []string{"alice", "bob", "alice"} {
			wantPart(t, r.modern(principal, callT1("1", ","+askingMeta)).text(), `"done"`)
		}
		if n := srv.count("initialize"); n != 5 { // one lists
			t.Errorf("%d instances", n)
		}
		srv.mu.Lock()
		own := srv.peers[1]
		srv.mu.Unlock()
		wantPart(t, own.sent("initialize")[0], `"capabilities":{"sampling":{}}`)
		a.close()
		if !own.isClosed() {
			t.Error("it outlives its session")
		}
		settle(time.Hour + time.Second)
		if n := len(r.p.ups()[0].instances()); n != 2 {
			t.Errorf("%d instances after the stateless ones were idle", n)
		}
	}, sessionOwn)
}

func TestInstancesPerUpstreamAreBounded(t *testing.T) {
	srv := newLegacyServer()
	srv.result("tools/call", done)
	bubble(t, srv, func(t *testing.T, r *rig) {
		for i := range maxPerSession {
			wantPart(t, r.modern(fmt.Sprint(i), callT1("1", ","+askingMeta)).text(), `"done"`)
		}
		wantPart(t, r.modern("more", callT1("1", ","+askingMeta)).text(), `"isError":true`, "busy")
	}, sessionOwn)
}

// What an instance of one session says, nobody else hears.
func TestOwnInstanceTellsItsOwnerOnly(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		mine := r.modern("alice", `{"jsonrpc":"2.0","id":"L","method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["x:1"]},`+askingMeta+`}}`)
		synctest.Wait() // so that the connections come in this order
		theirs := r.modern("bob", `{"jsonrpc":"2.0","id":"L","method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["x:1"]},`+askingMeta+`}}`)
		synctest.Wait()
		legacy := r.client(everything)
		legacy.subscribe(t, "subscribe", "x:2")
		legacy.send(`{"jsonrpc":"2.0","id":"l","method":"logging/setLevel","params":{"level":"debug"}}`)
		for _, c := range []*testClient{mine.c, theirs.c, legacy} {
			c.take()
		}
		srv.mu.Lock()
		shared, alice, bob, own := srv.peers[0], srv.peers[1], srv.peers[2], srv.peers[3]
		srv.mu.Unlock()
		for p, uris := range map[*fakePeer]string{shared: "", alice: `"x:1"`, bob: `"x:1"`, own: `"x:2"`} {
			got := p.sent("resources/subscribe")
			if uris == "" && got != nil || uris != "" && (len(got) != 1 || !strings.Contains(got[0], uris)) {
				t.Errorf("subscribed %v, want %s", got, uris)
			}
		}
		alice.say(updatedNote("x:1"))
		alice.say(updatedNote("x:2"))
		alice.say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"alert","data":1}}`)
		alice.say(rootsList)
		wantPart(t, alice.responses(), `"code":-32601`)
		if got := mine.c.take(); len(got) != 1 {
			t.Errorf("alice: %v", got)
		}
		if got := append(theirs.c.take(), legacy.take()...); got != nil {
			t.Errorf("others: %v", got)
		}
		settle(2 * time.Hour)
		if alice.isClosed() {
			t.Error("ended while somebody listens")
		}
		mine.leave()
		settle(2 * time.Hour)
		if !alice.isClosed() {
			t.Error("goes on for nobody")
		}
	}, sessionOwn)
}

// An instance that starts after setLevel is told the level, its owner's.
func TestLateInstanceIsToldTheLevel(t *testing.T) {
	srv := newLegacyServer()
	srv.result("tools/call", done)
	bubble(t, srv, func(t *testing.T, r *rig) {
		a, b := r.client(`{}`), r.client(`{}`)
		for c, level := range map[*testClient]string{a: "debug", b: "error"} {
			c.send(`{"jsonrpc":"2.0","id":"l","method":"logging/setLevel","params":{"level":"` + level + `"}}`)
		}
		b.send(callT1("1", ""))
		synctest.Wait()
		wantPart(t, strings.Join(srv.peer().sent("logging/setLevel"), ""), `"error"`)
	}, sessionOwn)
}

func TestSubscribeAndCloseInAnyOrder(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		var all []*testClient
		for range 20 {
			all = append(all, r.client(`{}`))
		}
		for i, c := range all {
			go func() {
				uri := fmt.Sprintf("x:%d", i)
				m, _ := wire.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"` + uri + `"}}`))
				r.p.Handle(c.s, m, &testStream{c: c})
				if i%2 == 1 {
					r.p.Closed(c.s)
				}
			}()
		}
		settle(time.Second)
		if _, uris := r.p.ups()[0].shared.wanted(); len(uris) != 10 {
			t.Errorf("%d URIs are wanted: %v", len(uris), uris)
		}
	})
}

// A call that takes longer than an idle session may rest keeps its instance.
func TestBusyInstanceIsNotIdle(t *testing.T) {
	srv := silentTool()
	bubble(t, srv, func(t *testing.T, r *rig) {
		st := r.modern("alice", callT1("1", ","+askingMeta))
		synctest.Wait()
		settle(50 * time.Second)
		if n := len(r.p.ups()[0].instances()); n != 2 || st.text() != "" {
			t.Errorf("%d instances, answer %s", n, st.text())
		}
		settle(time.Minute) // the call has timed out meanwhile
		if n := len(r.p.ups()[0].instances()); n != 1 {
			t.Errorf("%d instances after the call", n)
		}
	}, sessionOwn, func(c *Config) { c.Limits.SessionIdle = 20 * time.Second })
}
