package mcpproxy

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// Multi round-trip requests (2026-07-28, basic/patterns/mrtr). A legacy server
// asks in the middle of a call and waits; a modern one ends the call with
// input_required and is called again. Both are mapped onto each other here.
const (
	parkBatch = 25 * time.Millisecond // questions of a server within this time go out together
	parkLife  = 5 * time.Minute       // for the client to come back
	parkMax   = 64                    // parked calls of one principal
	roundsMax = 16                    // input_required rounds of one call for a legacy client
)

// parked is a call of a modern client that waits at a legacy upstream for
// input. The call's lock guards it.
type parked struct {
	asked   int        // questions so far
	pending []question // asked of the client, not answered
	batch   *time.Timer
	life    *time.Timer
	token   string // id of the requestState the client holds; "" while the call runs
	final   func() // gives the outcome, come while the client was away
}

// question is one request of the upstream and the key the client knows it by.
type question struct {
	key string
	ask *ask
	raw []byte // {"method":…,"params":…}
}

// parking is the table of parked calls by token.
type parking struct {
	mu    sync.Mutex
	calls map[string]*call
	key   []byte // of the HMACs; random per process
}

func newParking() *parking {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return &parking{calls: map[string]*call{}, key: key}
}

// waiting tells whether the client holds a requestState. The call's lock is held.
func (d *parked) waiting() bool { return d.token != "" }

// askByRetry collects a server request for a client that answers by retrying
// its request; what comes within parkBatch is asked at once.
func (k *call) askByRetry(a *ask, m wire.Message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a.call = nil // its budget is paused by the parking
	if k.done {
		k.p.work.Go(func() {
			defer wire.OnPanic()
			a.refuse(callEnded)
		})
		return
	}
	if k.parked == nil {
		k.parked = &parked{}
	}
	d := k.parked
	k.questions()
	d.asked++
	raw := append([]byte(`{"method":`), wire.AppendString(nil, m.Method)...)
	if m.Params != nil {
		raw = append(append(raw, `,"params":`...), m.Params...)
	}
	d.pending = append(d.pending, question{key: "a" + strconv.Itoa(d.asked), ask: a, raw: append(raw, '}')})
	if d.batch == nil && !d.waiting() {
		d.batch = time.AfterFunc(parkBatch, k.park)
	}
}

// park ends the client's request with input_required and keeps the upstream's.
func (k *call) park() {
	defer wire.OnPanic()
	k.mu.Lock()
	d := k.parked
	d.batch = nil
	if k.done || d.waiting() || len(d.pending) == 0 {
		k.mu.Unlock()
		return
	}
	token, ok := k.p.parking.put(k)
	if !ok {
		k.mu.Unlock()
		k.stopUpstream("too many calls wait for input")
		k.giveUp(health.Cancelled, "too many calls of this client wait for input", time.Time{})
		return
	}
	d.token = token
	k.budget.pause()
	d.life = time.AfterFunc(parkLife, k.abandon)
	k.giveWay() // a person may take minutes
	r := k.r
	state := "v1." + token + "." + k.p.parking.sign(token, r, k.conn.gen)
	result := k.p.inputRequiredResult(d.pending, state)
	r.c.remove(k)
	k.mu.Unlock()
	r.answer(result)
}

// inputRequiredResult asks a modern client; state "" is left out.
func (p *Proxy) inputRequiredResult(questions []question, state string) []byte {
	out := []byte(`{"resultType":"input_required","inputRequests":{`)
	for i, q := range questions {
		if i > 0 {
			out = append(out, ',')
		}
		out = wire.AppendString(out, q.key)
		out = append(append(out, ':'), q.raw...)
	}
	out = append(out, '}')
	if state != "" {
		out = wire.AppendString(append(out, `,"requestState":`...), state)
	}
	out = append(out, `,"_meta":{"`+wire.MetaPrefix+`serverInfo":`...)
	out = append(out, p.info...)
	return append(out, "}}"...)
}

// visitURLs answers a modern client where a legacy server ended the call with
// -32042, "URL elicitation required", a code of 2025-11-25 only: the URLs are
// asked as input, and the retry calls anew.
func (k *call) visitURLs(object []byte) []byte {
	r := k.r
	var questions []question
	for params := range wire.Elements(wire.Get(wire.Get(object, "data"), "elicitations")) {
		if params[0] != '{' {
			continue
		}
		raw := append([]byte(`{"method":"elicitation/create","params":`), params...)
		questions = append(questions, question{key: "a" + strconv.Itoa(len(questions)+1), raw: append(raw, '}')})
	}
	if len(questions) == 0 || !declared(r.hop.caps, "elicitation", "url") {
		return wire.AppendError(nil, r.id, wire.CodeInvalidParams,
			"AgentArmor: the server asks for a visit to a URL first (URL elicitation), which this client does not support", wire.Get(object, "data"))
	}
	return wire.AppendResult(nil, r.id, k.p.inputRequiredResult(questions, ""))
}

