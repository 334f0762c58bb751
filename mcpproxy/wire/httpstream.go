package wire

import (
	"net/http"
	"sync"
)

// httpStream is one stream of messages to an HTTP client: what belongs to one
// request, or a session's own. Messages wait in it until a connection has
// written them. In a session a lost connection may be replaced by another one
// (Last-Event-ID); in a stateless request its loss is the end.
type httpStream struct {
	h        *HTTP
	session  *httpSession // nil: stateless
	id       int          // in its session; 0 is the session's own
	standing bool         // waits for no answer: GET, SSE, subscriptions/listen
	first    httpConn     // of the request itself
	events   bool         // the client would rather have an event stream than JSON

	// onStart is called once before the response starts. Only initialize needs it.
	onStart func(hd http.Header)

	mu      sync.Mutex
	queue   [][]byte // not written yet; queue[0] has the number last+1
	bytes   int      // in queue
	last    int      // number of the last message written
	sent    bool     // the client has seen an event id
	conn    *httpConn
	ended   bool // no more messages
	left    bool // the client is gone for good
	held    bool // counts as a user of its session
	onLeave func()

	// Guarded by session.mu.
	kept    int  // messages in the replay log
	settled bool // ended, and all its messages are in the log
}

var _ Stream = (*httpStream)(nil)

// httpConn is one connection that writes, or waits to write, a stream.
type httpConn struct {
	wake chan struct{} // 1 slot: look at the stream
}

func newHTTPConn() *httpConn { return &httpConn{wake: make(chan struct{}, 1)} }

func (c *httpConn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// newRequestStream returns the stream of a request whose own connection waits
// for it.
func (h *HTTP) newRequestStream(hs *httpSession) *httpStream {
	st := &httpStream{h: h, session: hs}
	st.first.wake = make(chan struct{}, 1)
	st.conn = &st.first
	return st
}

func (st *httpStream) Send(raw []byte, _ bool) error { return st.enqueue(raw, false) }

// Answer never fails for want of room: there is only one.
func (st *httpStream) Answer(raw []byte, _ bool) error { return st.enqueue(raw, true) }

func (st *httpStream) Drop() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.ended || st.left {
		return
	}
	st.endLocked()
	st.signalLocked()
}

func (st *httpStream) OnLeave(f func()) {
	st.mu.Lock()
	left := st.left
	st.onLeave = f
	st.mu.Unlock()
	if left {
		f()
	}
}

func (st *httpStream) enqueue(raw []byte, answer bool) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.goneLocked() || st.ended:
		return ErrGone
	case !answer && st.fullLocked(len(raw)):
		st.signalLocked()
		return ErrFull
	}
	st.queue = append(st.queue, raw)
	st.bytes += len(raw)
	if answer {
		st.endLocked()
	}
	st.signalLocked() // also when more follows: that may be for another stream
	return nil
}

func (st *httpStream) goneLocked() bool {
	return st.left || st.session != nil && st.session.ended.Load()
}

// fullLocked lets at least one message wait, and of large ones a few.
func (st *httpStream) fullLocked(n int) bool {
	return len(st.queue) >= st.h.lim.Queue ||
		len(st.queue) > 0 && st.bytes+n > 2*st.h.lim.Message
}

func (st *httpStream) signalLocked() {
	if st.conn != nil {
		st.conn.signal()
	}
}

func (st *httpStream) endLocked() {
	st.ended = true
	if st.held {
		st.held = false
		st.session.exit()
	}
	if st.conn == nil {
		st.storeLocked()
	}
}

// storeLocked hands the messages of a stream that has ended without a
// connection to the replay log, whose bounds hold for them from now on.
func (st *httpStream) storeLocked() {
	st.session.keep(st, st.queue, st.last+1, true)
	st.last += len(st.queue)
	st.queue, st.bytes = nil, 0
}

// startKind says how a response begins.
type startKind int

const (
	startLater  startKind = iota // nothing is there yet
	startAnswer                  // the answer is all there is
	startStream                  // other messages come first
	startEmpty                   // dropped: there will be no answer
)

