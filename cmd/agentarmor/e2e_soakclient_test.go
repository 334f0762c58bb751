//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// tally is what became of the requests of all clients of a soak.
type tally struct {
	t   *testing.T
	dir string // where the executions of <server>'s appends leave lines: <server>.once, <server>.often

	mu       sync.Mutex
	requests int
	answers  int
	left     int // requests whose client dropped the connection
	outcomes map[string]int
	took     []time.Duration   // of good calls of tools
	said     map[string]string // by text of an append: whether it was executed
}

func (y *tally) count(n *int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	*n++
}

func (y *tally) outcome(what string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.outcomes[what]++
}

// soakClient is one client over streamable HTTP with connections of its own. It
// makes one request at a time and reads each stream to its end.
type soakClient struct {
	*tally
	name    string
	url     string
	era     rawClient // version is "" for a legacy client with sessions
	drops   bool      // it leaves some of its requests, and its sessions
	random  *rand.Rand
	http    *http.Client
	session string
	leave   context.CancelFunc // ends the session's own stream
	stream  sync.WaitGroup
	lastID  int
}

func newSoakClient(y *tally, url string, n int, version string, drops bool) *soakClient {
	return &soakClient{
		tally: y, name: fmt.Sprint("c", n), url: url, era: rawClient{version: version}, drops: drops, leave: func() {},
		random: rand.New(rand.NewPCG(1, uint64(n))), http: &http.Client{Transport: &http.Transport{}},
	}
}

// do sends a message; the response is the caller's to close.
func (c *soakClient) do(ctx context.Context, method, raw string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url, strings.NewReader(raw))
	if err != nil {
		return nil, err
	}
	for k, v := range mcpHeaders(raw) {
		req.Header.Set(k, v)
	}
	if c.session != "" {
		req.Header.Set("Mcp-Session-Id", c.session)
	}
	return c.http.Do(req)
}

// ask makes a request and returns its only answer; false if the client has left.
func (c *soakClient) ask(ctx context.Context, method, params string) (m rpcMessage, ok bool) {
	c.lastID++
	id := fmt.Sprint(c.lastID)
	if c.era.version != "" {
		params = c.era.withMeta(params)
	}
	c.count(&c.requests)
	wait, stop := context.WithTimeout(ctx, patience)
	defer stop()
	resp, err := c.do(wait, "POST", `{"jsonrpc":"2.0","id":`+id+`,"method":"`+method+`","params":`+params+`}`)
	answers := 0
	if err == nil {
		readMessages(resp, func(raw string) {
			if got := c.parse(raw); got.Method == "" {
				m = got
				answers++
			}
		})
		resp.Body.Close()
	}
	switch {
	case answers == 0 && ctx.Err() != nil:
		c.count(&c.left)
		return m, false
	case answers != 1 || string(m.ID) != id:
		c.t.Errorf("%s: %d answers to %s %s: %v, %.300s", c.name, answers, id, method, err, m.raw)
		return m, false
	}
	if method == "initialize" {
		c.session = resp.Header.Get("Mcp-Session-Id")
	}
	c.count(&c.answers)
	return m, true
}

func (c *soakClient) parse(raw string) rpcMessage {
	m := rpcMessage{raw: raw}
	if err := json.Unmarshal([]byte(raw), &m); err != nil {
		c.t.Errorf("%s: %v in %.300q", c.name, err, raw)
	}
	return m
}

// open begins a session with its own stream, where no answer belongs.
func (c *soakClient) open() {
	if c.era.version != "" {
		return
	}
	c.session = ""
	c.own(c.t.Context(), "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"soak","version":"1"}}`)
	if resp, err := c.do(c.t.Context(), "POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`); err == nil {
		resp.Body.Close()
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	c.leave = cancel
	c.stream.Go(func() {
		resp, err := c.do(ctx, "GET", "")
		if err == nil {
			defer resp.Body.Close()
			readMessages(resp, func(raw string) {
				if m := c.parse(raw); m.Method == "" {
					c.t.Errorf("%s: a second answer: %.300s", c.name, raw)
				}
			})
		}
		if ctx.Err() == nil {
			c.t.Errorf("%s: the stream of its session has ended: %v", c.name, err)
		}
	})
}

// close ends the session, or just leaves it.
func (c *soakClient) close(politely bool) {
	c.leave()
	c.stream.Wait()
	if c.session != "" && politely {
		if resp, err := c.do(context.WithoutCancel(c.t.Context()), "DELETE", ""); err == nil {
			resp.Body.Close()
		}
	}
	c.http.CloseIdleConnections()
}

// work calls until over is closed.
func (c *soakClient) work(over <-chan struct{}, servers, uris []string) {
	c.open()
	for n := 1; ; n++ {
		select {
		case <-over:
			c.close(true)
			return
		case <-time.After(time.Duration(c.random.IntN(30)) * time.Millisecond):
		}
		if c.drops && n%40 == 0 {
			c.close(c.random.IntN(2) == 0)
			c.open()
		}
		ctx, cancel := c.t.Context(), context.CancelFunc(func() {})
		if c.drops && c.random.IntN(3) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(c.random.IntN(40_000))*time.Microsecond)
		}
		c.step(ctx, n, servers[c.random.IntN(len(servers))], uris[c.random.IntN(len(uris))])
		cancel()
	}
}

