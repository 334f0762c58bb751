package mcpproxy

import (
	"context"
	"sync"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// call is one request on its way to an upstream and back. It is the waiter of
// its upstream request; a retry of ours or of the client gives it a new one.
type call struct {
	p *Proxy
	r *request // the client's request; replaced when a parked call is resumed
	target

	mu      sync.Mutex
	in      *instance
	conn    *conn
	id      uint64 // upstream's, on conn
	done    bool
	stopped bool // the upstream was told that nobody waits
	budget  budget
	lostOK  bool    // a lost session may still be renewed once
	asking  int     // requests of the upstream that wait for the client
	parked  *parked // set once the call has asked a modern client for input
	extra   []wire.Edit
	rounds  int             // input_required rounds answered for a legacy client
	ctx     context.Context // of what waits on the call's behalf; nil: nothing did
	leave   context.CancelFunc
}

// target is where a request goes: an upstream, and the member of params that
// holds a name or URI, as the client and as the upstream spells it.
type target struct {
	up        *upstream
	key       string // name, uri, or "" when params need no change
	name      string
	raw       []byte // name in the upstream's own JSON spelling
	asClients string
	params    []paramHeader // of a tool: x-mcp-header
}

// forward sends r to the upstream of t.
func (p *Proxy) forward(r *request, t target) {
	if t.up == nil { // removed by a reload this very moment
		r.fail(wire.CodeInvalidParams, "unknown "+t.key+": "+t.asClients, nil)
		return
	}
	if r.state != nil && r.modern {
		state, ok := p.unwrapState(r, t.up)
		if !ok {
			return
		}
		r.state = state
	}
	k := &call{p: p, r: r, target: t, lostOK: true}
	if !r.c.add(k) {
		r.fail(wire.CodeInvalidRequest, "request id "+string(r.id)+" is already in use", nil)
		return
	}
	in, err := p.instanceFor(r.c, k.up)
	k.in = in
	if err != nil {
		k.unavailable(health.Open, err.Error(), time.Time{})
		return
	}
	k.mu.Lock()
	if !k.done { // the client may have left already
		k.budget.start(k.timeout(), k.up.cfg.maxCallTime(), k.expire)
	}
	k.mu.Unlock()
	r.st.OnLeave(func() { k.left(r) })
	if conn := in.live(); conn != nil {
		k.send(conn)
		return
	}
	p.work.Go(k.sendWhenReady)
}

// timeout is the tool's own, else the upstream's.
func (k *call) timeout() time.Duration {
	if k.r.method == "tools/call" {
		if t := k.up.cfg.Tools[k.name].CallTimeout; t > 0 {
			return t
		}
	}
	return k.up.cfg.callTimeout()
}

// left cancels the call if r is still the request it serves.
func (k *call) left(r *request) {
	k.mu.Lock()
	mine := k.r == r
	k.mu.Unlock()
	if mine {
		k.cancel("the client closed the stream")
	}
}

// lifetime ends with the call, or with the endpoint.
func (k *call) lifetime() context.Context {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx == nil {
		k.ctx, k.leave = context.WithCancel(k.p.ctx)
		if k.done {
			k.leave()
		}
	}
	return k.ctx
}

// sendWhenReady waits for the upstream, as long as the budget and its schedule allow.
func (k *call) sendWhenReady() {
	defer wire.OnPanic()
	conn, err := k.in.await(k.lifetime())
	if err != nil {
		k.unavailable(health.NotSent, err.Error(), retryAt(err))
		return
	}
	k.send(conn)
}

// send puts the request on conn.
func (k *call) send(conn *conn) {
	k.mu.Lock()
	if k.done {
		k.mu.Unlock()
		return
	}
	k.conn = conn
	k.id = conn.begin(k)
	out := k.outgoing(conn, k.id)
	asksLevel := k.r.hop.logLevel != nil && !conn.modern
	k.mu.Unlock()
	if asksLevel {
		k.asksLevel()
	}
	if err := conn.send(out); err != nil {
		k.failed(err)
		return
	}
	k.mu.Lock()
	stopped := k.stopped
	k.mu.Unlock()
	if stopped { // maybe before the request was on its way
		conn.cancel(out.ID, "the call has ended")
	}
}

// outgoing writes the request as the upstream of conn wants it: its own name,
// our id and progress token, and the hop's _meta.
func (k *call) outgoing(conn *conn, id uint64) wire.Outgoing {
	r := k.r
	params := r.params
	if params == nil {
		params = []byte(`{}`)
	}
	edits := make([]wire.Edit, 0, 6)
	if k.key != "" && k.asClients != k.name {
		edits = append(edits, wire.Edit{Key: k.key, Value: k.raw})
	}
	edits = append(edits, wire.Edit{Key: "_meta", Value: k.meta(conn, id)})
	if r.modern {
		if k.parked != nil || !conn.modern {
			edits = append(edits, wire.Edit{Key: "requestState"}, wire.Edit{Key: "inputResponses"})
		} else if r.state != nil {
			edits = append(edits, wire.Edit{Key: "requestState", Value: r.state})
		}
	}
	edits = append(edits, k.extra...)
	body := wire.Buffer(len(params) + 512)
	body = append(body, `{"jsonrpc":"2.0","id":`...)
	body = wire.AppendID(body, id)
	body = append(body, `,"method":"`...)
	body = append(body, r.method...)
	body = append(body, `","params":`...)
	body = wire.Rewrite(body, params, edits...)
	body = append(body, '}')
	out := wire.Outgoing{ID: id, Body: body, Method: r.method, More: r.more}
	if conn.modern && k.key != "" {
		out.Name = k.name
		if r.method == "tools/call" {
			out.Headers = paramHeaders(k.params, r.args)
		}
	}
	return out
}

// meta rewrites the hop's own keys of _meta and keeps all others.
func (k *call) meta(conn *conn, id uint64) []byte {
	r := k.r
	edits := make([]wire.Edit, 0, 5)
	edits = append(edits, wire.Edit{Key: "progressToken", Value: wire.AppendToken(nil, id)})
	switch {
	case conn.modern:
		caps, info, level := r.hop.caps, r.hop.clientInfo, r.hop.logLevel
		if !r.modern {
			r.c.mu.Lock()
			caps = r.c.caps
			if r.c.level >= 0 {
				level = wire.AppendString(nil, levels[r.c.level])
			}
			r.c.mu.Unlock()
		}
		if caps == nil {
			caps = []byte(`{}`)
		}
		if info == nil {
			info = k.p.info
		}
		edits = append(edits,
			wire.Edit{Key: wire.MetaPrefix + "protocolVersion", Value: wire.AppendString(nil, conn.version)},
			wire.Edit{Key: wire.MetaPrefix + "clientInfo", Value: info},
			wire.Edit{Key: wire.MetaPrefix + "clientCapabilities", Value: caps})
		if level != nil {
			edits = append(edits, wire.Edit{Key: wire.MetaPrefix + "logLevel", Value: level})
		}
	case r.modern:
		edits = append(edits,
			wire.Edit{Key: wire.MetaPrefix + "protocolVersion"},
			wire.Edit{Key: wire.MetaPrefix + "clientInfo"},
			wire.Edit{Key: wire.MetaPrefix + "clientCapabilities"},
			wire.Edit{Key: wire.MetaPrefix + "logLevel"})
	}
	meta := r.meta
	if len(meta) == 0 || meta[0] != '{' {
		meta = []byte(`{}`)
	}
	return wire.Rewrite(nil, meta, edits...)
}

// end marks the call done; only the first caller gets true.
func (k *call) end() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.endLocked()
}

