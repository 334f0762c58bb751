package chaos

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Transport returns the seam for what speaks HTTP itself: base, with the
// faults of a target. It keeps base's CloseIdleConnections.
func (i *Injector) Transport(target string, base http.RoundTripper) http.RoundTripper {
	if !i.Enabled() {
		return base
	}
	return &transport{i, target, base}
}

// What the network says of a server that is not there, and of a connection that breaks.
var (
	ErrRefused error = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	ErrReset   error = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
)

type transport struct {
	i      *Injector
	target string
	base   http.RoundTripper
}

var _ http.RoundTripper = (*transport)(nil)

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	d := t.i.Decide(Call{Context: r.Context(), Target: t.target})
	if d.Cause == nil {
		return t.base.RoundTrip(r)
	}
	if err := d.Wait(r.Context()); err != nil {
		closeBody(r)
		return nil, d.Cause.Wrap(err)
	}
	switch d.Action {
	case Die, Refuse:
		closeBody(r)
		return nil, d.Cause.Wrap(ErrRefused)
	case Answer:
		closeBody(r)
		return answer(r, d.Status, d.RetryAfter, map[string]any{"code": d.Status, "message": d.Text}), nil
	case FailTool:
		closeBody(r)
		return answer(r, http.StatusBadRequest, 0, map[string]any{"code": "tool_use_failed", "type": "invalid_request_error", "message": d.Text}), nil
	}
	resp, err := t.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	return d.spoil(resp), nil
}

// CloseIdleConnections passes on what a provider does when it is closed.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// answer is what a provider says instead of an answer: its error, as JSON.
func answer(r *http.Request, status int, retryAfter time.Duration, problem map[string]any) *http.Response {
	body, _ := json.Marshal(map[string]any{"error": problem}) // numbers and texts always encode
	h := http.Header{"Content-Type": {"application/json"}}
	if retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
	}
	return &http.Response{
		Status: strconv.Itoa(status) + " " + statusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: r,
	}
}

// spoil does to an answer what the decision wants.
func (d *Decision) spoil(resp *http.Response) *http.Response {
	switch d.Action {
	case Break:
		resp.Body = &brokenBody{ReadCloser: resp.Body, err: d.Cause.Wrap(ErrReset)}
	case Garble:
		resp.Body = &changedBody{ReadCloser: resp.Body, change: d.Change}
	case Transform:
		resp.Body = &changedBody{ReadCloser: resp.Body, change: byEvent(resp, d.Change), whole: true}
	default:
		return resp
	}
	resp.Header = resp.Header.Clone()
	resp.Header.Del("Content-Length")
	resp.ContentLength = -1
	return resp
}

// byEvent applies a change of JSON to each event of a stream of them.
func byEvent(resp *http.Response, change func([]byte) []byte) func([]byte) []byte {
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return change
	}
	return func(b []byte) []byte {
		lines := bytes.Split(b, []byte("\n"))
		for i, line := range lines {
			if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
				lines[i] = append([]byte("data: "), change(bytes.TrimSpace(data))...)
			}
		}
		return bytes.Join(lines, []byte("\n"))
	}
}

// brokenBody ends with an error in the midst of what is read first.
type brokenBody struct {
	io.ReadCloser
	err  error
	over bool
}

// Read implements io.Reader.
func (b *brokenBody) Read(p []byte) (int, error) {
	if b.over {
		return 0, b.err
	}
	b.over = true
	n, _ := b.ReadCloser.Read(p)
	return n / 2, nil
}

// changedBody changes what is read first, whole or as it comes, and ends with
// it where that is shorter than what it was.
type changedBody struct {
	io.ReadCloser
	change func([]byte) []byte
	whole  bool
	begun  bool
	rest   []byte
	over   bool
}

// maxChanged bounds an answer that is changed as a whole.
const maxChanged = 16 << 20

// Read implements io.Reader.
func (b *changedBody) Read(p []byte) (int, error) {
	if !b.begun {
		b.begun = true
		if err := b.begin(); err != nil {
			return 0, err
		}
	}
	if len(b.rest) > 0 {
		n := copy(p, b.rest)
		b.rest = b.rest[n:]
		return n, nil
	}
	if b.over {
		return 0, io.EOF
	}
	return b.ReadCloser.Read(p)
}

func (b *changedBody) begin() error {
	if b.whole {
		all, err := io.ReadAll(io.LimitReader(b.ReadCloser, maxChanged))
		b.rest, b.over = b.change(all), true
		return err
	}
	first := make([]byte, 4<<10)
	n, err := io.ReadAtLeast(b.ReadCloser, first, 1)
	b.rest = b.change(first[:n])
	b.over = len(b.rest) < n
	if err == io.EOF {
		return nil
	}
	return err
}
