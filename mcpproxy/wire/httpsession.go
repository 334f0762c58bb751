package wire

import (
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"
)

// evictIdle is how long a session must have been idle before a new one may
// take its place when there are as many as allowed.
const evictIdle = 5 * time.Minute

// httpSession is a session of streamable HTTP up to 2025-11-25, or of HTTP+SSE.
//
// Locks are taken in the order HTTP.mu or httpStream.mu, then httpSession.mu.
type httpSession struct {
	Session
	h        *HTTP
	own      *httpStream // what belongs to no request; everything over SSE
	ended    atomic.Bool
	over     chan struct{} // closed when ended
	seen     atomic.Bool   // by the Handler
	inflight atomic.Int64  // requests under way, counted over SSE only

	// gate is held while the Handler handles a message, so that Closed is its
	// last call; exclusively over SSE, where messages must keep their order.
	gate sync.RWMutex

	mu         sync.Mutex
	version    string // negotiated, or till then asked for
	committed  bool   // initialize has succeeded: its id is valid
	users      int    // requests under way and open streams
	idleSince  time.Time
	idle       *time.Timer
	lastStream int
	streams    map[int]*httpStream // that a client may resume
	replay     replayLog
}

// open starts a session, which its caller uses and must exit. It returns nil
// if there are too many.
func (h *HTTP) open(transport, principal string) *httpSession {
	hs := &httpSession{h: h, over: make(chan struct{}), users: 1, streams: map[int]*httpStream{}}
	hs.ID, hs.Transport, hs.Principal = rand.Text(), transport, principal
	hs.own = &httpStream{h: h, session: hs, standing: true}
	hs.streams[0] = hs.own
	hs.send = hs.own.Send
	hs.mu.Lock()
	hs.idle = time.AfterFunc(h.lim.SessionIdle, hs.expire)
	hs.mu.Unlock()

	victim, ok := h.admitSession(hs)
	if victim != nil {
		victim.end()
	}
	if !ok {
		hs.idle.Stop()
		return nil
	}
	return hs
}

// admitSession enters hs into the table, if need be in place of the session
// that has been idle the longest.
func (h *HTTP) admitSession(hs *httpSession) (victim *httpSession, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.sessions) >= h.lim.Sessions {
		oldest := time.Now().Add(-evictIdle)
		for _, s := range h.sessions {
			if since, idle := s.idleTime(); idle && since.Before(oldest) {
				victim, oldest = s, since
			}
		}
		if victim == nil {
			return nil, false
		}
		delete(h.sessions, victim.ID)
	}
	h.sessions[hs.ID] = hs
	return victim, true
}

// lookup returns the session a client names, entered: the caller must exit it.
// A session is known only to the token that opened it.
func (h *HTTP) lookup(id, transport, principal string) *httpSession {
	if id == "" {
		return nil
	}
	h.mu.Lock()
	hs := h.sessions[id]
	h.mu.Unlock()
	if hs == nil || hs.Transport != transport || hs.Principal != principal || !hs.enter() {
		return nil
	}
	return hs
}

func (hs *httpSession) enter() bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.ended.Load() || !hs.committed {
		return false
	}
	hs.users++
	return true
}

// hold counts one more user of a session that has one already.
func (hs *httpSession) hold() {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.users++
}

func (hs *httpSession) exit() {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.users--
	if hs.users == 0 {
		hs.idleSince = time.Now()
	}
}

func (hs *httpSession) idleTime() (since time.Time, idle bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.idleSince, hs.users == 0
}

func (hs *httpSession) negotiated(version string) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.version = version
}

// commit makes the session's id valid.
func (hs *httpSession) commit() {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.committed = true
}

func (hs *httpSession) isCommitted() bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.committed
}

// primes tells whether the client's revision knows priming events.
func (hs *httpSession) primes() bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.version >= Legacy
}

// handle passes a message to the Handler; false means that the session has
// ended.
func (hs *httpSession) handle(m Message, st Stream) bool {
	if hs.Transport == "sse" {
		hs.gate.Lock()
		defer hs.gate.Unlock()
	} else {
		hs.gate.RLock()
		defer hs.gate.RUnlock()
	}
	if hs.ended.Load() {
		return false
	}
	if !hs.seen.Load() {
		hs.seen.Store(true)
	}
	hs.h.o.Handler.Handle(&hs.Session, m, st)
	return true
}

// expire runs when the session may have been idle for long enough.
func (hs *httpSession) expire() {
	defer OnPanic()
	hs.mu.Lock()
	if hs.ended.Load() {
		hs.mu.Unlock()
		return
	}
	wait := hs.h.lim.SessionIdle
	if hs.users == 0 {
		wait -= time.Since(hs.idleSince)
	}
	if wait > 0 {
		hs.idle.Reset(wait)
		hs.mu.Unlock()
		return
	}
	hs.stopLocked()
	hs.mu.Unlock()
	hs.finish()
}

// end ends the session; nothing happens when it has ended before.
func (hs *httpSession) end() {
	hs.mu.Lock()
	first := hs.stopLocked()
	hs.mu.Unlock()
	if first {
		hs.finish()
	}
}

func (hs *httpSession) stopLocked() (first bool) {
	if hs.ended.Swap(true) {
		return false
	}
	hs.idle.Stop()
	close(hs.over)
	clear(hs.streams)
	hs.replay = replayLog{}
	return true
}

func (hs *httpSession) finish() {
	h := hs.h
	h.mu.Lock()
	if h.sessions[hs.ID] == hs {
		delete(h.sessions, hs.ID)
	}
	h.mu.Unlock()
	hs.gate.Lock() // waits for the messages being handled
	seen := hs.seen.Load()
	hs.gate.Unlock()
	if seen {
		h.o.Handler.Closed(&hs.Session)
	}
}

// register gives st the number that its event ids start with and makes it
// resumable.
func (hs *httpSession) register(st *httpStream) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.lastStream++
	st.id = hs.lastStream
	if !hs.ended.Load() {
		hs.streams[st.id] = st
	}
}

// keep stores messages of st, numbered from first, for replay. settled tells
// that no more will come. The caller holds st.mu.
func (hs *httpSession) keep(st *httpStream, raws [][]byte, first int, settled bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.ended.Load() {
		return
	}
	st.settled = settled
	for i, raw := range raws {
		st.kept++
		for _, old := range hs.replay.add(replayEvent{st, first + i, raw}) {
			old.kept--
			hs.forgetLocked(old)
		}
	}
	hs.forgetLocked(st)
}

// forgetLocked drops a stream of which nothing is left to replay.
func (hs *httpSession) forgetLocked(st *httpStream) {
	if st.settled && st.kept == 0 {
		delete(hs.streams, st.id)
	}
}

// stream returns the stream with that number, nil if it is not known any more.
func (hs *httpSession) stream(id int) *httpStream {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.streams[id]
}
