package mcpproxy

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// waiter waits for the answer to one request. Exactly one of its methods is
// called, once and never under a lock, unless [conn.forget] returned true or
// [conn.send] an error. Neither may block.
type waiter interface {
	answered(m wire.Message)
	failed(err *wire.Error)
}

// conn is one connection of an instance: a process, or a session with an HTTP
// server. It is safe for concurrent use and never comes back once gone.
type conn struct {
	in        *instance
	gen       uint64 // unique in this process
	transport string // "stdio", "http" or "sse"
	started   time.Time
	peer      wire.Peer
	attached  atomic.Bool // peer is set

	// Set by the handshake, before hooks and callers see the conn.
	modern       bool
	version      string
	capabilities []byte // the server's, a raw JSON object
	server       json.RawMessage
	instructions string

	opened atomic.Bool // the handshake is over: messages go out as they come

	mu      sync.Mutex
	waiters map[uint64]waiter
	gone    bool
	early   []earlyMessage // what came before opened
	drained chan struct{}  // closed when the last waiter has left; nil unless draining

	done    chan struct{} // closed when the connection is gone
	err     error         // why, readable after done
	trouble chan *wire.Error
	probed  chan error   // outcomes of probes, for watch
	missed  atomic.Int32 // probes in a row that failed
	heard   atomic.Int64 // when the server last said anything, Unix nanoseconds …
	used    atomic.Int64 // … and when it last answered a client's call
	expire  func()       // closes expired: the server forgot the session
	expired chan struct{}
	lists   *lister
	work    sync.WaitGroup // of what runs beside the calls
	listen  atomic.Uint64  // id of the open subscriptions/listen, 0 if none
	ghosts  ghosts
}

// lastGen numbers the connections of this process.
var lastGen atomic.Uint64

var (
	errGone        = errors.New("the connection is gone")
	errListenEnded = errors.New("the server has ended the subscription")
)

func newConn(in *instance, transport string) *conn {
	c := &conn{
		in:        in,
		gen:       lastGen.Add(1),
		transport: transport,
		started:   time.Now(),
		waiters:   map[uint64]waiter{},
		done:      make(chan struct{}),
		trouble:   make(chan *wire.Error, 4),
		probed:    make(chan error),
		expired:   make(chan struct{}),
	}
	c.expire = sync.OnceFunc(func() { close(c.expired) })
	c.lists = newLister(c)
	return c
}

// begin registers w under a fresh id, which stands as "a<id>" in the message
// that [conn.send] must follow with.
func (c *conn) begin(w waiter) uint64 {
	id := c.in.ids.Add(1)
	c.mu.Lock()
	c.waiters[id] = w
	c.mu.Unlock()
	return id
}

// send queues one message as it is. After an error the waiter of o.ID is
// forgotten and not called: the error is its answer.
func (c *conn) send(o wire.Outgoing) *wire.Error {
	err := c.trySend(o)
	// A waiter that has left its place was told already, by the end of the
	// connection.
	if err == nil || (o.ID != 0 && !c.forget(o.ID)) {
		return nil
	}
	return err
}

func (c *conn) trySend(o wire.Outgoing) *wire.Error {
	c.mu.Lock()
	gone := c.gone
	c.mu.Unlock()
	if gone {
		return &wire.Error{Kind: wire.NotSent, Err: errGone}
	}
	err := c.peer.Send(o)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e
	}
	return &wire.Error{Kind: wire.NotSent, Err: err}
}

func (c *conn) lastHeard() time.Time { return time.Unix(0, c.heard.Load()) }
func (c *conn) lastUsed() time.Time  { return time.Unix(0, c.used.Load()) }

// forget gives up on a request; true means that its waiter was pending and
// will not be called.
func (c *conn) forget(id uint64) bool { return c.take(id) != nil }

