package mcpproxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// story is what can be seen from outside of an outage and what follows.
type story struct {
	First   string   // answer, by its outcome
	Answers []string // all kinds of them
	Events  []string // failures and changes of state, each kind once
	Listed  []string // its tools then, as clients see them
	After   string   // the answer once the fault is over
	Again   []string // its tools then
	State   string   // of the server then
	Breaker string
	Closed  bool   // the tool's breaker is
	Marked  []bool // whether failures, and what follows from them, are marked as injected
}

// mark notes the mark of what was seen; f1 is the only fault there is.
func (s *story) mark(t *testing.T, fault, what string) {
	t.Helper()
	if fault != "" && fault != "f1" {
		t.Errorf("marked as the work of another fault: %s", what)
	}
	s.Marked = append(s.Marked, fault != "")
}

// outcomeOf is the class of an answer as the client can tell it.
func outcomeOf(t *testing.T, answer string) string {
	t.Helper()
	var m struct {
		Error  *struct{ Code int }
		Result *struct {
			IsError bool
			Meta    map[string]json.RawMessage `json:"_meta"`
		}
	}
	if err := json.Unmarshal([]byte(answer), &m); err != nil {
		return "no answer: " + answer
	}
	if m.Error != nil {
		return fmt.Sprint("error ", m.Error.Code)
	}
	var told struct{ Outcome, Executed string }
	if raw := m.Result.Meta["agentarmor/call"]; raw != nil {
		_ = json.Unmarshal(raw, &told)
	}
	if told.Outcome == "" || told.Outcome == "ok" {
		told.Outcome, told.Executed = "ok", "yes" // told or not, it is the same
		if m.Result.IsError {
			told.Outcome = "tool_error"
		}
	}
	return fmt.Sprint(told.Outcome, " ", told.Executed, " ", m.Result.IsError)
}

// live is what a client lives through: calls during an outage, and after it.
func live(t *testing.T, transport string, calls int, begin func(r *rig, s *fakeServer), end func(r *rig, s *fakeServer)) (out story) {
	t.Helper()
	cfg := UpstreamConfig{Name: "fake", Command: "fake", Protocol: "legacy"}
	if transport != "stdio" {
		cfg.Command, cfg.URL, cfg.Type = "", "http://fake.example/mcp", transport
	}
	srv := newLegacyServer()
	srv.result("tools/list", `{"tools":[{"name":"t1","inputSchema":{"type":"object"}},{"name":"other","inputSchema":{"type":"object"}}]}`)
	srv.result("tools/call", `{"content":[{"type":"text","text":"done, and at some length so that there is something to cut"}]}`)
	inj := chaos.New(chaos.Options{Enabled: true, Seed: 1, MaxTTL: 24 * time.Hour})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{Upstreams: []UpstreamConfig{cfg}, Chaos: inj}, map[string]*fakeServer{"fake": srv})
		defer r.end()
		defer inj.Close()
		seen := r.p.events.Subscribe(10_000)
		c := r.client(`{}`)
		r.p.upstream("fake").shared.fault.Store(new("old")) // of a fault long ago
		begin(r, srv)
		for n := range calls {
			st := c.send(callT1(fmt.Sprint(n), ""))
			settle(70 * time.Second)
			outcome := outcomeOf(t, st.text())
			out.Answers = append(out.Answers, outcome)
			if outcome != "ok yes false" {
				_, mark, _ := strings.Cut(st.text(), `"injected":"`)
				mark, _, _ = strings.Cut(mark, `"`)
				out.mark(t, mark, st.text())
			}
		}
		out.First, out.Listed = out.Answers[0], listedTools(t, c)
		over := time.Now()
		end(r, srv)
		settle(20 * time.Minute)
		for n := range 3 { // a tool's breaker is tried by calls
			c.send(callT1(fmt.Sprint(calls+n), "")).text()
			settle(time.Minute)
		}
		out.After, out.Again = outcomeOf(t, c.send(callT1(`"last"`, "")).text()), listedTools(t, c)
		s := r.p.statusOf(r.p.upstream("fake"))
		out.State, out.Breaker, out.Closed = string(s.State), string(s.Breaker.State), r.p.upstream("fake").guard.tool("t1").breaker.Closed()
		seen.Close()
		for e := range seen.C() {
			if !e.Time.Before(over) { // the end of a fault is heard of at once, that of a real failure is found out
				continue
			}
			switch e.Kind {
			case event.UpstreamState, event.BreakerChanged, event.DefinitionChanged, event.CallFailed:
			default:
				continue
			}
			well := []string{string(health.Ready), string(health.Starting), string(health.BreakerClosed), string(health.BreakerHalfOpen)}
			if !slices.Contains(well, e.To) {
				out.mark(t, e.Injected, fmt.Sprintf("%+v", e))
			}
			// Whether it is degraded follows from its tools' breakers, whose events are here, too.
			usable := strings.NewReplacer(string(health.Degraded), string(health.Ready))
			from, to := usable.Replace(e.From), usable.Replace(e.To)
			if line := fmt.Sprint(e.Kind, " ", e.Tool, " ", from, "→", to); from != to && !slices.Contains(out.Events, line) {
				out.Events = append(out.Events, line)
			}
		}
	})
	slices.Sort(out.Answers) // when a breaker lets a call pass is a matter of chance
	out.Answers = slices.Compact(out.Answers)
	slices.Sort(out.Events) // what follows from the same failure may be told in any order
	return out
}

