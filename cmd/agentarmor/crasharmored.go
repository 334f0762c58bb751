package main

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy"
)

// armored goes through AgentArmor: a whole endpoint over HTTP with the
// settings of production, in the time of the crash test.
type armored struct {
	w        *crashWorld
	chain    *llm.Chain
	proxy    *mcpproxy.Proxy
	endpoint *localEndpoint
	client   *client.Client
}

func newArmored(ctx context.Context, w *crashWorld) (lane, error) {
	a := &armored{w: w}
	if err := a.open(ctx); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func (a *armored) open(ctx context.Context) (err error) {
	var later atomic.Pointer[mcpproxy.Proxy]
	if a.chain, err = crashChain(a.w, &later); err != nil {
		return err
	}
	a.proxy, err = mcpproxy.New(mcpproxy.Config{
		Version: version(), Log: slog.New(slog.DiscardHandler), LLM: a.chain, ToolNames: "dotted", Upstreams: []mcpproxy.UpstreamConfig{crashUpstream(a.w)},
	})
	if err != nil {
		return err
	}
	later.Store(a.proxy)
	a.proxy.Start(ctx)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	a.endpoint = serveLocally(listener, a.proxy)
	if a.client, err = connect(ctx, a.endpoint.url(), "", "crashtest"); err != nil {
		return err
	}
	return awaitTool(ctx, a.client, crashServer+"__"+readStep.tool())
}

// awaitTool lists the tools until one is there.
func awaitTool(ctx context.Context, c *client.Client, name string) error {
	for {
		list, err := c.ListTools(ctx, mcp.ListToolsRequest{})
		if err != nil || slices.ContainsFunc(list.Tools, func(t mcp.Tool) bool { return t.Name == name }) {
			return err
		}
		if err := rest(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

func crashUpstream(w *crashWorld) mcpproxy.UpstreamConfig {
	u := w.pace.upstream
	u.Name, u.URL = crashServer, w.url()
	return u
}

func crashChain(w *crashWorld, later *atomic.Pointer[mcpproxy.Proxy]) (*llm.Chain, error) {
	var entries []llm.Entry
	for _, name := range crashModels {
		entries = append(entries, llm.Entry{Provider: &crashModel{w, name}, Timeout: w.pace.model})
	}
	o := w.pace.chain
	o.OnEvent = func(e llm.Event) {
		if p := later.Load(); p != nil {
			p.LLMEvent(e)
		}
	}
	return llm.New(entries, o)
}

func (a *armored) close() {
	if a.client != nil {
		a.client.Close()
	}
	closeEndpoint(a.endpoint, a.proxy, a.chain)
}

// account is what AgentArmor says about a call in its _meta.
type account struct {
	Executed string    `json:"executed"`
	RetryAt  time.Time `json:"retry_at"`
	Attempts int       `json:"attempts"`
}

// do makes a step as an agent does who heeds what it is told.
func (a *armored) do(ctx context.Context, kind stepKind, step string) (o outcome) {
	ctx, cancel := context.WithTimeout(ctx, a.w.pace.patience)
	defer cancel()
	_, o.ok = a.insist(ctx, kind, step, &o)
	return o
}

// insist calls a tool until there is an answer: what was not executed, or does
// no harm twice, is called again when that may be; whether anything else was
// executed is looked up before. It returns the text of the answer.
func (a *armored) insist(ctx context.Context, kind stepKind, step string, o *outcome) (text string, ok bool) {
	name := kind.tool()
	if kind != modelStep {
		name = crashServer + "__" + name
	}
	for {
		var told account
		r, err := callStep(ctx, a.client, a.w, kind, name, step)
		if err == nil {
			told = o.read(r, kind)
			if good(r, kind, step) {
				return textOf(r), true
			}
		}
		if kind == appendStep && told.Executed != "no" && a.executed(ctx, step, o) {
			return "", true
		}
		if rest(ctx, max(time.Until(told.RetryAt), a.w.pace.pause)) != nil {
			return "", false
		}
		o.repeats++
	}
}

// executed looks whether an append was executed. What is still under way when
// its connection breaks has ended a while later, one way or the other.
func (a *armored) executed(ctx context.Context, step string, o *outcome) bool {
	o.lookups++
	if rest(ctx, a.w.pace.pause) != nil {
		return false
	}
	text, _ := a.insist(ctx, lookStep, step, o)
	return text == executed
}

// rest waits a while, or returns why the context has ended before.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return ctx.Err()
	}
}

// read takes from a result what AgentArmor did for it.
func (o *outcome) read(r *mcp.CallToolResult, kind stepKind) (told account) {
	if kind == modelStep {
		var answer struct {
			Provider  string
			NotBefore time.Time `json:"not_before"`
			Trace     llm.Trace
		}
		remarshal(r.StructuredContent, &answer)
		for _, attempt := range answer.Trace.Attempts {
			if attempt.Number > 1 {
				o.retries++
			}
		}
		o.failover = o.failover || answer.Provider != "" && answer.Provider != crashModels[0]
		return account{RetryAt: answer.NotBefore}
	}
	if r.Meta != nil {
		remarshal(r.Meta.AdditionalFields["agentarmor/call"], &told)
	}
	o.retries += max(0, told.Attempts-1)
	return told
}

// remarshal reads what a client has decoded into any as what it is.
func remarshal(v, into any) {
	if raw, err := json.Marshal(v); err == nil {
		_ = json.Unmarshal(raw, into) // what is missing stays zero
	}
}

func (a *armored) breakers() (marks []breakerMark) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	for _, kind := range []string{"breaker", "llm.breaker"} {
		r, err := a.client.CallTool(ctx, mcp.CallToolRequest{Params: mcp.CallToolParams{
			Name: "armor.status", Arguments: map[string]any{"section": "events", "kind": kind, "limit": 1000},
		}})
		if err != nil {
			return marks
		}
		var found struct {
			Events []struct {
				Time                         time.Time
				Upstream, Tool, Provider, To string
			}
		}
		remarshal(r.StructuredContent, &found)
		for _, e := range found.Events {
			marks = append(marks, breakerMark{cmp.Or(e.Tool, e.Provider, "server "+e.Upstream), e.To, ms(e.Time.Sub(a.w.began))})
		}
	}
	return marks
}
