package llm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// exchange is one HTTP request to a provider and its answer. The client
// libraries put keys into URLs, repeat requests by themselves, drop headers and
// bodies of errors, and take what is no answer for an empty one. So each
// request of theirs carries its exchange in the context to [carrier], the only
// transport they are given, and the exchange decides what they get to see.
type exchange struct {
	transport http.RoundTripper
	secret    string
	// prepare adds to the request what the library must not know or cannot say.
	prepare func(*http.Request) error
	// whole checks a complete answer and returns what the library gets of it.
	// It is nil if the answer is streamed.
	whole func(body []byte) ([]byte, *Error)
	// streamed does the same for a body that arrives in pieces: the result is
	// read until it ends. next returns one piece for the library.
	streamed func(r io.Reader) (next func() ([]byte, error))

	stop   context.CancelFunc
	status int
	header http.Header
	failed *Error // what went wrong on the wire, whatever the library makes of it
	ended  bool   // a stream reached the end that its API marks
}

// The bounds of an exchange.
const (
	maxAnswer     = 16 << 20    // bytes of a good answer
	errorBodyTime = time.Second // for the body of an error; its status says enough
	drainTime     = 20 * time.Millisecond
	longest       = 10 * time.Minute // of a call without a deadline
)

type exchangeKey struct{}

// begin returns the context of the exchange's request. The function ends it:
// nothing of it is left when that returns.
func (x *exchange) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, x.stop = context.WithTimeout(ctx, longest)
	return context.WithValue(ctx, exchangeKey{}, x), x.stop
}

// carrier hands requests to the exchange in their context.
type carrier struct{}

// RoundTrip implements http.RoundTripper. Every status but 2xx is an error
// here, so that no library retries, interprets or follows it.
func (carrier) RoundTrip(r *http.Request) (*http.Response, error) {
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, errors.New("llm: a request that belongs to no call")
	}
	r = r.Clone(r.Context())
	if err := x.prepare(r); err != nil {
		return nil, x.fail(newError(ClassRejected, "%v", err))
	}
	resp, err := x.transport.RoundTrip(r)
	if err != nil {
		return nil, x.fail(TransportError(err))
	}
	x.status, x.header = resp.StatusCode, redactHeader(resp.Header, x.secret)
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return nil, x.fail(x.refused(resp))
	case x.whole != nil:
		return x.complete(resp)
	}
	if kind := resp.Header.Get("Content-Type"); strings.HasPrefix(kind, "text/html") {
		return nil, x.fail(x.refused(resp))
	}
	resp.Body = &streamBody{x: x, from: resp.Body, next: x.streamed(&wireReader{x: x, r: resp.Body, left: maxAnswer})}
	return resp, nil
}

// httpError is [HTTPError] without the key.
func (x *exchange) httpError(body []byte) *Error {
	if x.secret != "" {
		body = bytes.ReplaceAll(body, []byte(x.secret), []byte("[redacted]"))
	}
	return HTTPError(x.status, x.header, body)
}

// refused reads the answer that is an error. A body that hangs or breaks off
// does not change what the status says.
func (x *exchange) refused(resp *http.Response) *Error {
	defer resp.Body.Close()
	defer time.AfterFunc(errorBodyTime, x.stop).Stop()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	return x.httpError(body)
}

