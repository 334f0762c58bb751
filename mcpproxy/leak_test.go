package mcpproxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// A thousand HTTP sessions of every kind, ended and abandoned in every way,
// leave nothing behind.
func TestDroppedSessionsLeaveNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	web := httptest.NewServer(badserver.New(badserver.Options{}))
	defer web.Close()
	p, err := New(Config{
		Limits: wire.Limits{SessionIdle: 2 * time.Second},
		Upstreams: []UpstreamConfig{
			{Name: "proc", Command: os.Args[0], Env: map[string]string{badEnv: "1"}},
			{Name: "web", URL: web.URL + "/mcp"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(p.HTTP(HTTPOptions{Loopback: true}))
	defer srv.Close()
	p.Start(t.Context())
	defer p.Close(context.Background())

	d := &dropper{t: t, url: srv.URL, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	d.awaitTools("proc__echo", "web__echo")
	d.drop(70) // what grows once, has grown
	goroutines, heap := d.settle(p)
	d.drop(1000)
	// A few of the runtime's and of the listener's come and go.
	g, h := d.settle(p)
	for end := time.Now().Add(30 * time.Second); (g > goroutines+5 || h > heap+1<<20) && time.Now().Before(end); g, h = d.settle(p) {
		time.Sleep(100 * time.Millisecond)
	}
	if g > goroutines+5 || h > heap+1<<20 {
		t.Errorf("%d goroutines and %d kB after 1000 sessions, %d and %d kB before", g, h>>10, goroutines, heap>>10)
	}
	t.Logf("goroutines %d → %d, heap %d kB → %d kB", goroutines, g, heap>>10, h>>10)
}

// dropper opens sessions and drops them.
type dropper struct {
	t    *testing.T
	url  string
	http *http.Client
}

// drop opens n sessions, eight at a time, of all kinds in turn.
func (d *dropper) drop(n int) {
	kinds := []func(context.Context) error{
		d.deleted, d.abandoned, d.listening, d.calling, d.modern, d.subscribed, d.sse,
	}
	jobs := make(chan func(context.Context) error, n)
	for i := range n {
		jobs <- kinds[i%len(kinds)]
	}
	close(jobs)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for job := range jobs {
				ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute)
				if err := job(ctx); err != nil {
					d.t.Error(err)
				}
				cancel() // drops what is still open
			}
		})
	}
	wg.Wait()
}

// settle waits until every session has ended and returns what is left.
func (d *dropper) settle(p *Proxy) (goroutines int, heap uint64) {
	d.t.Helper()
	for end := time.Now().Add(time.Minute); len(p.allClients()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			d.t.Fatalf("%d clients are left", len(p.allClients()))
		}
	}
	var m runtime.MemStats
	for range 3 { // pools live through one collection, finalizers need the next
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return runtime.NumGoroutine(), m.HeapAlloc
}

const (
	legacyHello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	echoCall    = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"proc__echo","arguments":{"text":"x"}%s}}`
	hangingCall = `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"web__hang","arguments":{}}}`
	dropperMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
)

// send makes one request; its headers are pairs. The caller closes the body.
func (d *dropper) send(ctx context.Context, method, path, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, d.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := d.http.Do(req)
	if err == nil && resp.StatusCode >= 300 {
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		return nil, fmt.Errorf("%s %s: %s %s", method, path, resp.Status, b)
	}
	return resp, err
}

// ask is send for a request whose answer is read to its end.
func (d *dropper) ask(ctx context.Context, method, path, body string, headers ...string) (string, http.Header, error) {
	resp, err := d.send(ctx, method, path, body, headers...)
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), resp.Header, err
}

// open opens a legacy session and calls a tool in it.
func (d *dropper) open(ctx context.Context) (session []string, err error) {
	_, h, err := d.ask(ctx, "POST", "/mcp", legacyHello)
	if err != nil {
		return nil, err
	}
	session = []string{"Mcp-Session-Id", h.Get("Mcp-Session-Id"), "Mcp-Protocol-Version", "2025-11-25"}
	if _, _, err = d.ask(ctx, "POST", "/mcp", initialized, session...); err != nil {
		return nil, err
	}
	answer, _, err := d.ask(ctx, "POST", "/mcp", fmt.Sprintf(echoCall, ""), session...)
	if err == nil && !strings.Contains(answer, `"text":"x"`) {
		err = fmt.Errorf("echo: %s", answer)
	}
	return session, err
}

func (d *dropper) abandoned(ctx context.Context) error {
	_, err := d.open(ctx)
	return err
}

func (d *dropper) deleted(ctx context.Context) error {
	session, err := d.open(ctx)
	if err != nil {
		return err
	}
	_, _, err = d.ask(ctx, "DELETE", "/mcp", "", session...)
	return err
}

func (d *dropper) listening(ctx context.Context) error {
	session, err := d.open(ctx)
	if err != nil {
		return err
	}
	_, err = d.send(ctx, "GET", "/mcp", "", session...)
	return err // the end of ctx ends the stream
}

// calling leaves in the middle of a call.
func (d *dropper) calling(ctx context.Context) error {
	session, err := d.open(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if resp, err := d.send(ctx, "POST", "/mcp", hangingCall, session...); err == nil {
		resp.Body.Close()
		return fmt.Errorf("the hanging call was answered: %s", resp.Status)
	}
	return nil
}

func (d *dropper) modern(ctx context.Context) error {
	answer, _, err := d.ask(ctx, "POST", "/mcp", fmt.Sprintf(echoCall, ","+dropperMeta),
		"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "proc__echo")
	if err == nil && !strings.Contains(answer, `"text":"x"`) {
		err = fmt.Errorf("echo: %s", answer)
	}
	return err
}

func (d *dropper) subscribed(ctx context.Context) error {
	const listen = `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["agentarmor://status"]},` + dropperMeta + `}}`
	resp, err := d.send(ctx, "POST", "/mcp", listen, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "subscriptions/listen")
	if err != nil {
		return err
	}
	return readUntil(resp.Body, "acknowledged")
}

func (d *dropper) sse(ctx context.Context) error {
	resp, err := d.send(ctx, "GET", "/sse", "")
	if err != nil {
		return err
	}
	r := bufio.NewReader(resp.Body)
	path := ""
	for path == "" {
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		path, _ = strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !strings.HasPrefix(path, "/message") {
			path = ""
		}
	}
	for _, raw := range []string{legacyHello, initialized, fmt.Sprintf(echoCall, "")} {
		if _, _, err := d.ask(ctx, "POST", path, raw); err != nil {
			return err
		}
	}
	return readUntil(r, `"text":"x"`)
}

// readUntil reads lines up to one that holds text.
func readUntil(r io.Reader, text string) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if err != nil || strings.Contains(line, text) {
			return err
		}
	}
}

// awaitTools waits until these tools are listed.
func (d *dropper) awaitTools(names ...string) {
	d.t.Helper()
	for range 3000 {
		list, _, err := d.ask(d.t.Context(), "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+dropperMeta+`}}`,
			"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/list")
		if err != nil {
			d.t.Fatal(err)
		}
		missing := false
		for _, name := range names {
			missing = missing || !strings.Contains(list, `"`+name+`"`)
		}
		if !missing {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	d.t.Fatalf("%q are never listed", names)
}
