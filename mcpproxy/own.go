package mcpproxy

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/builtin"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

const (
	statusURI = builtin.StatusURI
	eventsURI = builtin.EventsURI
	llmURI    = builtin.LLMURI
)

// makeOwn builds what AgentArmor answers itself, and cuts its list entries once.
func (p *Proxy) makeOwn() {
	src := builtin.Source{Status: func() any { return p.Status() }, Upstream: p.upstreamStatus, Events: p.recentEvents, Alerts: p.alertList, LLM: p.cfg.LLM, Chaos: p.cfg.Chaos}
	for _, kind := range event.Kinds {
		src.EventKinds = append(src.EventKinds, string(kind))
	}
	p.own = builtin.New(p.cfg.Version, src)
	p.ownList = ownEntries{
		tools:     p.ownEntries("tools/list", "tools"),
		resources: p.ownEntries("resources/list", "resources"),
		templates: p.ownEntries("resources/templates/list", "resourceTemplates"),
		noChaos:   !p.cfg.Chaos.Enabled(),
	}
}

func (p *Proxy) recentEvents(q builtin.EventQuery) any {
	return p.events.Find(event.Filter{Upstream: q.Upstream, Tool: q.Tool, Kind: event.Kind(q.Kind), Since: q.Since, Limit: q.Limit})
}

func (p *Proxy) ownEntries(method, key string) []json.RawMessage {
	m := p.handle(context.Background(), method, nil)
	list := wire.Get(m.Result, key)
	if list == nil {
		return nil
	}
	var out []json.RawMessage
	for e := range wire.Elements(list) {
		out = append(out, slices.Clone(e))
	}
	return out
}

// handle lets mcp-go answer one message, under an id of ours.
func (p *Proxy) handle(ctx context.Context, method string, params []byte) wire.Message {
	raw := wire.AppendRequest(nil, []byte(`"own"`), method, params)
	answer, err := json.Marshal(p.own.HandleMessage(ctx, raw))
	if err == nil {
		if m, err := wire.Parse(answer); err == nil {
			return m
		}
	}
	return wire.Message{Error: errorObject(wire.CodeInternal, "AgentArmor could not answer this")}
}

