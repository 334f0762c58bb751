package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// eventStream returns a func that writes one event each time.
func eventStream(w http.ResponseWriter) func(string) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	return func(raw string) {
		fmt.Fprintf(w, "data: %s\n\n", raw)
		w.(http.Flusher).Flush()
	}
}

func writeJSON(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	io.WriteString(w, body)
}

// readMessage reads the body of a POST; without one there is no message.
func readMessage(t *testing.T, r *http.Request) Message {
	b, err := io.ReadAll(r.Body)
	if err != nil || len(b) == 0 {
		return Message{}
	}
	m, err := Parse(b)
	if err != nil {
		t.Errorf("the server got %q: %v", b, err)
	}
	return m
}

// dialServer connects to a server that is h.
func dialServer(t *testing.T, h http.HandlerFunc) (Peer, *owner) {
	t.Helper()
	return dialSpec(t, HTTPSpec{URL: serve(t, h) + "/mcp"}, Limits{})
}

func dialSpec(t *testing.T, spec HTTPSpec, l Limits) (Peer, *owner) {
	o := newOwner()
	p := DialHTTP(spec, l, o.events())
	t.Cleanup(func() { p.Close(context.Background()) })
	return p, o
}

func TestHTTPPeer(t *testing.T) {
	testPeer(t, func(t *testing.T, l Limits, ev Events) Peer {
		var ready atomic.Bool
		url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			m := readMessage(t, r)
			if m.ID == nil {
				time.Sleep(20 * time.Millisecond) // a chance to be overtaken
				ready.Store(true)
				w.WriteHeader(http.StatusAccepted)
				return
			}
			if m.Method == "after initialized" && !ready.Load() {
				t.Error("the request overtook notifications/initialized")
			}
			if !behave(r.Context(), m, eventStream(w)) {
				panic(http.ErrAbortHandler)
			}
		})
		return DialHTTP(HTTPSpec{URL: url}, l, ev)
	})
}

