package mcpproxy

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// benchUpstream is an endpoint with one upstream that is never connected.
func benchUpstream(b testing.TB, edit ...func(*Config)) (*Proxy, *upstream) {
	b.Helper()
	cfg := Config{}
	for _, f := range edit {
		f(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	p.dial = func(*UpstreamConfig) func(context.Context, string, wire.Events) (wire.Peer, error) {
		return answersAtOnce(newScripted().dial)
	}
	cfg.Upstreams = []UpstreamConfig{{Name: "fake", Command: "fake", Protocol: "legacy"}}
	if err := p.Reload(cfg); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { p.Close(context.Background()) })
	up := p.upstream("fake")
	if _, err := up.shared.await(b.Context()); err != nil {
		b.Fatal(err)
	}
	for up.source().list == nil || !slices.ContainsFunc(p.cat.Load().entries[tools], func(e *entry) bool { return e.upstream == "fake" }) {
		time.Sleep(time.Millisecond)
	}
	return p, up
}

// answersAtOnce is a server that answers calls of tools before Send returns.
func answersAtOnce(dial dialer) dialer {
	return func(ctx context.Context, transport string, ev wire.Events) (wire.Peer, error) {
		p, err := dial(ctx, transport, ev)
		return &instantPeer{p, ev}, err
	}
}

type instantPeer struct {
	wire.Peer
	ev wire.Events
}

var instantResult = []byte(`{"content":[{"type":"text","text":"fine"}]}`)

func (p *instantPeer) Send(o wire.Outgoing) error {
	if o.Method != "tools/call" {
		return p.Peer.Send(o)
	}
	p.ev.Answer(o.ID, wire.Message{Result: instantResult})
	return nil
}

// BenchmarkGuard is what a closed guard adds to one call: everything between
// the budget and the send, and between the answer and the client.
func BenchmarkGuard(b *testing.B) {
	p, up := benchUpstream(b)
	r := &request{method: "tools/call", c: &client{s: &wire.Session{}}}
	k := call{p: p, r: r, in: up.shared, target: target{up: up, name: "plain"}}
	b.ReportAllocs()
	for b.Loop() {
		k.start, k.place, k.done = time.Now(), outside, false
		g := k.up.guard
		g.retries.earn()
		k.tool = g.tool(k.name)
		if k.reuse() || k.refused() {
			b.Fatal("refused")
		}
		if g.places.enter(&k) != inside {
			b.Fatal("no place")
		}
		k.permit, _ = k.tool.allow(k.probes)
		k.trying, k.sent, k.began = true, true, time.Now()
		k.settle(health.OK, 0, "")
		k.ended(k.account(health.OK, "", time.Time{}))
		k.giveWay()
	}
}

// answering is a stream that keeps nothing.
type answering struct{ answers int }

func (s *answering) Send([]byte, bool) error   { return nil }
func (s *answering) Answer([]byte, bool) error { s.answers++; return nil }
func (s *answering) Drop()                     {}
func (s *answering) OnLeave(func())            {}

// BenchmarkOpen is a call of a tool whose breaker is open, from the message to
// the answer.
func BenchmarkOpen(b *testing.B) {
	p, up := benchUpstream(b)
	up.guard.tool("plain").breaker.Trip()
	s := wire.NewSession("http", func([]byte, bool) error { return nil })
	m, err := wire.Parse([]byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"fake__plain","arguments":{}}}`))
	if err != nil {
		b.Fatal(err)
	}
	st := &answering{}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		p.Handle(s, m, st)
		n++
	}
	if st.answers != n || up.guard.tool("plain").breaker.Closed() {
		b.Fatalf("%d of %d calls answered", st.answers, n)
	}
}

// wholeCall is one call, from the message to the answer, of a server that
// answers at once.
func wholeCall(b testing.TB, inj *chaos.Injector) func() {
	p, up := benchUpstream(b, func(c *Config) { c.Chaos = inj })
	b.Cleanup(inj.Close)
	if _, wrapped := up.shared.live().peer.(*chaosPeer); wrapped != inj.Enabled() {
		b.Fatalf("chaos enabled: %v, the connection wrapped: %v", inj.Enabled(), wrapped)
	}
	s := wire.NewSession("http", func([]byte, bool) error { return nil })
	m, err := wire.Parse([]byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"fake__plain","arguments":{}}}`))
	if err != nil {
		b.Fatal(err)
	}
	st := &answering{}
	return func() {
		was := st.answers
		if p.Handle(s, m, st); st.answers != was+1 {
			b.Fatal("no answer")
		}
	}
}

func benchCall(b *testing.B, inj *chaos.Injector) {
	call := wholeCall(b, inj)
	b.ReportAllocs()
	for b.Loop() {
		call()
	}
}

// BenchmarkChaosOff is a whole call with chaos off, BenchmarkChaosIdle the same
// with it on and no fault active: what it costs to be able to break things.
func BenchmarkChaosOff(b *testing.B) { benchCall(b, chaos.New(chaos.Options{})) }

func BenchmarkChaosIdle(b *testing.B) { benchCall(b, chaos.New(chaos.Options{Enabled: true})) }

// nowhere is a connection that sends nothing.
type nowhere struct{ wire.Peer }

func (nowhere) Send(wire.Outgoing) error { return nil }

// Chaos that is on and idle allocates nothing: not on the way to the server, not
// on the way back, nor in all of a call.
func TestIdleChaosAllocatesNothing(t *testing.T) {
	inj := chaos.New(chaos.Options{Enabled: true})
	c := &chaosPeer{inj: inj, target: "mcp/fake", inner: nowhere{}, in: &instance{}, ev: wire.Events{Answer: func(uint64, wire.Message) {}}}
	o := wire.Outgoing{ID: 7, Method: "tools/call", Name: "plain"}
	m := wire.Message{Result: instantResult}
	for name, f := range map[string]func(){
		"Send":   func() { _ = c.Send(o) },
		"answer": func() { c.answer(7, m) },
		"Decide": func() { inj.Decide(c.call(o)) },
	} {
		if n := testing.AllocsPerRun(1000, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
	off := testing.AllocsPerRun(1000, wholeCall(t, chaos.New(chaos.Options{})))
	idle := testing.AllocsPerRun(1000, wholeCall(t, inj))
	if idle != off {
		t.Errorf("%v allocations in a call with chaos off, %v with it on", off, idle)
	}
	t.Logf("%v allocations in a call", off)
}
