package wire

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"
)

const (
	resumeTries = 3 // failures in a row before a request is given up
	resumeWait  = 100 * time.Millisecond
	emptyPolls  = 5 // resumptions in a row without any event, where the server did not ask for polling
	watchWait   = 500 * time.Millisecond
	watchMax    = 30 * time.Second
	watchSteady = 10 * time.Second // a stream that lasted this long was no failure
)

// cursor is how far a stream has been read.
type cursor struct {
	last  string        // id of the newest event
	retry time.Duration // the server's wish, -1 without one
	moved bool          // the last response brought a new event id
	torn  bool          // it brought nothing and did not end by itself, as one does that asks for polling
}

func (c *cursor) move(r *eventReader) {
	if r.lastID != "" && r.lastID != c.last {
		c.last, c.moved = r.lastID, true
	}
	if r.retry >= 0 {
		c.retry = r.retry
	}
}

// wait is how long to wait before the next try: what the server asked for, if
// all went well, else at least base doubled per failure, with jitter.
func (c *cursor) wait(base time.Duration, failed int) time.Duration {
	if failed == 0 && c.retry >= 0 {
		return max(c.retry, 10*time.Millisecond)
	}
	d := min(base<<min(failed, 10), watchMax)
	return max(d+rand.N(d/4), c.retry)
}

// resume polls for the rest of c's stream (2025-11-25, Resumability and
// Redelivery) until the answer, nil, or a failure. The POST is never repeated.
func (p *httpPeer) resume(c *call, place *cursor, lost *Error) *Error {
	for failed, empty := 0, 0; failed < resumeTries && empty < emptyPolls; {
		if !sleep(c.ctx, place.wait(resumeWait, max(failed, empty))) {
			return lost
		}
		place.moved, place.torn = false, false
		e, again := p.poll(c, place)
		switch {
		case e == nil || e.Kind != Lost:
			return e
		case !again:
			return lost
		case place.torn:
			failed++
		case place.moved || place.retry >= 0:
			failed, empty = 0, 0
		default:
			failed = 0
			empty++
		}
	}
	return lost
}

// poll asks once for the rest of c's stream; again tells that after a Lost
// there may be more.
func (p *httpPeer) poll(c *call, place *cursor) (e *Error, again bool) {
	lost := &Error{Kind: Lost}
	resp, err := p.get(c.ctx, c.header, place.last)
	switch {
	case err != nil:
		place.torn = true
		return lost, true
	case resp.StatusCode == http.StatusOK && mediaType(resp.Header) == eventsType:
		e := p.follow(c, resp.Body, place)
		place.torn = place.torn && !place.moved
		return e, true
	}
	discard(resp)
	place.torn = true
	return lost, resp.StatusCode >= 500
}

// get opens an event stream, behind the event last if that is not "".
func (p *httpPeer) get(ctx context.Context, h http.Header, last string) (*http.Response, error) {
	h = withHeaders(h, "Accept", eventsType)
	delete(h, "Content-Type")
	if last != "" {
		h["Last-Event-Id"] = []string{last}
	}
	return p.roundTrip(ctx, http.MethodGet, h, nil)
}

// Ready implements [Peer]: with a legacy server it opens the GET stream, again
// if that was open for an earlier session.
func (p *httpPeer) Ready() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.modern || p.badURL != nil {
		return
	}
	if p.stopWatch != nil {
		p.stopWatch()
	}
	ctx, cancel := context.WithCancel(p.ctx)
	p.stopWatch = cancel
	h := p.current
	p.streams.Go(func() {
		defer OnPanic()
		defer cancel()
		p.watch(ctx, h)
	})
}

// watch keeps the GET stream open until ctx ends or the server says that it
// has none, or no such session. A failure once it was open, or of a server out
// of reach, is told: without other requests it may be the only sign.
func (p *httpPeer) watch(ctx context.Context, h http.Header) {
	place := cursor{retry: -1}
	opened := false
	for failed := 0; ; failed++ {
		began := time.Now()
		place.moved = false
		var asked time.Duration
		resp, err := p.get(ctx, h, place.last)
		switch {
		case err != nil:
			p.trouble(ctx, p.redact(err))
		case resp.StatusCode == http.StatusOK:
			if mediaType(resp.Header) != eventsType {
				discard(resp)
				return
			}
			opened = true
			p.listen(resp, &place)
		default:
			asked = retryAfter(resp.Header, began)
			if opened {
				p.trouble(ctx, p.statusError(resp).Err)
			}
			discard(resp)
			if !mayPass(resp.StatusCode) {
				return
			}
		}
		if place.moved || time.Since(began) > watchSteady {
			failed = 0
		}
		if !sleep(ctx, max(place.wait(watchWait, failed), asked)) {
			return
		}
	}
}

func (p *httpPeer) trouble(ctx context.Context, err error) {
	if p.ev.Trouble != nil && ctx.Err() == nil {
		p.ev.Trouble(&Error{Kind: Lost, Err: err})
	}
}

// mayPass tells a failure that may pass from a refusal.
func mayPass(status int) bool {
	return status >= 500 && status != http.StatusNotImplemented ||
		status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
}

// listen delivers what comes on the GET stream. An event that is too large or
// no message is skipped: nothing here tells whose it was.
func (p *httpPeer) listen(resp *http.Response, place *cursor) {
	defer resp.Body.Close()
	r := newEventReader(resp.Body, p.limits.Message)
	defer r.free()
	for {
		ev, err := r.next()
		place.move(r)
		if err != nil {
			return
		}
		if ev.over || ev.name != "" && ev.name != "message" {
			continue
		}
		if m, err := Parse(ev.data); err == nil {
			p.deliver(m, nil)
		}
	}
}

// sleep waits for d; false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
