package mcpproxy

import (
	"context"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// benchUpstream is an endpoint with one upstream that is never connected.
func benchUpstream(b *testing.B) (*Proxy, *upstream) {
	p, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	p.dial = func(*UpstreamConfig) func(context.Context, string, wire.Events) (wire.Peer, error) {
		return newScripted().dial
	}
	if err := p.Reload(Config{Upstreams: []UpstreamConfig{{Name: "fake", Command: "fake", Protocol: "legacy"}}}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { p.Close(context.Background()) })
	up := p.upstream("fake")
	if _, err := up.shared.await(b.Context()); err != nil {
		b.Fatal(err)
	}
	for up.source().list == nil {
		time.Sleep(time.Millisecond)
	}
	return p, up
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
