package mcpproxy

import (
	"bytes"
	"errors"
	"strings"

	"github.com/agentarmor/agentarmor/mcpproxy/builtin"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// request is one request of a client with the members of its params that the
// router reads, all as raw JSON.
type request struct {
	c      *client
	st     wire.Stream
	id     []byte
	method string
	params []byte
	more   bool

	name, uri, meta         []byte
	state, responses        []byte // requestState and inputResponses of a retry
	cursor, ref, args, reqs []byte // cursor, ref, arguments, notifications

	hop     hopMeta
	modern  bool
	instead *standIn // it is a step of another call's fallback; nil: a client's own
	doubled bool     // a member that decides stands twice: peers may disagree on which one counts
}

// hopMeta holds the _meta keys that concern one hop only.
type hopMeta struct {
	version, caps, clientInfo, logLevel, progressToken []byte
}

func (r *request) read() {
	for key, value := range wire.Members(r.params) {
		switch key {
		case "name":
			r.doubled = r.doubled || r.name != nil
			r.name = value
		case "uri":
			r.doubled = r.doubled || r.uri != nil
			r.uri = value
		case "_meta":
			r.doubled = r.doubled || r.meta != nil
			r.meta = value
		case "requestState":
			if !bytes.Equal(value, null) {
				r.state = value
			}
		case "inputResponses":
			r.responses = value
		case "cursor":
			if !bytes.Equal(value, null) {
				r.cursor = value
			}
		case "ref":
			r.ref = value
		case "arguments":
			r.doubled = r.doubled || r.args != nil
			r.args = value
		case "notifications":
			r.reqs = value
		}
	}
	r.hop = readHopMeta(r.meta)
	r.modern = r.c.s.Stateless || r.hop.version != nil
}

func readHopMeta(meta []byte) (h hopMeta) {
	if len(meta) < 4 || meta[0] != '{' {
		return h
	}
	for key, value := range wire.Members(meta) {
		switch key {
		case "progressToken":
			h.progressToken = value
		case wire.MetaPrefix + "protocolVersion":
			h.version = value
		case wire.MetaPrefix + "clientCapabilities":
			h.caps = value
		case wire.MetaPrefix + "clientInfo":
			h.clientInfo = value
		case wire.MetaPrefix + "logLevel":
			h.logLevel = value
		}
	}
	return h
}

// checkModern refuses a stateless request whose per-request metadata is missing
// or names a revision we do not speak (2026-07-28, basic/index and versioning).
func (r *request) checkModern() bool {
	v, ok := wire.String(r.hop.version)
	switch {
	case !ok:
		r.fail(wire.CodeInvalidParams, "_meta lacks "+wire.MetaPrefix+"protocolVersion", nil)
	case v != wire.Modern:
		r.fail(wire.CodeUnsupportedVersion, "Unsupported protocol version", wire.VersionData(v))
	case len(r.hop.caps) == 0 || r.hop.caps[0] != '{':
		r.fail(wire.CodeInvalidParams, "_meta lacks "+wire.MetaPrefix+"clientCapabilities", nil)
	case r.hop.logLevel != nil && levelOf(r.hop.logLevel) < 0:
		r.fail(wire.CodeInvalidParams, "unknown log level", nil)
	default:
		return true
	}
	return false
}

// Handle implements [wire.Handler].
func (p *Proxy) Handle(s *wire.Session, m wire.Message, st wire.Stream) {
	c := p.clientOf(s)
	switch {
	case m.IsResponse():
		c.responded(m)
	case m.IsNotification():
		c.notified(m)
	default:
		r := &request{c: c, st: st, id: m.ID, method: m.Method, params: m.Params, more: m.More}
		r.read()
		p.route(r)
	}
}

// legacyOnly are the methods the 2026-07-28 revision removed.
var legacyOnly = map[string]bool{
	"initialize": true, "ping": true, "logging/setLevel": true, "resources/subscribe": true, "resources/unsubscribe": true,
}

// route answers a request, or sends it to the upstream that owns its name.
func (p *Proxy) route(r *request) {
	if r.method == "initialize" {
		r.modern = false
		p.initialize(r)
		return
	}
	if r.modern || r.method == "server/discover" {
		if !r.checkModern() {
			return
		}
		if legacyOnly[r.method] {
			r.unknownMethod()
			return
		}
	}
	if r.doubled {
		r.fail(wire.CodeInvalidParams, "a member of params stands twice", nil)
		return
	}
	r.c.touch(r)
	switch r.method {
	case "ping":
		r.answer([]byte(`{}`))
	case "server/discover":
		p.discover(r)
	case "tools/list":
		p.list(r, tools)
	case "prompts/list":
		p.list(r, prompts)
	case "resources/list":
		p.list(r, resources)
	case "resources/templates/list":
		p.list(r, templates)
	case "tools/call":
		p.callTool(r)
	case "prompts/get":
		p.getPrompt(r)
	case "resources/read":
		p.readResource(r)
	case "resources/subscribe", "resources/unsubscribe":
		p.subscribe(r)
	case "completion/complete":
		p.complete(r)
	case "logging/setLevel":
		p.setLevel(r)
	case "subscriptions/listen":
		if !r.modern {
			r.unknownMethod()
			return
		}
		p.listen(r)
	default:
		r.unknownMethod()
	}
}

func (r *request) unknownMethod() {
	r.fail(wire.CodeMethodNotFound, "Method not found: "+cut(r.method, 100), nil)
}

func (r *request) answer(result []byte) {
	_ = r.st.Answer(wire.AppendResult(nil, r.id, result), r.more) // a client that left needs no answer
}

func (r *request) fail(code int, msg string, data []byte) {
	_ = r.st.Answer(wire.AppendError(nil, r.id, code, msg, data), r.more)
}

// failName answers a name or URI that leads nowhere, or to several.
func (r *request) failName(err error) {
	r.fail(wire.CodeInvalidParams, err.Error(), nil)
}

// str reads a required string member of params; without one it answers the request.
func (r *request) str(raw []byte, key string) (string, bool) {
	s, ok := wire.String(raw)
	if !ok {
		r.fail(wire.CodeInvalidParams, r.method+" needs params."+key+", a string", nil)
	}
	return s, ok
}

func (p *Proxy) callTool(r *request) {
	name, ok := r.str(r.name, "name")
	if !ok {
		return
	}
	if r.args != nil && r.args[0] != '{' && !bytes.Equal(r.args, null) {
		r.fail(wire.CodeInvalidParams, "params.arguments must be an object", nil)
		return
	}
	e, err := p.cat.Load().tool(name)
	if err != nil {
		// A tool may be missing only because no list has arrived yet.
		if p.retryLater(r, p.callTool) {
			return
		}
		if t, ok := p.unlisted(name); ok {
			p.forward(r, t)
			return
		}
		r.failName(err)
		return
	}
	if e.upstream == "" {
		p.callOwn(r, e.original)
		return
	}
	t := target{p.upstream(e.upstream), "name", e.original, e.rawName, name, e.params, e}
	if t.up != nil {
		if _, yes := t.up.quarantinedTool(t.name); yes {
			p.work.Go(func() { // it may have been accepted meanwhile
				defer wire.OnPanic()
				t.up.review()
				p.forward(r, t)
			})
			return
		}
	}
	p.forward(r, t)
}

// unlisted finds the upstream that a tool's name must belong to although
// nothing is known of what it offers: it starts, or has never started.
func (p *Proxy) unlisted(name string) (target, bool) {
	for _, up := range p.ups() {
		s := up.source()
		if up.cfg.Disabled || s.list != nil || s.prefix == "" {
			continue
		}
		for _, prefix := range []string{s.prefix + "__", s.name + "."} {
			if original, ok := strings.CutPrefix(name, prefix); ok && original != "" && s.allowed(original) {
				return target{up: up, key: "name", name: original, raw: wire.AppendString(nil, original), asClients: name}, true
			}
		}
	}
	return target{}, false
}

func (p *Proxy) getPrompt(r *request) {
	name, ok := r.str(r.name, "name")
	if !ok {
		return
	}
	e, err := p.cat.Load().prompt(name)
	if err != nil {
		if !p.retryLater(r, p.getPrompt) {
			r.failName(err)
		}
		return
	}
	p.forward(r, target{p.upstream(e.upstream), "name", e.original, e.rawName, name, e.params, e})
}

func (p *Proxy) readResource(r *request) {
	uri, ok := r.str(r.uri, "uri")
	if !ok {
		return
	}
	up, original, err := p.existing(r.c, uri)
	switch {
	case err != nil && p.retryLater(r, p.readResource):
	case err != nil && r.modern:
		r.fail(wire.CodeInvalidParams, err.Error(), uriData(r.uri))
	case err != nil:
		r.fail(codeResourceNotFound, err.Error(), uriData(r.uri))
	case up == nil:
		p.callOwn(r, uri)
	default:
		p.forward(r, target{up, "uri", original, wire.AppendString(nil, original), uri, nil, nil})
	}
}

// codeResourceNotFound is the code of revisions up to 2025-11-25; from
// 2026-07-28 on it is -32602.
const codeResourceNotFound = -32002

func uriData(uri []byte) []byte {
	return append(append([]byte(`{"uri":`), uri...), '}')
}

// resolveURI finds the upstream of a URI: nil for our own. A link is tried
// first at the upstream that sent it.
func (p *Proxy) resolveURI(c *client, uri string) (*upstream, string, error) {
	if up := p.upstream(p.links.get(c, uri)); up != nil && !reserved(uri) {
		return up, uri, nil
	}
	name, original, err := p.cat.Load().resource(uri)
	if err != nil {
		return nil, "", err
	}
	if name == "" {
		return nil, original, nil
	}
	up := p.upstream(name)
	if up == nil {
		return nil, "", errors.New("unknown resource: " + uri)
	}
	return up, original, nil
}

// existing is resolveURI for a resource of our own that must be there, too.
func (p *Proxy) existing(c *client, uri string) (*upstream, string, error) {
	up, original, err := p.resolveURI(c, uri)
	if err != nil || up != nil {
		return up, original, err
	}
	if name, ok := builtin.UpstreamOf(uri); ok && p.upstream(name) == nil {
		return nil, "", errors.New("unknown resource: " + cut(uri, maxQuoted))
	}
	if id, ok := builtin.TraceOf(uri); ok && (p.cfg.LLM == nil || p.cfg.LLM.Trace(id) == nil) {
		return nil, "", errors.New("unknown resource: " + cut(uri, maxQuoted) + "; the last 1,000 traces are kept")
	}
	return nil, original, nil
}

// complete maps a completion reference like the call it completes.
func (p *Proxy) complete(r *request) {
	kind, _ := wire.String(wire.Get(r.ref, "type"))
	key := "name"
	if kind == "ref/resource" {
		key = "uri"
	} else if kind != "ref/prompt" {
		r.fail(wire.CodeInvalidParams, "params.ref.type must be ref/prompt or ref/resource", nil)
		return
	}
	name, ok := wire.String(wire.Get(r.ref, key))
	if !ok {
		r.fail(wire.CodeInvalidParams, "params.ref."+key+" must be a string", nil)
		return
	}
	var up *upstream
	original := name
	if key == "uri" {
		var err error
		if up, original, err = p.resolveURI(r.c, name); err != nil {
			if !p.retryLater(r, p.complete) {
				r.failName(err)
			}
			return
		}
	} else {
		e, err := p.cat.Load().prompt(name)
		if err != nil {
			if !p.retryLater(r, p.complete) {
				r.failName(err)
			}
			return
		}
		up, original = p.upstream(e.upstream), e.original
	}
	if up == nil {
		if r.modern {
			r.answer([]byte(`{"resultType":"complete","completion":{"values":[]}}`))
		} else {
			r.answer([]byte(`{"completion":{"values":[]}}`))
		}
		return
	}
	if original != name {
		ref := wire.Rewrite(nil, r.ref, wire.Edit{Key: key, Value: wire.AppendString(nil, original)})
		r.params = wire.Rewrite(nil, r.params, wire.Edit{Key: "ref", Value: ref})
	}
	p.forward(r, target{up: up, name: original, asClients: name})
}
