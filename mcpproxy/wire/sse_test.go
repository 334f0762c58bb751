package wire

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// openSSE opens a session and returns its stream and where to post.
func openSSE(t *testing.T, c *toyClient, ctx context.Context) (*toyStream, string) {
	t.Helper()
	s := c.open(ctx, "GET", "/sse", "")
	path, ok := strings.CutPrefix(s.next(), "event: endpoint|data: ")
	if !ok || !strings.HasPrefix(path, "/message?sessionId=") {
		t.Fatalf("endpoint %q", path)
	}
	return s, path
}

func TestSSESession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &toyHandler{on: map[string]func(*Session, Message, Stream){
			"say": func(s *Session, m Message, st Stream) {
				s.Send(toyNote(1), true)
				st.Send(toyNote(2), true)
				st.Answer(toyResult(m), false)
				st.Answer(toyResult(m), false) // dropped
				st.Send(toyNote(3), false)     // dropped
			},
		}}
		c := newToyClient(t, HTTPOptions{Handler: h})
		ctx, leave := context.WithCancel(t.Context())
		s, path := openSSE(t, c, ctx)
		if resp, body := c.call("POST", path, toyRequest("say", "{}")); resp.StatusCode != 202 {
			t.Fatalf("%s %s", resp.Status, body)
		}
		s.expect(t, `event: message|data: {"jsonrpc":"2.0","method":"n1"}`, `event: message|data: {"jsonrpc":"2.0","method":"n2"}`,
			`event: message|data: {"jsonrpc":"2.0","id":7,"result":{"echo":"say"}}`, ": keep-alive")

		for _, tt := range []struct {
			path, body string
			headers    []string
			status     int
		}{
			{"/message", toyRequest("ping", "{}"), nil, 400},
			{"/message?sessionId=x", toyRequest("ping", "{}"), nil, 404},
			{path, `{`, nil, 400},
			{path, toyRequest("ping", "{}"), []string{"Content-Type", "text/plain"}, 415},
			{path, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, nil, 202},
		} {
			if resp, body := c.call("POST", tt.path, tt.body, tt.headers...); resp.StatusCode != tt.status {
				t.Errorf("POST %s %s: %s %s, want %d", tt.path, tt.body, resp.Status, body, tt.status)
			}
		}
		if resp, _ := c.post(toyRequest("ping", "{}"), "Mcp-Session-Id", strings.TrimPrefix(path, "/message?sessionId=")); resp.StatusCode != 404 {
			t.Errorf("an SSE session over /mcp: %s, want 404", resp.Status)
		}

		leave()
		synctest.Wait()
		if n, twice := h.closes(); n != 1 || twice {
			t.Errorf("%d sessions closed after the client left, want 1", n)
		}
		if resp, _ := c.call("POST", path, toyRequest("ping", "{}")); resp.StatusCode != 404 {
			t.Errorf("after the end: %s, want 404", resp.Status)
		}
	})
}

// A session that nothing was ever said in was never shown to the Handler.
func TestSSESilentSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &toyHandler{}
		c := newToyClient(t, HTTPOptions{Handler: h})
		ctx, leave := context.WithCancel(t.Context())
		openSSE(t, c, ctx)
		leave()
		synctest.Wait()
		if n, _ := h.closes(); n != 0 || len(c.h.sessions) != 0 {
			t.Errorf("%d closed, %d left", n, len(c.h.sessions))
		}
	})
}

// A client that asks and never reads is let go: its answers have no room.
func TestSSEStalledReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &toyHandler{}
		c := newToyClient(t, HTTPOptions{Handler: h, Limits: Limits{Queue: 4}})
		_, path := openSSE(t, c, t.Context())
		status := 202
		for range 10 {
			resp, _ := c.call("POST", path, toyRequest("ping", "{}"))
			if status = resp.StatusCode; status != 202 {
				break
			}
		}
		time.Sleep(writeTimeout + time.Second)
		if n, _ := h.closes(); n != 1 || len(c.h.sessions) != 0 {
			t.Errorf("%d closed, %d left: the stalled session lives on", n, len(c.h.sessions))
		}
	})
}

// Close lets a request that is under way be answered.
func TestSSECloseWaitsForAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, started := toyScripted(HTTPOptions{})
		c := newToyClient(t, o)
		s, path := openSSE(t, c, t.Context())
		c.call("POST", path, toyRequest("script", "{}"))
		closed := make(chan struct{})
		go func() { c.h.Close(context.Background()); close(closed) }()
		time.Sleep(time.Second)
		(<-started).Answer(toyAnswer(), false)
		s.expect(t, "event: message|data: "+string(toyAnswer()), "EOF")
		<-closed
	})
}
