package mcpproxy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// maxSubs bounds the resources of one client, or one listen.
const maxSubs = 1000

// subscription is a resource a client wants to hear of.
type subscription struct {
	upstream string // "" = our own
	original string
}

func subscriptionTo(up *upstream, original string) subscription {
	if up == nil {
		return subscription{original: original}
	}
	return subscription{up.cfg.Name, original}
}

// listen is one subscriptions/listen of a modern client.
type listen struct {
	r                         *request
	tools, prompts, resources bool
	subs                      map[string]subscription // by the URI the client used
	over                      bool                    // guarded by Proxy.listensMu
}

// subscribe handles resources/subscribe and resources/unsubscribe.
func (p *Proxy) subscribe(r *request) {
	uri, ok := r.str(r.uri, "uri")
	if !ok {
		return
	}
	if r.method == "resources/unsubscribe" {
		r.c.mu.Lock()
		delete(r.c.subs, uri)
		r.c.mu.Unlock()
		p.subscriptionsChanged()
		r.answer([]byte(`{}`))
		return
	}
	up, original, err := p.existing(r.c, uri)
	if err != nil {
		if !p.retryLater(r, p.subscribe) {
			r.fail(codeResourceNotFound, err.Error(), uriData(r.uri))
		}
		return
	}
	s := subscriptionTo(up, original)
	r.c.mu.Lock()
	full := len(r.c.subs) >= maxSubs
	if !full {
		if r.c.subs == nil {
			r.c.subs = map[string]subscription{}
		}
		r.c.subs[uri] = s
	}
	r.c.mu.Unlock()
	if full {
		r.fail(wire.CodeInvalidParams, fmt.Sprintf("this session has %d subscriptions: end some first", maxSubs), nil)
		return
	}
	p.wake(r.c, up)
	p.subscriptionsChanged()
	r.answer([]byte(`{}`))
}

// wake starts the client's own instance of an upstream that has one per
// session, so that it can subscribe; a refusal shows at the next call.
func (p *Proxy) wake(c *client, up *upstream) {
	if up != nil {
		_, _ = p.instanceFor(c, up)
	}
}

// subscriptionsChanged gives every instance the URIs that somebody it serves
// wants to hear of.
func (p *Proxy) subscriptionsChanged() {
	p.wantedMu.Lock()
	defer p.wantedMu.Unlock()
	want := map[*instance]map[string]bool{}
	instances := map[string][]*instance{}
	for _, up := range p.ups() {
		instances[up.cfg.Name] = up.subscribing()
	}
	add := func(c *client, s subscription) {
		for _, in := range instances[s.upstream] {
			if in.serves(c) {
				if want[in] == nil {
					want[in] = map[string]bool{}
				}
				want[in][s.original] = true
			}
		}
	}
	for _, c := range p.allClients() {
		c.mu.Lock()
		for _, s := range c.subs {
			add(c, s)
		}
		c.mu.Unlock()
	}
	p.eachListen(func(l *listen) {
		for _, s := range l.subs {
			add(l.r.c, s)
		}
	})
	for _, all := range instances {
		for _, in := range all {
			in.setSubscriptions(sortedKeys(want[in]))
		}
	}
}

// listen opens a notification stream of a modern client
// (2026-07-28, basic/patterns/subscriptions).
func (p *Proxy) listen(r *request) {
	l := &listen{r: r, subs: map[string]subscription{}}
	flag := func(key string) bool { return string(wire.Get(r.reqs, key)) == "true" }
	l.tools, l.prompts, l.resources = flag("toolsListChanged"), flag("promptsListChanged"), flag("resourcesListChanged")
	var uris []byte
	if list := wire.Get(r.reqs, "resourceSubscriptions"); list != nil && list[0] == '[' {
		for raw := range wire.Elements(list) {
			uri, ok := wire.String(raw)
			if _, twice := l.subs[uri]; !ok || twice || len(l.subs) >= maxSubs {
				continue
			}
			up, original, err := p.existing(r.c, uri)
			if err != nil {
				continue
			}
			l.subs[uri] = subscriptionTo(up, original)
			p.wake(r.c, up)
			uris = append(append(uris, ','), raw...)
		}
	}
	if !r.c.addListen(l) {
		r.fail(wire.CodeInvalidRequest, "request id "+string(r.id)+" is already in use", nil)
		return
	}
	ack := []byte(`{"notifications":{`)
	for _, f := range []struct {
		key string
		on  bool
	}{{"toolsListChanged", l.tools}, {"promptsListChanged", l.prompts}, {"resourcesListChanged", l.resources}} {
		if f.on {
			ack = append(ack, `"`+f.key+`":true,`...)
		}
	}
	if len(uris) > 0 {
		ack = append(append(append(ack, `"resourceSubscriptions":[`...), uris[1:]...), "],"...)
	}
	ack = append([]byte(strings.TrimSuffix(string(ack), ",")), "}}"...)
	p.open(l, ack)
	if len(l.subs) > 0 {
		p.subscriptionsChanged()
	}
	r.st.OnLeave(func() { l.end(false) })
}

