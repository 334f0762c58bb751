package wire

import (
	"net/http"
	"time"
)

const (
	// upgradeAfter is how long a request may stay without any message before
	// its response becomes an event stream, which can be kept alive and resumed.
	upgradeAfter = 5 * time.Second
	// keepAliveEvery is the time between comments on a quiet event stream.
	keepAliveEvery = 15 * time.Second
)

// respond carries st to the client of its POST: one JSON body if the answer
// comes first and soon, unless the client lists event streams before JSON; else
// an event stream. modern maps an error answer to
// its HTTP status.
func (h *HTTP) respond(w http.ResponseWriter, r *http.Request, st *httpStream, modern bool) {
	c := &st.first
	defer st.detach(c)
	st.events = prefersEvents(r)
	how, raw, ok := h.await(w, r, st)
	if !ok {
		return
	}
	if st.onStart != nil {
		st.onStart(w.Header())
	}
	switch how {
	case startAnswer:
		status := http.StatusOK
		if modern {
			status = answerStatus(raw)
		}
		h.writeJSON(w, status, raw, c)
	case startEmpty:
		eventHeaders(w)
	default:
		if st.session != nil {
			st.session.register(st)
		}
		e := h.newEventWriter(w, st, c)
		e.prime()
		h.pump(r, e)
	}
}

// await waits for the start of the response. It returns false if there will be
// none, or one that it has written.
func (h *HTTP) await(w http.ResponseWriter, r *http.Request, st *httpStream) (startKind, []byte, bool) {
	how, raw := st.begin()
	if how != startLater {
		return how, raw, true
	}
	var upgrade <-chan time.Time
	var drain, over <-chan struct{}
	if st.standing {
		drain = h.drain
	} else {
		t := time.NewTimer(upgradeAfter)
		defer t.Stop()
		upgrade = t.C
	}
	if st.session != nil {
		over = st.session.over
	}
	for {
		select {
		case <-st.first.wake:
			if how, raw := st.begin(); how != startLater {
				return how, raw, true
			}
		case <-upgrade:
			return startStream, nil, true
		case <-r.Context().Done():
			return 0, nil, false
		case <-over:
			h.sessionNotFound(w, r, nil)
			return 0, nil, false
		case <-drain:
			return startEmpty, nil, true
		case <-h.kill:
			h.shuttingDown(w, r)
			return 0, nil, false
		}
	}
}

// pump writes what comes in e's stream until one side ends.
func (h *HTTP) pump(r *http.Request, e *eventWriter) {
	st := e.st
	var over, drain <-chan struct{}
	if st.session != nil {
		over = st.session.over
	}
	if st.standing {
		drain = h.drain
	}
	tick := time.NewTicker(keepAliveEvery)
	defer tick.Stop()
	for e.err == nil {
		raws, first, done := st.batch(e.c)
		if len(raws) > 0 {
			e.messages(raws, first)
			if e.err == nil {
				st.written(e.c, len(raws))
			}
			continue
		}
		if done || st.standing && drain == nil && st.quiet() {
			return
		}
		select {
		case <-e.c.wake:
		case <-tick.C:
			e.comment()
		case <-drain:
			drain = nil
		case <-r.Context().Done():
			return
		case <-over:
			return
		case <-h.kill:
			return
		}
	}
}
