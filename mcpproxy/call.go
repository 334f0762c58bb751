package mcpproxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/telemetry"
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

	// What the guard knows of it.
	start      time.Time
	tool       *toolGuard // nil: no tool call
	place      place      // the bulkhead's lock guards it
	answering  bool       // answered goes on with …
	follower   *call      // … the call that takes its place
	trying     bool       // an attempt is under way …
	permit     health.Permit
	began      time.Time
	sent       bool        // … and has been given to a connection
	tries      int         // attempts that were
	maybe      bool        // one of them may have been executed
	failure    lastFailure // of the last
	retries    int
	settled    bool              // its outcome ends the call
	spent      bool              // its time is over: no attempt begins any more
	later      *time.Timer       // until its turn, or the next attempt
	turn       *rate.Reservation // that it waits for
	questioned bool              // the upstream asked for input: nothing is made again
	fallback   *standIn
	injected   string          // the fault of chaos that last had a part in it; "": none
	cause      string          // the one that made the attempt under way fail; "": none
	span       *telemetry.Span // nil: traces are off
	attempt    *telemetry.Span // of the attempt under way
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
	entry     *entry        // of a tool or prompt; nil: not known
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
	k := &call{p: p, r: r, target: t, lostOK: true, start: time.Now()}
	if r.method == "tools/call" {
		k.tool = t.up.guard.tool(t.name)
	}
	k.trace()
	if r.instead == nil && !r.c.add(k) { // a step's id is not the client's
		k.span.End(health.Rejected.String(), health.Rejected.Executed(), "duplicate request id")
		r.fail(wire.CodeInvalidRequest, "request id "+string(r.id)+" is already in use", nil)
		return
	}
	in, err := p.instanceFor(r.c, k.up)
	k.in = in
	if err != nil {
		k.giveUp(health.Open, err.Error(), time.Time{})
		return
	}
	k.mu.Lock()
	if !k.done { // the client may have left already
		k.budget.start(k.timeout(), k.up.cfg.maxCallTime(), k.expire)
	}
	k.mu.Unlock()
	r.st.OnLeave(func() { k.left(r) })
	k.admit()
}

// timeout is the tool's own, else the upstream's.
func (k *call) timeout() time.Duration {
	if k.tool != nil && k.tool.cfg.CallTimeout > 0 {
		return k.tool.cfg.CallTimeout
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
		k.notReady(err)
		return
	}
	k.mu.Lock()
	under := k.sent // a further round of an attempt
	k.mu.Unlock()
	if under {
		k.send(conn)
		return
	}
	k.pass(conn)
}

// notReady ends an attempt that found no connection. It was none: nobody counts it.
func (k *call) notReady(err error) {
	class, at := health.NotSent, time.Time{}
	if u, ok := errors.AsType[*unavailable](err); ok {
		class, at = u.class(), u.retryAt
	}
	k.mark(k.in.blamed())
	k.mu.Lock()
	again := k.tries > 0 && time.Until(at) <= k.up.cfg.Retry.max()
	k.mu.Unlock()
	k.settle(class, 0, err.Error())
	// A call that was lost with its connection waits for the next one; one
	// that comes during an outage is told so at once.
	if (class == health.RateLimited || class == health.NotSent && again) && k.retry(class, at) {
		return
	}
	k.giveUp(class, err.Error(), at)
}

// send puts the request on conn.
func (k *call) send(conn *conn) {
	k.mu.Lock()
	if k.overLocked() || !k.trying { // given up while it waited
		k.mu.Unlock()
		return
	}
	if !k.sent {
		k.sent = true
		k.tries++
		k.attempt = k.span.Attempt(k.tries)
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
	if r.modern && k.extra == nil {
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
		if caps = k.up.sampler.declare(caps); caps == nil {
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
	return wire.Rewrite(nil, meta, k.traced(edits)...)
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
	k.stopWaitingLocked()
	if k.leave != nil {
		k.leave()
	}
	k.r.c.remove(k)
	if s := k.fallback; s != nil {
		k.p.work.Go(func() {
			defer wire.OnPanic()
			s.end()
		})
	}
	return true
}

// giveWay leaves the bulkhead to the next call. The call's lock is held.
func (k *call) giveWay() {
	next := k.up.guard.places.leave(k)
	switch {
	case next == nil:
	case k.answering:
		k.follower = next
	default:
		k.p.work.Go(func() {
			defer wire.OnPanic()
			next.try()
		})
	}
}

// failed implements waiter: there is no answer from the upstream.
func (k *call) failed(err *wire.Error) {
	if err.Kind == wire.SessionLost && k.renewable() {
		k.p.work.Go(k.renew)
		return
	}
	k.in.suspect(k.conn, err)
	k.struck(injectedBy(err), false)
	class := health.Classify(evidence(err))
	at := k.in.nextAttempt()
	if class == health.RateLimited || err.RetryAfter > 0 {
		at = later(at, time.Now().Add(throttleDelay(err)))
	}
	k.attemptFailed(class, k.in.secrets.mask(err.Error()), at)
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
		k.attemptFailed(health.SessionLost, err.Error(), retryAt(err))
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
	case wire.Malformed:
		e.Kind = health.FailMalformed
	case wire.TooLarge:
		e.Kind = health.FailTooLarge
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
	k.settle(health.Cancelled, 0, reason)
	k.ended(k.account(health.Cancelled, reason, time.Time{}))
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
	spent, trying, sent, settled, last := k.budget.spent(), k.trying, k.sent, k.settled, k.failure
	k.spent = true // what is told below of the execution stays true
	k.mu.Unlock()
	switch {
	case settled: // this very moment, by who gives the outcome
	case trying && sent:
		i := k.underWay()
		k.struck(i, true)
		k.in.blameLate(i)
		k.stopUpstream("timeout after " + spent.String())
		k.giveUp(health.Timeout, "timeout after "+spent.String(), time.Time{})
	case trying:
		k.mark(k.in.blamed())
		k.giveUp(health.NotSent, "it is not ready after "+spent.String(), k.in.nextAttempt())
	case last.reason != "": // between two attempts
		k.giveUp(last.class, last.reason, time.Time{})
	default:
		k.busy("no place was free within "+spent.String(), time.Second)
	}
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
