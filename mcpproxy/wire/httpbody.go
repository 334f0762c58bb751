package wire

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxRetryAfter caps what a server may ask for.
const MaxRetryAfter = 10 * time.Minute

var (
	errTooLarge = errors.New("the answer is over the size limit")
	errNoAnswer = errors.New("the stream ended without the answer")
)

// mediaType returns the Content-Type without its parameters.
func mediaType(h http.Header) string {
	t, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(t))
}

// readBody reads a whole body of up to limit bytes into a buffer of its own,
// of the exact size where the server tells it.
func readBody(resp *http.Response, limit int) ([]byte, error) {
	n := resp.ContentLength
	if n > int64(limit) {
		return nil, errTooLarge
	}
	if n >= 0 {
		b := make([]byte, n)
		_, err := io.ReadFull(resp.Body, b)
		return b, err
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1))
	if err == nil && len(b) > limit {
		return nil, errTooLarge
	}
	return b, err
}

// discard reads what little is left of a body, so that its connection can be
// used again, and closes it. A stream, which may stay open, is closed at once.
func discard(resp *http.Response) {
	if resp.Body != http.NoBody && mediaType(resp.Header) != eventsType {
		io.CopyN(io.Discard, resp.Body, 4<<10)
	}
	resp.Body.Close()
}

// readError is the failure of a body that began and did not end well.
func (b *caller) readError(err error) *Error {
	if errors.Is(err, errTooLarge) {
		return &Error{Kind: TooLarge, Err: b.redact(err)}
	}
	if b.ctx.Err() != nil {
		err = errPeerClosed
	} else if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errNoAnswer
	}
	return &Error{Kind: Lost, Err: b.redact(err)}
}

// statusError is a response that is only its HTTP status. The body stays out
// of the text: it may repeat what we sent.
func (b *caller) statusError(resp *http.Response) *Error {
	text := cmp.Or(http.StatusText(resp.StatusCode), "unknown")
	return &Error{
		Kind:       HTTPStatus,
		Status:     resp.StatusCode,
		RetryAfter: retryAfter(resp.Header, time.Now()),
		Err:        fmt.Errorf("%s: HTTP status %d %s", b.name, resp.StatusCode, text),
	}
}

// retryAfter reads Retry-After: seconds, also fractions of them, or a date,
// which counts from the response's own Date. What it cannot read is 0.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}
	if strings.Trim(v, "0123456789.") == "" {
		// ParseFloat returns +Inf with its range error, which the cap takes.
		s, err := strconv.ParseFloat(v, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return 0
		}
		return time.Duration(min(s, MaxRetryAfter.Seconds()) * float64(time.Second))
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return max(0, min(at.Sub(now), MaxRetryAfter))
}

// sessionGone tells whether a 404, or a 400 or 422 whose body names the
// session, means that the server has forgotten it. m is the body where that is
// a message, and mine tells that it names the request: then only the codes that
// servers use for a bad session count, others are the answer of a living one.
func sessionGone(status int, body []byte, m *Message, mine bool) bool {
	if mine {
		switch string(Get(m.Error, "code")) {
		case "-32000", "-32001", "-32600":
		default:
			return false
		}
	}
	switch status {
	case http.StatusNotFound:
		return true
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return bytes.Contains(bytes.ToLower(body), []byte("session"))
	}
	return false
}

// answersItself tells the statuses under which a JSON-RPC error is the answer
// of the server. Under the others the status says more than the error: who
// must sign in, wait or come back later.
func answersItself(status int, mine bool) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired,
		http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	}
	return mine || status >= 400 && status < 500
}
