package mcpproxy

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// rig is a whole endpoint in memory: upstreams are fakeServers, clients are
// testClients, and everything that passes a hop is in the trace.
type rig struct {
	t *testing.T
	p *Proxy

	mu    sync.Mutex
	trace []string
}

// newRig starts an endpoint in front of servers, by name. Call it in a bubble, and
// end it there.
func newRig(t *testing.T, cfg Config, servers map[string]*fakeServer) *rig {
	t.Helper()
	cfg.Version = "9.9"
	if cfg.Upstreams == nil {
		for _, name := range sortedKeys(servers) {
			cfg.Upstreams = append(cfg.Upstreams, UpstreamConfig{Name: name, Command: "fake"})
		}
	}
	bare := cfg
	bare.Upstreams = nil
	p, err := New(bare)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, p: p}
	p.dial = func(u *UpstreamConfig) func(context.Context, string, wire.Events) (wire.Peer, error) {
		srv := servers[u.Name]
		return func(ctx context.Context, transport string, ev wire.Events) (wire.Peer, error) {
			peer, err := srv.dial(ctx, transport, ev)
			if err != nil {
				return nil, err
			}
			return &tracedPeer{fakePeer: peer.(*fakePeer), r: r}, nil
		}
	}
	if err := p.Reload(cfg); err != nil {
		t.Fatal(err)
	}
	p.Start(t.Context())
	settle(200 * time.Millisecond)
	r.forget()
	return r
}

// end closes the endpoint; what is left of it then fails the bubble.
func (r *rig) end() { r.p.Close(context.Background()) }

func (r *rig) note(hop, body string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trace = append(r.trace, hop+" "+body)
}

func (r *rig) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trace = nil
}

// hops returns the trace once everything has come to rest.
func (r *rig) hops() []string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.trace)
}

type tracedPeer struct {
	*fakePeer
	r *rig
}

func (p *tracedPeer) Send(o wire.Outgoing) error {
	p.r.note("→ upstream", string(o.Body))
	err := p.fakePeer.Send(o)
	for i := range o.Body { // the peer owns it and may use it again
		o.Body[i] = 'X'
	}
	return err
}

// testClient is one client with a session of its own.
type testClient struct {
	r *rig
	s *wire.Session

	mu  sync.Mutex
	got []string
}

func (r *rig) session(transport string) *testClient {
	c := &testClient{r: r}
	c.s = wire.NewSession(transport, func(raw []byte, _ bool) error {
		c.receive(raw)
		return nil
	})
	return c
}

// client is a session of a legacy client after its handshake.
func (r *rig) client(caps string) *testClient {
	c := r.session("http")
	c.hello(caps)
	return c
}

func (c *testClient) hello(caps string) {
	c.send(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":` + caps + `,"clientInfo":{"name":"test","version":"1"}}}`)
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	synctest.Wait()
	c.take()
}

// receive records a message and spoils its memory, which is no longer the sender's.
func (c *testClient) receive(raw []byte) {
	c.r.note("→ client", string(raw))
	c.mu.Lock()
	c.got = append(c.got, string(raw))
	c.mu.Unlock()
	for i := range raw {
		raw[i] = 'X'
	}
}

// take returns what has come since the last take.
func (c *testClient) take() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	got := c.got
	c.got = nil
	return got
}

func (c *testClient) send(body string) *testStream {
	c.r.t.Helper()
	c.r.note("client →", body)
	m, err := wire.Parse([]byte(body))
	if err != nil {
		c.r.t.Fatalf("%s: %v", body, err)
	}
	if !m.IsRequest() {
		c.r.p.Handle(c.s, m, nil)
		return nil
	}
	st := &testStream{c: c}
	c.r.p.Handle(c.s, m, st)
	return st
}

// modern sends one stateless request of 2026-07-28; its messages are in the
// stream's client alone.
func (r *rig) modern(principal, body string) *testStream {
	c := &testClient{r: r, s: &wire.Session{Transport: "http", Stateless: true, Principal: principal}}
	return c.send(body)
}

func (c *testClient) close() {
	c.r.p.Closed(c.s)
	synctest.Wait()
}

// testStream is the stream of one request.
type testStream struct {
	c *testClient

	mu      sync.Mutex
	over    bool
	dropped bool
	answer  string
	late    int // messages after the end
	onLeave func()
}

var _ wire.Stream = (*testStream)(nil)

func (s *testStream) Send(raw []byte, _ bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		s.late++
		return wire.ErrGone
	}
	s.c.receive(raw)
	return nil
}

func (s *testStream) Answer(raw []byte, _ bool) error {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return wire.ErrGone
	}
	s.over, s.answer = true, string(raw)
	s.c.receive(raw)
	s.mu.Unlock()
	if s.c.s.Stateless {
		s.c.r.p.Closed(s.c.s)
	}
	return nil
}

func (s *testStream) Drop() {
	s.mu.Lock()
	s.over, s.dropped = true, true
	s.mu.Unlock()
	if s.c.s.Stateless {
		s.c.r.p.Closed(s.c.s)
	}
}

func (s *testStream) OnLeave(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onLeave = f
}

// leave is the client closing the stream.
func (s *testStream) leave() {
	s.mu.Lock()
	f := s.onLeave
	s.mu.Unlock()
	if f != nil {
		f()
	}
	synctest.Wait()
}

// text is the answer once everything has come to rest, "" while there is none.
func (s *testStream) text() string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped {
		return "dropped"
	}
	return s.answer
}

// sayVia sends a notification or request on the response stream of via.
func (p *fakePeer) sayVia(via uint64, body string) {
	m, err := wire.Parse([]byte(body))
	if err != nil {
		panic(err)
	}
	p.ev.Message(m, via)
}

// lastID is the id of the newest request of a kind.
func (p *fakePeer) lastID(t *testing.T, method string) uint64 {
	t.Helper()
	all := p.sent(method)
	if len(all) == 0 {
		t.Fatalf("no %s has come", method)
	}
	id, ok := wire.ParseID(wire.Get([]byte(all[len(all)-1]), "id"))
	if !ok {
		t.Fatalf("no id of ours in %s", all[len(all)-1])
	}
	return id
}

// wantPart fails unless got holds every part.
func wantPart(t *testing.T, got string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			t.Errorf("no %s in %s", part, got)
		}
	}
}

const askingMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{},"url":{}},"sampling":{}}}`

// callT1 is a call of fake__t1 with more members of params.
func callT1(id, more string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"fake__t1","arguments":{}` + more + `}}`
}

// one is a rig with one upstream, "fake".
func one(t *testing.T, srv *fakeServer, edit ...func(*Config)) *rig {
	protocol := "legacy"
	if srv.on["server/discover"] != nil {
		protocol = wire.Modern
	}
	cfg := Config{Upstreams: []UpstreamConfig{{Name: "fake", Command: "fake", Protocol: protocol}}}
	for _, f := range edit {
		f(&cfg)
	}
	return newRig(t, cfg, map[string]*fakeServer{cfg.Upstreams[0].Name: srv})
}

// bubble runs f with a rig in front of srv under synctest.
func bubble(t *testing.T, srv *fakeServer, f func(t *testing.T, r *rig), edit ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := one(t, srv, edit...)
		defer r.end()
		f(t, r)
	})
}

// bubbles is bubble with several upstreams.
func bubbles(t *testing.T, cfg Config, servers map[string]*fakeServer, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cfg, servers)
		defer r.end() // after a Fatal too: else the bubble goes on for ever
		f(t, r)
	})
}
