package wire

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// toyHandler answers initialize and echoes every other request; on holds what
// a test wants instead.
type toyHandler struct {
	on map[string]func(s *Session, m Message, st Stream)

	mu     sync.Mutex
	seen   []string // methods, in order; "response" for responses
	closed map[*Session]int
}

func (h *toyHandler) Handle(s *Session, m Message, st Stream) {
	h.mu.Lock()
	if m.IsResponse() {
		h.seen = append(h.seen, "response")
	} else {
		h.seen = append(h.seen, m.Method)
	}
	h.mu.Unlock()
	if f := h.on[m.Method]; f != nil {
		f(s, m, st)
		return
	}
	if !m.IsRequest() {
		return
	}
	if m.Method == "initialize" {
		version := Get(m.Params, "protocolVersion")
		st.Answer(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":%s}}`, m.ID, version), false)
		return
	}
	st.Answer(toyResult(m), false)
}

func (h *toyHandler) Closed(s *Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed == nil {
		h.closed = map[*Session]int{}
	}
	h.closed[s]++
}

// closes returns how many sessions were closed, and whether one was twice.
func (h *toyHandler) closes() (n int, twice bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.closed {
		twice = twice || c > 1
	}
	return len(h.closed), twice
}

func (h *toyHandler) methods() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.seen, " ")
}

func toyResult(m Message) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"echo":%q}}`, m.ID, m.Method)
}

func toyNote(n int) []byte { return fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"n%d"}`, n) }

// pipeListener is a listener in memory: net/http over it works in a synctest
// bubble, and nothing is buffered between client and server.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

func (l *pipeListener) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// toyClient talks to an HTTP half over pipes.
type toyClient struct {
	t        *testing.T
	h        *HTTP
	http     *http.Client
	listener *pipeListener
	session  string
	version  string
}

// newToyClient serves o until the test ends.
func newToyClient(t *testing.T, o HTTPOptions) *toyClient {
	t.Helper()
	h := NewHTTP(o)
	mux := http.NewServeMux()
	h.Mount(mux)
	mux.Handle("/healthz", h.Guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "ok")
	})))
	srv := NewServer(mux)
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	var served sync.WaitGroup
	served.Go(func() { srv.Serve(l) })
	tr := &http.Transport{DialContext: l.dial}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		h.Close(ctx)
		tr.CloseIdleConnections()
		srv.Close()
		served.Wait()
	})
	return &toyClient{t: t, h: h, http: &http.Client{Transport: tr}, listener: l}
}

// do sends a request with the usual headers, which headers override ("" drops one).
func (c *toyClient) do(ctx context.Context, method, path, body string, headers ...string) *http.Response {
	c.t.Helper()
	resp, err := c.try(ctx, method, path, body, headers...)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp
}

func (c *toyClient) try(ctx context.Context, method, path, body string, headers ...string) (*http.Response, error) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json, text/event-stream")
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.session != "" {
		r.Header.Set("Mcp-Session-Id", c.session)
	}
	if c.version != "" {
		r.Header.Set("Mcp-Protocol-Version", c.version)
	}
	for i := 0; i < len(headers); i += 2 {
		switch k, v := headers[i], headers[i+1]; {
		case k[0] == '+': // one more of the same name
			r.Header.Add(k[1:], v)
		case v == "":
			r.Header.Del(k)
		case k == "Host":
			r.Host = v
		default:
			r.Header.Set(k, v)
		}
	}
	return c.http.Do(r)
}

// call is do with the body read to its end.
func (c *toyClient) call(method, path, body string, headers ...string) (*http.Response, string) {
	c.t.Helper()
	resp := c.do(c.t.Context(), method, path, body, headers...)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp, string(b)
}

func (c *toyClient) post(body string, headers ...string) (*http.Response, string) {
	c.t.Helper()
	return c.call(http.MethodPost, "/mcp", body, headers...)
}

// initialize opens a session, which later requests of c use.
func (c *toyClient) initialize(version string) {
	c.t.Helper()
	resp, body := c.post(toyRequest("initialize", `{"protocolVersion":"`+version+`"}`))
	if resp.StatusCode != 200 || resp.Header.Get("Mcp-Session-Id") == "" {
		c.t.Fatalf("initialize: %s %s", resp.Status, body)
	}
	c.session, c.version = resp.Header.Get("Mcp-Session-Id"), version
}

// open starts an event stream.
func (c *toyClient) open(ctx context.Context, method, path, body string, headers ...string) *toyStream {
	c.t.Helper()
	resp := c.do(ctx, method, path, body, headers...)
	c.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		b, _ := io.ReadAll(resp.Body)
		c.t.Fatalf("%s %s: no event stream: %s %s", method, path, resp.Status, b)
	}
	return &toyStream{resp: resp, r: bufio.NewReader(resp.Body)}
}

func toyRequest(method, params string) string {
	return `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":` + params + `}`
}

// toyStream reads server-sent events as the text between blank lines.
type toyStream struct {
	resp *http.Response
	r    *bufio.Reader
}

// next returns the next event with "|" for its line breaks, "EOF" at the end.
func (e *toyStream) next() string {
	var lines []string
	for {
		line, err := e.r.ReadString('\n')
		if err != nil {
			return "EOF"
		}
		if line = strings.TrimSuffix(line, "\n"); line == "" {
			return strings.Join(lines, "|")
		}
		lines = append(lines, line)
	}
}

// expect fails the test unless these events come next.
func (e *toyStream) expect(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := e.next(); got != w {
			t.Fatalf("event %q, want %q", got, w)
		}
	}
}

// leaving is closed when the client leaves st.
func leaving(st Stream) <-chan struct{} {
	left := make(chan struct{})
	st.OnLeave(func() { close(left) })
	return left
}
