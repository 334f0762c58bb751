package mcpproxy

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// chaosPeer is a connection to an upstream with the faults that chaos injects.
// What it tells its owner is what the transport would tell of the real failure,
// and every error of its making wraps a *chaos.Injected.
//
// Over stdio and HTTP+SSE a connection is one stream: what breaks it fails every
// request under way. Streamable HTTP has one for each request.
type chaosPeer struct {
	in        *instance
	inj       *chaos.Injector
	target    string
	transport string
	ev        wire.Events
	inner     wire.Peer
	ctx       context.Context // ends with Close
	stop      context.CancelFunc
	work      sync.WaitGroup

	mu      sync.Mutex
	struck  map[uint64]*struck // requests that a fault has hit, until their end
	cause   *chaos.Injected    // the fault that ends the connection
	severed bool               // the owner was told of the end
	closed  bool
	version string // "" until the handshake is over
}

// struck is a request that a fault has hit.
type struck struct {
	o    wire.Outgoing
	d    chaos.Decision
	ctx  context.Context // ends when nobody waits for it any more
	stop context.CancelFunc
	mute bool // its answer is lost with the connection

	cancelled bool
}

var _ wire.Peer = (*chaosPeer)(nil)

// process is a Peer whose server is a process of ours.
type process interface{ Kill() }

var errNoStart = errors.New("it cannot be started")

// withChaos returns the dial of an instance with the faults of its upstream.
func (p *Proxy) withChaos(in *instance) dialer {
	inj, dial := p.cfg.Chaos, in.dial
	if !inj.Enabled() {
		return dial
	}
	return func(ctx context.Context, transport string, ev wire.Events) (wire.Peer, error) {
		c := &chaosPeer{in: in, inj: inj, target: chaos.Server(in.o.cfg.Name), transport: transport, ev: ev, struck: map[uint64]*struck{}}
		if d := inj.Decide(chaos.Call{Target: c.target, Op: chaos.Connect}); d.Action == chaos.Refuse {
			c.blame(d.Cause)
			err := chaos.ErrRefused
			if transport == "stdio" {
				err = errNoStart
			}
			return nil, &wire.Error{Kind: wire.NotSent, Err: d.Cause.Wrap(err)}
		}
		c.ctx, c.stop = context.WithCancel(context.Background())
		inner, err := dial(ctx, transport, wire.Events{Answer: c.answer, Message: c.message, Failed: c.failed, Closed: c.ended, Trouble: ev.Trouble})
		if err != nil {
			c.stop()
			c.blame(nil)
			return nil, err
		}
		c.mu.Lock()
		c.inner = inner
		c.mu.Unlock()
		return c, nil
	}
}

// dialer is how an instance is connected.
type dialer = func(ctx context.Context, transport string, ev wire.Events) (wire.Peer, error)

