package mcpproxy

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

var (
	executionsCalls = flag.Int("executions", 10_000, "how many calls TestExecutions makes")
	executionsSeed  = flag.Uint64("executions-seed", 1, "of its faults")
)

// Whatever happens to a call on its way, it has one answer; what that says of
// its execution is what the upstream has recorded; and a tool that must not run
// twice never does.
func TestExecutions(t *testing.T) {
	for _, protocol := range []string{"legacy", wire.Modern} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { executions(t, protocol) })
		})
	}
}

func executions(t *testing.T, protocol string) {
	x := &execRun{
		t: t, runs: map[string]int{}, tries: map[string]int{}, could: map[string]bool{}, faults: map[string]int{}, calls: map[string]*execCall{}, seed: *executionsSeed, began: time.Now(),
	}
	cfg := Config{Upstreams: []UpstreamConfig{
		x.upstream("pipe", protocol, UpstreamConfig{Command: "fake", Concurrency: 1, Queue: new(1)}),
		x.upstream("web", protocol, UpstreamConfig{URL: "http://web.invalid/mcp", Type: "http", RateLimit: Rate{Calls: 2, Per: time.Second}}),
		x.upstream("wary", protocol, UpstreamConfig{URL: "http://wary.invalid/mcp", Type: "http", DistrustHints: true, Breaker: BreakerConfig{Failures: 2}}),
	}}
	servers := map[string]*fakeServer{}
	for _, u := range cfg.Upstreams {
		servers[u.Name] = x.server(u.Name, protocol)
	}
	r := newRig(t, cfg, servers)
	const workers = 20
	var wg sync.WaitGroup
	for n := range workers {
		wg.Go(func() { x.work(r, n, *executionsCalls/workers) })
	}
	wg.Wait()
	time.Sleep(time.Hour) // what executes late, after its call is over, does so now
	r.end()
	x.check()
	x.report()
}

// execRun is one run: what was called, and what the upstreams have executed.
type execRun struct {
	t     *testing.T
	seed  uint64
	began time.Time

	mu     sync.Mutex
	runs   map[string]int       // executions by execKey
	tries  map[string]int       // attempts, likewise
	could  map[string]bool      // one of the attempts may have executed
	faults map[string]int       // by name
	calls  map[string]*execCall // by id
}

// execCall is one call of a client. It is the stream of its request.
type execCall struct {
	up, tool, id string

	mu        sync.Mutex
	answers   []string
	drops     int
	cancelled bool
	leave     func()
	over      chan struct{}
}

var _ wire.Stream = (*execCall)(nil)

func execKey(up, tool, id string) string { return up + "/" + tool + "/" + id }

func (c *execCall) Send([]byte, bool) error { return nil }

func (c *execCall) Answer(raw []byte, _ bool) error {
	c.end(func() { c.answers = append(c.answers, string(raw)) })
	return nil
}

func (c *execCall) Drop() { c.end(func() { c.drops++ }) }

func (c *execCall) end(note func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if note(); len(c.answers)+c.drops == 1 {
		close(c.over)
	}
}

func (c *execCall) OnLeave(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leave = f
}

// execTools are the tools of each upstream, and whether they may run twice
// where hints are trusted and where they are not.
var execTools = map[string]struct {
	annotations   string
	trusted, wary bool
	config        ToolConfig
}{
	"append":  {`{}`, false, false, ToolConfig{}},
	"put":     {`{"idempotentHint":true}`, true, false, ToolConfig{}},
	"get":     {`{"readOnlyHint":true}`, true, false, ToolConfig{}},
	"denied":  {`{"readOnlyHint":true,"idempotentHint":true}`, false, false, ToolConfig{Idempotent: new(false)}},
	"allowed": {`{}`, true, true, ToolConfig{Idempotent: new(true)}},
	"backup":  {`{}`, false, false, ToolConfig{}},
	"backed":  {`{}`, false, false, ToolConfig{}}, // its fallback is backup of the same upstream
	"cached": {`{"readOnlyHint":true}`, true, false, ToolConfig{
		Cache: 5 * time.Second, Fallback: []FallbackStep{{Cached: 10 * time.Minute}, {Result: json.RawMessage(`"sorry"`)}},
	}},
}

func execRepeatable(up, tool string) bool {
	if up == "wary" {
		return execTools[tool].wary
	}
	return execTools[tool].trusted
}

