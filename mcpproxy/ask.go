package mcpproxy

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// ask is one request of an upstream (sampling, elicitation, roots) on its way
// to the client whose call caused it, and the answer's way back.
type ask struct {
	conn   *conn
	raw    []byte // the upstream's own id
	token  []byte // its progress token, if it sent one
	call   *call  // nil when no call caused it
	id     string // ours towards the client
	once   sync.Once
	result func(m wire.Message) // instead of the way back to conn
}

// done gives the client's answer to the upstream, as it came.
func (a *ask) done(m wire.Message) {
	a.once.Do(func() {
		if a.call != nil {
			a.call.answeredAsk()
		}
		if a.result != nil {
			a.result(m)
			return
		}
		if m.Error != nil {
			a.conn.respond(wire.AppendErrorRaw(nil, a.raw, m.Error))
			return
		}
		a.conn.respond(wire.AppendResult(nil, a.raw, m.Result))
	})
}

// drop ends a without an answer.
func (a *ask) drop() {
	a.once.Do(func() {
		if a.call != nil {
			a.call.answeredAsk()
		}
	})
}

// refuse answers the upstream that its request leads nowhere.
func (a *ask) refuse(why string) {
	a.done(wire.Message{Error: errorObject(wire.CodeMethodNotFound, "AgentArmor: "+why)})
}

// needs names the client capability a server request takes; a visit to a URL
// takes its member url too.
var needs = map[string]string{
	createMessageMethod:  "sampling",
	"elicitation/create": "elicitation",
	"roots/list":         "roots",
}

// supports tells whether a client with caps can be asked. An elicitation
// capability that names no mode means forms (2025-11-25, client/elicitation).
func supports(caps []byte, method string, params []byte) bool {
	if mode, _ := wire.String(wire.Get(params, "mode")); mode == "url" && method == "elicitation/create" {
		return declared(caps, "elicitation", "url")
	}
	return needs[method] != "" && declared(caps, needs[method])
}

// asked routes a request of an upstream to the client whose call caused it, the
// call on whose stream it came or the only one that can have caused it, or to
// the chain in its place.
func (p *Proxy) asked(c *conn, m wire.Message, via uint64) {
	a := &ask{conn: c, raw: m.ID}
	need, ok := needs[m.Method]
	if !ok {
		a.refuse("method not supported: " + m.Method)
		return
	}
	cl, k, why := p.causer(c, via)
	if cl == nil && m.Method == "roots/list" && c.onlyLegacyCalls() {
		p.commonRoots(a)
		return
	}
	sampler := c.in.up.sampler
	if cl == nil {
		if sampler.answersAll(c, m, via) {
			p.sample(p.ctx, a, m.Params)
			return
		}
		a.refuse(m.Method + " refused: " + why)
		return
	}
	a.call = k
	caps := cl.capabilities()
	if k != nil && k.request().modern {
		caps = k.request().hop.caps
	}
	switch {
	case m.Method == createMessageMethod && c.in.o.cfg.Sampling == "refuse":
		a.call = nil
		a.refuse("sampling is refused by the configuration")
	case sampler.answers(caps, m.Method, m.Params):
		ctx := p.ctx
		if k != nil {
			if _, ok = k.askStarted(); !ok {
				a.call = nil
				a.refuse(callEnded)
				return
			}
			ctx = k.lifetime()
		}
		p.sample(ctx, a, m.Params)
	case !supports(caps, m.Method, m.Params):
		a.call = nil
		a.refuse("the client that caused this call does not support " + need)
	case k != nil && k.request().modern && k.request().instead != nil:
		a.call = nil
		a.refuse("a tool that stands in for another cannot ask for input")
	case k != nil && k.request().modern:
		k.askByRetry(a, m)
	default:
		var st wire.Stream
		if k != nil {
			if st, ok = k.askStarted(); !ok {
				a.call = nil
				a.refuse(callEnded)
				return
			}
		}
		if cl.ask(a, m.Method, m.Params, st) != nil {
			a.refuse("the client takes no more requests")
		}
	}
}

