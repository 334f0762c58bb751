package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	// tailWait bounds how long a stream may stay open after its answer, before its
	// connection is given up; a well-behaved server ends it at once.
	tailWait = 250 * time.Millisecond
	// errorBodyWait bounds the wait for the body of an error whose status is known.
	errorBodyWait = 5 * time.Second
)

// httpPeer is the client half of streamable HTTP, of both generations.
type httpPeer struct {
	*caller

	// Guarded by caller.mu.
	version   string
	session   string
	current   http.Header // base with version and session; never written to
	modern    bool
	stopWatch context.CancelFunc // ends the GET stream
}

var _ Peer = (*httpPeer)(nil)

// DialHTTP returns a peer for a streamable HTTP server. It does not connect
// before the first message, and never calls ev.Closed: each request fails for
// itself. Close must not be called from within ev.
func DialHTTP(spec HTTPSpec, l Limits, ev Events) Peer {
	p := &httpPeer{caller: newCaller(spec, l, ev)}
	p.current = p.base
	p.prepare = p.prepareLocked
	p.transact = p.transaction
	return p
}

// SetVersion implements [Peer].
func (p *httpPeer) SetVersion(v string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version, p.modern = v, v >= Modern
	p.refreshLocked()
}

// refreshLocked rebuilds the headers that most requests share.
func (p *httpPeer) refreshLocked() {
	var more []string
	if p.version >= V20250618 {
		more = append(more, "Mcp-Protocol-Version", p.version)
	}
	if p.session != "" && !p.modern {
		more = append(more, "Mcp-Session-Id", p.session)
	}
	p.current = withHeaders(p.base, more...)
}

// prepareLocked sets the headers of c. An initialize begins a new session, and
// a server/discover is modern whatever follows from it.
func (p *httpPeer) prepareLocked(c *call) {
	switch {
	case c.o.Method == "initialize":
		c.header = p.base
	case c.o.Method == "server/discover" && !p.modern:
		c.header = modernHeaders(withHeaders(p.base, "Mcp-Protocol-Version", Modern), &c.o)
	case p.modern:
		c.header = modernHeaders(withHeaders(p.current), &c.o)
	default:
		c.header, c.session = p.current, p.session
	}
}

// modernHeaders adds to h what 2026-07-28 mirrors from the body.
func modernHeaders(h http.Header, o *Outgoing) http.Header {
	if o.Method != "" {
		h["Mcp-Method"] = []string{EncodeHeaderValue(o.Method)}
	}
	if o.Name != "" {
		h["Mcp-Name"] = []string{EncodeHeaderValue(o.Name)}
	}
	for _, pair := range o.Headers {
		// The name comes from a server's schema: it must not become any other header.
		name := strings.TrimPrefix(http.CanonicalHeaderKey(pair[0]), "Mcp-Param-")
		h[http.CanonicalHeaderKey("Mcp-Param-"+name)] = []string{EncodeHeaderValue(pair[1])}
	}
	return h
}

// transaction posts c and sees to its outcome.
func (p *httpPeer) transaction(c *call) {
	resp, err := p.post(c)
	if err != nil {
		p.fail(c, p.sendError(c, err))
		return
	}
	defer resp.Body.Close()
	kind := mediaType(resp.Header)
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		p.refused(c, resp)
		return
	case resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusNoContent:
		kind = "nothing"
	case c.o.Method == "initialize":
		p.setSession(c, resp.Header.Get("Mcp-Session-Id"))
	}
	switch kind {
	case eventsType:
		p.stream(c, resp.Body)
	case jsonType:
		p.single(c, resp)
	default:
		err := fmt.Errorf("HTTP status %d with %.80q instead of a JSON-RPC message", resp.StatusCode, kind)
		p.fail(c, &Error{Kind: Malformed, Status: resp.StatusCode, Err: p.redact(err)})
	}
}