func (x *execRun) upstream(name, protocol string, u UpstreamConfig) UpstreamConfig {
	u.Name, u.Protocol = name, protocol
	u.CallTimeout = 2 * time.Second
	u.Retry = RetryConfig{Budget: new(1.0)} // the more retries, the more can go wrong
	u.Tools = map[string]ToolConfig{}
	for tool, def := range execTools {
		u.Tools[tool] = def.config
	}
	u.Tools["backed"] = ToolConfig{Fallback: []FallbackStep{
		{Tool: name + "__backup", Arguments: json.RawMessage(`{"id":"{{.id}}"}`)}, {Result: json.RawMessage(`{"content":[]}`)},
	}}
	return u
}

// server is an upstream that records what it executes.
func (x *execRun) server(name, protocol string) *fakeServer {
	srv := newLegacyServer()
	if protocol != "legacy" {
		srv = newModernServer()
	}
	var list []string
	for _, tool := range sortedKeys(execTools) {
		list = append(list, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object","required":["id"]},"annotations":%s}`, tool, execTools[tool].annotations))
	}
	srv.result("tools/list", `{"tools":[`+strings.Join(list, ",")+`]}`)
	srv.result("ping", `{}`)
	srv.on["tools/call"] = func(p *fakePeer, rid uint64, m wire.Message) {
		tool, _ := wire.String(wire.Get(m.Params, "name"))
		id, ok := wire.String(wire.Get(wire.Get(m.Params, "_meta"), "test/call"))
		if !ok { // a fallback need not carry the caller's _meta
			id, _ = wire.String(wire.Get(wire.Get(m.Params, "arguments"), "id"))
		}
		x.attempt(p, rid, name, tool, id)
	}
	return srv
}

// attempt is one request as the upstream takes it.
func (x *execRun) attempt(p *fakePeer, rid uint64, up, tool, id string) {
	key := execKey(up, tool, id)
	x.mu.Lock()
	n, could := x.tries[key], x.could[key]
	rng := x.rng(key, n)
	f := x.pick(rng, p.transport)
	x.tries[key]++
	x.could[key] = could || f.executes != "no"
	c := x.calls[id]
	x.mu.Unlock()
	if could && !execRepeatable(up, tool) {
		x.t.Errorf("%s came again, and the last attempt may have executed it", key)
	}
	select {
	case <-c.over:
		x.t.Errorf("%s came when its call was over", key)
	default:
	}
	executes := f.executes == "yes" || f.executes == "maybe" && rng.IntN(2) == 0
	time.Sleep(f.after + upTo(rng, 50*time.Millisecond))
	x.mu.Lock()
	x.faults[f.name]++
	if executes {
		x.runs[key]++
	}
	x.mu.Unlock()
	f.end(p, rid, rng)
}

// rng makes the same choices for the same attempt, whatever else is going on.
func (x *execRun) rng(key string, n int) *rand.Rand {
	seed := x.seed
	for _, b := range []byte(key) {
		seed = seed*1099511628211 ^ uint64(b)
	}
	return rand.New(rand.NewPCG(seed, uint64(n)))
}

// execFault is how an attempt ends. executes is what the upstream has done by
// then: yes, no, or maybe (either).
type execFault struct {
	name, executes string
	weight         int
	only           string // transport
	after          time.Duration
	end            func(p *fakePeer, rid uint64, rng *rand.Rand)
}

var execOK = execFault{name: "ok", executes: "yes", end: func(p *fakePeer, rid uint64, _ *rand.Rand) { p.result(rid, done) }}

var execFaults = []execFault{
	{"isError", "yes", 10, "", 0, func(p *fakePeer, rid uint64, _ *rand.Rand) {
		p.result(rid, `{"content":[{"type":"text","text":"no such row"}],"isError":true}`)
	}},
	{"rejected", "no", 10, "", 0, execCode(-32600, -32601, -32602, -32002, -32042)},
	{"error", "maybe", 10, "", 0, execCode(-32603, -32000, -1, 0, 4711)},
	{"lost", "maybe", 15, "", 0, execFail(wire.Lost)},
	{"not sent", "no", 15, "", 0, execFail(wire.NotSent)},
	{"malformed", "maybe", 8, "", 0, execFail(wire.Malformed)},
	{"too large", "maybe", 4, "", 0, execFail(wire.TooLarge)},
	{"session lost", "no", 10, "http", 0, execFail(wire.SessionLost, 404)},
	{"refused", "no", 8, "http", 0, execFail(wire.HTTPStatus, 400, 404, 405, 413, 422)},
	{"throttled", "no", 4, "http", 0, execFail(wire.HTTPStatus, 429)},
	{"auth", "no", 1, "http", 0, execFail(wire.HTTPStatus, 401, 403)},
	{"overloaded", "maybe", 15, "http", 0, execFail(wire.HTTPStatus, 500, 502, 503, 504, 408, 498)},
	{"hang", "maybe", 8, "", 0, func(*fakePeer, uint64, *rand.Rand) {}},
	{"late", "yes", 8, "", 3 * time.Second, execOK.end},
	{"exit", "maybe", 3, "stdio", 0, func(p *fakePeer, _ uint64, _ *rand.Rand) { p.exit("exit status 1") }},
}

func execCode(codes ...int) func(*fakePeer, uint64, *rand.Rand) {
	return func(p *fakePeer, rid uint64, rng *rand.Rand) { p.error(rid, codes[rng.IntN(len(codes))], "no") }
}

func execFail(kind wire.ErrorKind, status ...int) func(*fakePeer, uint64, *rand.Rand) {
	return func(p *fakePeer, rid uint64, rng *rand.Rand) {
		err := &wire.Error{Kind: kind, Err: errors.New("fault")}
		if len(status) > 0 {
			err.Status = status[rng.IntN(len(status))]
		}
		if err.Status == 429 || err.Status == 503 {
			err.RetryAfter = time.Duration(rng.IntN(3)) * time.Second
		}
		p.fail(rid, err)
	}
}

// pick chooses the fault of an attempt: few in calm times, many in every third
// half minute.
func (x *execRun) pick(rng *rand.Rand, transport string) execFault {
	percent := 10
	if int(time.Since(x.began)/(30*time.Second))%3 == 2 {
		percent = 70
	}
	if rng.IntN(100) >= percent {
		return execOK
	}
	total := 0
	for _, f := range execFaults {
		total += f.weight
	}
	for at := rng.IntN(total); ; at = rng.IntN(total) {
		for _, f := range execFaults {
			if at -= f.weight; at < 0 {
				if f.only == "" || f.only == transport {
					return f
				}
				break // of another transport: once more
			}
		}
	}
}

// work is one client that makes calls one after the other, and takes back some.
func (x *execRun) work(r *rig, worker, calls int) {
	rng := rand.New(rand.NewPCG(x.seed, uint64(worker)))
	c := r.session("http")
	r.p.Handle(c.s, parsed(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`), &execCall{over: make(chan struct{})})
	ups, toolNames := []string{"pipe", "web", "wary"}, sortedKeys(execTools)
	refused := false
	for n := range calls {
		if time.Sleep(upTo(rng, 50*time.Millisecond)); rng.IntN(20) == 0 || refused { // bursts, and no hammering
			time.Sleep(upTo(rng, 2*time.Minute))
		}
		call := &execCall{up: ups[rng.IntN(len(ups))], tool: toolNames[rng.IntN(len(toolNames))], id: fmt.Sprintf("%d-%d", worker, n), over: make(chan struct{})}
		x.mu.Lock()
		x.calls[call.id] = call
		x.mu.Unlock()
		args := fmt.Sprintf(`{"id":%q}`, call.id)
		if call.tool == "cached" { // the same calls again and again
			args = fmt.Sprintf(`{"id":"%d"}`, rng.IntN(4))
		}
		r.p.Handle(c.s, parsed(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s__%s","arguments":%s,"_meta":{"test/call":%q}}}`,
			n, call.up, call.tool, args, call.id)), call)
		if rng.IntN(20) == 0 {
			time.Sleep(upTo(rng, 100*time.Millisecond))
			x.takeBack(r, c, call, n, rng.IntN(2) == 0)
		}
		select {
		case <-call.over:
		case <-time.After(time.Hour):
			x.t.Errorf("%s has no outcome", execKey(call.up, call.tool, call.id))
		}
		x.mu.Lock()
		refused = len(call.answers) > 0 && x.claim(call) == "no"
		x.mu.Unlock()
		r.forget()
		c.forget()
	}
}

