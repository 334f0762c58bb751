package wire

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestHTTPClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, started := toyScripted(HTTPOptions{})
		c := newToyClient(t, o)
		c.initialize(Legacy)
		own := c.open(t.Context(), "GET", "/mcp", "")
		own.expect(t, "id: 0_0|retry: 1000|data: ")
		running := c.open(t.Context(), "POST", "/mcp", toyRequest("script", "{}"))
		running.expect(t, "id: 1_0|retry: 1000|data: ")

		closed := make(chan struct{})
		go func() { c.h.Close(context.Background()); close(closed) }()
		own.expect(t, "EOF")
		if resp, _ := c.post(toyRequest("ping", "{}")); resp.StatusCode != 503 {
			t.Errorf("new request while closing: %s, want 503", resp.Status)
		}
		(<-started).Answer(toyAnswer(), false)
		running.expect(t, toyFinal(1, 1), "EOF")
		<-closed
		if n, twice := o.Handler.(*toyHandler).closes(); n != 1 || twice {
			t.Errorf("%d sessions closed, want 1", n)
		}
	})
}

func TestHTTPCloseGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, started := toyScripted(HTTPOptions{})
		c := newToyClient(t, o)
		c.initialize(Legacy)
		s := c.open(t.Context(), "POST", "/mcp", toyRequest("script", "{}"))
		s.expect(t, "id: 1_0|retry: 1000|data: ")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c.h.Close(ctx)
		s.expect(t, "EOF")
		if err := (<-started).Answer(toyAnswer(), false); err != ErrGone {
			t.Errorf("Answer after Close: %v, want ErrGone", err)
		}
	})
}

// A client in the middle of its upload has no request under way yet.
func TestHTTPCloseDoesNotWaitForUploads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newToyClient(t, HTTPOptions{Handler: &toyHandler{}})
		conn, err := c.listener.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{")
		begin := time.Now()
		c.h.Close(context.Background())
		if d := time.Since(begin); d != 0 {
			t.Errorf("Close took %v", d)
		}
		io.WriteString(conn, strings.Repeat(" ", 48)+"}")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != 400 {
			t.Errorf("an empty object: %s, want 400", resp.Status)
		}
	})
}

// The body has a time limit of its own.
func TestHTTPSlowUploadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newToyClient(t, HTTPOptions{Handler: &toyHandler{}})
		hold := func(path, media string) {
			conn, err := c.listener.dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+media+"\r\nContent-Length: 50\r\n\r\n{")
			begin := time.Now()
			io.Copy(io.Discard, conn)
			if d := time.Since(begin); d > 2*readTimeout {
				t.Errorf("%s %s: the connection was held for %v, want about %v", path, media, d, readTimeout)
			}
		}
		hold("/mcp", "application/json")
		hold("/mcp", "text/plain") // refused before the body was read
		hold("/message?sessionId=x", "application/json")
	})
}

// Send never blocks, and a client that does not read pins its goroutine only
// for the time of one write.
func TestHTTPStalledReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, started := toyScripted(HTTPOptions{Limits: Limits{Queue: 8}})
		c := newToyClient(t, o)
		body, headers := toyModern("script", "")
		go func() {
			st := <-started
			for st.Send(toyNote(1), false) != ErrFull {
				synctest.Wait()
			}
			started <- st
		}()
		s := c.open(t.Context(), "POST", "/mcp", body, headers...) // reads the headers, no more
		st := <-started
		time.Sleep(writeTimeout + time.Second)
		select {
		case <-leaving(st):
		default:
			t.Error("the stalled client still counts as being there")
		}
		s.resp.Body.Close()
	})
}

// Close breaks off writes to a client that does not read, of either shape.
func TestHTTPCloseBreaksWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, started := toyScripted(HTTPOptions{})
		c := newToyClient(t, o)
		big := append([]byte(`{"jsonrpc":"2.0","id":7,"result":"`), strings.Repeat("x", 1<<20)+`"}`...)
		for _, notes := range []int{0, 1} {
			go func() {
				st := <-started
				for range notes {
					st.Send(toyNote(1), false)
				}
				st.Answer(big, false)
			}()
			body, headers := toyModern("script", "")
			resp := c.do(t.Context(), "POST", "/mcp", body, headers...) // reads the headers, no more
			defer resp.Body.Close()
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begin := time.Now()
		c.h.Close(ctx)
		if d := time.Since(begin); d != 0 {
			t.Errorf("Close took %v", d)
		}
	})
}