// listedTools are the definitions of the server's tools, each in one form.
func listedTools(t *testing.T, c *testClient) (list []string) {
	t.Helper()
	var m struct {
		Result struct{ Tools []map[string]any }
	}
	if err := json.Unmarshal([]byte(c.send(`{"jsonrpc":"2.0","id":"list","method":"tools/list"}`).text()), &m); err != nil {
		t.Error(err)
	}
	for _, tool := range m.Result.Tools {
		if strings.HasPrefix(fmt.Sprint(tool["name"]), "fake__") {
			raw, _ := json.Marshal(tool) // with its members in order
			list = append(list, string(raw))
		}
	}
	return list
}

// breaks has the server itself fail, all of it or one tool.
func breaks(tool bool, fault func(p *fakePeer, id uint64, m wire.Message) bool) func(*rig, *fakeServer) {
	return func(_ *rig, s *fakeServer) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fault = func(p *fakePeer, id uint64, m wire.Message) bool {
			return (!tool || m.Method == "tools/call") && fault(p, id, m)
		}
	}
}

func heals(_ *rig, s *fakeServer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = nil
}

// answersAfter answers as usual, later.
func answersAfter(d time.Duration) func(p *fakePeer, id uint64, m wire.Message) bool {
	return func(p *fakePeer, id uint64, m wire.Message) bool {
		f := p.s.get(m.Method)
		time.AfterFunc(d, func() {
			if f != nil {
				f(p, id, m)
			} else {
				p.error(id, wire.CodeMethodNotFound, "unknown method")
			}
		})
		return true
	}
}

// failsWith fails every request in transport.
func failsWith(e wire.Error) func(p *fakePeer, id uint64, m wire.Message) bool {
	return func(p *fakePeer, id uint64, _ wire.Message) bool {
		go p.fail(id, &e)
		return true
	}
}

func answersError(code int) func(p *fakePeer, id uint64, m wire.Message) bool {
	return func(p *fakePeer, id uint64, _ wire.Message) bool {
		go p.error(id, code, "no")
		return true
	}
}

// breaksConnection ends the connection instead of an answer.
func breaksConnection(p *fakePeer, _ uint64, _ wire.Message) bool {
	go p.exit("signal: killed")
	return true
}