// cancel gives up on a request that was sent and tells the server, in the way
// of the transport and generation. Its waiter is not called any more.
func (c *conn) cancel(id uint64, reason string) {
	c.forget(id)
	c.peer.Cancel(id)
	// For modern HTTP the closed response stream is the signal (2026-07-28,
	// cancellation, "Transport-Specific Cancellation").
	if c.modern && c.transport != "stdio" {
		return
	}
	c.notify("notifications/cancelled", cancelledParams(wire.AppendID(nil, id), reason))
}

// cancelledParams are those of notifications/cancelled for the raw id.
func cancelledParams(id []byte, reason string) []byte {
	params := append([]byte(`{"requestId":`), id...)
	params = wire.AppendString(append(params, `,"reason":`...), reason)
	return append(params, '}')
}

// pending is the number of requests without an answer.
func (c *conn) pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiters)
}

// lookup returns the waiter of a request under way, nil if there is none.
func (c *conn) lookup(id uint64) waiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiters[id]
}

// routed returns the calls of clients under way, oldest first.
func (c *conn) routed() []*call {
	c.mu.Lock()
	defer c.mu.Unlock()
	var calls []*call
	for _, id := range slices.Sorted(maps.Keys(c.waiters)) {
		if k, ok := c.waiters[id].(*call); ok {
			calls = append(calls, k)
		}
	}
	return calls
}

// respond sends our answer to a request of the server; a connection that is
// gone needs none.
func (c *conn) respond(raw []byte) {
	_ = c.send(wire.Outgoing{Body: raw})
}

// call sends a request of our own and waits for its response, which may be an
// error response. The error is a *wire.Error or the cause of ctx; then the
// server is told that the request is cancelled. params is a JSON object
// without _meta, or nil.
func (c *conn) call(ctx context.Context, method string, params []byte) (wire.Message, error) {
	w := make(callWaiter, 1)
	id := c.begin(w)
	if err := c.send(wire.Outgoing{ID: id, Method: method, Body: c.request(id, method, params)}); err != nil {
		return wire.Message{}, err
	}
	select {
	case a := <-w:
		return a.result()
	case <-ctx.Done():
	}
	i := c.hit(id)
	if !c.forget(id) {
		return (<-w).result()
	}
	if ctx.Err() == context.DeadlineExceeded {
		c.in.blameLate(i)
	}
	if method == "initialize" || method == "server/discover" {
		// initialize must not be cancelled, and a legacy server does not expect
		// a notification before it.
		c.peer.Cancel(id)
	} else {
		c.cancel(id, "timeout")
	}
	return wire.Message{}, context.Cause(ctx)
}

// notify sends a notification of our own. That it may not arrive is noticed
// elsewhere.
func (c *conn) notify(method string, params []byte) {
	_ = c.send(wire.Outgoing{Method: method, Body: wire.AppendNotification(nil, method, params)})
}

// request is the whole message of a request of our own.
func (c *conn) request(id uint64, method string, params []byte) []byte {
	if c.modern {
		params = withMeta(params, c.in.hopMeta)
	}
	return wire.AppendRequest(make([]byte, 0, 256+len(params)), wire.AppendID(nil, id), method, params)
}

// withMeta puts _meta in front of the members of params.
func withMeta(params, meta []byte) []byte {
	b := append([]byte(`{"_meta":`), meta...)
	if len(params) <= len("{}") {
		return append(b, '}')
	}
	return append(append(b, ','), params[1:]...)
}

// callWaiter is the waiter of [conn.call].
type callWaiter chan callAnswer

type callAnswer struct {
	m   wire.Message
	err *wire.Error
}

var _ waiter = callWaiter(nil)

func (w callWaiter) answered(m wire.Message) { w <- callAnswer{m: m} }
func (w callWaiter) failed(err *wire.Error)  { w <- callAnswer{err: err} }

func (a callAnswer) result() (wire.Message, error) {
	if a.err != nil {
		return wire.Message{}, a.err
	}
	return a.m, nil
}
