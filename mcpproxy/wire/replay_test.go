package wire

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// toyScripted offers the request "script", whose messages the test sends itself.
func toyScripted(o HTTPOptions) (HTTPOptions, chan Stream) {
	started := make(chan Stream, 8)
	o.Handler = &toyHandler{on: map[string]func(*Session, Message, Stream){
		"script": func(_ *Session, _ Message, st Stream) { started <- st },
	}}
	return o, started
}

func toyAnswer() []byte { return []byte(`{"jsonrpc":"2.0","id":7,"result":{}}`) }

func toyEvent(stream, n int) string {
	return fmt.Sprintf(`event: message|id: %d_%d|data: {"jsonrpc":"2.0","method":"n%d"}`, stream, n, n)
}

func toyFinal(stream, n int) string {
	return fmt.Sprintf(`event: message|id: %d_%d|data: %s`, stream, n, toyAnswer())
}

func TestHTTPResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, started := toyScripted(HTTPOptions{})
		c := newToyClient(t, o)
		c.initialize(V20250618)
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			st := <-started
			for n := range 3 {
				st.Send(toyNote(n+1), false)
			}
			started <- st
		}()
		s := c.open(ctx, "POST", "/mcp", toyRequest("script", "{}"))
		s.expect(t, toyEvent(1, 1), toyEvent(1, 2), toyEvent(1, 3))
		leave()
		synctest.Wait()

		st := <-started
		select {
		case <-leaving(st):
			t.Fatal("the client counts as gone although the client may resume")
		default:
		}
		if err := st.Send(toyNote(4), false); err != nil {
			t.Fatal(err)
		}
		// The client has seen only the first event.
		s = c.open(t.Context(), "GET", "/mcp", "", "Last-Event-ID", "1_1")
		s.expect(t, toyEvent(1, 2), toyEvent(1, 3), toyEvent(1, 4))
		st.Send(toyNote(5), false)
		s.expect(t, toyEvent(1, 5))
		st.Answer(toyAnswer(), false)
		s.expect(t, toyFinal(1, 6), "EOF")

		// The end of the stream can be fetched once more.
		s = c.open(t.Context(), "GET", "/mcp", "", "Last-Event-ID", "1_5")
		s.expect(t, toyFinal(1, 6), "EOF")
	})
}

func TestHTTPAnswerWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, started := toyScripted(HTTPOptions{Limits: Limits{SessionIdle: time.Minute}})
		c := newToyClient(t, o)
		c.initialize(Legacy)
		ctx, leave := context.WithCancel(t.Context())
		s := c.open(ctx, "POST", "/mcp", toyRequest("script", "{}"))
		s.expect(t, "id: 1_0|retry: 1000|data: ")
		leave()
		st := <-started
		time.Sleep(10 * time.Minute) // a request under way keeps the session
		st.Send(toyNote(1), false)
		if err := st.Answer(toyAnswer(), false); err != nil {
			t.Fatal(err)
		}
		s = c.open(t.Context(), "GET", "/mcp", "", "Last-Event-ID", "1_0")
		s.expect(t, toyEvent(1, 1), toyFinal(1, 2), "EOF")
		time.Sleep(3 * time.Minute)
		if resp, _ := c.post(toyRequest("ping", "{}")); resp.StatusCode != 404 {
			t.Errorf("the idle session is still there: %s", resp.Status)
		}
	})
}

// A client that resumes says that its old connection is dead, whatever we see.
func TestHTTPResumeReplacesConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, started := toyScripted(HTTPOptions{})
		c := newToyClient(t, o)
		c.initialize(Legacy)
		old := c.open(t.Context(), "POST", "/mcp", toyRequest("script", "{}"))
		old.expect(t, "id: 1_0|retry: 1000|data: ")
		s := c.open(t.Context(), "GET", "/mcp", "", "Last-Event-ID", "1_0")
		old.expect(t, "EOF")
		(<-started).Answer(toyAnswer(), false)
		s.expect(t, toyFinal(1, 1), "EOF")
	})
}

func TestHTTPOwnStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var session *Session
		h := &toyHandler{on: map[string]func(*Session, Message, Stream){
			"notifications/initialized": func(s *Session, _ Message, _ Stream) { session = s },
		}}
		c := newToyClient(t, HTTPOptions{Handler: h, Limits: Limits{Queue: 2}})
		c.initialize(Legacy)
		c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		session.Send(toyNote(1), false)
		session.Send(toyNote(2), false)
		if err := session.Send(toyNote(3), false); err != ErrFull {
			t.Errorf("over the queue: %v, want ErrFull", err)
		}
		ctx, leave := context.WithCancel(t.Context())
		s := c.open(ctx, "GET", "/mcp", "")
		s.expect(t, "id: 0_0|retry: 1000|data: ", toyEvent(0, 1), toyEvent(0, 2))
		if resp, _ := c.call("GET", "/mcp", ""); resp.StatusCode != 409 {
			t.Errorf("second GET: %s, want 409", resp.Status)
		}
		leave()
		synctest.Wait()
		session.Send(toyNote(3), false)
		s = c.open(t.Context(), "GET", "/mcp", "", "Last-Event-ID", "0_1")
		s.expect(t, toyEvent(0, 2), toyEvent(0, 3))
		c.call("DELETE", "/mcp", "")
		s.expect(t, "EOF")
		if err := session.Send(toyNote(4), false); err != ErrGone {
			t.Errorf("after DELETE: %v, want ErrGone", err)
		}
	})
}

// A resumed stream holds nothing of another one.
func TestReplayLogBounds(t *testing.T) {
	var l replayLog
	a, b := &httpStream{}, &httpStream{}
	l.add(replayEvent{a, 1, make([]byte, 10)})
	l.add(replayEvent{b, 1, []byte("b1")})
	l.add(replayEvent{a, 2, []byte("a2")})
	raws, first := l.after(a, 1)
	if len(raws) != 1 || string(raws[0]) != "a2" || first != 2 {
		t.Errorf("after: %q from %d", raws, first)
	}
	if gone := l.add(replayEvent{a, 3, make([]byte, replayBytes)}); len(gone) != 3 {
		t.Errorf("%d dropped by bytes, want 3", len(gone))
	}
	if len(l.events) != 1 || l.bytes != replayBytes {
		t.Errorf("left: %d messages, %d bytes", len(l.events), l.bytes)
	}
	for n := range replayMessages + 5 {
		l.add(replayEvent{b, n, nil})
	}
	if len(l.events) != replayMessages {
		t.Errorf("%d messages kept, want %d", len(l.events), replayMessages)
	}
}

// A stream is forgotten with the last of its messages.
func TestHTTPStreamsAreForgotten(t *testing.T) {
	hs := &httpSession{streams: map[int]*httpStream{}}
	hs.Transport = "http"
	for range 3 * replayMessages {
		st := &httpStream{session: hs}
		hs.register(st)
		st.mu.Lock()
		st.queue, st.ended = [][]byte{toyAnswer()}, true
		st.storeLocked()
		st.mu.Unlock()
	}
	if n := len(hs.streams); n != replayMessages {
		t.Errorf("%d streams known, want %d", n, replayMessages)
	}
}