// refuses has new connections refused, too.
func refuses(tool bool) func(*rig, *fakeServer) {
	return func(r *rig, s *fakeServer) {
		s.onDial = func(int, string) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.fault != nil && !tool {
				return &wire.Error{Kind: wire.NotSent, Err: chaos.ErrRefused}
			}
			return nil
		}
		breaks(tool, breaksConnection)(r, s)
	}
}

// byTurns has a server fail for a while, then be well, and so on.
func byTurns(down, up time.Duration, fails func(tool bool) func(*rig, *fakeServer)) func(tool bool) func(*rig, *fakeServer) {
	return func(tool bool) func(*rig, *fakeServer) {
		return func(r *rig, s *fakeServer) {
			fails(tool)(r, s)
			began := time.Now()
			isDown := func() bool { return time.Since(began)%(up+down) < down }
			s.mu.Lock()
			defer s.mu.Unlock()
			fault, dialed := s.fault, s.onDial
			s.fault = func(p *fakePeer, id uint64, m wire.Message) bool { return isDown() && fault(p, id, m) }
			if dialed != nil {
				s.onDial = func(n int, transport string) error {
					if !isDown() {
						return nil
					}
					return dialed(n, transport)
				}
			}
		}
	}
}

// lists has the server announce and list other definitions of its tools.
func lists(definitions string) func(*rig, *fakeServer) {
	return func(r *rig, s *fakeServer) {
		breaks(false, func(p *fakePeer, id uint64, m wire.Message) bool {
			if m.Method == "tools/list" {
				go p.result(id, definitions)
			}
			return m.Method == "tools/list"
		})(r, s)
		s.peer().say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	}
}