// Send implements [wire.Peer].
func (c *chaosPeer) Send(o wire.Outgoing) error {
	if o.ID == 0 || !c.inj.Any() {
		return c.inner.Send(o)
	}
	d := c.inj.Decide(c.call(o))
	if d.Cause == nil {
		return c.inner.Send(o)
	}
	s := &struck{o: o, d: d}
	s.ctx, s.stop = context.WithCancel(c.ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.severed {
		s.stop()
		return &wire.Error{Kind: wire.NotSent, Err: d.Cause.Wrap(errGone)}
	}
	c.struck[o.ID] = s
	c.work.Go(func() {
		defer wire.OnPanic()
		if s.d.Wait(s.ctx) == nil {
			c.strike(s)
		}
	})
	return nil
}

// call is what the faults are asked about.
func (c *chaosPeer) call(o wire.Outgoing) chaos.Call {
	call := chaos.Call{Target: c.target}
	switch o.Method {
	case "tools/list":
		call.Op = chaos.ToolList
	case "tools/call":
		call.Op, call.Tool = chaos.ToolCall, o.Name
		if o.Name == "" { // only modern servers are told it beside the message
			if m, err := wire.Parse(o.Body); err == nil {
				call.Tool, _ = wire.String(wire.Get(m.Params, "name"))
			}
		}
	}
	return call
}

// strike does to a request, after its wait, what happens before there is an answer.
func (c *chaosPeer) strike(s *struck) {
	switch d := &s.d; d.Action {
	case chaos.Answer:
		c.refuse(s)
	case chaos.FailTool:
		result := append([]byte(`{"content":[{"type":"text","text":`), wire.AppendString(nil, d.Text)...)
		result = append(result, `}],"isError":true`...)
		if c.modern() {
			result = append(result, `,"resultType":"complete"`...)
		}
		c.reply(s, wire.Message{ID: wire.AppendID(nil, s.o.ID), Result: append(result, '}')})
	case chaos.Die, chaos.Refuse:
		switch {
		case c.process() != nil:
			c.mu.Lock()
			s.mute = true
			c.mu.Unlock()
			c.forward(s)
			c.sever(d.Cause)
		case d.Action == chaos.Refuse || !c.established():
			c.lose(s, wire.Error{Kind: wire.NotSent, Err: chaos.ErrRefused})
		default:
			c.sever(d.Cause)
		}
	default:
		c.forward(s)
	}
}

// refuse answers instead of the server.
func (c *chaosPeer) refuse(s *struck) {
	d := &s.d
	if c.transport == "stdio" { // which has no status
		data := fmt.Appendf(nil, `{"status":%d,"injected":%q`, d.Status, d.Cause.ID)
		if d.RetryAfter > 0 {
			data = fmt.Appendf(data, `,"retry_after_ms":%d`, d.RetryAfter.Milliseconds())
		}
		problem := wire.AppendString(fmt.Appendf(nil, `{"code":%d,"message":`, wire.CodeInternal), d.Text)
		c.reply(s, wire.Message{ID: wire.AppendID(nil, s.o.ID), Error: fmt.Appendf(problem, `,"data":%s}}`, data)})
		return
	}
	e := wire.Error{Kind: wire.HTTPStatus, Status: d.Status, RetryAfter: min(d.RetryAfter, wire.MaxRetryAfter), Err: fmt.Errorf("HTTP status %d", d.Status)}
	if d.Status == 404 && c.transport == "http" && c.established() && !c.modern() {
		e.Kind = wire.SessionLost
	}
	c.lose(s, e)
}

// forward sends a request to the server.
func (c *chaosPeer) forward(s *struck) {
	if !c.pending(s) {
		return
	}
	err := c.inner.Send(s.o)
	if err == nil {
		c.mu.Lock()
		cancelled := s.cancelled
		c.mu.Unlock()
		if cancelled { // perhaps before it was sent
			c.inner.Cancel(s.o.ID)
		}
		return
	}
	if e, ok := errors.AsType[*wire.Error](err); ok {
		c.lose(s, *e)
	} else {
		c.lose(s, wire.Error{Kind: wire.NotSent, Err: err})
	}
}

// answer takes the response of the server.
func (c *chaosPeer) answer(id uint64, m wire.Message) {
	c.mu.Lock()
	s, mute := c.struck[id], c.severed
	if s != nil {
		mute = mute || s.mute
	}
	c.mu.Unlock()
	switch {
	case mute:
	case s == nil:
		if class, _ := classOf(m); class == health.ToolError { // an RPC error may be no failure
			c.blame(nil)
		}
		c.ev.Answer(id, m)
	case s.d.Action == chaos.Break && c.transport == "http":
		c.lose(s, wire.Error{Kind: wire.Lost, Err: chaos.ErrReset})
	case s.d.Action == chaos.Break:
		c.mu.Lock()
		s.mute = true
		c.mu.Unlock()
		c.sever(s.d.Cause)
	case s.d.Action == chaos.Garble:
		c.garble(s, m)
	case s.d.Action == chaos.Transform && m.Result != nil:
		m.Result = s.d.Change(m.Result)
		c.reply(s, m)
	default:
		c.reply(s, m)
	}
}

// garble spoils the bytes of an answer, but it is known whose it is.
func (c *chaosPeer) garble(s *struck, m wire.Message) {
	raw := wire.AppendErrorRaw(nil, m.ID, m.Error)
	if m.Error == nil {
		raw = wire.AppendResult(nil, m.ID, m.Result)
	}
	_, err := wire.Parse(s.d.Change(raw))
	c.lose(s, wire.Error{Kind: wire.Malformed, Err: fmt.Errorf("unreadable answer: %w", err)})
}

func (c *chaosPeer) message(m wire.Message, via uint64) {
	c.mu.Lock()
	severed := c.severed
	c.mu.Unlock()
	if !severed {
		c.ev.Message(m, via)
	}
}

// failed takes the failure of a request that was sent.
func (c *chaosPeer) failed(id uint64, err *wire.Error) {
	c.mu.Lock()
	s, cause, severed := c.struck[id], c.cause, c.severed
	c.mu.Unlock()
	switch {
	case severed:
	case s != nil:
		c.lose(s, *err)
	case cause != nil:
		c.blame(cause)
		c.ev.Failed(id, marked(*err, cause))
	default:
		c.blame(nil)
		c.ev.Failed(id, err)
	}
}

// reply gives the owner an answer, during which fault knows of the request.
func (c *chaosPeer) reply(s *struck, m wire.Message) {
	if c.pending(s) {
		if class, _ := classOf(m); class != health.OK {
			c.blame(s.d.Cause)
		}
		c.ev.Answer(s.o.ID, m)
		c.drop(s)
	}
}

// lose tells the owner that there will be no answer.
func (c *chaosPeer) lose(s *struck, e wire.Error) {
	if c.pending(s) {
		c.drop(s)
		c.blame(s.d.Cause)
		c.ev.Failed(s.o.ID, marked(e, s.d.Cause))
	}
}

// marked is a failure as made by chaos.
func marked(e wire.Error, cause *chaos.Injected) *wire.Error {
	text := e.Err
	if text == nil {
		text = errors.New(e.Error())
	}
	e.Err = cause.Wrap(text)
	return &e
}

// pending tells whether the owner still waits for a request.
func (c *chaosPeer) pending(s *struck) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.severed && c.struck[s.o.ID] == s
}