// abandon gives up on a client that did not come back: the upstream is told.
func (k *call) abandon() {
	defer wire.OnPanic()
	k.mu.Lock()
	d := k.parked
	mine := d.waiting() && k.p.parking.take(d.token, k) && k.endLocked()
	if mine {
		d.life.Stop()
	}
	k.mu.Unlock()
	if mine {
		k.settle(health.Cancelled, 0, "")
		k.ended(k.account(health.Cancelled, "", time.Time{}))
		k.stopUpstream("the client did not bring the input asked for")
	}
}

// abandonAll gives up the parked calls of c, of everybody when c is nil.
func (g *parking) abandonAll(c *client) {
	g.mu.Lock()
	var calls []*call
	for _, k := range g.calls {
		if c == nil || k.r.c == c {
			calls = append(calls, k)
		}
	}
	g.mu.Unlock()
	for _, k := range calls {
		k.abandon()
	}
}

// withdrawn forgets a question that the upstream no longer asks.
func (k *call) withdrawn(raw []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.parked != nil {
		k.parked.pending = slices.DeleteFunc(k.parked.pending, func(q question) bool { return bytes.Equal(q.ask.raw, raw) })
	}
}

// finish ends the call with an outcome; true means that the caller is to give
// it now. While the client is away to bring input, the outcome is kept for it.
func (k *call) finish(outcome func()) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if d := k.parked; d != nil && !k.done {
		if d.waiting() {
			if d.final == nil {
				d.final = outcome
			}
			return false
		}
		d.pending = nil // the server gave up its questions: there is nothing to park for
	}
	return k.endLocked()
}

// put parks k under a fresh token; false when its principal has too many.
func (g *parking) put(k *call) (string, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, other := range g.calls {
		if other.r.c.s.Principal == k.r.c.s.Principal {
			n++
		}
	}
	if n >= parkMax {
		return "", false
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	token := hex.EncodeToString(id[:])
	g.calls[token] = k
	return token, true
}

// take removes the token, which is good for one use.
func (g *parking) take(token string, k *call) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls[token] != k {
		return false
	}
	delete(g.calls, token)
	return true
}