// causer finds the client, and where it can be told the call, behind a message of an
// upstream that names neither. With several candidates it finds none: a
// request must not reach the wrong user.
func (p *Proxy) causer(c *conn, via uint64) (cl *client, k *call, why string) {
	if k, ok := c.lookup(via).(*call); ok {
		return k.request().c, k, ""
	}
	var calls []*call
	if via == 0 { // else it came with a request of ours, or a call that has ended
		calls = c.routed()
	}
	if len(calls) == 0 {
		if owner := c.in.owner; owner != nil {
			return owner, nil, ""
		}
		if all := p.legacyClients(); len(all) == 1 && p.cfg.OneClient {
			return all[0], nil, ""
		}
		return nil, nil, "no call of a client is under way that can have caused it"
	}
	first := calls[0].request()
	for _, other := range calls[1:] {
		if r := other.request(); r.c != first.c || r.modern || first.modern {
			return nil, nil, severalCauses
		}
	}
	if c.in.owner == nil && c.haunted(first.c) {
		return nil, nil, severalCauses
	}
	return first.c, calls[len(calls)-1], ""
}

const (
	severalCauses = "calls of several clients can have caused it and nothing tells which one did"
	callEnded     = "the call that caused this request has ended"
)

// onlyLegacyCalls tells whether everybody whom c serves now can be asked for roots.
func (c *conn) onlyLegacyCalls() bool {
	return c.in.owner == nil && !slices.ContainsFunc(c.routed(), func(k *call) bool { return k.request().modern })
}

// ghostLife is how long a server may still ask on behalf of a call that we gave up.
const ghostLife = 30 * time.Second

// ghosts remembers the clients whose calls a server was told to give up, but
// may not have: what it asks next can be theirs.
type ghosts struct {
	mu   sync.Mutex
	last map[*client]time.Time
}

// abandoned notes that a call of cl was given up.
func (c *conn) abandoned(cl *client) {
	c.ghosts.mu.Lock()
	defer c.ghosts.mu.Unlock()
	if c.ghosts.last == nil {
		c.ghosts.last = map[*client]time.Time{}
	}
	maps.DeleteFunc(c.ghosts.last, func(_ *client, at time.Time) bool { return time.Since(at) > ghostLife })
	c.ghosts.last[cl] = time.Now()
}

// haunted tells whether a call that was given up for another client than cl
// may still run.
func (c *conn) haunted(cl *client) bool {
	c.ghosts.mu.Lock()
	defer c.ghosts.mu.Unlock()
	for other, at := range c.ghosts.last {
		if other != cl && time.Since(at) <= ghostLife {
			return true
		}
	}
	return false
}

// legacyClients returns the clients that a server may send requests to.
func (p *Proxy) legacyClients() []*client {
	var out []*client
	for _, c := range p.allClients() {
		c.mu.Lock()
		if c.version != "" {
			out = append(out, c)
		}
		c.mu.Unlock()
	}
	return out
}

// rootsWait bounds how long one client may keep the roots of all from a server.
const rootsWait = 30 * time.Second

// commonRoots answers roots/list of a shared upstream with what all clients
// have in common: never one client's folders to another's server.
func (p *Proxy) commonRoots(a *ask) {
	clients := p.legacyClients()
	if len(clients) == 0 {
		a.refuse("roots/list refused: no client is connected that has roots")
		return
	}
	answers := make(chan []byte, len(clients))
	for _, c := range clients {
		one := &ask{conn: a.conn, result: func(m wire.Message) { answers <- wire.Get(m.Result, "roots") }}
		if !declared(c.capabilities(), "roots") || c.ask(one, "roots/list", []byte(`{}`), nil) != nil {
			answers <- nil
		}
	}
	p.work.Go(func() {
		defer wire.OnPanic()
		var common map[string][]byte
		late := time.After(rootsWait)
		for range clients {
			var roots []byte
			select {
			case roots = <-answers:
			case <-late:
				a.refuse("roots/list refused: not every client tells its roots")
				return
			case <-p.ctx.Done():
				return
			}
			common = intersect(common, roots)
		}
		a.done(wire.Message{Result: append(append([]byte(`{"roots":`), joinRoots(common)...), '}')})
	})
}

