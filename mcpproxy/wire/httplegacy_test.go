package wire

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestHTTPLegacyStatus(t *testing.T) {
	c := newToyClient(t, HTTPOptions{Handler: &toyHandler{}})
	c.initialize(V20250618)
	list := toyRequest("tools/list", "{}")
	tests := []struct {
		name    string
		method  string
		body    string
		headers []string
		status  int
		has     string // in the body
	}{
		{"request", "POST", list, nil, 200, `"result"`},
		{"no version header", "POST", list, []string{"Mcp-Protocol-Version", ""}, 200, `"result"`},
		{"unsupported version", "POST", list, []string{"Mcp-Protocol-Version", "1999-01-01"}, 400, `"supported":["2026-07-28",`},
		{"notification", "POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, nil, 202, ""},
		{"response", "POST", `{"jsonrpc":"2.0","id":"a1","result":{}}`, nil, 202, ""},
		{"no session", "POST", list, []string{"Mcp-Session-Id", ""}, 400, "Mcp-Session-Id header is required"},
		{"no session keeps the id", "POST", list, []string{"Mcp-Session-Id", ""}, 400, `"id":7`},
		{"no session, ping", "POST", toyRequest("ping", "{}"), []string{"Mcp-Session-Id", "", "Mcp-Protocol-Version", ""}, 400, "initialize"},
		{"unknown session", "POST", list, []string{"Mcp-Session-Id", "nope"}, 404, `"code":-32001`},
		{"broken JSON", "POST", `{"jsonrpc":`, nil, 400, `"code":-32700`},
		{"batch", "POST", "[" + list + "]", nil, 400, `"code":-32600`},
		{"GET without session", "GET", "", []string{"Mcp-Session-Id", ""}, 400, "Mcp-Session-Id header is required"},
		{"GET unknown session", "GET", "", []string{"Mcp-Session-Id", "nope"}, 404, "Session not found"},
		{"GET without event-stream", "GET", "", []string{"Accept", "application/json"}, 406, ""},
		{"GET with unsupported version", "GET", "", []string{"Mcp-Protocol-Version", "1999-01-01"}, 400, `-32022`},
		{"GET of an unknown event", "GET", "", []string{"Last-Event-ID", "9_9"}, 400, "Last-Event-ID"},
		{"GET of a malformed event", "GET", "", []string{"Last-Event-ID", "x"}, 400, "Last-Event-ID"},
		{"GET of a future event", "GET", "", []string{"Last-Event-ID", "0_5"}, 400, "never sent"},
		{"DELETE without session", "DELETE", "", []string{"Mcp-Session-Id", ""}, 400, ""},
		{"DELETE unknown session", "DELETE", "", []string{"Mcp-Session-Id", "nope"}, 404, ""},
		{"PUT", "PUT", "", nil, 405, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, body := c.call(tt.method, "/mcp", tt.body, tt.headers...)
			if resp.StatusCode != tt.status || !strings.Contains(body, tt.has) {
				t.Errorf("%d %s, want %d with %q", resp.StatusCode, body, tt.status, tt.has)
			}
			if tt.status == 202 && body != "" {
				t.Errorf("202 with a body: %s", body)
			}
		})
	}
}

func TestHTTPSessionLifecycle(t *testing.T) {
	h := &toyHandler{}
	c := newToyClient(t, HTTPOptions{Handler: h})
	c.initialize(Legacy)
	if resp, _ := c.call("DELETE", "/mcp", ""); resp.StatusCode != 204 {
		t.Errorf("DELETE: %s", resp.Status)
	}
	if n, twice := h.closes(); n != 1 || twice {
		t.Errorf("closed %d sessions (twice: %v), want 1", n, twice)
	}
	if resp, _ := c.post(toyRequest("ping", "{}")); resp.StatusCode != 404 {
		t.Errorf("after DELETE: %s, want 404", resp.Status)
	}
}

