package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// JSON-RPC codes of refusals that the protocol gives no code to, as the
// TypeScript SDK uses them: clients recognise the second with HTTP 404.
const (
	codeRefused         = -32000
	codeSessionNotFound = -32001
)

const (
	// readTimeout bounds the arrival of a request, writeTimeout one write to a
	// client that does not read; both grow by a second per slowest bytes.
	readTimeout  = 30 * time.Second
	writeTimeout = 30 * time.Second
	slowest      = 256 << 10

	// bodyChunk is how much is set aside for a body on the word of its
	// Content-Length alone.
	bodyChunk = 1 << 20
)

var typeJSON = []string{"application/json"}

// readMessage reads the one message of a POST. When it returns false, the
// refusal has been written.
func (h *HTTP) readMessage(w http.ResponseWriter, r *http.Request) (m Message, ok bool) {
	if !isJSON(r) {
		h.refuse(w, r, http.StatusUnsupportedMediaType, "Unsupported Media Type: Content-Type must be application/json")
		return m, false
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		// Bounds are on what arrives: a small body must not become a large one.
		h.refuse(w, r, http.StatusUnsupportedMediaType, "Unsupported Media Type: the body must not be compressed")
		return m, false
	}
	body, err := h.readBody(w, r)
	if err != nil {
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
			h.refuse(w, r, http.StatusRequestEntityTooLarge,
				fmt.Sprintf("The message is larger than %d bytes", h.lim.Message))
		} else {
			h.refuse(w, r, http.StatusBadRequest, "The body could not be read")
		}
		return m, false
	}
	m, err = Parse(body)
	if err != nil {
		pe, isParse := errors.AsType[*ParseError](err)
		if !isParse {
			pe = &ParseError{Code: CodeParse, Msg: err.Error()}
		}
		h.fail(w, r, http.StatusBadRequest, pe.ID, pe.Code, pe.Msg, nil)
		return m, false
	}
	return m, true
}

// readBody returns a buffer that nobody else uses: messages alias it.
func (h *HTTP) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	limit := int64(h.lim.Message)
	if r.ContentLength > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	rc := http.NewResponseController(w)
	var body []byte
	var err error
	if n := r.ContentLength; n >= 0 && n <= bodyChunk {
		body = make([]byte, n)
		_, err = io.ReadFull(r.Body, body)
	} else {
		if n < 0 {
			n = limit
		}
		rc.SetReadDeadline(time.Now().Add(readTimeout + transferTime(int(n))))
		buf := bytes.NewBuffer(make([]byte, 0, bodyChunk))
		_, err = buf.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
		body = buf.Bytes()
	}
	if err == nil {
		noReadDeadline(rc)
	}
	return body, err
}

// noReadDeadline lifts the server's ReadTimeout from a request that has
// arrived: net/http takes its end for the client's leaving.
func noReadDeadline(rc *http.ResponseController) { rc.SetReadDeadline(time.Time{}) }

func transferTime(n int) time.Duration {
	return time.Duration(n/slowest) * time.Second
}

// refuse answers with an HTTP status and a JSON-RPC error that has no id.
func (h *HTTP) refuse(w http.ResponseWriter, r *http.Request, status int, msg string) {
	h.fail(w, r, status, nil, codeRefused, msg, nil)
}

func (h *HTTP) shuttingDown(w http.ResponseWriter, r *http.Request) {
	h.refuse(w, r, http.StatusServiceUnavailable, "The server is shutting down")
}

// sessionNotFound tells a client to start over with initialize.
func (h *HTTP) sessionNotFound(w http.ResponseWriter, r *http.Request, id []byte) {
	h.fail(w, r, http.StatusNotFound, id, codeSessionNotFound, "Session not found", nil)
}

func (h *HTTP) tooManySessions(w http.ResponseWriter, r *http.Request, id []byte) {
	w.Header().Set("Retry-After", "60")
	h.fail(w, r, http.StatusServiceUnavailable, id, codeRefused, "Too many sessions are open", nil)
}

// fail answers with an HTTP status and a JSON-RPC error for the request id,
// which may be nil.
func (h *HTTP) fail(w http.ResponseWriter, r *http.Request, status int, id []byte, code int, msg string, data []byte) {
	h.log.Debug("HTTP request refused", "method", r.Method, "path", r.URL.Path, "status", status, "code", code)
	w.Header()["Content-Type"] = typeJSON
	w.WriteHeader(status)
	body := AppendError(nil, id, code, msg, data)
	if id == nil { // MCP leaves out what JSON-RPC writes as null
		body = bytes.Replace(body, []byte(`,"id":null`), nil, 1)
	}
	w.Write(body)
}

// writeJSON answers with one whole message in one write.
func (h *HTTP) writeJSON(w http.ResponseWriter, status int, raw []byte, c *httpConn) {
	hd := w.Header()
	hd["Content-Type"] = typeJSON
	hd["Content-Length"] = []string{strconv.Itoa(len(raw))}
	if len(raw) > slowest {
		rc := http.NewResponseController(w)
		h.writing(c, rc, len(raw))
		defer h.written(c)
	}
	w.WriteHeader(status)
	w.Write(raw)
}

// writing gives the connection time for one write of n bytes and lets Close
// break it off; written takes it off the list again.
func (h *HTTP) writing(c *httpConn, rc *http.ResponseController, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writers[c] = rc
	if h.killed {
		rc.SetWriteDeadline(time.Now())
		return
	}
	rc.SetWriteDeadline(time.Now().Add(writeTimeout + transferTime(n)))
}

func (h *HTTP) written(c *httpConn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.writers, c)
}