func (c *chaosPeer) drop(s *struck) {
	s.stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.struck[s.o.ID] == s {
		delete(c.struck, s.o.ID)
	}
}

// sever ends the connection: our process is killed, and its end is told by
// itself; of any other the owner hears at once that it broke.
func (c *chaosPeer) sever(cause *chaos.Injected) {
	c.mu.Lock()
	first := c.cause == nil
	if first {
		c.cause = cause
	}
	c.mu.Unlock()
	if !first {
		return
	}
	if p := c.process(); p != nil {
		p.Kill()
		return
	}
	c.blame(cause)
	c.end(&wire.Error{Kind: wire.Lost, Err: cause.Wrap(chaos.ErrReset)})
}

// ended takes the end that the connection has noticed itself.
func (c *chaosPeer) ended(err error) {
	c.mu.Lock()
	cause, closed := c.cause, c.closed
	c.mu.Unlock()
	if !closed {
		c.blame(cause)
	}
	if cause != nil {
		err = cause.Wrap(err)
	}
	c.end(err)
}

// end tells the owner, once, who fails all that still waits.
func (c *chaosPeer) end(err error) {
	c.mu.Lock()
	first := !c.severed && !c.closed
	c.severed = true
	c.mu.Unlock()
	c.stop()
	if first {
		c.ev.Closed(err)
	}
}

// blame notes the fault that has made a request fail, nil if that is a failure of
// its own. A fault that has but delayed a request is not to blame for its failure.
func (c *chaosPeer) blame(cause *chaos.Injected) { c.in.blame(failing(cause)) }

// fault is what has hit a request under way, nil if nothing did.
func (c *chaosPeer) fault(id uint64) *chaos.Injected {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.struck[id]; s != nil {
		return s.d.Cause
	}
	return nil
}

// process is what can be killed, nil if the server is not ours.
func (c *chaosPeer) process() process {
	if c.transport != "stdio" {
		return nil
	}
	p, _ := c.inner.(process)
	return p
}

func (c *chaosPeer) established() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version != ""
}

func (c *chaosPeer) modern() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version == wire.Modern
}

// Cancel implements [wire.Peer].
func (c *chaosPeer) Cancel(id uint64) {
	c.mu.Lock()
	if s := c.struck[id]; s != nil {
		s.stop()
		s.cancelled = true
		delete(c.struck, id)
	}
	c.mu.Unlock()
	c.inner.Cancel(id)
}

// SetVersion implements [wire.Peer].
func (c *chaosPeer) SetVersion(v string) {
	c.mu.Lock()
	c.version = v
	c.mu.Unlock()
	c.inner.SetVersion(v)
}

// Ready implements [wire.Peer].
func (c *chaosPeer) Ready() { c.inner.Ready() }

// Stats implements [wire.Peer].
func (c *chaosPeer) Stats() wire.PeerStats { return c.inner.Stats() }

// Close implements [wire.Peer]: what waits for a fault to end is given up.
func (c *chaosPeer) Close(ctx context.Context) {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	c.inner.Close(ctx)
	c.work.Wait()
}
