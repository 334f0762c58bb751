package mcpproxy

import (
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// The methods here are called by the peer, some of them concurrently, and must
// not block.

type earlyMessage struct {
	m   wire.Message
	via uint64
}

// maxEarly bounds what a server may say before its handshake is over.
const maxEarly = 256

// attach gives the conn its peer, which may have spoken already.
func (c *conn) attach(p wire.Peer) {
	c.peer = p
	c.attached.Store(true)
}

// answer hands the response to its waiter. A late one has none.
func (c *conn) answer(id uint64, m wire.Message) {
	now := time.Now().UnixNano()
	c.heard.Store(now)
	w := c.take(id)
	if w == nil {
		return
	}
	if _, ok := w.(*call); ok {
		c.used.Store(now)
	}
	w.answered(m)
}

// failed tells the waiter that there will be no response.
func (c *conn) failed(id uint64, err *wire.Error) {
	if w := c.take(id); w != nil {
		w.failed(err)
	}
}

// take removes a waiter; who gets it tells it the outcome.
func (c *conn) take(id uint64) waiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.waiters[id]
	delete(c.waiters, id)
	if c.drained != nil && len(c.waiters) == 0 {
		close(c.drained)
		c.drained = nil
	}
	return w
}

// drain returns a channel that is closed when no request is under way.
func (c *conn) drain() <-chan struct{} {
	drained := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiters) == 0 {
		close(drained)
	} else {
		c.drained = drained
	}
	return drained
}

// message takes a notification or request of the server. A ping is answered at
// once; the rest waits until the handshake is over.
func (c *conn) message(m wire.Message, via uint64) {
	c.heard.Store(time.Now().UnixNano())
	if m.Method == "ping" && m.IsRequest() && c.attached.Load() {
		c.pong(m)
		return
	}
	if c.opened.Load() || !c.hold(m, via) {
		c.deliver(m, via)
	}
}

// hold keeps a message for open; false when the handshake is over.
func (c *conn) hold(m wire.Message, via uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opened.Load() {
		return false
	}
	if len(c.early) < maxEarly {
		c.early = append(c.early, earlyMessage{m, via})
	}
	return true
}

// open lets messages through, first those that came before.
func (c *conn) open() {
	for {
		c.mu.Lock()
		early := c.early
		c.early = nil
		if len(early) == 0 {
			c.opened.Store(true)
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		for _, e := range early {
			c.deliver(e.m, e.via)
		}
	}
}

// deliver keeps what concerns the instance and hands on the rest.
func (c *conn) deliver(m wire.Message, via uint64) {
	switch {
	case m.Method == "ping" && m.IsRequest():
		c.pong(m)
	case m.IsNotification() && c.lists.changed(m.Method):
	case m.Method == "notifications/subscriptions/acknowledged" && c.modern:
	case m.Method == "notifications/cancelled" && c.modern && c.ourListen(m):
		c.failed(c.listen.Load(), &wire.Error{Kind: wire.Lost, Err: errListenEnded})
	default:
		c.in.o.hooks.message(c, m, via)
	}
}

// ourListen tells whether m cancels our subscriptions/listen, which is how a
// server ends one over stdio.
func (c *conn) ourListen(m wire.Message) bool {
	id, ok := wire.ParseID(wire.Get(m.Params, "requestId"))
	return ok && id != 0 && id == c.listen.Load()
}

func (c *conn) pong(m wire.Message) { c.respond(wire.AppendResult(nil, m.ID, []byte("{}"))) }

// died is the end that the peer itself has noticed.
func (c *conn) died(err error) {
	c.err = err
	c.fail(&wire.Error{Kind: wire.Lost, Err: endOf(c)})
	close(c.done)
}

// fail makes the conn unusable and fails whoever still waits.
func (c *conn) fail(err *wire.Error) {
	c.mu.Lock()
	c.gone = true
	waiters := c.waiters
	c.waiters = map[uint64]waiter{}
	if c.drained != nil {
		close(c.drained)
		c.drained = nil
	}
	c.mu.Unlock()
	for _, w := range waiters {
		w.failed(err)
	}
}