func (k *call) endLocked() bool {
	if k.done {
		return false
	}
	k.done = true
	k.budget.stop()
	if k.leave != nil {
		k.leave()
	}
	k.r.c.remove(k)
	return true
}

// answered implements waiter.
func (k *call) answered(m wire.Message) {
	if m.Result != nil && k.conn.modern {
		if t, _ := wire.String(wire.Get(m.Result, "resultType")); t == "input_required" {
			k.inputRequired(m)
			return
		}
	}
	if !k.finish(func() { k.answered(m) }) {
		return
	}
	k.p.observe(k, m)
	_ = k.r.st.Answer(k.response(m), m.More) // a client that left needs no answer
}

// response is the upstream's answer as the client of the call gets it.
func (k *call) response(m wire.Message) []byte {
	r := k.r
	if m.Error != nil {
		if r.modern && !k.conn.modern && string(wire.Get(m.Error, "code")) == "-32042" {
			return k.visitURLs(m.Error)
		}
		return wire.AppendErrorRaw(nil, r.id, k.errorFor(m.Error))
	}
	result := m.Result
	if r.modern || k.conn.modern {
		result = k.resultFor(result)
	}
	return wire.AppendResult(wire.Buffer(len(result)+len(r.id)+40), r.id, result)
}

// errorFor keeps an error as it came, but for the code that the client's
// revision must not see: -32002 became -32602 (2026-07-28, server/resources).
func (k *call) errorFor(raw []byte) []byte {
	if k.r.modern && !k.conn.modern && string(wire.Get(raw, "code")) == "-32002" {
		return wire.Rewrite(nil, raw, wire.Edit{Key: "code", Value: []byte("-32602")})
	}
	return raw
}