// step is one request of those that agents make.
func (c *soakClient) step(ctx context.Context, n int, server, uri string) {
	text := fmt.Sprintf("%s-%d", c.name, n)
	switch p := c.random.IntN(100); {
	case p < 40:
		c.call(ctx, server+"__echo", `{"text":`+quoted(text)+`}`, text)
	case p < 65:
		c.append(ctx, server, "once", text)
	case p < 85:
		c.append(ctx, server, "often", text)
	case p < 90:
		c.complete(ctx, "")
	case p < 92:
		c.own(ctx, "tools/list", `{}`)
	case p < 94:
		c.own(ctx, "resources/list", `{}`)
	case p < 96:
		c.own(ctx, "prompts/list", `{}`)
	case p < 97:
		c.own(ctx, "resources/read", `{"uri":"agentarmor://status"}`)
	default:
		if m, ok := c.ask(ctx, "resources/read", `{"uri":`+quoted(uri)+`}`); ok {
			c.outcome("resources/read " + map[bool]string{true: "ok", false: "error"}[m.Error == nil])
		}
	}
}

// own asks for what AgentArmor answers whatever its servers do.
func (c *soakClient) own(ctx context.Context, method, params string) (m rpcMessage) {
	m, ok := c.ask(ctx, method, params)
	if ok && m.Error != nil {
		c.t.Errorf("%s: %s: %.300s", c.name, method, m.raw)
	}
	if ok {
		c.outcome(method + " ok")
	}
	return m
}

// append calls the tool that must not be executed twice (once) or may (often),
// and notes what it hears about the execution of this text.
func (c *soakClient) append(ctx context.Context, server, how, text string) {
	tool := map[string]string{"once": "__append", "often": "__append_idempotent"}[how]
	executed := c.call(ctx, server+tool, fmt.Sprintf(`{"file":%q,"text":%q}`, filepath.Join(c.dir, server+"."+how), text), "appended")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said[text] = executed
}

// call calls a tool of a server and returns whether it was executed, as far as
// the answer tells. What is neither the right answer nor one of AgentArmor's has
// to be the work of a fault.
func (c *soakClient) call(ctx context.Context, tool, args, want string) (executed string) {
	began := time.Now()
	m, ok := c.ask(ctx, "tools/call", toolCall(tool, args))
	if !ok {
		return "maybe"
	}
	took := time.Since(began)
	var r toolResult
	if m.Error == nil {
		if err := json.Unmarshal(m.Result, &r); err != nil {
			c.t.Errorf("%s: %v in %.300s", c.name, err, m.raw)
		}
	}
	said := r.Meta.Call
	switch good := m.Error == nil && !r.IsError && r.text() == want; {
	case good:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.outcomes["ok"]++
		c.took = append(c.took, took)
		return "yes"
	case said != nil && said.Outcome != "ok" && said.Executed != "yes":
		c.outcome(said.Outcome + ", executed " + said.Executed)
		return said.Executed
	case !strings.Contains(m.raw, `"injected":`):
		c.t.Errorf("%s: %s got %.600s", c.name, tool, m.raw)
	case m.Error != nil:
		c.outcome("error of the server")
	default:
		c.outcome("failure of the tool")
	}
	return "maybe"
}

// complete asks the models, a certain one first if it is named.
func (c *soakClient) complete(ctx context.Context, model string) {
	m, ok := c.ask(ctx, "tools/call", toolCall("llm.complete", fmt.Sprintf(`{"prompt":"Say hello.","include_trace":false,"model":%q}`, model)))
	if !ok {
		return
	}
	var r struct {
		IsError           bool
		StructuredContent struct {
			Text, Provider string
			Degraded       bool
		}
	}
	if m.Error != nil || json.Unmarshal(m.Result, &r) != nil || r.StructuredContent.Text == "" {
		c.t.Errorf("%s: llm.complete got %.600s", c.name, m.raw)
	}
	switch a := r.StructuredContent; {
	case a.Degraded:
		c.outcome("llm degraded")
	case r.IsError:
		c.outcome("llm error")
	default:
		c.outcome("llm ok, " + a.Provider)
	}
}
