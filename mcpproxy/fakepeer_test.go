package mcpproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// fakeServer is an upstream in memory. Each connection to it is a fakePeer;
// what it answers is set per method.
type fakeServer struct {
	on      map[string]func(p *fakePeer, id uint64, m wire.Message)
	onDial  func(n int, transport string) error // n counts from 1
	onStart func(p *fakePeer)

	mu    sync.Mutex
	fault func(p *fakePeer, id uint64, m wire.Message) bool // true: it has seen to the request
	peers []*fakePeer
	dials []time.Time
	log   []string // "dial http", and every message as its method
}

// fakePeer is one connection to a fakeServer.
type fakePeer struct {
	s         *fakeServer
	ev        wire.Events
	transport string

	mu        sync.Mutex
	pending   map[uint64]bool
	cancelled []uint64
	bodies    map[string][]string // by method
	version   string
	ready     bool
	closed    bool
}

var _ wire.Peer = (*fakePeer)(nil)

const (
	fakeCaps  = `{"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"logging":{}}`
	initOK    = `{"protocolVersion":"2025-11-25","capabilities":` + fakeCaps + `,"serverInfo":{"name":"fake","version":"1"},"instructions":"be kind"}`
	discover1 = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":` + fakeCaps + `,"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"fake","version":"2"}}}`
	oneTool   = `{"tools":[{"name":"t1","inputSchema":{"type":"object"}}]}`
)

// newLegacyServer answers as a well-behaved server of 2025-11-25.
func newLegacyServer() *fakeServer {
	s := &fakeServer{on: map[string]func(*fakePeer, uint64, wire.Message){}}
	s.result("initialize", initOK)
	s.result("tools/list", oneTool)
	s.result("resources/list", `{"resources":[]}`)
	for _, m := range []string{"logging/setLevel", "resources/subscribe", "resources/unsubscribe"} {
		s.result(m, `{}`)
	}
	return s
}

// newModernServer answers as one of 2026-07-28 alone.
func newModernServer() *fakeServer {
	s := newLegacyServer()
	s.error("initialize", -32601)
	s.result("server/discover", discover1)
	s.silent("subscriptions/listen")
	return s
}

// set has f answer a method from now on.
func (s *fakeServer) set(method string, f func(p *fakePeer, id uint64, m wire.Message)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on[method] = f
}

func (s *fakeServer) get(method string) func(p *fakePeer, id uint64, m wire.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on[method]
}

func (s *fakeServer) result(method, result string) {
	s.set(method, func(p *fakePeer, id uint64, _ wire.Message) { p.result(id, result) })
}

func (s *fakeServer) error(method string, code int) {
	s.set(method, func(p *fakePeer, id uint64, _ wire.Message) { p.error(id, code, "no") })
}

func (s *fakeServer) fail(method string, err *wire.Error) {
	s.set(method, func(p *fakePeer, id uint64, _ wire.Message) { p.fail(id, err) })
}

func (s *fakeServer) silent(method string) {
	s.set(method, func(*fakePeer, uint64, wire.Message) {})
}

func (s *fakeServer) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, what)
}

// count is how often what stands in the log.
func (s *fakeServer) count(what string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.log {
		if l == what {
			n++
		}
	}
	return n
}

// handshakes is the log up to the first list, as one string.
func (s *fakeServer) handshakes() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, l := range s.log {
		if strings.HasPrefix(l, "dial") || l == "initialize" || l == "server/discover" {
			out = append(out, l)
		}
	}
	return strings.Join(out, ", ")
}

// peer returns the newest connection.
func (s *fakeServer) peer() *fakePeer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peers[len(s.peers)-1]
}

// gaps are the times between dials.
func (s *fakeServer) gaps() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []time.Duration
	for i := 1; i < len(s.dials); i++ {
		out = append(out, s.dials[i].Sub(s.dials[i-1]))
	}
	return out
}

func (s *fakeServer) dial(_ context.Context, transport string, ev wire.Events) (wire.Peer, error) {
	p := &fakePeer{s: s, ev: ev, transport: transport, pending: map[uint64]bool{}, bodies: map[string][]string{}}
	s.mu.Lock()
	s.dials = append(s.dials, time.Now())
	n := len(s.dials)
	s.log = append(s.log, "dial "+transport)
	s.mu.Unlock()
	if s.onDial != nil {
		if err := s.onDial(n, transport); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	s.peers = append(s.peers, p)
	s.mu.Unlock()
	if s.onStart != nil {
		go s.onStart(p)
	}
	return p, nil
}

func (p *fakePeer) Send(o wire.Outgoing) error {
	m, err := wire.Parse(slices.Clone(o.Body))
	if err != nil {
		return fmt.Errorf("%s: %w", o.Body, err)
	}
	if o.ID != 0 && string(m.ID) != string(wire.AppendID(nil, o.ID)) {
		return fmt.Errorf("id %s in a message sent as %d", m.ID, o.ID)
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return &wire.Error{Kind: wire.NotSent, Err: errors.New("the fake is closed")}
	}
	p.bodies[m.Method] = append(p.bodies[m.Method], string(o.Body))
	if o.ID != 0 {
		p.pending[o.ID] = true
	}
	p.mu.Unlock()
	p.s.note(m.Method)
	if o.ID == 0 {
		return nil
	}
	p.s.mu.Lock()
	fault := p.s.fault
	p.s.mu.Unlock()
	if fault != nil && fault(p, o.ID, m) {
		return nil
	}
	if f := p.s.get(m.Method); f != nil {
		go f(p, o.ID, m)
	} else {
		go p.error(o.ID, wire.CodeMethodNotFound, "unknown method")
	}
	return nil
}

func (p *fakePeer) end(id uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	ok := p.pending[id]
	delete(p.pending, id)
	return ok
}

func (p *fakePeer) result(id uint64, result string) {
	if p.end(id) {
		p.ev.Answer(id, wire.Message{ID: wire.AppendID(nil, id), Result: []byte(result)})
	}
}

func (p *fakePeer) error(id uint64, code int, msg string) {
	if p.end(id) {
		p.ev.Answer(id, wire.Message{ID: wire.AppendID(nil, id), Error: fmt.Appendf(nil, `{"code":%d,"message":%q}`, code, msg)})
	}
}

func (p *fakePeer) fail(id uint64, err *wire.Error) {
	if p.end(id) {
		p.ev.Failed(id, err)
	}
}

// say sends a notification or request.
func (p *fakePeer) say(body string) {
	m, err := wire.Parse([]byte(body))
	if err != nil {
		panic(err)
	}
	p.ev.Message(m, 0)
}

// exit ends the connection from the server's side.
func (p *fakePeer) exit(why string) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	pending := p.pending
	p.pending = map[uint64]bool{}
	p.mu.Unlock()
	for id := range pending {
		p.ev.Failed(id, &wire.Error{Kind: wire.Lost, Err: errors.New(why)})
	}
	p.ev.Closed(errors.New(why))
}

// Kill is a crash.
func (p *fakePeer) Kill() { p.exit("signal: killed") }

func (p *fakePeer) Cancel(id uint64) {
	p.end(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancelled = append(p.cancelled, id)
}

func (p *fakePeer) SetVersion(v string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version = v
}

func (p *fakePeer) Ready() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = true
}

func (p *fakePeer) Close(context.Context) {
	p.mu.Lock()
	pending := p.pending
	p.pending, p.closed = map[uint64]bool{}, true
	p.mu.Unlock()
	for id := range pending {
		p.ev.Failed(id, &wire.Error{Kind: wire.Lost, Err: errors.New("closed by us")})
	}
}

func (p *fakePeer) Stats() wire.PeerStats {
	return wire.PeerStats{Pid: 42, Stderr: []string{"last words"}, Skipped: 3}
}

func (p *fakePeer) sent(method string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.bodies[method])
}

func (p *fakePeer) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// harness is an instance on a fakeServer, with what its hooks have seen.
type harness struct {
	*instance
	srv *fakeServer

	mu       sync.Mutex
	listings []*listing
	told     []bool
	messages []string
	states   []health.State
	lost     int
}

// supervise starts an instance in front of srv; it is stopped with the test.
func supervise(t *testing.T, srv *fakeServer, cfg UpstreamConfig, more ...func(*instanceOptions)) *harness {
	t.Helper()
	h := &harness{srv: srv}
	cfg.Name = "fake"
	if cfg.Command == "" && cfg.URL == "" {
		cfg.Command = "fake-server"
	}
	o := instanceOptions{cfg: &cfg, version: "9.9", lists: true, hooks: hooks{
		message: func(_ *conn, m wire.Message, _ uint64) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.messages = append(h.messages, m.Method)
		},
		listed: func(_ *instance, l *listing, told kindSet) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.listings, h.told = append(h.listings, l), append(h.told, told != 0)
		},
		state: func(_ *instance, _ health.State, now health.Snapshot) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.states = append(h.states, now.State)
		},
		lost: func(*conn) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.lost++
		},
	}}
	for _, f := range more {
		f(&o)
	}
	h.instance = newInstance(o)
	h.instance.dial = srv.dial
	h.start(t.Context())
	return h
}

// end stops the instance; in a synctest bubble whatever is left then fails the test.
func (h *harness) end() { h.stop(context.Background()) }

func (h *harness) state() health.State { return h.tracker.Snapshot().State }

func (h *harness) toolCounts() (out []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.listings {
		out = append(out, len(l.Tools))
	}
	return out
}

// settle lets time pass in a bubble, and all that it brings about happen.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