// What a response means for its request, row by row.
func TestHTTPOutcomes(t *testing.T) {
	const own, null = `{"jsonrpc":"2.0","id":"a2","error":{"code":%d,"message":"%s"}}`, `{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":"%s"}}`
	reply := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, status, body) }
	}
	plain := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, status) }
	}
	events := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			eventStream(w)
			io.WriteString(w, text)
		}
	}
	const answer ErrorKind = -1
	for _, c := range []struct {
		name    string
		h       http.HandlerFunc
		session string
		want    ErrorKind
		status  int
	}{
		{"json", reply(200, `{"jsonrpc":"2.0","id":"a2","result":{}}`), "s", answer, 0},
		{"indented json", reply(200, "{\n \"jsonrpc\": \"2.0\",\n \"id\": \"a2\",\n \"result\": {}\n}\n"), "", answer, 0},
		{"events", events("data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":\"a2\",\"result\":{}}\n\n"), "", answer, 0},
		{"event of another name first", events("event: x\ndata: {\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"a2\",\"result\":{}}\n\n"), "", answer, 0},
		{"200 with an error without id", reply(200, fmt.Sprintf(null, -32700, "x")), "", answer, 0},
		{"400 with our id", reply(400, fmt.Sprintf(own, -32022, "x")), "", answer, 0},
		{"400 with id null", reply(400, fmt.Sprintf(null, -32020, "x")), "", answer, 0},
		{"404 unknown method", reply(404, fmt.Sprintf(own, -32601, "x")), "", answer, 0},
		{"404 unknown method in a session", reply(404, fmt.Sprintf(own, -32601, "x")), "s", answer, 0},
		{"400 about arguments named session", reply(400, fmt.Sprintf(own, -32602, "unknown tool: get_session")), "s", answer, 0},
		{"500 with our id", reply(500, fmt.Sprintf(own, -32603, "x")), "", answer, 0},

		{"404 in a session", plain(404, "what?"), "s", SessionLost, 404},
		{"404 in a session, JSON-RPC", reply(404, fmt.Sprintf(null, -32001, "Session not found")), "s", SessionLost, 404},
		{"400 naming the session", plain(400, "Invalid Session ID"), "s", SessionLost, 400},
		{"400 naming the session, our id", reply(400, fmt.Sprintf(own, -32000, "No valid session")), "s", SessionLost, 400},
		{"422 naming the session", plain(422, "session not found"), "s", SessionLost, 422},
		{"404 without a session", plain(404, "session not found"), "", HTTPStatus, 404},
		{"400 naming it without one", plain(400, "session not found"), "", HTTPStatus, 400},
		{"400 about something else", plain(400, "bad request"), "s", HTTPStatus, 400},
		{"403 naming the session", plain(403, "session not allowed"), "s", HTTPStatus, 403},

		{"401 with a JSON-RPC error", reply(401, fmt.Sprintf(null, -32001, "Unauthorized")), "", HTTPStatus, 401},
		{"429 with a JSON-RPC error", reply(429, fmt.Sprintf(own, -32000, "slow down")), "", HTTPStatus, 429},
		{"500 with id null", reply(500, fmt.Sprintf(null, -32603, "x")), "", HTTPStatus, 500},
		{"500", plain(500, "x"), "", HTTPStatus, 500},
		{"redirect elsewhere", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/mcp", http.StatusTemporaryRedirect)
		}, "", HTTPStatus, 307},
		{"redirect that changes the method", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/other", http.StatusFound)
		}, "", HTTPStatus, 302},

		{"202", reply(202, ""), "", Malformed, 202},
		{"204", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, "", Malformed, 204},
		{"html", plain(200, "<html>"), "", Malformed, 200},
		{"no JSON", reply(200, "{"), "", Malformed, 200},
		{"empty", reply(200, ""), "", Malformed, 200},
		{"another's id", reply(200, `{"jsonrpc":"2.0","id":"a3","result":{}}`), "", Malformed, 200},
		{"no response", reply(200, `{"jsonrpc":"2.0","id":"a2","method":"x"}`), "", Malformed, 200},
		{"broken event", events("data: {\"jsonrpc\":\n\n"), "", Malformed, 0},

		{"body too large", reply(200, `{"jsonrpc":"2.0","id":"a2","result":"`+strings.Repeat("x", 5000)+`"}`), "", TooLarge, 0},
		{"chunked body too large", func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, 200, `{"jsonrpc":"2.0",`)
			w.(http.Flusher).Flush()
			io.WriteString(w, `"id":"a2","result":"`+strings.Repeat("x", 5000)+`"}`)
		}, "", TooLarge, 0},
		{"event too large", events("data: {\"jsonrpc\":\"2.0\",\"id\":\"a2\",\"result\":\"" + strings.Repeat("x", 5000) + "\"}\n\n"), "", TooLarge, 0},

		{"empty stream", events(""), "", Lost, 0},
		{"half an event", events("data: {\"jsonrpc\":\"2.0\",\"id\":\"a2\",\"result\":{}}\n"), "", Lost, 0},
		{"body cut short", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			writeJSON(w, 200, `{"jsonrpc"`)
		}, "", Lost, 0},
		{"no response at all", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "", Lost, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			noLeaks(t)
			var posts atomic.Int32
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodDelete {
					return
				}
				if m := readMessage(t, r); m.Method == "initialize" {
					if c.session != "" {
						w.Header().Set("Mcp-Session-Id", c.session)
					}
					writeJSON(w, 200, `{"jsonrpc":"2.0","id":"a1","result":{}}`)
					return
				}
				if posts.Add(1) > 1 {
					t.Error("the request was posted twice")
				}
				c.h(w, r)
			})
			p, o := dialSpec(t, HTTPSpec{URL: url + "/mcp"}, Limits{Message: 2000})
			send(t, p, sent(1, "initialize"))
			o.answered(t, 1)
			send(t, p, sent(2, "tools/call"))
			if c.want == answer {
				o.answered(t, 2)
				return
			}
			if e := o.failed(t, 2, c.want); e.Status != c.status {
				t.Errorf("status %d, want %d", e.Status, c.status)
			}
		})
	}
}