// complete reads a whole answer.
func (x *exchange) complete(resp *http.Response) (*http.Response, error) {
	defer resp.Body.Close()
	body, err := io.ReadAll(&wireReader{x: x, r: resp.Body, left: maxAnswer})
	if err != nil {
		return nil, err // wireReader has noted it
	}
	body, failed := x.whole(body)
	if failed != nil {
		return nil, x.fail(failed)
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return resp, nil
}

// fail notes the first failure and returns it, without the key.
func (x *exchange) fail(e *Error) *Error {
	if x.failed == nil {
		x.failed = e.Redact(x.secret)
	}
	return x.failed
}

// error returns what a library's error is: the failure on the wire if there was
// one; else, with a good answer at hand, that it cannot be read; else that the
// library refused the request.
func (x *exchange) error(ctx context.Context, err error, partial string) *Error {
	switch {
	case x.failed != nil:
	case ctx.Err() != nil:
		x.fail(TransportError(ctx.Err()))
	case errors.Is(err, io.ErrUnexpectedEOF): // a proper end in the midst of a value
		x.fail(TransportError(io.ErrUnexpectedEOF))
	case x.status != 0:
		x.fail(newError(ClassMalformed, "%v", unwrapURL(err)))
	default:
		x.fail(newError(ClassRejected, "%v", unwrapURL(err)))
	}
	x.failed.Status, x.failed.Header = x.status, x.header
	x.failed.Partial = partial
	return x.failed.Redact(x.secret)
}

// broken is the error of a stream that ended before its end.
func (x *exchange) broken(partial string) *Error {
	return x.error(context.Background(), x.fail(newError(ClassLost, "the stream ended without a finish reason")), partial)
}

func unwrapURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// wireReader bounds a body and notes how it fails.
type wireReader struct {
	x    *exchange
	r    io.Reader
	left int
}

func (w *wireReader) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if w.left -= n; w.left < 0 {
		return 0, w.x.fail(newError(ClassMalformed, "the answer is larger than %d MiB", maxAnswer>>20))
	}
	if err != nil && err != io.EOF {
		return n, w.x.fail(TransportError(err))
	}
	return n, err
}

// streamBody is the body that a library reads: the pieces that next returns.
type streamBody struct {
	x     *exchange
	from  io.ReadCloser
	next  func() ([]byte, error)
	piece []byte
}

func (b *streamBody) Read(p []byte) (int, error) {
	for len(b.piece) == 0 {
		var err error
		if b.piece, err = b.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, b.piece)
	b.piece = b.piece[n:]
	return n, nil
}

// Close ends the answer. After its end little is left, without which the
// connection could not be used again.
func (b *streamBody) Close() error {
	if b.x.ended {
		defer time.AfterFunc(drainTime, b.x.stop).Stop()
		_, _ = io.CopyN(io.Discard, b.from, 4<<10)
	}
	return b.from.Close()
}

// sharedTransport carries the requests of all providers that have no other.
var sharedTransport = sync.OnceValue(func() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, 128 // every concurrent caller keeps its connection
	return t
})

// DefaultTransport carries the requests of providers that have no other: for
// who puts something before it.
func DefaultTransport() http.RoundTripper { return sharedTransport() }

// endpoint is where a provider is reached.
type endpoint struct {
	options   ProviderOptions
	base      *url.URL
	transport http.RoundTripper
}

func newEndpoint(o ProviderOptions, api, base string) (endpoint, error) {
	o.Name = cmp.Or(o.Name, api)
	if o.Model == "" {
		return endpoint{}, errors.New("llm: " + o.Name + ": no model is named")
	}
	if err := checkKey(o.APIKey); err != nil {
		return endpoint{}, fmt.Errorf("llm: %s: the API key %w", o.Name, err)
	}
	u, err := url.Parse(strings.TrimRight(cmp.Or(o.BaseURL, base), "/"))
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return endpoint{}, errors.New("llm: " + o.Name + ": the base URL is no http address without credentials")
	}
	p := endpoint{options: o, base: u, transport: o.Transport}
	if p.transport == nil {
		p.transport = sharedTransport()
	}
	return p, nil
}

// checkKey tells whether a key can be sent in a header, without showing it.
func checkKey(key string) error {
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("has a space, a line break or another character that no key has")
	}
	return nil
}

// Close ends idle connections.
func (p endpoint) Close() error {
	if t, ok := p.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
	return nil
}

// schemaInWords is the instruction for a model that cannot be held to a schema.
func schemaInWords(r *Request) string {
	return "Answer with nothing but a JSON document that satisfies this JSON schema:\n" + string(r.Schema)
}
