package mcpproxy

import (
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
	k       *call
	pending []question // asked of the client, not answered
	batch   *time.Timer
	life    *time.Timer
	token   string        // id of the requestState the client holds; "" while the call runs
	final   *wire.Message // the upstream's answer, come while the client was away
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
	if k.done {
		a.call = nil
		k.p.work.Go(func() { a.refuse("the call has ended") })
		return
	}
	if k.parked == nil {
		k.parked = &parked{k: k}
	}
	d := k.parked
	a.call = nil // its budget is paused by the parking
	raw := append([]byte(`{"method":`), wire.AppendString(nil, m.Method)...)
	if m.Params != nil {
		raw = append(append(raw, `,"params":`...), m.Params...)
	}
	d.pending = append(d.pending, question{key: "a" + strconv.Itoa(k.rounds+1), ask: a, raw: append(raw, '}')})
	k.rounds++
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
		k.unavailable(health.Open, "too many calls of this client wait for input", time.Time{})
		return
	}
	d.token = token
	k.budget.pause()
	d.life = time.AfterFunc(parkLife, k.abandon)
	r := k.r
	state := "v1." + token + "." + k.p.parking.sign(token, r, k.conn.gen)
	k.mu.Unlock()
	r.c.remove(r.id)
	r.answer(k.inputRequiredResult(state))
}

func (k *call) inputRequiredResult(state string) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := []byte(`{"resultType":"input_required","inputRequests":{`)
	for i, q := range k.parked.pending {
		if i > 0 {
			out = append(out, ',')
		}
		out = wire.AppendString(out, q.key)
		out = append(append(out, ':'), q.raw...)
	}
	out = append(out, `},"requestState":`...)
	out = wire.AppendString(out, state)
	out = append(out, `,"_meta":{"`+wire.MetaPrefix+`serverInfo":`...)
	out = append(out, k.p.serverInfo...)
	return append(out, "}}"...)
}

// abandon gives up on a client that did not come back: the upstream is told.
func (k *call) abandon() {
	defer wire.OnPanic()
	k.mu.Lock()
	token := k.parked.token
	k.mu.Unlock()
	if token == "" || !k.p.parking.take(token, k) {
		return
	}
	if k.end() {
		k.stopUpstream("the client did not bring the input asked for")
	}
}

// hold keeps the answer of the upstream until the client comes back for it.
func (k *call) hold(m wire.Message) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	d := k.parked
	if d == nil {
		return false
	}
	if d.batch != nil { // the server gave up its question at once
		d.batch.Stop()
		d.batch = nil
	}
	if !d.waiting() || k.done {
		return false
	}
	d.final = &m
	return true
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
	k.budget.resume()
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
	if !r.c.add(k) {
		r.fail(wire.CodeInvalidRequest, "request id "+string(r.id)+" is already in use", nil)
		k.mu.Lock()
		k.done = true
		k.mu.Unlock()
		k.stopUpstream("duplicate request id")
		return
	}
	r.st.OnLeave(func() { k.left(r) })
	if final != nil {
		k.answered(*final)
		return
	}
	for i, q := range answered {
		q.ask.done(wire.Message{Result: with[i]})
	}
}

// inputRequired takes the input_required of a modern upstream: a modern client
// gets it with the state bound to it, a legacy one is asked request by request.
func (k *call) inputRequired(m wire.Message) {
	if k.r.modern {
		if !k.end() {
			return
		}
		result := m.Result
		if state := wire.Get(result, "requestState"); state != nil {
			m.Result = wire.Rewrite(nil, result, wire.Edit{Key: "requestState", Value: k.p.wrapState(k, state)})
		}
		_ = k.r.st.Answer(k.response(m), m.More) // a client that left needs no answer
		return
	}
	requests := wire.Get(m.Result, "inputRequests")
	k.mu.Lock()
	k.rounds++
	tooMany := k.rounds > roundsMax
	k.extra = nil
	if state := wire.Get(m.Result, "requestState"); state != nil {
		k.extra = append(k.extra, wire.Edit{Key: "requestState", Value: state})
	}
	k.mu.Unlock()
	if tooMany {
		k.unavailable(health.Malformed, "the server asks for input without end", time.Time{})
		return
	}
	k.p.work.Go(func() { k.gather(requests) })
}

// gather asks a legacy client for each input and calls the upstream again.
func (k *call) gather(requests []byte) {
	defer wire.OnPanic()
	type reply struct {
		key string
		m   wire.Message
	}
	n := 0
	replies := make(chan reply, 64)
	if requests != nil {
		for key, req := range wire.Members(requests) {
			if n == cap(replies) {
				break
			}
			n++
			method, _ := wire.String(wire.Get(req, "method"))
			a := &ask{conn: k.conn, call: k, result: func(m wire.Message) { replies <- reply{key, m} }}
			st := k.askStarted()
			caps := k.r.c.capabilities()
			if needs[method] == "" || !has(caps, needs[method]) || k.r.c.ask(a, method, wire.Get(req, "params"), st) != nil {
				a.refuse("the client does not support " + method)
			}
		}
	}
	responses := []byte{'{'}
	for range n {
		var got reply
		select {
		case got = <-replies:
		case <-k.p.ctx.Done():
			return
		}
		if got.m.Error != nil { // the client declined: that is the call's answer
			if k.end() {
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
	k.mu.Lock()
	if n > 0 {
		k.extra = append(k.extra, wire.Edit{Key: "inputResponses", Value: append(responses, '}')})
	}
	in := k.in
	k.mu.Unlock()
	if conn := in.live(); conn != nil {
		k.send(conn)
		return
	}
	k.sendWhenReady()
}

// wrapState binds an upstream's requestState to the upstream and the principal;
// the payload stays as the upstream wrote it.
func (p *Proxy) wrapState(k *call, raw []byte) []byte {
	if len(raw) < 2 || raw[0] != '"' {
		return raw
	}
	name := base64.RawURLEncoding.EncodeToString([]byte(k.up.cfg.Name))
	payload := raw[1 : len(raw)-1]
	out := append([]byte(`"u1.`), name...)
	out = append(append(out, '.'), p.stateMAC(k.up.cfg.Name, k.r.c.s.Principal, payload)...)
	out = append(append(out, '.'), payload...)
	return append(out, '"')
}

// unwrapState gives a modern upstream its own state back. It answers r itself
// when the state belongs to a parked call or was tampered with.
func (p *Proxy) unwrapState(r *request, up *upstream) ([]byte, bool) {
	if p.resume(r) {
		return nil, false
	}
	if len(r.state) > 2 && r.state[0] == '"' {
		parts := strings.SplitN(string(r.state[1:len(r.state)-1]), ".", 4)
		if len(parts) == 4 && parts[0] == "u1" &&
			parts[1] == base64.RawURLEncoding.EncodeToString([]byte(up.cfg.Name)) &&
			hmac.Equal([]byte(parts[2]), []byte(p.stateMAC(up.cfg.Name, r.c.s.Principal, []byte(parts[3])))) {
			return []byte(`"` + parts[3] + `"`), true
		}
	}
	r.fail(wire.CodeInvalidParams, badState, nil)
	return nil, false
}

func (p *Proxy) stateMAC(upstream, principal string, payload []byte) string {
	mac := hmac.New(sha256.New, p.parking.key)
	mac.Write([]byte(upstream + "\x00" + principal + "\x00"))
	mac.Write(payload)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}