func TestHTTPNotSent(t *testing.T) {
	noLeaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for i, u := range []string{
		"http://user:hunter2@" + l.Addr().String() + "/mcp?key=secret",
		"://", "ftp://127.0.0.1/x", "http://", "http://a b/",
	} {
		p, o := dialSpec(t, HTTPSpec{URL: u}, Limits{})
		send(t, p, sent(1, "echo"), notice("x"))
		p.Ready()
		e := o.failed(t, 1, NotSent)
		p.Close(t.Context())
		if s := e.Error(); strings.Contains(s, "hunter2") || strings.Contains(s, "secret") {
			t.Errorf("the error tells a secret: %s", s)
		} else if i == 0 && !strings.Contains(s, "http://"+l.Addr().String()+": ") {
			t.Errorf("the error does not name the server: %s", s)
		}
	}
}

// A transport may wrap its error with the whole URL, query included.
func TestHTTPErrorsAreRedacted(t *testing.T) {
	rt := roundTripper(func(r *http.Request) (*http.Response, error) {
		return nil, &url.Error{Op: "Post", URL: r.URL.String(), Err: io.ErrClosedPipe}
	})
	p, o := dialSpec(t, HTTPSpec{URL: "http://h/p?key=secret", Transport: rt}, Limits{})
	send(t, p, sent(1, "echo"))
	if e := o.failed(t, 1, NotSent); strings.Contains(e.Error(), "secret") || !errors.Is(e, io.ErrClosedPipe) {
		t.Errorf("error %v", e)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestHTTPSessionLostInParallel(t *testing.T) {
	noLeaks(t)
	p, o := dialServer(t, func(w http.ResponseWriter, r *http.Request) {
		if m := readMessage(t, r); m.Method == "initialize" {
			w.Header().Set("Mcp-Session-Id", "s")
			answerJSON(w, m)
			return
		}
		http.Error(w, "Session not found", http.StatusNotFound)
	})
	send(t, p, sent(1, "initialize"))
	o.answered(t, 1)
	for id := uint64(2); id < 22; id++ {
		send(t, p, sent(id, "tools/call"))
	}
	for id := uint64(2); id < 22; id++ {
		o.failed(t, id, SessionLost)
	}
}

// Cancel reaches the server as the end of its stream, before and after headers.
func TestHTTPCancelReachesServer(t *testing.T) {
	for _, early := range []bool{true, false} {
		noLeaks(t)
		began, gone := make(chan bool), make(chan bool)
		p, o := dialServer(t, func(w http.ResponseWriter, r *http.Request) {
			readMessage(t, r)
			if !early {
				eventStream(w)(`{"jsonrpc":"2.0","method":"note"}`)
			}
			close(began)
			<-r.Context().Done()
			close(gone)
		})
		send(t, p, sent(1, "slow"))
		<-began
		if !early {
			o.until(t, "the notification", func() bool { return slices.Equal(o.messages, []string{"1 note"}) })
		}
		p.Cancel(1)
		<-gone
		p.Close(t.Context())
		if o.outcomes[1] != nil {
			t.Error("the cancelled request has an outcome")
		}
	}
}

// Megabytes pass unchanged, with and without a known length.
func TestHTTPBigBodies(t *testing.T) {
	noLeaks(t)
	text := strings.Repeat("€uro ", 3<<20/6)
	p, o := dialServer(t, func(w http.ResponseWriter, r *http.Request) {
		m := readMessage(t, r)
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, m.Params)
		switch m.Method {
		case "sized":
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			writeJSON(w, 200, body)
		case "chunked":
			writeJSON(w, 200, body)
		default:
			eventStream(w)(body)
		}
	})
	for i, method := range []string{"sized", "chunked", "events"} {
		id := uint64(i + 1)
		params := fmt.Sprintf(`{"text":"%s"}`, text)
		send(t, p, Outgoing{ID: id, Method: method, Body: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"a%d","method":%q,"params":%s}`, id, method, params)})
		if m := o.answered(t, id); string(m.Result) != params {
			t.Errorf("%s: %d bytes came back as %d", method, len(params), len(m.Result))
		}
	}
}

// Answers one after the other share a connection, whatever their shape.
func TestHTTPReusesConnections(t *testing.T) {
	noLeaks(t)
	var conns sync.Map
	var n atomic.Int32
	p, o := dialServer(t, func(w http.ResponseWriter, r *http.Request) {
		if _, old := conns.LoadOrStore(r.RemoteAddr, true); !old {
			n.Add(1)
		}
		m := readMessage(t, r)
		switch m.Method {
		case "events":
			behave(r.Context(), m, eventStream(w))
		case "status":
			http.Error(w, "x", http.StatusBadGateway)
		default:
			answerJSON(w, m)
		}
	})
	for id := uint64(1); id <= 12; id++ {
		send(t, p, sent(id, []string{"json", "events", "status"}[id%3]))
		o.end(t, id)
		p.(*httpPeer).posts.Wait() // the answer comes a moment before its connection is free
	}
	if n.Load() > 1 {
		t.Errorf("12 requests took %d connections", n.Load())
	}
}

// Notifications keep their order, also when the server is slow to take them,
// and one that stalls holds the next up for a bounded time only.
func TestHTTPNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		p := DialHTTP(HTTPSpec{URL: "http://h/", Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			m := readMessage(t, r)
			if m.Method == "stall" {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			time.Sleep(time.Second)
			got = append(got, m.Method)
			return &http.Response{StatusCode: 202, Body: http.NoBody}, nil
		})}, Limits{Queue: 4}, newOwner().events())
		send(t, p, notice("1"))
		synctest.Wait() // it is on its way
		send(t, p, notice("2"), notice("stall"), notice("3"), notice("4"))
		if err := p.Send(notice("5")); err == nil {
			t.Error("no error beyond the queue")
		}
		time.Sleep(notifyWait + 10*time.Second)
		synctest.Wait()
		if want := []string{"1", "2", "3", "4"}; !slices.Equal(got, want) {
			t.Errorf("the server got %q, want %q", got, want)
		}
		p.Close(t.Context())
	})
}

// A request behind a notifications/initialized that stalls can be given up.
func TestHTTPWaitsForInitialized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner()
		p := DialHTTP(HTTPSpec{URL: "http://h/", Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if m := readMessage(t, r); m.ID != nil {
				t.Error("the request overtook notifications/initialized")
			}
			<-r.Context().Done()
			return nil, r.Context().Err()
		})}, Limits{}, o.events())
		send(t, p, notice("notifications/initialized"), sent(1, "echo"), sent(2, "echo"))
		synctest.Wait()
		p.Cancel(1)
		p.Close(t.Context())
		o.failed(t, 2, NotSent)
		if o.outcomes[1] != nil {
			t.Error("the cancelled request has an outcome")
		}
	})
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 7, 28, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for _, c := range []struct {
		value, date string
		want        time.Duration
	}{
		{"", "", 0}, {"0", "", 0}, {"7", "", 7 * time.Second}, {" 1.5 ", "", 1500 * time.Millisecond},
		{"-1", "", 0}, {"+5", "", 0}, {"1e3", "", 0}, {"inf", "", 0}, {"NaN", "", 0}, {"0x10", "", 0}, {"1.2.3", "", 0}, {".", "", 0},
		{"601", "", MaxRetryAfter}, {"9223372037", "", MaxRetryAfter}, {strings.Repeat("9", 400), "", MaxRetryAfter},
		{at(30 * time.Second), "", 30 * time.Second},
		{at(30 * time.Second), at(20 * time.Second), 10 * time.Second},
		{at(30 * time.Second), "nonsense", 30 * time.Second},
		{at(-time.Hour), "", 0}, {at(1000 * time.Hour), "", MaxRetryAfter}, {"soon", "", 0},
	} {
		h := http.Header{"Retry-After": {c.value}, "Date": {c.date}}
		if got := retryAfter(h, now); got != c.want {
			t.Errorf("Retry-After %q, Date %q: %v, want %v", c.value, c.date, got, c.want)
		}
	}
}
