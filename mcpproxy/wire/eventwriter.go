package wire

import (
	"net/http"
	"strconv"
)

// gather is the size up to which messages are copied together into one write.
const gather = 16 << 10

// eventWriter writes a stream's messages as server-sent events. After an error
// it writes nothing more.
type eventWriter struct {
	h   *HTTP
	st  *httpStream
	c   *httpConn
	w   http.ResponseWriter
	rc  *http.ResponseController
	buf []byte
	err error
}

// newEventWriter starts the response to the client of st.
func (h *HTTP) newEventWriter(w http.ResponseWriter, st *httpStream, c *httpConn) *eventWriter {
	rc := http.NewResponseController(w)
	noReadDeadline(rc)
	eventHeaders(w)
	return &eventWriter{h: h, st: st, c: c, w: w, rc: rc}
}

func eventHeaders(w http.ResponseWriter) {
	hd := w.Header()
	hd.Set("Content-Type", "text/event-stream")
	hd.Set("Cache-Control", "no-cache, no-transform")
	hd.Set("X-Accel-Buffering", "no") // nginx must not hold events back
	w.WriteHeader(http.StatusOK)
}

// prime opens the stream: with an event of no data, whose id the client can
// resume from, if its revision knows that (2025-11-25), else with the headers
// alone.
func (e *eventWriter) prime() {
	hs := e.st.session
	if hs == nil || !hs.primes() {
		e.flush(nil)
		return
	}
	e.buf = e.appendID(e.buf[:0], e.st.position())
	e.buf = append(e.buf, "retry: 1000\ndata: \n\n"...) // ms until a client reconnects
	e.flush(e.buf)
	if e.err == nil {
		e.st.primed()
	}
}

// endpoint is the first event of HTTP+SSE: where to post messages.
func (e *eventWriter) endpoint(path string) {
	e.buf = append(e.buf[:0], "event: endpoint\ndata: "...)
	e.buf = append(e.buf, path...)
	e.buf = append(e.buf, "\n\n"...)
	e.flush(e.buf)
}

func (e *eventWriter) comment() { e.flush([]byte(": keep-alive\n\n")) }

// messages writes messages numbered from first, and flushes.
func (e *eventWriter) messages(raws [][]byte, first int) {
	e.deadline(raws)
	defer e.h.written(e.c)
	buf := e.buf[:0]
	for i, raw := range raws {
		buf = append(buf, "event: message\n"...)
		buf = e.appendID(buf, first+i)
		buf = append(buf, "data: "...)
		if len(buf)+len(raw) > gather {
			e.write(buf)
			e.write(raw)
			buf = buf[:0]
		} else {
			buf = append(buf, raw...)
		}
		buf = append(buf, "\n\n"...)
	}
	e.write(buf)
	e.buf = buf
	if e.err == nil {
		e.err = e.rc.Flush()
	}
}

// appendID appends the id of message n: unique in the session, and it names
// the stream to resume. Stateless and HTTP+SSE streams have none.
func (e *eventWriter) appendID(b []byte, n int) []byte {
	hs := e.st.session
	if hs == nil || hs.Transport != "http" {
		return b
	}
	b = append(b, "id: "...)
	b = strconv.AppendInt(b, int64(e.st.id), 10)
	b = append(b, '_')
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, '\n')
}

func (e *eventWriter) deadline(raws [][]byte) {
	n := 0
	for _, raw := range raws {
		n += len(raw)
	}
	e.h.writing(e.c, e.rc, n)
}

func (e *eventWriter) flush(b []byte) {
	e.deadline(nil)
	defer e.h.written(e.c)
	e.write(b)
	if e.err == nil {
		e.err = e.rc.Flush()
	}
}

func (e *eventWriter) write(b []byte) {
	if e.err == nil && len(b) > 0 {
		_, e.err = e.w.Write(b)
	}
}