// open acknowledges l and lets changes through to it. The lock makes the
// acknowledgement the first message; Send does not block.
func (p *Proxy) open(l *listen, ack []byte) {
	p.listensMu.Lock()
	defer p.listensMu.Unlock()
	if l.over { // the client has left meanwhile
		return
	}
	_ = l.r.st.Send(l.tag("notifications/subscriptions/acknowledged", ack), l.r.more) // a client that left ends the stream
	if p.listens == nil {
		p.listens = map[*listen]bool{}
	}
	p.listens[l] = true
}

func (c *client) addListen(l *listen) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.mute || c.takenLocked(l.r.id) {
		return false
	}
	if c.listens == nil {
		c.listens = map[string]*listen{}
	}
	c.listens[string(l.r.id)] = l
	return true
}

// end closes the stream; gracefully with the response that says so.
func (l *listen) end(graceful bool) {
	p, c := l.r.c.p, l.r.c
	p.listensMu.Lock()
	over := l.over
	l.over = true
	delete(p.listens, l)
	p.listensMu.Unlock()
	if over {
		return
	}
	c.mu.Lock()
	delete(c.listens, string(l.r.id))
	c.mu.Unlock()
	if graceful {
		meta := wire.Rewrite(nil, nil, wire.Edit{Key: wire.MetaPrefix + "subscriptionId", Value: l.r.id})
		l.r.answer(append(append([]byte(`{"resultType":"complete","_meta":`), meta...), '}'))
	} else {
		l.r.st.Drop()
	}
	if len(l.subs) > 0 {
		p.subscriptionsChanged()
	}
}

// tag marks a notification with the id of the listen it belongs to.
func (l *listen) tag(method string, params []byte) []byte {
	meta := wire.Rewrite(nil, wire.Get(params, "_meta"), wire.Edit{Key: wire.MetaPrefix + "subscriptionId", Value: l.r.id})
	return wire.AppendNotification(nil, method, wire.Rewrite(nil, params, wire.Edit{Key: "_meta", Value: meta}))
}

func (p *Proxy) eachListen(f func(*listen)) {
	p.listensMu.Lock()
	all := make([]*listen, 0, len(p.listens))
	for l := range p.listens {
		all = append(all, l)
	}
	p.listensMu.Unlock()
	for _, l := range all {
		f(l)
	}
}

// updated tells those who subscribed that a resource of an upstream changed.
func (p *Proxy) updated(c *conn, m wire.Message) {
	uri, ok := wire.String(wire.Get(m.Params, "uri"))
	if ok {
		p.tellUpdated(c.in.o.cfg.Name, uri, m.Params, c.in.serves)
	}
}

// tellUpdated sends resources/updated to subscribers of the upstream's uri, each
// under the URI it used, as far as serves lets it.
func (p *Proxy) tellUpdated(upstream, uri string, params []byte, serves func(*client) bool) {
	const method = "notifications/resources/updated"
	match := func(s subscription) bool {
		return s.upstream == upstream && (s.original == uri || upstream != "" && strings.HasPrefix(uri, s.original+"/"))
	}
	as := func(known string, s subscription) []byte {
		if known == s.original || s.original != uri {
			return params
		}
		return wire.Rewrite(nil, params, wire.Edit{Key: "uri", Value: wire.AppendString(nil, known)})
	}
	for _, c := range p.allClients() {
		if !serves(c) {
			continue
		}
		c.mu.Lock()
		var send [][]byte
		for known, s := range c.subs {
			if match(s) {
				send = append(send, withoutSubscription(as(known, s)))
			}
		}
		c.mu.Unlock()
		for _, params := range send {
			_ = c.s.Send(wire.AppendNotification(nil, method, params), false) // a client that does not read misses it
		}
	}
	p.eachListen(func(l *listen) {
		for known, s := range l.subs {
			if match(s) && serves(l.r.c) {
				_ = l.r.st.Send(l.tag(method, as(known, s)), false) // as above
			}
		}
	})
}

// withoutSubscription removes the upstream hop's subscription id.
func withoutSubscription(params []byte) []byte {
	meta := wire.Get(params, "_meta")
	if wire.Get(meta, wire.MetaPrefix+"subscriptionId") == nil {
		return params
	}
	meta = wire.Rewrite(nil, meta, wire.Edit{Key: wire.MetaPrefix + "subscriptionId"})
	if string(meta) == "{}" {
		meta = nil
	}
	return wire.Rewrite(nil, params, wire.Edit{Key: "_meta", Value: meta})
}

// listChanged tells everyone who asked that one of our lists changed.
func (p *Proxy) listChanged(kind listKind) {
	method := listTable[kind].changed
	for _, c := range p.legacyClients() {
		c.mu.Lock()
		ready := c.ready
		c.mu.Unlock()
		if ready {
			_ = c.s.Send(wire.AppendNotification(nil, method, nil), false) // a client that does not read misses it
		}
	}
	p.eachListen(func(l *listen) {
		if on := [...]bool{tools: l.tools, prompts: l.prompts, resources: l.resources, templates: l.resources}[kind]; on {
			_ = l.r.st.Send(l.tag(method, []byte(`{}`)), false) // as above
		}
	})
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
