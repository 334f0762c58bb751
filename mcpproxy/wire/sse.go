package wire

import (
	"net/http"
	"sync"
)

// serveSSE opens a session of HTTP+SSE (2024-11-05): its stream carries
// everything that goes to the client, and the session ends with it.
func (h *HTTP) serveSSE(w http.ResponseWriter, r *http.Request, principal string) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", "GET")
		h.refuse(w, r, http.StatusMethodNotAllowed, "Method Not Allowed")
		return
	}
	if _, stream := accepts(r); !stream {
		h.refuse(w, r, http.StatusNotAcceptable, "Not Acceptable: Accept must list text/event-stream")
		return
	}
	if !h.begin(w, r) {
		return
	}
	defer h.active.Done()
	hs := h.open("sse", principal)
	if hs == nil {
		h.tooManySessions(w, r, nil)
		return
	}
	defer hs.exit()
	defer hs.end()
	hs.commit()
	c := newHTTPConn()
	hs.own.attach(c)
	e := h.newEventWriter(w, hs.own, c)
	e.endpoint("/message?sessionId=" + hs.ID)
	h.pump(r, e)
}

// serveMessage takes one message of an HTTP+SSE session.
func (h *HTTP) serveMessage(w http.ResponseWriter, r *http.Request, principal string) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		h.refuse(w, r, http.StatusMethodNotAllowed, "Method Not Allowed")
		return
	}
	id := r.URL.Query().Get("sessionId")
	if id == "" {
		h.refuse(w, r, http.StatusBadRequest, "Bad Request: the sessionId of the endpoint event is required")
		return
	}
	m, ok := h.readMessage(w, r)
	if !ok || !h.begin(w, r) {
		return
	}
	defer h.active.Done()
	hs := h.lookup(id, "sse", principal)
	if hs == nil {
		h.sessionNotFound(w, r, m.ID)
		return
	}
	defer hs.exit()
	var st Stream
	if m.IsRequest() {
		hs.inflight.Add(1)
		st = &sseRequest{hs: hs}
	}
	if !hs.handle(m, st) {
		h.sessionNotFound(w, r, m.ID)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// sseRequest is the Stream of one request: its messages go out on the
// session's own stream.
type sseRequest struct {
	hs    *httpSession
	mu    sync.Mutex // also orders Send and Answer
	ended bool
}

var _ Stream = (*sseRequest)(nil)

func (q *sseRequest) Send(raw []byte, _ bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return ErrGone
	}
	return q.hs.own.enqueue(raw, false)
}

// Answer ends the session if there is no room: its client would wait for the
// answer for ever.
func (q *sseRequest) Answer(raw []byte, _ bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return nil
	}
	q.ended = true
	err := q.hs.own.enqueue(raw, false)
	if err == ErrFull {
		q.hs.own.quit()
	}
	q.settle()
	return err
}

func (q *sseRequest) Drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.ended {
		q.ended = true
		q.settle()
	}
}

// OnLeave never calls: who leaves ends the session.
func (q *sseRequest) OnLeave(func()) {}

// settle counts the request as answered, for which Close may be waiting.
func (q *sseRequest) settle() {
	if q.hs.inflight.Add(-1) > 0 {
		return
	}
	select {
	case <-q.hs.h.drain:
		q.hs.own.wakeUp()
	default:
	}
}