func TestHTTPRefusedInitializeOpensNoSession(t *testing.T) {
	h := &toyHandler{on: map[string]func(*Session, Message, Stream){
		"initialize": func(_ *Session, m Message, st Stream) {
			st.Answer(AppendError(nil, m.ID, CodeInvalidParams, "no", nil), false)
		},
	}}
	c := newToyClient(t, HTTPOptions{Handler: h})
	resp, body := c.post(toyRequest("initialize", "{}"))
	if resp.StatusCode != 200 || resp.Header.Get("Mcp-Session-Id") != "" || !strings.Contains(body, "-32602") {
		t.Errorf("%s %v %s", resp.Status, resp.Header, body)
	}
	if n, _ := h.closes(); n != 1 || len(c.h.sessions) != 0 {
		t.Errorf("closed %d, %d sessions left", n, len(c.h.sessions))
	}
}

// The id has to go out before the answer is known: an error ends the session.
func TestHTTPInitializeRefusedLate(t *testing.T) {
	begun := make(chan struct{})
	h := &toyHandler{on: map[string]func(*Session, Message, Stream){
		"initialize": func(_ *Session, m Message, st Stream) {
			st.Send(toyNote(1), false)
			go func() {
				<-begun
				st.Answer(AppendError(nil, m.ID, CodeInvalidParams, "no", nil), false)
			}()
		},
	}}
	c := newToyClient(t, HTTPOptions{Handler: h})
	s := c.open(t.Context(), "POST", "/mcp", toyRequest("initialize", "{}"))
	close(begun)
	for s.next() != "EOF" {
	}
	c.session = s.resp.Header.Get("Mcp-Session-Id")
	if resp, _ := c.post(toyRequest("ping", "{}")); resp.StatusCode != 404 {
		t.Errorf("the session lives on: %s", resp.Status)
	}
}

// A session belongs to the token that opened it.
func TestHTTPSessionOfAnotherToken(t *testing.T) {
	var principals []string
	h := &toyHandler{on: map[string]func(*Session, Message, Stream){
		"who": func(s *Session, m Message, st Stream) {
			principals = append(principals, s.Principal)
			st.Answer(toyResult(m), false)
		},
	}}
	c := newToyClient(t, HTTPOptions{Handler: h, Tokens: []string{"a", "b"}})
	resp, _ := c.post(toyRequest("initialize", `{"protocolVersion":"2025-06-18"}`), "Authorization", "Bearer a")
	c.session = resp.Header.Get("Mcp-Session-Id")
	if resp, _ := c.post(toyRequest("who", "{}"), "Authorization", "Bearer b"); resp.StatusCode != 404 {
		t.Errorf("with another token: %s, want 404", resp.Status)
	}
	if resp, _ := c.post(toyRequest("who", "{}"), "Authorization", "Bearer a"); resp.StatusCode != 200 {
		t.Errorf("with its token: %s", resp.Status)
	}
	if len(principals) != 1 || principals[0] == "" || strings.Contains(principals[0], "a ") {
		t.Errorf("principals %q", principals)
	}
}

func TestHTTPSessionLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &toyHandler{}
		c := newToyClient(t, HTTPOptions{Handler: h, Limits: Limits{Sessions: 2}})
		c.initialize(Legacy)
		stream := c.open(t.Context(), "GET", "/mcp", "") // in use: never evicted
		go io.Copy(io.Discard, stream.resp.Body)
		used := c.session
		c.session = ""
		c.initialize(Legacy)
		c.session = ""
		resp, body := c.post(toyRequest("initialize", `{"protocolVersion":"2025-06-18"}`))
		if resp.StatusCode != 503 || !strings.Contains(body, "Too many sessions") {
			t.Errorf("third session: %s %s, want 503", resp.Status, body)
		}
		time.Sleep(2 * evictIdle)
		c.initialize(Legacy)
		if n, _ := h.closes(); n != 1 {
			t.Errorf("%d sessions evicted, want 1", n)
		}
		if resp, _ := c.post(toyRequest("ping", "{}"), "Mcp-Session-Id", used); resp.StatusCode != 200 {
			t.Errorf("the session in use: %s", resp.Status)
		}
		stream.resp.Body.Close()
	})
}

func TestHTTPIdleSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &toyHandler{}
		c := newToyClient(t, HTTPOptions{Handler: h, Limits: Limits{SessionIdle: time.Minute}})
		c.initialize(Legacy)
		ctx, leave := context.WithCancel(t.Context())
		s := c.open(ctx, "GET", "/mcp", "")
		go io.Copy(io.Discard, s.resp.Body)
		time.Sleep(10 * time.Minute)
		if n, _ := h.closes(); n != 0 {
			t.Fatal("a session with an open stream has ended")
		}
		leave()
		time.Sleep(59 * time.Second)
		if n, _ := h.closes(); n != 0 {
			t.Fatal("the session has ended too early")
		}
		time.Sleep(time.Minute)
		if n, twice := h.closes(); n != 1 || twice {
			t.Errorf("%d sessions closed, want 1", n)
		}
	})
}

func TestHTTPStreamOfARequest(t *testing.T) {
	say := func(_ *Session, m Message, st Stream) {
		st.Send(toyNote(1), false)
		st.Send(toyNote(2), true)
		st.Answer(toyResult(m), false)
		st.Answer(toyResult(m), false) // dropped
		st.Send(toyNote(3), false)     // dropped
	}
	c := newToyClient(t, HTTPOptions{Handler: &toyHandler{on: map[string]func(*Session, Message, Stream){"say": say}}})
	c.initialize(V20250618)
	s := c.open(t.Context(), "POST", "/mcp", toyRequest("say", "{}"))
	if got := s.resp.Header.Get("X-Accel-Buffering"); got != "no" {
		t.Errorf("X-Accel-Buffering %q", got)
	}
	s.expect(t,
		`event: message|id: 1_1|data: {"jsonrpc":"2.0","method":"n1"}`,
		`event: message|id: 1_2|data: {"jsonrpc":"2.0","method":"n2"}`,
		`event: message|id: 1_3|data: {"jsonrpc":"2.0","id":7,"result":{"echo":"say"}}`,
		"EOF")

	c.session = ""
	c.initialize(Legacy)
	s = c.open(t.Context(), "POST", "/mcp", toyRequest("say", "{}"))
	s.expect(t, "id: 1_0|retry: 1000|data: ", `event: message|id: 1_1|data: {"jsonrpc":"2.0","method":"n1"}`)
}

func TestHTTPSlowRequestBecomesStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(_ *Session, m Message, st Stream) {
			go func() {
				time.Sleep(upgradeAfter + 2*keepAliveEvery + time.Second)
				st.Answer(toyResult(m), false)
			}()
		}
		c := newToyClient(t, HTTPOptions{Handler: &toyHandler{on: map[string]func(*Session, Message, Stream){"slow": slow}}})
		c.initialize(Legacy)
		begin := time.Now()
		s := c.open(t.Context(), "POST", "/mcp", toyRequest("slow", "{}"))
		if d := time.Since(begin); d != upgradeAfter {
			t.Errorf("stream after %v, want %v", d, upgradeAfter)
		}
		s.expect(t, "id: 1_0|retry: 1000|data: ", ": keep-alive", ": keep-alive",
			`event: message|id: 1_1|data: {"jsonrpc":"2.0","id":7,"result":{"echo":"slow"}}`, "EOF")
	})
}

func TestHTTPDroppedRequest(t *testing.T) {
	drop := func(_ *Session, _ Message, st Stream) { st.Drop() }
	c := newToyClient(t, HTTPOptions{Handler: &toyHandler{on: map[string]func(*Session, Message, Stream){"drop": drop}}})
	c.initialize(Legacy)
	if resp, body := c.post(toyRequest("drop", "{}")); resp.StatusCode != 200 || body != "" {
		t.Errorf("%s %q, want an empty stream", resp.Status, body)
	}
}

// A client that leaves before anything was sent can never get the answer.
func TestHTTPLeavingCancels(t *testing.T) {
	for _, version := range []string{Legacy, Modern} {
		t.Run(version, func(t *testing.T) {
			o, started := toyScripted(HTTPOptions{})
			c := newToyClient(t, o)
			body, headers := toyRequest("script", "{}"), []string(nil)
			if version == Modern {
				body, headers = toyModern("script", "")
			} else {
				c.initialize(version)
			}
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan struct{})
			go func() {
				st := <-started
				leave()
				<-leaving(st)
				close(left)
			}()
			if resp, err := c.try(ctx, "POST", "/mcp", body, headers...); err == nil {
				resp.Body.Close()
				t.Error("got a response")
			}
			<-left
		})
	}
}