// intersect keeps of have the roots whose uri is also in the raw array roots;
// a nil have is everything.
func intersect(have map[string][]byte, roots []byte) map[string][]byte {
	out := map[string][]byte{}
	if roots == nil {
		return out
	}
	for root := range wire.Elements(roots) {
		uri, ok := wire.String(wire.Get(root, "uri"))
		if !ok {
			continue
		}
		if first, ok := have[uri]; ok || have == nil {
			out[uri] = root
			if ok {
				out[uri] = first
			}
		}
	}
	return out
}

func joinRoots(roots map[string][]byte) []byte {
	out := []byte{'['}
	for _, uri := range sortedKeys(roots) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, roots[uri]...)
	}
	return append(out, ']')
}

// rootsChanged tells the upstreams a client's calls can reach that its roots changed.
func (p *Proxy) rootsChanged(c *client, m wire.Message) {
	for _, up := range p.ups() {
		for _, in := range up.instances() {
			if conn := in.live(); conn != nil && !conn.modern && in.serves(c) {
				conn.notify(m.Method, m.Params)
			}
		}
	}
}

// request is the client request the call serves now.
func (k *call) request() *request {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.r
}

// askStarted pauses the budget while a person or model is asked, and returns the stream
// that the question belongs to; false when the call has ended.
func (k *call) askStarted() (wire.Stream, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.done {
		return nil, false
	}
	k.questions()
	k.giveWay() // a person may take minutes
	k.asking++
	k.budget.pause()
	return k.r.st, true
}

func (k *call) answeredAsk() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.asking--; k.asking <= 0 && !k.done {
		k.asking = 0
		if k.parked == nil || !k.parked.waiting() {
			k.budget.resume()
		}
	}
}

// dropAsks ends the questions caused by a call that ended: for the client, and
// for who waits for its answer.
func (p *Proxy) dropAsks(k *call) {
	c := k.request().c
	c.mu.Lock()
	var void []*ask
	for id, a := range c.asks {
		if a.call == k {
			void = append(void, a)
			delete(c.asks, id)
		}
	}
	c.mu.Unlock()
	for _, a := range void {
		c.cancelAsk(a, "the call that caused this request has ended")
		a.refuse(callEnded)
	}
}

func (c *client) cancelAsk(a *ask, reason string) {
	params := cancelledParams(wire.AppendString(nil, a.id), reason)
	_ = c.s.Send(wire.AppendNotification(nil, "notifications/cancelled", params), false) // best effort
}

// withdrawn handles notifications/cancelled of an upstream for a request it sent.
func (p *Proxy) withdrawn(c *conn, m wire.Message) {
	id := wire.Get(m.Params, "requestId")
	if id == nil {
		return
	}
	raw := string(id)
	for _, k := range c.routed() {
		k.withdrawn(id)
	}
	c.in.up.sampler.drop(func(a *ask) bool { return a.conn == c && a.result == nil && string(a.raw) == raw })
	for _, cl := range p.allClients() {
		cl.mu.Lock()
		var found *ask
		for id, a := range cl.asks {
			if a.conn == c && string(a.raw) == raw {
				found = a
				delete(cl.asks, id)
				break
			}
		}
		cl.mu.Unlock()
		if found != nil {
			found.drop()
			reason, _ := wire.String(wire.Get(m.Params, "reason"))
			cl.cancelAsk(found, reason)
			return
		}
	}
}