// takeBack is the client giving up on a call: it says so, or closes the stream.
func (x *execRun) takeBack(r *rig, c *testClient, call *execCall, id int, closes bool) {
	call.mu.Lock()
	call.cancelled = true
	leave := call.leave
	call.mu.Unlock()
	if closes && leave != nil {
		leave()
		return
	}
	r.p.Handle(c.s, parsed(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id)), nil)
}

// forget drops what the client has received.
func (c *testClient) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = nil
}

func parsed(body string) wire.Message {
	m, err := wire.Parse([]byte(body))
	if err != nil {
		panic(err)
	}
	return m
}

// claim is what an answer says of the execution: yes, no or maybe. An error of
// the upstream's own speaks for the last attempt alone.
func (x *execRun) claim(c *execCall) string {
	if s := c.told("executed"); s != "" {
		return s
	}
	switch string(wire.Get(wire.Get([]byte(c.answers[0]), "error"), "code")) {
	case "": // a result as the upstream gave it
		return "yes"
	case "-32600", "-32601", "-32602", "-32002", "-32042":
		if x.tries[execKey(c.up, c.tool, c.id)] <= 1 {
			return "no"
		}
	}
	return "maybe"
}

// told is a member of what AgentArmor says of the call, "" if it says nothing.
func (c *execCall) told(key string) string {
	result := wire.Get([]byte(c.answers[0]), "result")
	s, _ := wire.String(wire.Get(wire.Get(wire.Get(result, "_meta"), "agentarmor/call"), key))
	return s
}

