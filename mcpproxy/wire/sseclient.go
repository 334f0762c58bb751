package wire

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
)

// ssePeer is the client half of HTTP+SSE (2024-11-05): one stream carries all
// that the server says, each message to it is a POST to the endpoint that the
// stream named.
type ssePeer struct {
	*caller
	stream *http.Response
	events *eventReader
}

var _ Peer = (*ssePeer)(nil)

// DialSSE opens the stream and waits until the server has named its endpoint
// or ctx ends; ctx has no say afterwards. The error is an [*Error]. When the
// stream ends, requests under way fail and ev.Closed is called. Close must not
// be called from within ev.
func DialSSE(ctx context.Context, spec HTTPSpec, l Limits, ev Events) (Peer, error) {
	p := &ssePeer{caller: newCaller(spec, l, ev)}
	p.prepare = func(c *call) { c.header = p.base }
	p.transact = p.transaction
	release := context.AfterFunc(ctx, p.cancel)
	e := p.open()
	if !release() && e == nil {
		e = &Error{Kind: Lost, Err: p.redact(context.Cause(ctx))}
	}
	if e != nil {
		if ctx.Err() != nil {
			e.Err = p.redact(context.Cause(ctx))
		}
		p.shut()
		if p.stream != nil {
			p.stream.Body.Close()
			p.events.free()
		}
		p.finish()
		return nil, e
	}
	p.streams.Go(p.read)
	return p, nil
}

// open gets the stream and reads it up to the endpoint event.
func (p *ssePeer) open() *Error {
	h := withHeaders(p.base, "Accept", eventsType)
	delete(h, "Content-Type")
	resp, err := p.roundTrip(p.ctx, http.MethodGet, h, nil)
	if err != nil {
		return &Error{Kind: NotSent, Err: p.redact(err)}
	}
	p.stream = resp
	p.events = newEventReader(resp.Body, p.limits.Message)
	if resp.StatusCode != http.StatusOK {
		return p.statusError(resp)
	}
	if kind := mediaType(resp.Header); kind != eventsType {
		return &Error{Kind: Malformed, Status: resp.StatusCode, Err: p.redact(fmt.Errorf("%.80q instead of an event stream", kind))}
	}
	for {
		ev, err := p.events.next()
		if err != nil {
			return p.readError(err)
		}
		if ev.name == "endpoint" {
			return p.setEndpoint(string(ev.data))
		}
	}
}

// setEndpoint takes the URL for the POSTs, which must be on the stream's own
// origin: the configured headers go there.
func (p *ssePeer) setEndpoint(ref string) *Error {
	p.mu.Lock()
	from := p.url
	p.mu.Unlock()
	to, err := from.Parse(ref)
	if err != nil || !sameOrigin(from, to) {
		return &Error{Kind: Malformed, Err: p.redact(errors.New("the endpoint event names another origin or no URL"))}
	}
	p.mu.Lock()
	p.url = &url.URL{Scheme: to.Scheme, Host: from.Host, Path: to.Path, RawPath: to.RawPath, RawQuery: to.RawQuery}
	p.mu.Unlock()
	return nil
}

// SetVersion implements [Peer]: this transport has no header for it.
func (p *ssePeer) SetVersion(string) {}

// Ready implements [Peer]: the stream is open already.
func (p *ssePeer) Ready() {}

// transaction posts c; the answer comes on the stream, maybe before the POST
// returns.
func (p *ssePeer) transaction(c *call) {
	resp, err := p.post(c)
	switch {
	case err != nil:
		p.fail(c, p.sendError(c, err))
		return
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		p.fail(c, p.statusError(resp))
	}
	discard(resp)
}

// read delivers the stream until it ends, and with it the connection.
func (p *ssePeer) read() {
	defer p.events.free()
	defer p.stream.Body.Close()
	for {
		ev, err := p.events.next()
		if err != nil {
			p.ended(p.readError(err))
			return
		}
		if !ev.over && ev.name != "" && ev.name != "message" {
			continue
		}
		m, err := Parse(ev.data)
		switch {
		case ev.over:
			p.unreadable(err, &Error{Kind: TooLarge, Err: p.redact(errTooLarge)})
		case err != nil:
			p.unreadable(err, &Error{Kind: Malformed, Err: p.redact(fmt.Errorf("unreadable answer: %w", err))})
		default:
			p.deliver(m, nil)
		}
	}
}

// unreadable fails the request whose answer is no message, if its id could be read.
func (p *ssePeer) unreadable(err error, e *Error) {
	broken, _ := errors.AsType[*ParseError](err)
	if broken == nil || broken.request {
		return
	}
	id, ok := ParseID(broken.ID)
	if !ok {
		return
	}
	if c := p.take(id); c != nil {
		c.cancel()
		p.ev.Failed(id, e)
	}
}

// ended fails what is under way and then tells that the connection is gone,
// unless Close was first.
func (p *ssePeer) ended(e *Error) {
	p.mu.Lock()
	calls := p.pending
	p.pending = map[uint64]*call{}
	p.mu.Unlock()
	first := p.shut()
	p.posts.Wait()
	for id, c := range calls {
		if !c.begun.Load() {
			p.ev.Failed(id, &Error{Kind: NotSent, Err: e.Err})
			continue
		}
		p.ev.Failed(id, e)
	}
	if first {
		p.ev.Closed(e)
	}
}

// Close implements [Peer].
func (p *ssePeer) Close(context.Context) {
	p.shut()
	p.finish()
}