// Each fault, on a server as a whole and on one of its tools, over each
// transport, is for a client what the failure is that it stands for: the
// same outcomes and the same changes of state; and once it is over all recovers.
func TestFaultsAreLikeFailures(t *testing.T) {
	type real = func(tool bool) func(*rig, *fakeServer)
	same := func(f func(p *fakePeer, id uint64, m wire.Message) bool) real {
		return func(tool bool) func(*rig, *fakeServer) { return breaks(tool, f) }
	}
	reset := wire.Error{Kind: wire.Lost, Err: chaos.ErrReset}
	malformed := wire.Error{Kind: wire.Malformed, Err: errors.New("unreadable answer")}
	const (
		ttl     = chaos.Duration(12 * time.Hour)
		down    = 10 * time.Minute
		up      = 20 * time.Minute
		drifted = `{"type":"object","properties":{"drift":{"type":"string"}},"required":["drift"]}`
	)
	refused := same(failsWith(wire.Error{Kind: wire.NotSent, Err: chaos.ErrRefused}))
	for _, c := range []struct {
		spec        chaos.Spec
		stdio, http real
		sse         real   // nil: as over HTTP
		only        string // "tool" or "server", where the other is the same
	}{
		{spec: chaos.Spec{Fault: chaos.Error}, stdio: same(answersError(-32603)), http: same(failsWith(wire.Error{Kind: wire.HTTPStatus, Status: 503}))},
		{spec: chaos.Spec{Fault: chaos.Error, Status: 401}, stdio: same(answersError(-32603)), http: same(failsWith(wire.Error{Kind: wire.HTTPStatus, Status: 401}))},
		{spec: chaos.Spec{Fault: chaos.Error, Status: 400}, stdio: same(answersError(-32603)), http: same(failsWith(wire.Error{Kind: wire.HTTPStatus, Status: 400}))},
		{spec: chaos.Spec{Fault: chaos.RateLimit, RetryAfter: chaos.Duration(5 * time.Second)}, stdio: same(answersError(-32603)), http: same(failsWith(wire.Error{Kind: wire.HTTPStatus, Status: 429, RetryAfter: 5 * time.Second}))},
		{spec: chaos.Spec{Fault: chaos.Latency, Delay: chaos.Duration(3 * time.Second)}, stdio: same(answersAfter(3 * time.Second)), http: same(answersAfter(3 * time.Second))},
		{spec: chaos.Spec{Fault: chaos.Hang}, stdio: same(func(*fakePeer, uint64, wire.Message) bool { return true }), http: same(func(*fakePeer, uint64, wire.Message) bool { return true })},
		{spec: chaos.Spec{Fault: chaos.Corrupt}, stdio: same(failsWith(malformed)), http: same(failsWith(malformed))},
		{spec: chaos.Spec{Fault: chaos.Truncate}, stdio: same(failsWith(malformed)), http: same(failsWith(malformed))},
		{spec: chaos.Spec{Fault: chaos.Drop}, stdio: same(breaksConnection), http: same(failsWith(reset)), sse: same(breaksConnection)},
		{spec: chaos.Spec{Fault: chaos.Kill}, stdio: same(breaksConnection), http: same(breaksConnection)},
		{spec: chaos.Spec{Fault: chaos.Flap, Down: ttl, Up: 1}, stdio: refuses, http: refused},
		{spec: chaos.Spec{Fault: chaos.Flap, Down: chaos.Duration(down), Up: chaos.Duration(up)}, stdio: byTurns(down, up, refuses), http: byTurns(down, up, refused)},
		{spec: chaos.Spec{Fault: chaos.ToolError}, only: "tool", stdio: same(func(p *fakePeer, id uint64, _ wire.Message) bool {
			go p.result(id, `{"content":[{"type":"text","text":"The tool failed."}],"isError":true}`)
			return true
		})},
		{spec: chaos.Spec{Fault: chaos.SchemaDrift}, stdio: func(tool bool) func(*rig, *fakeServer) {
			other := drifted
			if tool {
				other = `{"type":"object"}`
			}
			return lists(`{"tools":[{"name":"t1","inputSchema":` + drifted + `},{"name":"other","inputSchema":` + other + `}]}`)
		}},
	} {
		for _, transport := range []string{"stdio", "http", "sse"} {
			for _, kind := range []string{"server", "tool"} {
				if c.only != "" && c.only != kind {
					continue
				}
				t.Run(fmt.Sprint(c.spec.Fault, " ", c.spec.Status, " ", c.spec.Up, " ", transport, " ", kind), func(t *testing.T) {
					failure := c.stdio
					switch {
					case transport == "sse" && c.sse != nil:
						failure = c.sse
					case transport != "stdio" && c.http != nil:
						failure = c.http
					}
					recovers := heals
					if c.spec.Fault == chaos.SchemaDrift {
						recovers = func(r *rig, s *fakeServer) {
							heals(r, s)
							s.peer().say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
						}
					}
					calls := 6 // during more time than any pause between two attempts
					if c.spec.Up > 1 {
						calls = 60 // which see both several times
					}
					want := live(t, transport, calls, failure(kind == "tool"), recovers)
					spec := c.spec
					spec.Target, spec.TTL = "mcp/fake", ttl
					if kind == "tool" {
						spec.Target += "/t*"
					}
					got := live(t, transport, calls, func(r *rig, _ *fakeServer) {
						if _, err := r.p.cfg.Chaos.Inject(spec); err != nil {
							t.Error(err)
						}
					}, func(r *rig, _ *fakeServer) {
						if _, err := r.p.cfg.Chaos.Clear("all"); err != nil {
							t.Error(err)
						}
					})
					if slices.Contains(want.Marked, true) || slices.Contains(got.Marked, false) {
						t.Errorf("marked: real %v, injected %v", want.Marked, got.Marked)
					}
					want.Marked, got.Marked = nil, nil
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("-real +injected: %s", diff)
					}
					if c.spec.Up > 1 && (len(got.Answers) == 1 || !slices.Contains(got.Answers, "ok yes false")) {
						t.Errorf("no turns: %v", got.Answers)
					}
					if got.After != "ok yes false" || got.State != string(health.Ready) || got.Breaker != string(health.BreakerClosed) || !got.Closed {
						t.Errorf("not recovered: %+v", got)
					}
				})
			}
		}
	}
}
