package wire

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// HTTPSpec names a server that is reached over HTTP.
type HTTPSpec struct {
	URL     string
	Headers map[string]string // sent with every request; never logged
	// Transport does the round trips, nil means one of the peer's own. It may
	// be shared: Close closes its idle connections only.
	Transport http.RoundTripper
}

const (
	jsonType   = "application/json"
	eventsType = "text/event-stream"

	// notifyWait bounds how long one unanswered notification holds up the next.
	notifyWait = 30 * time.Second
	maxHops    = 3
)

var (
	errPeerClosed = errors.New("the connection is closed")
	errQueueFull  = errors.New("too many messages wait for the server")
	errDuplicate  = errors.New("a request with this id is under way")
)

// newTransport returns a transport for one server: many parallel calls, no
// deadline of its own for an answer, large buffers, no compression.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment, // never for loopback
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true,
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       90 * time.Second,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
		ExpectContinueTimeout: time.Second,
	}
}

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

// postBody is the request's body. The transport reads it only once it has a
// connection, so that the first Read parts "not sent" from "lost".
type postBody struct {
	r bytes.Reader
	c *call
}

func (b *postBody) Read(p []byte) (int, error) {
	b.c.begun.Store(true)
	return b.r.Read(p)
}

func (b *postBody) Close() error { return nil }

// rewind is the body's GetBody. The transport asks for it when nothing of the
// first attempt was written.
func (c *call) rewind() (io.ReadCloser, error) {
	c.begun.Store(false)
	b := &postBody{c: c}
	b.r.Reset(c.o.Body)
	return b, nil
}

// caller is what both client halves over HTTP share: requests under way, the
// order of notifications, the round trip.
type caller struct {
	name     string // scheme, host and path, for errors
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
	b.url, b.name = u, u.Scheme+"://"+u.Host+u.EscapedPath()
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
	b.posts.Go(func() { b.request(c) })
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

// post sends c to the server's URL.
func (b *caller) post(c *call) (*http.Response, error) {
	return b.roundTrip(c.ctx, http.MethodPost, c.header, c)
}

// roundTrip follows redirects that keep the method and stay on the origin,
// and remembers them: the configured headers go nowhere else.
func (b *caller) roundTrip(ctx context.Context, method string, h http.Header, c *call) (*http.Response, error) {
	for hop := 0; ; hop++ {
		u, err := b.target()
		if err != nil {
			return nil, err
		}
		req := (&http.Request{
			Method: method, URL: u, Header: h, Host: b.host,
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		}).WithContext(ctx)
		if c != nil {
			req.Body, req.GetBody, req.ContentLength = &c.body, c.rewind, int64(len(c.o.Body))
			if hop > 0 {
				req.Body, _ = c.rewind()
			}
		}
		resp, err := b.rt.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		next := redirect(u, resp)
		if next == nil || hop == maxHops {
			return resp, nil
		}
		discard(resp)
		b.mu.Lock()
		b.url = next
		b.mu.Unlock()
	}
}

func (b *caller) target() (*url.URL, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.url, b.badURL
}

// redirect returns where a 307 or 308 on the same origin leads, else nil.
func redirect(from *url.URL, resp *http.Response) *url.URL {
	if resp.StatusCode != http.StatusTemporaryRedirect && resp.StatusCode != http.StatusPermanentRedirect {
		return nil
	}
	to, err := from.Parse(resp.Header.Get("Location"))
	if err != nil || !sameOrigin(from, to) {
		return nil
	}
	return to
}

func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
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

// redact names the server by scheme, host and path and keeps the URL that
// net/http may have put into err out of its text.
func (b *caller) redact(err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	if b.badURL != nil {
		return b.badURL
	}
	return fmt.Errorf("%s: %w", b.name, err)
}

// withHeaders returns a copy of h with more headers, given as pairs.
func withHeaders(h http.Header, pairs ...string) http.Header {
	h = maps.Clone(h)
	for i := 0; i < len(pairs); i += 2 {
		h[pairs[i]] = []string{pairs[i+1]}
	}
	return h
}
