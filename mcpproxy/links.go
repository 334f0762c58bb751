package mcpproxy

import (
	"bytes"
	"sync"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// links remembers which upstream sent a client a link to a resource that no
// list names, so that reading it is tried there.
type links struct {
	mu   sync.Mutex
	last map[linkKey]string // upstream
	ring []linkKey          // oldest first
}

type linkKey struct {
	c   *client // nil for stateless clients, which share by token
	who string
	uri string
}

// maxLinks bounds the memory; the oldest go first.
const maxLinks = 4096

func keyOf(c *client, uri string) linkKey {
	if c.s.Stateless {
		return linkKey{who: c.s.Principal, uri: uri}
	}
	return linkKey{c: c, uri: uri}
}

func (l *links) get(c *client, uri string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last[keyOf(c, uri)]
}

func (l *links) put(c *client, uri, upstream string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		l.last = map[linkKey]string{}
	}
	k := keyOf(c, uri)
	if _, known := l.last[k]; !known {
		if l.ring = append(l.ring, k); len(l.ring) > maxLinks {
			delete(l.last, l.ring[0])
			l.ring = l.ring[1:]
		}
	}
	l.last[k] = upstream
}

// drop forgets a client that left.
func (l *links) drop(c *client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.ring[:0]
	for _, k := range l.ring {
		if k.c == c {
			delete(l.last, k)
			continue
		}
		kept = append(kept, k)
	}
	l.ring = kept
}

var linkMark = []byte(`"resource_link"`)

// noteLinks remembers the links in the result of a tool call.
func (p *Proxy) noteLinks(k *call, result []byte) {
	if !bytes.Contains(result, linkMark) {
		return
	}
	content := wire.Get(result, "content")
	if len(content) == 0 || content[0] != '[' {
		return
	}
	for item := range wire.Elements(content) {
		if kind, _ := wire.String(wire.Get(item, "type")); kind == "resource_link" {
			if uri, ok := wire.String(wire.Get(item, "uri")); ok {
				p.links.put(k.r.c, uri, k.up.cfg.Name)
			}
		}
	}
}
