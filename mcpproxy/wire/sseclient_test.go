package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// oldServer is a fake HTTP+SSE server with one stream.
type oldServer struct {
	endpoint string // of the first event, default /message?s=1
	post     http.HandlerFunc

	mu     sync.Mutex
	w      http.ResponseWriter
	ended  chan struct{} // closing it ends the stream
	order  []string      // methods, as they came
	header http.Header   // of the last POST
}

func (s *oldServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		s.mu.Lock()
		s.w = w
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		if s.endpoint == "" {
			s.endpoint = "/message?s=1"
		}
		fmt.Fprintf(w, ": hello\n\nevent: endpoint\ndata: %s\n\n", s.endpoint)
		w.(http.Flusher).Flush()
		s.mu.Unlock()
		select {
		case <-s.ended:
		case <-r.Context().Done():
		}
		s.mu.Lock()
		s.w = nil
		s.mu.Unlock()
		return
	}
	b, _ := io.ReadAll(r.Body)
	m, _ := Parse(b)
	s.mu.Lock()
	s.order = append(s.order, m.Method)
	s.header = r.Header
	s.mu.Unlock()
	if s.post != nil {
		s.post(w, r)
		return
	}
	if r.URL.String() != "/message?s=1" {
		http.Error(w, "no such endpoint", http.StatusNotFound)
		return
	}
	w.WriteHeader(http.StatusAccepted)
	if m.Method == "silent" {
		return
	}
	if !behave(r.Context(), m, s.say) {
		close(s.ended)
	}
}

func (s *oldServer) say(raw string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w != nil {
		fmt.Fprintf(s.w, "event: message\ndata: %s\n\n", raw)
		s.w.(http.Flusher).Flush()
	}
}

func dialOld(t *testing.T, s *oldServer, l Limits, ev Events) Peer {
	t.Helper()
	s.ended = make(chan struct{})
	spec := HTTPSpec{URL: serve(t, s.ServeHTTP) + "/sse", Headers: map[string]string{"X-Key": "k"}}
	p, err := DialSSE(t.Context(), spec, l, ev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	return p
}

func TestSSEPeer(t *testing.T) {
	testPeer(t, func(t *testing.T, l Limits, ev Events) Peer { return dialOld(t, &oldServer{}, l, ev) })
}

func TestSSEStreamEnd(t *testing.T) {
	noLeaks(t)
	o, s := newOwner(), &oldServer{}
	p := dialOld(t, s, Limits{}, o.events())
	send(t, p, sent(1, "silent"), sent(2, "silent"), sent(3, "echo"))
	o.answered(t, 3)
	p.(*ssePeer).posts.Wait() // all are with the server
	close(s.ended)
	o.until(t, "Closed", func() bool { return len(o.closed) > 0 })
	if len(o.outcomes[1]) != 1 || len(o.outcomes[2]) != 1 {
		t.Error("Closed before the requests under way had failed")
	}
	o.failed(t, 1, Lost)
	if err := p.Send(sent(4, "echo")); err == nil {
		t.Error("Send on a dead connection: no error")
	}
	p.Close(t.Context())
	if len(o.closed) != 1 {
		t.Errorf("Closed called %d times", len(o.closed))
	}
}

func TestSSEHeadersAndOrder(t *testing.T) {
	noLeaks(t)
	o, s := newOwner(), &oldServer{}
	p := dialOld(t, s, Limits{}, o.events())
	p.SetVersion(V20241105)
	p.Ready()
	var want []string
	for i := range 20 {
		n := notice(fmt.Sprint("n", i))
		want = append(want, n.Method)
		send(t, p, n)
	}
	send(t, p, notice("notifications/initialized"), sent(1, "echo"))
	want = append(want, "notifications/initialized", "echo")
	o.answered(t, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := strings.Join(s.order, " "); got != strings.Join(want, " ") {
		t.Errorf("the server got %s", got)
	}
	if s.header.Get("X-Key") != "k" || s.header.Get("Mcp-Protocol-Version") != "" || s.header.Get("Content-Type") != "application/json" {
		t.Errorf("headers of a POST: %v", s.header)
	}
}

func TestSSEPostRefused(t *testing.T) {
	noLeaks(t)
	o := newOwner()
	s := &oldServer{post: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		http.Error(w, "busy", http.StatusServiceUnavailable)
	}}
	p := dialOld(t, s, Limits{}, o.events())
	send(t, p, sent(1, "echo"))
	if e := o.failed(t, 1, HTTPStatus); e.Status != 503 || e.RetryAfter != 7*time.Second {
		t.Errorf("status %d, retry after %v", e.Status, e.RetryAfter)
	}
	if len(o.closed) != 0 {
		t.Error("a refused POST closed the connection")
	}
}

// One answer over the limit, or that is no message, costs its own call only.
func TestSSEUnreadable(t *testing.T) {
	noLeaks(t)
	o, s := newOwner(), &oldServer{}
	s.post = func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusAccepted) }
	p := dialOld(t, s, Limits{Message: 1000}, o.events())
	send(t, p, sent(1, "a"), sent(2, "b"), sent(3, "c"))
	s.say(`{"jsonrpc":"2.0","id":"a1","result":{"text":"` + strings.Repeat("x", 20_000) + `"}}`)
	s.say("no JSON at all")
	s.say(`{"jsonrpc":"2.0","id":"a3","result":{"content":[}}`)
	s.say(`{"jsonrpc":"2.0","id":"a2","result":{}}`)
	o.failed(t, 1, TooLarge)
	o.failed(t, 3, Malformed)
	o.answered(t, 2)
}

func TestDialSSEFails(t *testing.T) {
	stream := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, text)
		}
	}
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		kind ErrorKind
	}{
		"status":          {http.NotFound, HTTPStatus},
		"no stream":       {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }, Malformed},
		"ends":            {stream(": x\n\n"), Lost},
		"foreign origin":  {stream("event: endpoint\ndata: http://127.0.0.1:1/x\n\n"), Malformed},
		"foreign scheme":  {stream("event: endpoint\ndata: file:///etc/passwd\n\n"), Malformed},
		"protocol-rel":    {stream("event: endpoint\ndata: //example.com/x\n\n"), Malformed},
		"endpoint no URL": {stream("event: endpoint\ndata: http://[\n\n"), Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			p, err := DialSSE(t.Context(), HTTPSpec{URL: serve(t, c.h) + "/sse?key=secret"}, Limits{}, newOwner().events())
			e, ok := errors.AsType[*Error](err)
			if p != nil || !ok || e.Kind != c.kind {
				t.Fatalf("DialSSE = %v, %v, want kind %d", p, err, c.kind)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error names the query: %v", err)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		noLeaks(t)
		_, err := DialSSE(t.Context(), HTTPSpec{URL: "http://127.0.0.1:1/sse"}, Limits{}, newOwner().events())
		if e, ok := errors.AsType[*Error](err); !ok || e.Kind != NotSent {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("context", func(t *testing.T) {
		noLeaks(t)
		ctx, cancel := context.WithCancel(t.Context())
		url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			stream(": wait\n\n")(w, r)
			w.(http.Flusher).Flush()
			cancel()
			<-r.Context().Done()
		})
		if _, err := DialSSE(ctx, HTTPSpec{URL: url}, Limits{}, newOwner().events()); !errors.Is(err, context.Canceled) {
			t.Errorf("err = %v", err)
		}
	})
}