// sign binds a state to its principal, request and upstream generation.
func (g *parking) sign(token string, r *request, gen uint64) string {
	mac := hmac.New(sha256.New, g.key)
	var size [8]byte
	for _, part := range [][]byte{[]byte(token), []byte(r.c.s.Principal), []byte(r.method), r.name, r.uri, r.args} {
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		mac.Write(size[:])
		mac.Write(part)
	}
	binary.BigEndian.PutUint64(size[:], gen)
	mac.Write(size[:])
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

const badState = "requestState is not valid for this request: it is unknown, expired, used or changed. Send the request anew without it"

// resume hands the client's input to a parked call. It tells whether r was a
// retry of one and has been dealt with.
func (p *Proxy) resume(r *request) bool {
	state, ok := wire.String(r.state)
	rest, mine := strings.CutPrefix(state, "v1.")
	if !ok || !mine {
		return false
	}
	token, mac, _ := strings.Cut(rest, ".")
	p.parking.mu.Lock()
	k := p.parking.calls[token]
	p.parking.mu.Unlock()
	if k == nil {
		r.fail(wire.CodeInvalidParams, badState, nil)
		return true
	}
	k.mu.Lock()
	gen := k.conn.gen
	k.mu.Unlock()
	if !hmac.Equal([]byte(mac), []byte(p.parking.sign(token, r, gen))) || !p.parking.take(token, k) {
		r.fail(wire.CodeInvalidParams, badState, nil)
		return true
	}
	k.resume(r)
	return true
}

// resume continues the call on behalf of r, the client's retry.
func (k *call) resume(r *request) {
	k.mu.Lock()
	d := k.parked
	d.life.Stop()
	d.token = ""
	if k.done {
		k.mu.Unlock()
		r.fail(wire.CodeInvalidParams, badState, nil)
		return
	}
	k.r = r
	if !r.c.add(k) {
		k.endLocked()
		k.mu.Unlock()
		r.fail(wire.CodeInvalidRequest, "request id "+string(r.id)+" is already in use", nil)
		k.settle(health.Cancelled, 0, "")
		k.ended(k.account(health.Cancelled, "", time.Time{}))
		k.stopUpstream("duplicate request id")
		return
	}
	if k.asking == 0 {
		k.budget.resume()
	}
	final := d.final
	var answered []question
	var with [][]byte
	d.pending = slices.DeleteFunc(d.pending, func(q question) bool {
		response := wire.Get(r.responses, q.key)
		if len(response) == 0 || response[0] != '{' {
			return false
		}
		answered, with = append(answered, q), append(with, response)
		return true
	})
	if len(d.pending) > 0 && final == nil { // what is missing is asked again
		d.batch = time.AfterFunc(parkBatch, k.park)
	}
	k.mu.Unlock()
	r.st.OnLeave(func() { k.left(r) })
	if final != nil {
		final()
		return
	}
	for i, q := range answered {
		q.ask.done(wire.Message{Result: with[i]})
	}
}

// inputRequired takes the input_required of a modern upstream: a modern client
// gets it with the state bound to it, a legacy one is asked request by request.
// What the chain answers is asked of neither.
func (k *call) inputRequired(m wire.Message) {
	requests := wire.Get(m.Result, "inputRequests")
	if k.r.modern && !k.samples(requests) {
		k.handOn(m, nil)
		return
	}
	k.mu.Lock()
	k.rounds++
	tooMany := k.rounds > roundsMax
	k.extra = []wire.Edit{{Key: "requestState", Value: wire.Get(m.Result, "requestState")}}
	k.mu.Unlock()
	if tooMany {
		k.giveUp(health.Malformed, "the server asks for input without end", time.Time{})
		return
	}
	k.p.work.Go(func() { k.gather(k.lifetime(), m, requests) })
}

// handOn gives a modern client what its upstream asks for, but for what has
// been sampled already: that waits in the state.
func (k *call) handOn(m wire.Message, sampled []byte) {
	k.settle(health.OK, 0, "")
	if !k.end() {
		return
	}
	k.ended(k.account(health.OK, "", time.Time{}))
	result := m.Result
	state := wire.Get(result, "requestState")
	if sampled != nil {
		var answered []wire.Edit
		for key := range wire.Members(sampled) {
			answered = append(answered, wire.Edit{Key: key})
		}
		m.Result = wire.Rewrite(nil, result,
			wire.Edit{Key: "inputRequests", Value: wire.Rewrite(nil, wire.Get(result, "inputRequests"), answered...)},
			wire.Edit{Key: "requestState", Value: k.p.wrapSampled(k, state, sampled)})
	} else if state != nil {
		m.Result = wire.Rewrite(nil, result, wire.Edit{Key: "requestState", Value: k.p.wrapState(k, state)})
	}
	_ = k.r.st.Answer(k.response(m), m.More) // a client that left needs no answer
}

// samples tells whether the chain answers any of the raw inputRequests.
func (k *call) samples(requests []byte) bool {
	for _, req := range wire.Members(requests) {
		method, _ := wire.String(wire.Get(req, "method"))
		if k.up.sampler.answers(k.r.capabilities(), method, wire.Get(req, "params")) {
			return true
		}
	}
	return false
}

// gather asks the chain or a legacy client for each input and calls the
// upstream again, or a modern client for what is missing.
func (k *call) gather(ctx context.Context, m wire.Message, requests []byte) {
	defer wire.OnPanic()
	type reply struct {
		key string
		m   wire.Message
	}
	n, missing := 0, false
	replies := make(chan reply, 64)
	if requests != nil {
		caps := k.r.capabilities()
		for key, req := range wire.Members(requests) {
			if n == cap(replies) {
				break
			}
			method, _ := wire.String(wire.Get(req, "method"))
			params := wire.Get(req, "params")
			byChain := k.up.sampler.answers(caps, method, params)
			if k.r.modern && !byChain {
				missing = true
				continue
			}
			n++
			a := &ask{conn: k.conn, call: k, result: func(m wire.Message) { replies <- reply{key, m} }}
			st, ok := k.askStarted()
			switch {
			case !ok:
				return
			case byChain:
				k.p.sample(ctx, a, params)
			case !supports(caps, method, params):
				a.refuse("the client does not support " + method)
			case k.r.c.ask(a, method, params, st) != nil:
				a.refuse("the client takes no more requests")
			}
		}
	}
	responses := []byte{'{'}
	for range n {
		var got reply
		select {
		case got = <-replies:
		case <-ctx.Done():
			k.giveUp(health.Lost, "AgentArmor ends", time.Time{})
			k.p.dropAsks(k)
			return
		}
		if got.m.Error != nil { // the client declined: that is the call's answer
			k.settle(health.OK, 0, "")
			if k.end() {
				k.ended(k.account(health.OK, "", time.Time{}))
				_ = k.r.st.Answer(wire.AppendErrorRaw(nil, k.r.id, got.m.Error), false) // the client may have left
				k.p.dropAsks(k)
			}
			return
		}
		if len(responses) > 1 {
			responses = append(responses, ',')
		}
		responses = wire.AppendString(responses, got.key)
		responses = append(append(responses, ':'), got.m.Result...)
	}
	responses = append(responses, '}')
	if missing {
		k.handOn(m, responses)
		return
	}
	k.mu.Lock()
	if n == 0 {
		responses = nil
	}
	k.extra = append(k.extra, wire.Edit{Key: "inputResponses", Value: responses})
	in := k.in
	k.mu.Unlock()
	if conn := in.live(); conn != nil {
		k.send(conn)
		return
	}
	k.sendWhenReady()
}
