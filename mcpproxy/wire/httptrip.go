package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// HTTPSpec names a server that is reached over HTTP.
type HTTPSpec struct {
	URL     string
	Headers map[string]string // sent with every request; never logged
	// Transport does the round trips, nil means one of the peer's own. It may
	// be shared: Close closes its idle connections only.
	Transport http.RoundTripper
}

const (
	jsonType   = "application/json"
	eventsType = "text/event-stream"
	maxHops    = 3 // redirects in a row
)

// newTransport returns a transport for one server: many parallel calls, no
// deadline of its own for an answer, large buffers, no compression.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment, // never for loopback
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		DisableCompression:  true,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     90 * time.Second,
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      64 << 10,
	}
}

// postBody is the request's body. The transport reads it only once it has a
// connection, so that the first Read parts "not sent" from "lost".
type postBody struct {
	r bytes.Reader
	c *call
}

func (b *postBody) Read(p []byte) (int, error) {
	b.c.begun.Store(true)
	return b.r.Read(p)
}

func (b *postBody) Close() error { return nil }

// rewind is the body's GetBody. The transport asks for it when nothing of the
// first attempt was written.
func (c *call) rewind() (io.ReadCloser, error) {
	c.begun.Store(false)
	b := &postBody{c: c}
	b.r.Reset(c.o.Body)
	return b, nil
}

// post sends c to the server's URL.
func (b *caller) post(c *call) (*http.Response, error) {
	return b.roundTrip(c.ctx, http.MethodPost, c.header, c)
}

// roundTrip follows redirects that keep the method and stay on the origin,
// and remembers them: the configured headers go nowhere else.
func (b *caller) roundTrip(ctx context.Context, method string, h http.Header, c *call) (*http.Response, error) {
	for hop := 0; ; hop++ {
		u, err := b.target()
		if err != nil {
			return nil, err
		}
		req := (&http.Request{
			Method: method, URL: u, Header: h, Host: b.host,
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		}).WithContext(ctx)
		if c != nil {
			req.Body, req.GetBody, req.ContentLength = &c.body, c.rewind, int64(len(c.o.Body))
			if hop > 0 {
				req.Body, _ = c.rewind()
			}
		}
		resp, err := b.rt.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		next := redirect(u, resp)
		if next == nil || hop == maxHops {
			return resp, nil
		}
		discard(resp)
		b.mu.Lock()
		b.url = next
		b.mu.Unlock()
	}
}

func (b *caller) target() (*url.URL, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.url, b.badURL
}

// redirect returns where a 307 or 308 on the same origin leads, else nil.
func redirect(from *url.URL, resp *http.Response) *url.URL {
	if resp.StatusCode != http.StatusTemporaryRedirect && resp.StatusCode != http.StatusPermanentRedirect {
		return nil
	}
	to, err := from.Parse(resp.Header.Get("Location"))
	if err != nil || !sameOrigin(from, to) {
		return nil
	}
	return to
}

func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}

// redact names the server by scheme and host and keeps the URL that
// net/http may have put into err out of its text.
func (b *caller) redact(err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	if b.badURL != nil {
		return b.badURL
	}
	return fmt.Errorf("%s: %w", b.name, err)
}

// withHeaders returns a copy of h with more headers, given as pairs.
func withHeaders(h http.Header, pairs ...string) http.Header {
	h = maps.Clone(h)
	for i := 0; i < len(pairs); i += 2 {
		h[pairs[i]] = []string{pairs[i+1]}
	}
	return h
}