// setSession takes the session of an initialize response; an id with anything
// but visible ASCII is none.
func (p *httpPeer) setSession(c *call, id string) {
	if strings.Contains(id, " ") || !plainHeaderValue(id) {
		id = ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session = id
	p.refreshLocked()
	c.header, c.session = p.current, id // for a resumption
}

// single reads an answer that is one JSON body.
func (p *httpPeer) single(c *call, resp *http.Response) {
	b, err := readBody(resp, p.limits.Message)
	if err != nil {
		p.fail(c, p.readError(err))
		return
	}
	m, err := Parse(b)
	if err == nil && !ours(&m, c) && !anonymous(&m) {
		err = errors.New("the body is not the answer to the request")
	}
	if err != nil {
		p.fail(c, &Error{Kind: Malformed, Status: resp.StatusCode, Err: p.redact(err)})
		return
	}
	p.answer(c, m)
}

// ours tells whether m is the response to c.
func ours(m *Message, c *call) bool {
	id, ok := ParseID(m.ID)
	return ok && id == c.o.ID && m.IsResponse()
}

// refused handles a response that is no success: the server's own JSON-RPC
// answer, a lost session, or a status.
func (p *httpPeer) refused(c *call, resp *http.Response) {
	late := time.AfterFunc(errorBodyWait, c.cancel)
	b, err := readBody(resp, min(p.limits.Message, 1<<20))
	late.Stop()
	var m Message
	if err == nil {
		m, err = Parse(b)
	}
	parsed := err == nil && m.IsResponse()
	mine := parsed && ours(&m, c)
	switch {
	case c.session != "" && sessionGone(resp.StatusCode, b, &m, mine):
		e := p.statusError(resp)
		e.Kind = SessionLost
		p.fail(c, e)
	case parsed && (mine || anonymous(&m)) && answersItself(resp.StatusCode, mine):
		p.answer(c, m)
	default:
		p.fail(c, p.statusError(resp))
	}
}

// stream follows the event stream of c to its answer. A stream of the legacy
// generation that ends too early is resumed from its last event.
func (p *httpPeer) stream(c *call, body io.ReadCloser) {
	place := cursor{retry: -1}
	e := p.follow(c, body, &place)
	if e != nil && e.Kind == Lost && place.last != "" && !p.isModern() {
		e = p.resume(c, &place, e)
	}
	if e != nil {
		p.fail(c, e)
	}
}

func (p *httpPeer) isModern() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.modern
}

// follow delivers the events of one response until c is answered, which is
// nil, or the response ends. It closes body.
func (p *httpPeer) follow(c *call, body io.ReadCloser, place *cursor) *Error {
	defer body.Close()
	r := newEventReader(body, p.limits.Message)
	defer r.free()
	var bad error
	for {
		ev, err := r.next()
		place.move(r)
		place.torn = err != nil && !errors.Is(err, io.EOF)
		switch {
		case err != nil && bad != nil:
			return &Error{Kind: Malformed, Err: p.redact(bad)}
		case err != nil:
			return p.readError(err)
		case ev.over:
			return &Error{Kind: TooLarge, Err: p.redact(errTooLarge)}
		case ev.name != "" && ev.name != "message":
			continue
		}
		m, err := Parse(ev.data)
		if err != nil {
			bad = err // the answer may still come
			continue
		}
		if p.deliver(m, c) {
			tail := time.AfterFunc(tailWait, c.cancel)
			io.CopyN(io.Discard, body, 4<<10) // the end, which frees the connection
			tail.Stop()
			return nil
		}
	}
}

// Close implements [Peer]: requests under way fail, the session is deleted
// within two seconds.
func (p *httpPeer) Close(ctx context.Context) {
	if p.shut() {
		p.deleteSession(ctx)
	}
	p.finish()
}

func (p *httpPeer) deleteSession(ctx context.Context) {
	p.mu.Lock()
	session, h := p.session, p.current
	p.mu.Unlock()
	if session == "" || p.isModern() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if resp, err := p.roundTrip(ctx, http.MethodDelete, h, nil); err == nil {
		discard(resp)
	}
}