func errorObject(code int, msg string) []byte {
	b, _ := json.Marshal(struct { // an int and a string always encode
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{code, msg})
	return b
}

func (r *request) give(m wire.Message) {
	if m.Error != nil {
		_ = r.st.Answer(wire.AppendErrorRaw(nil, r.id, m.Error), r.more) // the client may have left
		return
	}
	r.answer(m.Result)
}

// initialize opens a session. It never waits for an upstream.
func (p *Proxy) initialize(r *request) {
	m := p.handle(p.ctx, r.method, r.params)
	if m.Result == nil {
		r.give(m)
		return
	}
	version, _ := wire.String(wire.Get(m.Result, "protocolVersion"))
	caps := wire.Get(r.params, "capabilities")
	if len(caps) == 0 || caps[0] != '{' {
		caps = []byte(`{}`)
	}
	name, _ := wire.String(wire.Get(wire.Get(r.params, "clientInfo"), "name"))
	r.c.mu.Lock()
	r.c.version, r.c.caps, r.c.name = version, slices.Clone(caps), name
	r.c.mu.Unlock()
	if p.cfg.OneClient {
		p.first.set(false, slices.Clone(caps))
	}
	r.answer(p.withInstructions(m.Result))
}

func (p *Proxy) discover(r *request) {
	m := p.handle(p.ctx, r.method, r.params)
	if m.Result != nil {
		m.Result = p.withInstructions(m.Result)
	}
	r.give(m)
}

func (p *Proxy) withInstructions(result []byte) []byte {
	return wire.Rewrite(nil, result, wire.Edit{Key: "instructions", Value: wire.AppendString(nil, p.cat.Load().instructions())})
}

// firstList bounds how long a list waits when nothing is known of any upstream.
const firstList = time.Second

// firstOthers bounds how much of that it waits once one upstream is listed.
const firstOthers = 250 * time.Millisecond

// list answers one of the four lists, a single page.
func (p *Proxy) list(r *request, kind listKind) {
	if r.cursor != nil {
		r.fail(wire.CodeInvalidParams, "unknown cursor: the list has a single page", nil)
		return
	}
	if !p.knowsNothing() {
		p.answerList(r, kind)
		return
	}
	p.work.Go(func() {
		defer wire.OnPanic()
		p.waitForList()
		p.answerList(r, kind)
	})
}

// knowsNothing tells that upstreams are enabled and none has a list yet.
func (p *Proxy) knowsNothing() bool {
	enabled := p.enabled()
	return len(enabled) > 0 && !slices.ContainsFunc(enabled, (*upstream).known)
}

// knowsAll tells that every enabled upstream has a list, live or remembered.
func (p *Proxy) knowsAll() bool {
	return !slices.ContainsFunc(p.enabled(), func(up *upstream) bool { return !up.known() })
}

func (p *Proxy) enabled() []*upstream {
	return slices.DeleteFunc(p.ups(), func(up *upstream) bool { return up.cfg.Disabled })
}

func (up *upstream) known() bool {
	up.mu.Lock()
	defer up.mu.Unlock()
	return up.list != nil
}

func (p *Proxy) waitForList() {
	late := time.After(time.Until(p.started.Add(firstList)))
	select {
	case <-p.listedOne:
	case <-late:
		return
	case <-p.ctx.Done():
		return
	}
	select { // those that start at the same time are ready soon after
	case <-p.listedAll:
	case <-time.After(firstOthers):
	case <-late:
	case <-p.ctx.Done():
	}
}

func (p *Proxy) answerList(r *request, kind listKind) {
	cat := p.cat.Load()
	r.answer(p.withMissing(kind, cat.list(kind, view{dotted: p.dotted(r), modern: r.modern})))
	if kind == tools {
		p.showOnce.Do(func() { close(p.shown) })
		p.reviewPins()
	}
}

// retryLater tries once more, within the first second, what failed only because
// no list is known yet; false: there is nothing to wait for.
func (p *Proxy) retryLater(r *request, again func(*request)) bool {
	if !p.knowsNothing() || time.Since(p.started) >= firstList || p.ctx.Err() != nil {
		return false
	}
	p.work.Go(func() {
		defer wire.OnPanic()
		p.waitForList()
		again(r)
	})
	return true
}

// refuseDots are clients that drop the whole server, or fail every request,
// when a tool's name has a dot: lower case, a trailing dash ends a prefix.
var refuseDots = []string{"claude-ai", "github-copilot-developer", "continue-client", "continue-cli-client", "zed", "windsurf-client", "jetbrains-"}

// dotted tells how own tools are spelled for the client of r.
func (p *Proxy) dotted(r *request) bool {
	switch p.cfg.ToolNames {
	case "safe":
		return false
	case "dotted":
		return true
	}
	if r.modern { // lists of this generation must not vary by connection
		return true
	}
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	name := strings.ToLower(r.c.name)
	return !slices.ContainsFunc(refuseDots, func(s string) bool { return s == name || s[len(s)-1] == '-' && strings.HasPrefix(name, s) })
}

// rebuild cuts a new catalog from what the upstreams offer now.
func (p *Proxy) rebuild() {
	p.rebuildMu.Lock()
	defer p.rebuildMu.Unlock()
	own := p.ownList
	own.instructions = ownInstructions
	if p.cfg.LLM != nil {
		own.instructions += " llm.complete asks a language model."
	}
	ups := p.ups()
	if len(ups) == 0 {
		own.instructions = ownInstructions + " " + addServer
	}
	sources := make([]source, 0, len(ups))
	for _, up := range ups {
		sources = append(sources, up.source())
	}
	p.cat.Store(buildCatalog(own, sources))
}

const (
	ownInstructions = "AgentArmor fronts several MCP servers. Their tools are listed as <server>__<tool>. When a tool is unavailable its result says so, and why; armor.status tells what works now."
	addServer       = "No server is configured yet: add one under mcpServers in ~/.config/agentarmor/agentarmor.yaml, as in Claude Desktop's configuration, then restart the endpoint; later changes of the file are picked up at once."
)
