package main

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
)

// restartable is a badserver over HTTP whose listener can go away and come back
// at the same address.
type restartable struct {
	*badserver.Server
	t    *testing.T
	addr string
	url  string
	http *http.Server
}

func startRestartable(t *testing.T) *restartable {
	t.Helper()
	r := &restartable{Server: badserver.New(badserver.Options{}), t: t, addr: "127.0.0.1:0"}
	r.start()
	r.url = "http://" + r.addr + "/mcp"
	t.Cleanup(func() { r.Close(); r.stop() })
	return r
}

// start listens again. The sessions from before are forgotten.
func (r *restartable) start() {
	r.t.Helper()
	l, err := net.Listen("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Forget()
	r.addr = l.Addr().String()
	srv := &http.Server{Handler: r.Server}
	r.http = srv
	go func() { _ = srv.Serve(l) }() // stop ends it
}

func (r *restartable) stop() { _ = r.http.Close() }

// crowd is 50 clients that call a tool again and again until over is closed.
// Each answer is a good one or says what happened.
func (e *endpoint) crowd(over <-chan struct{}) *sync.WaitGroup {
	var wg sync.WaitGroup
	for range 50 {
		c := newHTTPClient(e.t, e.url)
		c.initialize(`{}`)
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-over:
					c.wantText(c.call("a__echo", `{"text":"last"}`), "last")
					return
				case <-time.After(20 * time.Millisecond):
				}
				if m := c.call("a__echo", `{"text":"x"}`); c.result(m).IsError {
					c.unserved(m)
				}
			}
		})
	}
	return &wg
}

// While 50 clients call, an upstream restarts: it is started or connected to
// once, and at the end every client is served.
func TestCrowdCausesOneReconnect(t *testing.T) {
	t.Parallel()
	t.Run("process", func(t *testing.T) {
		t.Parallel()
		log := filepath.Join(t.TempDir(), "spawns")
		e := serveWeb(t, configFile(t, "", up("a", soon+atOnce, "-spawn-log", log)))
		e.awaitTools("a__echo")
		over := make(chan struct{})
		wg := e.crowd(over)
		if err := syscall.Kill(e.status("a").Pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		eventually(t, "it is back", func() bool { s := e.status("a"); return s.Restarts > 0 && s.State == "ready" })
		close(over)
		wg.Wait()
		if n := len(fileLines(log)); n != 2 {
			t.Errorf("%d restarts", n-1)
		}
	})
	t.Run("http", func(t *testing.T) {
		t.Parallel()
		bad := startRestartable(t)
		e := serveWeb(t, configFile(t, "", remote("a", bad.url, ", protocol: legacy"+soon)))
		e.awaitTools("a__echo")
		over := make(chan struct{})
		wg := e.crowd(over)
		bad.stop()
		time.Sleep(time.Second)
		bad.start()
		eventually(t, "it is back", func() bool { return !e.result(e.call("a__echo", `{"text":"x"}`)).IsError })
		close(over)
		wg.Wait()
		if n := bad.Count("initialize"); n != 2 {
			t.Errorf("%d reconnects", n-1)
		}
	})
}

// After an outage the calls that waited do not arrive all at once.
func TestWaitingCallsAreSpread(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, ", retry: {attempts: 16, budget: 1}") // a call may be the first to try more than once
	bad.Fault(badserver.Fault{Kind: "status", Status: 429, RetryAfter: "1", Tool: "log", Count: 16})
	var ids []string
	for range 16 {
		ids = append(ids, e.start("tools/call", toolCall("a__log", `{}`)))
	}
	for _, id := range ids {
		if r := e.result(e.answer(id)); r.IsError || r.text() != "logged" {
			t.Errorf("got %+v", r)
		}
	}
	if n := bad.Count("tools/call log"); n != 16 {
		t.Errorf("%d calls for 16: %s", n, fmt.Sprint(e.status("a")))
	}
}