// Sockets of the kernel, and sessions that end in every way there is.
func TestHTTPManySessionsLeaveNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	handler := &toyHandler{}
	h := NewHTTP(HTTPOptions{Handler: handler, Limits: Limits{Sessions: 2000}})
	mux := http.NewServeMux()
	h.Mount(mux)
	srv := httptest.NewUnstartedServer(mux)
	srv.Config = NewServer(mux)
	srv.Start()
	client := srv.Client()
	const sessions = 1000
	var wg sync.WaitGroup
	work := make(chan int)
	for range 8 {
		wg.Go(func() {
			for i := range work {
				dropSession(t, client, srv.URL, i)
			}
		})
	}
	for i := range sessions {
		work <- i
	}
	close(work)
	wg.Wait()
	h.Close(t.Context())
	client.CloseIdleConnections()
	srv.Close()
	if n, twice := handler.closes(); n != sessions || twice || len(h.sessions) != 0 {
		t.Errorf("%d of %d sessions closed (one twice: %v), %d left", n, sessions, twice, len(h.sessions))
	}
	runtime.GC()
}

// dropSession opens a session, uses it and leaves it: by DELETE, with an open
// GET stream cut off, or without a word.
func dropSession(t *testing.T, client *http.Client, url string, i int) {
	send := func(ctx context.Context, method, session, body string) *http.Response {
		r, _ := http.NewRequestWithContext(ctx, method, url+"/mcp", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Mcp-Session-Id", session)
		resp, err := client.Do(r)
		if err != nil {
			t.Error(err)
			return &http.Response{Body: http.NoBody, Header: http.Header{}}
		}
		return resp
	}
	ctx := t.Context()
	resp := send(ctx, "POST", "", toyRequest("initialize", `{"protocolVersion":"2025-11-25"}`))
	id := resp.Header.Get("Mcp-Session-Id")
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	switch i % 3 {
	case 0:
		send(ctx, "DELETE", id, "").Body.Close()
	case 1:
		ctx, cancel := context.WithCancel(ctx)
		resp := send(ctx, "GET", id, "")
		cancel()
		resp.Body.Close()
	}
}

// BenchmarkHTTP compares one POST round trip with that of a bare handler which
// reads the body and writes the same JSON.
func BenchmarkHTTP(b *testing.B) {
	bare := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"jsonrpc":"2.0","id":7,"result":{"echo":"tools/call"}}`))
	})
	h := NewHTTP(HTTPOptions{Handler: &toyHandler{}, Loopback: true})
	defer h.Close(context.Background())
	mux := http.NewServeMux()
	h.Mount(mux)
	for _, size := range []int{100, 100_000} {
		args := `"name":"x","arguments":{"text":"` + strings.Repeat("x", size) + `"}`
		legacy := toyRequest("tools/call", "{"+args+"}")
		stateless, headers := toyModern("tools/call", args)
		hs := h.open("http", "")
		hs.negotiated(Legacy)
		hs.commit()
		for _, bm := range []struct {
			name    string
			h       http.Handler
			body    string
			headers []string
		}{
			{"bare", bare, legacy, nil},
			{"session", mux, legacy, []string{"Mcp-Session-Id", hs.ID, "Mcp-Protocol-Version", Legacy}},
			{"stateless", mux, stateless, append(headers, "Mcp-Name", "x")},
		} {
			b.Run(fmt.Sprintf("%s/%d", bm.name, size), func(b *testing.B) { benchmarkPost(b, bm.h, bm.body, bm.headers) })
		}
	}
}

func benchmarkPost(b *testing.B, handler http.Handler, body string, headers []string) {
	srv := httptest.NewUnstartedServer(handler)
	srv.Config = NewServer(handler)
	srv.Start()
	defer srv.Close()
	b.ReportAllocs()
	for b.Loop() {
		r, _ := http.NewRequest(http.MethodPost, srv.URL+"/mcp", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		resp, err := srv.Client().Do(r)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			b.Fatal(resp.Status)
		}
	}
}
