package wire

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
)

// post takes one message to /mcp, of either generation.
func (h *HTTP) post(w http.ResponseWriter, r *http.Request, principal string) {
	if json, stream := accepts(r); !json || !stream {
		h.refuse(w, r, http.StatusNotAcceptable,
			"Not Acceptable: Accept must list both application/json and text/event-stream")
		return
	}
	m, ok := h.readMessage(w, r)
	if !ok || !h.begin(w, r) {
		return
	}
	defer h.active.Done()
	version := r.Header.Get("Mcp-Protocol-Version")
	hs := h.lookup(r.Header.Get("Mcp-Session-Id"), "http", principal)
	if hs != nil {
		defer hs.exit()
	}
	legacy := version == "" || isLegacy(version)
	if hs == nil || !legacy {
		meta := readMeta(m.Params)
		initialize := m.Method == "initialize" && m.IsRequest()
		if meta.modern || !legacy && hs == nil && !initialize {
			h.postModern(w, r, m, meta, principal)
			return
		}
	}
	if !legacy && version != Modern {
		h.unsupported(w, r, m.ID, version)
		return
	}
	h.postLegacy(w, r, m, hs, principal)
}

// postLegacy takes a message of the revisions with sessions.
func (h *HTTP) postLegacy(w http.ResponseWriter, r *http.Request, m Message, hs *httpSession, principal string) {
	switch {
	case m.Method == "initialize" && m.IsRequest():
		h.initialize(w, r, m, principal)
	case hs == nil && r.Header.Get("Mcp-Session-Id") == "":
		h.fail(w, r, http.StatusBadRequest, m.ID, codeRefused,
			"Bad Request: Mcp-Session-Id header is required; start with initialize, or send MCP-Protocol-Version and _meta as of "+Modern, nil)
	case hs == nil:
		h.sessionNotFound(w, r, m.ID)
	case m.IsRequest():
		st := h.newRequestStream(hs)
		if !hs.handle(m, st) {
			h.sessionNotFound(w, r, m.ID)
			return
		}
		h.respond(w, r, st, false)
	case !hs.handle(m, nil):
		h.sessionNotFound(w, r, m.ID)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// initialize opens a session, which stays only if the answer is a result.
func (h *HTTP) initialize(w http.ResponseWriter, r *http.Request, m Message, principal string) {
	hs := h.open("http", principal)
	if hs == nil {
		h.tooManySessions(w, r, m.ID)
		return
	}
	defer hs.exit()
	version, _ := String(Get(m.Params, "protocolVersion"))
	hs.negotiated(version)
	o := &opening{httpStream: h.newRequestStream(hs)}
	o.onStart = func(hd http.Header) {
		if !o.refused.Load() {
			hs.commit()
			hd.Set("Mcp-Session-Id", hs.ID)
		}
	}
	hs.handle(m, o)
	h.respond(w, r, o.httpStream, false)
	if !hs.isCommitted() || o.refused.Load() {
		hs.end()
	}
}

// opening is the Stream of initialize. It looks at the answer.
type opening struct {
	*httpStream
	refused atomic.Bool // the answer is an error
}

func (o *opening) Answer(raw []byte, more bool) error {
	result := Get(raw, "result")
	if version, ok := String(Get(result, "protocolVersion")); ok {
		o.session.negotiated(version)
	}
	o.refused.Store(result == nil)
	return o.httpStream.Answer(raw, more)
}

// get opens an event stream: the session's own, or with Last-Event-ID the one
// that was interrupted.
func (h *HTTP) get(w http.ResponseWriter, r *http.Request, principal string) {
	if _, stream := accepts(r); !stream {
		h.refuse(w, r, http.StatusNotAcceptable, "Not Acceptable: Accept must list text/event-stream")
		return
	}
	if !h.begin(w, r) {
		return
	}
	defer h.active.Done()
	hs := h.sessionOf(w, r, principal)
	if hs == nil {
		return
	}
	defer hs.exit()
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		h.resume(w, r, hs, last)
		return
	}
	c := newHTTPConn()
	if !hs.own.attach(c) {
		h.refuse(w, r, http.StatusConflict, "Conflict: Only one SSE stream is allowed per session")
		return
	}
	defer hs.own.detach(c)
	e := h.newEventWriter(w, hs.own, c)
	e.prime()
	h.pump(r, e)
}

// resume continues a stream after the message that last names. A connection
// that still seems to hold the stream is replaced: the client says it is dead.
func (h *HTTP) resume(w http.ResponseWriter, r *http.Request, hs *httpSession, last string) {
	id, n, ok := parseEventID(last)
	st := hs.stream(id)
	if !ok || st == nil {
		h.refuse(w, r, http.StatusBadRequest, "Bad Request: the stream of this Last-Event-ID is not known or no longer kept")
		return
	}
	c := newHTTPConn()
	raws, first, ok := st.resume(c, n)
	if !ok {
		h.refuse(w, r, http.StatusBadRequest, "Bad Request: this Last-Event-ID was never sent")
		return
	}
	defer st.detach(c)
	e := h.newEventWriter(w, st, c)
	e.messages(raws, first)
	h.pump(r, e)
}

// parseEventID takes apart "<stream>_<message>".
func parseEventID(s string) (stream, message int, ok bool) {
	a, b, _ := strings.Cut(s, "_")
	stream, err := strconv.Atoi(a)
	if err != nil {
		return 0, 0, false
	}
	message, err = strconv.Atoi(b)
	return stream, message, err == nil && message >= 0
}

// delete ends a session at its client's wish.
func (h *HTTP) delete(w http.ResponseWriter, r *http.Request, principal string) {
	if !h.begin(w, r) {
		return
	}
	defer h.active.Done()
	hs := h.sessionOf(w, r, principal)
	if hs == nil {
		return
	}
	defer hs.exit()
	hs.end()
	w.WriteHeader(http.StatusNoContent)
}

// sessionOf returns the session of a GET or DELETE, entered, or nil when it
// has written the refusal.
func (h *HTTP) sessionOf(w http.ResponseWriter, r *http.Request, principal string) *httpSession {
	version, id := r.Header.Get("Mcp-Protocol-Version"), r.Header.Get("Mcp-Session-Id")
	hs := h.lookup(id, "http", principal)
	switch {
	case version != "" && !isLegacy(version) && (hs == nil || version != Modern):
		if hs != nil {
			hs.exit()
			h.unsupported(w, r, nil, version)
			return nil
		}
		w.Header().Set("Allow", "POST")
		h.refuse(w, r, http.StatusMethodNotAllowed, "Method Not Allowed: this revision has neither GET streams nor sessions")
		return nil
	case id == "":
		h.refuse(w, r, http.StatusBadRequest, "Bad Request: Mcp-Session-Id header is required")
	case hs == nil:
		h.sessionNotFound(w, r, nil)
	}
	return hs
}
