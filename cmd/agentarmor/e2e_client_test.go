package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// rpcMessage is one message from the endpoint.
type rpcMessage struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  json.RawMessage
	raw    string
	status int // of the HTTP response that carried it, 0 over stdio
}

// rawClient is a minimal MCP client: it sends text and keeps what comes back
// until somebody waits for it. send may be called from one goroutine only.
type rawClient struct {
	t       *testing.T
	send    func(raw string)
	version string // protocolVersion of every request, "" for a legacy client
	caps    string // capabilities of a modern client, "" for none

	mu      sync.Mutex
	inbox   []rpcMessage
	changed chan struct{} // closed at the next arrival
	lastID  int
}

func newRawClient(t *testing.T, send func(string)) *rawClient {
	return &rawClient{t: t, send: send, changed: make(chan struct{})}
}

func (c *rawClient) readLines(r *bufio.Reader) {
	for {
		line, err := r.ReadString('\n')
		if line != "" {
			c.receive(line, 0)
		}
		if err != nil {
			return
		}
	}
}

func (c *rawClient) receive(raw string, status int) {
	m := rpcMessage{raw: raw, status: status}
	if err := json.Unmarshal([]byte(raw), &m); err != nil {
		c.t.Errorf("not JSON from the endpoint: %.200q: %v", raw, err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inbox = append(c.inbox, m)
	close(c.changed)
	c.changed = make(chan struct{})
}

// take removes the first message that matches from the inbox.
func (c *rawClient) take(match func(*rpcMessage) bool) (rpcMessage, bool, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.inbox {
		if m := c.inbox[i]; match(&m) {
			c.inbox = slices.Delete(c.inbox, i, i+1)
			return m, true, nil
		}
	}
	return rpcMessage{}, false, c.changed
}

// wait returns the first message that matches, once it is there.
func (c *rawClient) wait(what string, match func(*rpcMessage) bool) rpcMessage {
	c.t.Helper()
	timeout := time.After(patience)
	for {
		m, ok, changed := c.take(match)
		if ok {
			return m
		}
		select {
		case <-changed:
		case <-timeout:
			c.mu.Lock()
			defer c.mu.Unlock()
			c.t.Fatalf("no %s; got %.1000v", what, c.inbox)
		}
	}
}

// seen counts the messages of a method that nobody has waited for.
func (c *rawClient) seen(method string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, m := range c.inbox {
		if m.Method == method {
			n++
		}
	}
	return n
}

// answer waits for the response to a request id, given as raw JSON.
func (c *rawClient) answer(id string) rpcMessage {
	c.t.Helper()
	return c.wait("answer to "+id, func(m *rpcMessage) bool { return m.Method == "" && string(m.ID) == id })
}

// notification waits for a notification, or for a request of the endpoint.
func (c *rawClient) notification(method string) rpcMessage {
	c.t.Helper()
	return c.wait(method, func(m *rpcMessage) bool { return m.Method == method })
}

// start sends a request and returns its id.
func (c *rawClient) start(method, params string) string {
	c.t.Helper()
	c.lastID++
	id := fmt.Sprint(c.lastID)
	if c.version != "" {
		params = c.withMeta(params)
	}
	c.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`)
	return id
}

// withMeta adds what every 2026-07-28 request carries. params has no _meta.
func (c *rawClient) withMeta(params string) string {
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + c.version + `","io.modelcontextprotocol/clientCapabilities":` + cmp.Or(c.caps, "{}") + `,` +
		`"io.modelcontextprotocol/clientInfo":{"name":"e2e","version":"1"}}}`
	if inner := strings.TrimSuffix(params, "}"); inner != "{" {
		return inner + "," + meta
	}
	return "{" + meta
}

func (c *rawClient) rpc(method, params string) rpcMessage {
	c.t.Helper()
	return c.answer(c.start(method, params))
}

func toolCall(tool, args string) string {
	return `{"name":` + quoted(tool) + `,"arguments":` + args + `}`
}

func quoted(s string) string { return string(must(json.Marshal(s))) }

// call calls a tool and waits for the answer.
func (c *rawClient) call(tool, args string) rpcMessage {
	c.t.Helper()
	return c.rpc("tools/call", toolCall(tool, args))
}

// cancel tells the endpoint that nobody waits for a request any more.
func (c *rawClient) cancel(id string) {
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
}

func (c *rawClient) initialize(capabilities string) {
	c.t.Helper()
	m := c.rpc("initialize", `{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`,"clientInfo":{"name":"e2e","version":"1"}}`)
	if m.Error != nil {
		c.t.Fatalf("initialize: %s", m.Error)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

func (c *rawClient) decode(m rpcMessage, v any) {
	c.t.Helper()
	if m.Error != nil {
		c.t.Fatalf("error instead of a result: %s", m.Error)
	}
	if err := json.Unmarshal(m.Result, v); err != nil {
		c.t.Fatalf("%v in %.300s", err, m.Result)
	}
}

// tools lists the tools: their names, and each one's definition as it came.
func (c *rawClient) tools() ([]string, map[string]string) {
	c.t.Helper()
	var list struct{ Tools []json.RawMessage }
	c.decode(c.rpc("tools/list", `{}`), &list)
	var names []string
	raw := map[string]string{}
	for _, def := range list.Tools {
		var t struct{ Name string }
		if err := json.Unmarshal(def, &t); err != nil {
			c.t.Fatal(err)
		}
		names = append(names, t.Name)
		raw[t.Name] = string(def)
	}
	return names, raw
}

// awaitTools polls until all these tools are listed.
func (c *rawClient) awaitTools(want ...string) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("tools %v are listed", want), func() bool {
		names, _ := c.tools()
		return !slices.ContainsFunc(want, func(n string) bool { return !slices.Contains(names, n) })
	})
}

// callOutcome is what AgentArmor says of a call that was not served, or not by
// the first attempt.
type callOutcome struct {
	Upstream, Outcome, Executed, Reason string
	RetryAt                             time.Time `json:"retry_at"`
	Attempts                            int       // told from two on
	AnsweredFrom                        string    `json:"answered_from"` // tool, cached, result or cache; "" for the upstream
}

// toolResult is the part of a tool's result that tests look at.
type toolResult struct {
	Content           []struct{ Type, Text string }
	StructuredContent json.RawMessage
	IsError           bool
	Meta              struct {
		Call *callOutcome `json:"agentarmor/call"`
	} `json:"_meta"`
}

func (r toolResult) text() string {
	if len(r.Content) == 0 {
		return ""
	}
	return r.Content[0].Text
}

func (c *rawClient) result(m rpcMessage) toolResult {
	c.t.Helper()
	var r toolResult
	c.decode(m, &r)
	return r
}

// wantText fails the test unless the answer is a good result with this text.
func (c *rawClient) wantText(m rpcMessage, want string) {
	c.t.Helper()
	if r := c.result(m); r.IsError || r.text() != want {
		c.t.Errorf("got %.300s, want the text %.100q", m.Result, want)
	}
}

// wantUnserved fails the test unless the answer says that the call was not
// served, for this reason and in at most 300 characters. It returns the rest of
// what the answer says.
func (c *rawClient) wantUnserved(m rpcMessage, outcome, executed string) callOutcome {
	c.t.Helper()
	said := c.unserved(m)
	if said.Outcome != outcome || said.Executed != executed {
		c.t.Errorf("got %.600s, want outcome %s, executed %s", m.Result, outcome, executed)
	}
	return said
}

// unserved is wantUnserved for any reason.
func (c *rawClient) unserved(m rpcMessage) callOutcome {
	c.t.Helper()
	r := c.result(m)
	if n := len([]rune(r.text())); n == 0 || n > 300 {
		c.t.Errorf("%d characters of text: %s", n, r.text())
	}
	if !r.IsError || r.Meta.Call == nil || r.Meta.Call.Upstream == "" || r.Meta.Call.Reason == "" || r.Meta.Call.AnsweredFrom != "" {
		c.t.Errorf("not an answer in the upstream's place: %.600s", m.Result)
		return callOutcome{}
	}
	return *r.Meta.Call
}

// wantServed fails the test unless the answer is a good result with this text,
// from this attempt at the upstream or from what stands in for it,
// and says so. The result of a first attempt says nothing.
func (c *rawClient) wantServed(m rpcMessage, text string, attempts int, from string) {
	c.t.Helper()
	r := c.result(m)
	said := r.Meta.Call
	if r.IsError || r.text() != text || (said == nil) != (attempts == 1 && from == "") {
		c.t.Errorf("got %.600s, want %q at attempt %d or from %q", m.Result, text, attempts, from)
		return
	}
	if said == nil {
		return
	}
	if said.Upstream == "" || max(said.Attempts, 1) != attempts || said.AnsweredFrom != from {
		c.t.Errorf("got %.600s, want attempt %d or from %q", m.Result, attempts, from)
	}
	if from == "" && (said.Outcome != "ok" || said.Executed != "yes") {
		c.t.Errorf("a good result with %.600s", m.Result)
	}
}

// wantError fails the test unless the answer is an error with this code.
func (c *rawClient) wantError(m rpcMessage, code int) {
	c.t.Helper()
	var e struct {
		Code    int
		Message string
	}
	if m.Error == nil || json.Unmarshal(m.Error, &e) != nil || e.Code != code || e.Message == "" {
		c.t.Errorf("got %.300s, want error %d", m.raw, code)
	}
}

// newHTTPClient speaks streamable HTTP: what comes on any stream lands in the
// same inbox.
func newHTTPClient(t *testing.T, url string) *rawClient {
	t.Helper()
	h := &httpSender{t: t, url: url}
	c := newRawClient(t, nil)
	c.send = func(raw string) { h.send(c, raw) }
	t.Cleanup(func() { h.wg.Wait() })
	return c
}

type httpSender struct {
	t       *testing.T
	url     string
	wg      sync.WaitGroup
	mu      sync.Mutex
	session string
}

// send posts one message; a legacy notification of readiness also opens the
// session's own stream.
func (h *httpSender) send(c *rawClient, raw string) {
	h.post(c, "POST", raw)
	if strings.Contains(raw, `"notifications/initialized"`) {
		h.post(c, "GET", "")
	}
}

func (h *httpSender) post(c *rawClient, method, raw string) {
	req, err := http.NewRequestWithContext(h.t.Context(), method, h.url, strings.NewReader(raw))
	if err != nil {
		h.t.Error(err)
		return
	}
	for k, v := range mcpHeaders(raw) {
		req.Header.Set(k, v)
	}
	h.mu.Lock()
	if h.session != "" {
		req.Header.Set("Mcp-Session-Id", h.session)
	}
	h.mu.Unlock()
	h.wg.Go(func() {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return // the test is over
		}
		defer resp.Body.Close()
		if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
			h.mu.Lock()
			h.session = id
			h.mu.Unlock()
		}
		readMessages(resp, func(raw string) { c.receive(raw, resp.StatusCode) })
	})
}

// mcpHeaders are the headers for one message of either generation.
func mcpHeaders(raw string) map[string]string {
	h := map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
	var m struct {
		Method string
		Params struct {
			Name, URI string
			Meta      map[string]json.RawMessage `json:"_meta"`
		}
	}
	if json.Unmarshal([]byte(raw), &m) != nil {
		return h
	}
	var version string
	if json.Unmarshal(m.Params.Meta["io.modelcontextprotocol/protocolVersion"], &version) == nil {
		h["MCP-Protocol-Version"], h["Mcp-Method"] = version, m.Method
		if name := m.Params.Name + m.Params.URI; name != "" {
			h["Mcp-Name"] = name
		}
	}
	return h
}

// readMessages reads the messages of a response until it ends.
func readMessages(resp *http.Response, got func(raw string)) {
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		if b, err := io.ReadAll(resp.Body); err == nil && len(b) > 0 && b[0] == '{' {
			got(string(b))
		}
		return
	}
	r := bufio.NewReaderSize(resp.Body, 1<<16)
	for {
		line, err := r.ReadString('\n')
		if data, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "data:"); ok && strings.TrimSpace(data) != "" {
			got(strings.TrimSpace(data))
		}
		if err != nil {
			return
		}
	}
}
