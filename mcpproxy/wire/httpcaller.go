package wire

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// notifyWait bounds how long one unanswered notification holds up the next.
const notifyWait = 30 * time.Second

var (
	errPeerClosed = errors.New("the connection is closed")
	errQueueFull  = errors.New("too many messages wait for the server")
	errDuplicate  = errors.New("a request with this id is under way")
)

// call is one POST under way.
type call struct {
	o       Outgoing
	header  http.Header
	session string // named in header, "" if none
	ctx     context.Context
	cancel  context.CancelFunc
	after   <-chan struct{} // wait for this before the POST
	gate    chan struct{}   // closed after the POST
	begun   atomic.Bool     // the transport has begun to write the body
	body    postBody
}

// caller is what both client halves over HTTP share: requests under way, the
// order of notifications, the round trip.
type caller struct {
	name     string // scheme and host, for errors
	limits   Limits
	ev       Events
	rt       http.RoundTripper
	base     http.Header // configured headers and ours that never change
	host     string      // configured Host header, "" if none
	badURL   error
	ctx      context.Context
	cancel   context.CancelFunc
	posts    sync.WaitGroup // calls and the outbox
	streams  sync.WaitGroup // long-lived streams
	prepare  func(c *call)  // sets header and session; the lock is held
	transact func(c *call)  // carries out one request

	mu       sync.Mutex
	url      *url.URL
	pending  map[uint64]*call
	outbox   []*call // notifications and responses, in order
	draining bool
	gate     <-chan struct{} // of the last notifications/initialized
	closed   bool
}

func newCaller(spec HTTPSpec, l Limits, ev Events) *caller {
	b := &caller{limits: l.Filled(), ev: ev, rt: spec.Transport, pending: map[uint64]*call{}}
	if b.rt == nil {
		b.rt = newTransport()
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.base = http.Header{
		"Content-Type": {jsonType},
		"Accept":       {jsonType + ", " + eventsType},
		"User-Agent":   {"agentarmor"},
	}
	u, err := url.Parse(spec.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		b.badURL = errors.New("the URL is not an http or https URL with a host")
		return b
	}
	if u.User != nil {
		password, _ := u.User.Password()
		pair := u.User.Username() + ":" + password
		b.base.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(pair)))
	}
	for k, v := range spec.Headers {
		switch k = http.CanonicalHeaderKey(k); k {
		case "Host":
			b.host = v
		case "Content-Type", "Accept", "Content-Length":
		default:
			b.base[k] = []string{v}
		}
	}
	b.url, b.name = u, u.Scheme+"://"+u.Host // not the path: some hold a key
	return b
}

// Send implements [Peer].
func (b *caller) Send(o Outgoing) error {
	c := &call{o: o}
	c.body.c = c
	c.body.r.Reset(o.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return &Error{Kind: NotSent, Err: errPeerClosed}
	}
	b.prepare(c)
	if o.ID == 0 {
		return b.queueLocked(c)
	}
	if b.pending[o.ID] != nil {
		return &Error{Kind: NotSent, Err: errDuplicate}
	}
	c.ctx, c.cancel = context.WithCancel(b.ctx)
	c.after = b.gate
	b.pending[o.ID] = c
	b.posts.Go(func() {
		defer OnPanic()
		b.request(c)
	})
	return nil
}

// queueLocked puts a notification or response behind those before it.
func (b *caller) queueLocked(c *call) error {
	if len(b.outbox) >= b.limits.Queue {
		return &Error{Kind: NotSent, Err: errQueueFull}
	}
	if c.o.Method == "notifications/initialized" {
		c.gate = make(chan struct{})
		b.gate = c.gate
	}
	b.outbox = append(b.outbox, c)
	if !b.draining {
		b.draining = true
		b.posts.Go(b.drain)
	}
	return nil
}

// drain posts what the outbox holds, one message after the other.
func (b *caller) drain() {
	defer OnPanic()
	for {
		b.mu.Lock()
		if len(b.outbox) == 0 {
			b.outbox, b.draining = nil, false
			b.mu.Unlock()
			return
		}
		c := b.outbox[0]
		b.outbox = b.outbox[1:]
		b.mu.Unlock()
		b.notify(c)
	}
}

// notify posts one message that has no answer. Nobody waits for its outcome:
// a server in trouble shows it at the next request.
func (b *caller) notify(c *call) {
	c.ctx, c.cancel = context.WithTimeout(b.ctx, notifyWait)
	defer c.cancel()
	if resp, err := b.post(c); err == nil {
		discard(resp)
	}
	if c.gate != nil {
		close(c.gate)
		b.mu.Lock()
		if b.gate == c.gate {
			b.gate = nil
		}
		b.mu.Unlock()
	}
}

// request carries out one request, behind the handshake's notification.
func (b *caller) request(c *call) {
	defer c.cancel()
	if c.after != nil {
		select {
		case <-c.after:
		case <-c.ctx.Done():
			b.fail(c, b.sendError(c, c.ctx.Err()))
			return
		}
	}
	b.transact(c)
}

// Cancel implements [Peer].
func (b *caller) Cancel(id uint64) {
	if c := b.take(id); c != nil {
		c.cancel()
	}
}

// Stats implements [Peer]: there is nothing to tell.
func (b *caller) Stats() PeerStats { return PeerStats{} }

// take ends a request: who gets it tells its outcome, exactly once.
func (b *caller) take(id uint64) *call {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.pending[id]
	delete(b.pending, id)
	return c
}

// settle is take for one certain call, whose id may be in use again.
func (b *caller) settle(c *call) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pending[c.o.ID] != c {
		return false
	}
	delete(b.pending, c.o.ID)
	return true
}

func (b *caller) waiting(c *call) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pending[c.o.ID] == c
}

func (b *caller) fail(c *call, e *Error) {
	if b.settle(c) {
		b.ev.Failed(c.o.ID, e)
	}
}

func (b *caller) answer(c *call, m Message) {
	if b.settle(c) {
		b.ev.Answer(c.o.ID, m)
	}
}

// deliver hands over one message of a stream: of c's own, or of no request
// when c is nil. It tells whether it was c's answer.
func (b *caller) deliver(m Message, c *call) bool {
	if !m.IsResponse() {
		switch {
		case c == nil:
			b.ev.Message(m, 0)
		case b.waiting(c):
			b.ev.Message(m, c.o.ID)
		}
		return false
	}
	id, ok := ParseID(m.ID)
	if c != nil && (ok && id == c.o.ID || anonymous(&m)) {
		b.answer(c, m)
		return true
	}
	if !ok {
		return false
	}
	if other := b.take(id); other != nil {
		b.ev.Answer(id, m)
		other.cancel()
	}
	return false
}

// anonymous tells an error whose sender could not name the request.
func anonymous(m *Message) bool {
	return m.Error != nil && (m.ID == nil || string(m.ID) == "null")
}

// shut cancels everything under way; false if that has happened before.
func (b *caller) shut() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.closed, b.outbox = true, nil
	b.cancel()
	return true
}

// finish waits until nothing of the peer runs any more.
func (b *caller) finish() {
	b.posts.Wait()
	b.streams.Wait()
	if t, ok := b.rt.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// sendError is the failure of a POST that got no response.
func (b *caller) sendError(c *call, err error) *Error {
	e := &Error{Kind: NotSent, Err: b.redact(err)}
	if c.begun.Load() {
		e.Kind = Lost
	}
	if b.ctx.Err() != nil {
		e.Err = errPeerClosed
	}
	return e
}