// check holds every call against what the upstreams have recorded.
func (x *execRun) check() {
	for key, n := range x.runs {
		part := strings.Split(key, "/")
		if n > 1 && !execRepeatable(part[0], part[1]) {
			x.t.Errorf("%s was executed %d times", key, n)
		}
	}
	for _, c := range x.calls {
		key := execKey(c.up, c.tool, c.id)
		switch {
		case len(c.answers)+c.drops != 1, c.drops == 1 && !c.cancelled:
			x.t.Errorf("%s: %d answers, %d times dropped, cancelled: %v", key, len(c.answers), c.drops, c.cancelled)
			continue
		case c.drops == 1:
			continue
		}
		n, instead := x.runs[key], x.runs[execKey(c.up, "backup", c.id)]
		if c.tool == "backed" && (n+instead > 1 || c.told("answered_from") == "tool" && instead != 1) {
			x.t.Errorf("%s was executed %d times, its fallback %d times:\n%s", key, n, instead, c.answers[0])
		}
		switch claim := x.claim(c); {
		case claim == "no" && n == 0, claim == "yes" && n == 1, claim == "maybe" && x.tries[key]+x.tries[execKey(c.up, "backup", c.id)] > 0:
		case claim == "yes" && n > 1 && execRepeatable(c.up, c.tool):
		default:
			x.t.Errorf("%s was executed %d times in %d attempts, and its answer says %q:\n%s", key, n, x.tries[key], claim, c.answers[0])
		}
	}
}

// report logs what happened and fails if too little did to prove anything.
func (x *execRun) report() {
	claims, told := map[string]int{}, map[string]int{}
	for _, c := range x.calls {
		if c.drops > 0 {
			claims["dropped"]++
		} else if len(c.answers) > 0 {
			claims[x.claim(c)]++
			told[c.told("outcome")]++
			told["from "+c.told("answered_from")]++
		}
	}
	retried := 0
	for _, n := range x.tries {
		if n > 1 {
			retried++
		}
	}
	x.t.Logf("%d calls, %d retried: %v; %v; attempts: %v", len(x.calls), retried, claims, told, x.faults)
	if len(x.calls) < 10_000 {
		return
	}
	for _, f := range append(slices.Clone(execFaults), execOK) {
		if x.faults[f.name] == 0 {
			x.t.Errorf("no attempt ended as %s", f.name)
		}
	}
	if claims["yes"] < 50 || claims["no"] < 50 || claims["maybe"] < 50 || claims["dropped"] < 50 || retried < 50 {
		x.t.Errorf("too little of something: %v, %d retried", claims, retried)
	}
	for _, what := range []string{"open", "timeout", "throttled", "auth", "from tool", "from cached", "from result", "from cache"} {
		if told[what] < 5 {
			x.t.Errorf("only %d calls ended as %s", told[what], what)
		}
	}
}