// resultFor adds what the 2026-07-28 revision requires of a result to one of
// an older server, and keeps the hop's own _meta keys on their hop.
func (k *call) resultFor(result []byte) []byte {
	const server = wire.MetaPrefix + "serverInfo"
	var edits []wire.Edit
	meta := wire.Get(result, "_meta")
	switch {
	case k.r.modern:
		if meta == nil {
			meta = []byte(`{}`)
		}
		edits = append(edits, wire.Edit{Key: "_meta", Value: wire.Rewrite(nil, meta, wire.Edit{Key: server, Value: k.p.info})})
		if wire.Get(result, "resultType") == nil {
			edits = append(edits, wire.Edit{Key: "resultType", Value: []byte(`"complete"`)})
		}
		if k.r.method == "resources/read" && !k.conn.modern {
			edits = append(edits, wire.Edit{Key: "ttlMs", Value: []byte("0")}, wire.Edit{Key: "cacheScope", Value: []byte(`"private"`)})
		}
	case wire.Get(meta, server) != nil:
		meta = wire.Rewrite(nil, meta, wire.Edit{Key: server})
		if string(meta) == "{}" {
			meta = nil
		}
		edits = append(edits, wire.Edit{Key: "_meta", Value: meta})
	}
	if edits == nil {
		return result
	}
	return wire.Rewrite(make([]byte, 0, len(result)+200), result, edits...)
}

// failed implements waiter: there is no answer from the upstream.
func (k *call) failed(err *wire.Error) {
	if err.Kind == wire.SessionLost && k.renewable() {
		k.p.work.Go(k.renew)
		return
	}
	k.in.suspect(k.conn, err)
	class := health.Classify(evidence(err))
	k.unavailable(class, k.in.secrets.mask(err.Error()), k.in.nextAttempt())
}

// renewable tells, once, that a lost session is worth a second try.
func (k *call) renewable() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	ok := k.lostOK && !k.done
	k.lostOK = false
	return ok
}

func (k *call) renew() {
	defer wire.OnPanic()
	conn, err := k.in.renew(k.conn)
	if err != nil {
		k.unavailable(health.Lost, err.Error(), retryAt(err))
		return
	}
	k.send(conn)
}

// evidence maps what a transport says to what health classifies.
func evidence(err *wire.Error) health.Evidence {
	e := health.Evidence{Status: err.Status}
	switch err.Kind {
	case wire.NotSent:
		e.Kind = health.FailNotSent
	case wire.SessionLost:
		e.Kind = health.FailSessionLost
	case wire.HTTPStatus:
		e.Kind = health.FailHTTPStatus
	case wire.Malformed, wire.TooLarge:
		e.Kind = health.FailMalformed
	default:
		e.Kind = health.FailLost
	}
	return e
}

// cancel ends the call because its client no longer wants it: no answer is
// sent, and the upstream is told under its own id.
func (k *call) cancel(reason string) {
	if !k.end() {
		return
	}
	k.stopUpstream(reason)
	k.r.st.Drop()
}

// stopUpstream tells the upstream that nobody waits any more. Legacy servers and
// every stdio one get a notification; modern HTTP sees its stream closed.
func (k *call) stopUpstream(reason string) {
	k.mu.Lock()
	conn, id, c := k.conn, k.id, k.r.c
	k.stopped = true
	var void []question
	if k.parked != nil {
		void, k.parked.pending = k.parked.pending, nil
	}
	k.mu.Unlock()
	if conn != nil && conn.forget(id) {
		conn.abandoned(c)
		conn.cancel(id, reason)
	}
	for _, q := range void {
		q.ask.refuse(callEnded)
	}
	k.p.dropAsks(k)
}

// expire ends the call when its budget is spent.
func (k *call) expire() {
	defer wire.OnPanic()
	k.mu.Lock()
	spent, sent := k.budget.spent(), k.conn != nil
	k.mu.Unlock()
	if !sent {
		k.unavailable(health.NotSent, "it is not ready after "+spent.String(), k.in.nextAttempt())
		return
	}
	k.stopUpstream("timeout after " + spent.String())
	k.unavailable(health.Timeout, "timeout after "+spent.String(), time.Time{})
}

// progress passes a progress notification on under the client's own token,
// byte for byte, and extends the budget.
func (k *call) progress(m wire.Message) {
	k.mu.Lock()
	k.budget.extend()
	st, token, done := k.r.st, k.r.hop.progressToken, k.done || k.parked != nil && k.parked.waiting()
	k.mu.Unlock()
	if token == nil || done {
		return
	}
	params := wire.Rewrite(make([]byte, 0, len(m.Params)+len(token)), m.Params, wire.Edit{Key: "progressToken", Value: token})
	_ = st.Send(wire.AppendNotification(nil, m.Method, params), m.More) // a slow client loses progress, not the answer
}