// begin looks for the start of the response. The answer is taken out.
func (st *httpStream) begin() (startKind, []byte) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case !st.ended && len(st.queue) == 0:
		return startLater, nil
	case !st.ended || len(st.queue) > 1:
		return startStream, nil
	case len(st.queue) == 0:
		return startEmpty, nil
	}
	raw := st.queue[0]
	if st.events && (st.session != nil || answerStatus(raw) == http.StatusOK) {
		return startStream, nil
	}
	st.queue, st.bytes = nil, 0
	return startAnswer, raw
}

// attach makes c the connection that writes st, unless it has one.
func (st *httpStream) attach(c *httpConn) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.conn != nil {
		return false
	}
	st.attachLocked(c)
	return true
}

func (st *httpStream) attachLocked(c *httpConn) {
	st.signalLocked()
	st.conn = c
	if st.held {
		st.held = false
		st.session.exit()
	}
}

// resume makes c the connection of st and returns what was written after
// message n, which c must write first. It fails if n has never been written.
func (st *httpStream) resume(c *httpConn, n int) (raws [][]byte, first int, ok bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if n > st.last {
		return nil, 0, false
	}
	st.attachLocked(c)
	hs := st.session
	hs.mu.Lock()
	defer hs.mu.Unlock()
	raws, first = hs.replay.after(st, n)
	return raws, first, true
}

// batch returns what c has to write now and the number of its first message.
// over tells that c has nothing to do here any more.
func (st *httpStream) batch(c *httpConn) (raws [][]byte, first int, over bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.conn != c || st.goneLocked() {
		return nil, 0, true
	}
	n := len(st.queue)
	return st.queue[:n:n], st.last + 1, n == 0 && st.ended
}

// written takes the first n messages out of the queue once c has written
// them. Another connection may have taken the stream over meanwhile: then it
// writes them again.
func (st *httpStream) written(c *httpConn, n int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.conn != c {
		return
	}
	raws := st.queue[:n:n]
	st.queue = st.queue[n:]
	if len(st.queue) == 0 {
		st.queue = nil
	}
	for _, raw := range raws {
		st.bytes -= len(raw)
	}
	if st.session != nil && st.session.Transport == "http" {
		st.session.keep(st, raws, st.last+1, st.ended && len(st.queue) == 0)
	}
	st.last += n
	st.sent = true
}

// primed notes that the client can resume before any message was written.
func (st *httpStream) primed() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.sent = true
}

// detach takes c away. A client that may resume is waited for, any other has
// left.
func (st *httpStream) detach(c *httpConn) {
	st.mu.Lock()
	left := func() {}
	if st.conn == c {
		st.conn = nil
		switch {
		case st.session != nil && (st.sent || st.standing):
			st.waitLocked()
		case !st.ended || len(st.queue) > 0:
			left = st.leaveLocked()
		}
	}
	st.mu.Unlock()
	left()
}

// waitLocked keeps the stream for a client that may come back. The session's
// own stream alone does not keep the session.
func (st *httpStream) waitLocked() {
	switch {
	case st.ended:
		st.storeLocked()
	case !st.standing && !st.session.ended.Load():
		st.held = true
		st.session.hold()
	}
}

// leaveLocked returns what to call once the lock is free.
func (st *httpStream) leaveLocked() func() {
	st.left = true
	st.queue, st.bytes = nil, 0
	if st.onLeave == nil || st.ended {
		return func() {}
	}
	return st.onLeave
}

// quit ends a stream whose client does not read.
func (st *httpStream) quit() {
	st.mu.Lock()
	left := func() {}
	if !st.left {
		left = st.leaveLocked()
		st.signalLocked()
	}
	st.mu.Unlock()
	left()
}

// wakeUp makes the connection, if there is one, look at the stream.
func (st *httpStream) wakeUp() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.signalLocked()
}

// quiet tells that nobody waits for an answer on a standing stream.
func (st *httpStream) quiet() bool {
	return st.session == nil || st.session.inflight.Load() == 0
}

// position is the number of the last message written.
func (st *httpStream) position() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.last
}
