package mcpproxy

import (
	"context"
	"strconv"
	"sync"

	"github.com/agentarmor/agentarmor/mcpproxy/builtin"
	"github.com/agentarmor/agentarmor/mcpproxy/telemetry"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// ownCall is one call of an own tool, or one read of an own resource, that is
// under way.
type ownCall struct {
	r     *request
	ctx   context.Context // ends with the call, or with the endpoint
	leave context.CancelFunc

	mu   sync.Mutex
	done bool
}

// callOwn answers a call of an own tool or a read of an own resource.
func (p *Proxy) callOwn(r *request, name string) {
	params := r.params
	if r.method == "tools/call" {
		params = wire.Rewrite(nil, params, wire.Edit{Key: "name", Value: wire.AppendString(nil, name)})
	}
	o := &ownCall{r: r}
	o.ctx, o.leave = context.WithCancel(p.ctx)
	if !r.c.addOwn(o) {
		o.leave()
		r.fail(wire.CodeInvalidRequest, "request id "+string(r.id)+" is already in use", nil)
		return
	}
	r.st.OnLeave(o.cancel)
	p.work.Go(func() {
		defer wire.OnPanic()
		span := p.ownSpan(r, name)
		m := p.handle(o.telling(), r.method, params)
		class, _ := classOf(m)
		if fault, _ := wire.String(wire.Get(wire.Get(wire.Get(m.Result, "_meta"), "agentarmor/call"), "injected")); fault != "" {
			span.Injected(fault)
		}
		span.End(class.String(), class.Executed(), "")
		if m.Error != nil && r.modern && string(wire.Get(m.Error, "code")) == "-32002" {
			m.Error = wire.Rewrite(nil, m.Error, wire.Edit{Key: "code", Value: []byte("-32602")})
		}
		if o.end() {
			r.give(m)
		}
	})
}

// ownSpan begins the span of a call that asks models; looking at our own state
// is worth none.
func (p *Proxy) ownSpan(r *request, name string) *telemetry.Span {
	if p.cfg.Tracer == nil || r.method != "tools/call" || name != builtin.LLMComplete {
		return nil
	}
	parent, state := r.traceContext()
	return p.cfg.Tracer.Start(parent, state, r.method, "", name)
}

// telling is the context of the call, with a way to send progress if the
// client asked for it.
func (o *ownCall) telling() context.Context {
	token := o.r.hop.progressToken
	if token == nil {
		return o.ctx
	}
	n := 0
	return builtin.WithProgress(o.ctx, func(message string) {
		n++
		params := append(append([]byte(`{"progressToken":`), token...), `,"progress":`...)
		params = append(strconv.AppendInt(params, int64(n), 10), `,"message":`...)
		params = append(wire.AppendString(params, message), '}')
		_ = o.r.st.Send(wire.AppendNotification(nil, "notifications/progress", params), false) // a slow client loses progress, not the answer
	})
}

// cancel ends the call because its client no longer wants it: it gets no answer.
func (o *ownCall) cancel() {
	if o.end() {
		o.r.st.Drop()
	}
}

// end marks the call done; only the first caller gets true.
func (o *ownCall) end() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done {
		return false
	}
	o.done = true
	o.leave()
	o.r.c.removeOwn(o)
	return true
}

// addOwn registers a call under its client id; false: that id is under way already.
func (c *client) addOwn(o *ownCall) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.takenLocked(o.r.id) {
		return false
	}
	if c.own == nil {
		c.own = map[string]*ownCall{}
	}
	c.own[string(o.r.id)] = o
	return true
}

func (c *client) removeOwn(o *ownCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own[string(o.r.id)] == o {
		delete(c.own, string(o.r.id))
	}
}
