package mcpproxy

import (
	"bytes"
	"sync"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

const (
	listCoalesce   = 50 * time.Millisecond // of list_changed
	updateCoalesce = time.Second           // of resources/updated for our own
)

// changes tells clients about changed lists and resources of our own, at most
// once per period: it compares what was last told with what is now.
type changes struct {
	p *Proxy

	mu      sync.Mutex
	told    [kinds][]byte // the lists as clients were last told of
	force   kindSet
	lists   *time.Timer
	updates *time.Timer
	dirty   map[string]bool // our own resources that have changed
	closed  bool
	running sync.WaitGroup
}

// init takes the first catalog as what every client knows.
func (c *changes) init(p *Proxy) {
	c.p, c.dirty = p, map[string]bool{}
	for kind := range kinds {
		c.told[kind] = p.cat.Load().list(kind, view{dotted: true})
	}
}

// compare looks, after a moment, whether a list differs from what was told.
// told are those an upstream itself announced, which are always passed on.
func (c *changes) compare(told kindSet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.force |= told
	if c.lists == nil && !c.closed {
		c.lists = time.AfterFunc(listCoalesce, c.tellLists)
	}
}

func (c *changes) tellLists() {
	defer wire.OnPanic()
	c.mu.Lock()
	c.lists = nil
	cat := c.p.cat.Load()
	var tell []listKind
	for kind := range kinds {
		now := cat.list(kind, view{dotted: true})
		if c.force.has(kind) || !bytes.Equal(now, c.told[kind]) {
			tell = append(tell, kind)
			c.told[kind] = now
		}
	}
	c.force = 0
	if !c.begin() {
		return
	}
	defer c.running.Done()
	resourcesTold := false
	for _, kind := range tell {
		if kind == resources || kind == templates { // one notification for both
			if resourcesTold {
				continue
			}
			resourcesTold = true
		}
		c.p.listChanged(kind)
	}
}

// begin leaves the lock, held by the caller, and tells whether to go on.
func (c *changes) begin() bool {
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.running.Add(1)
	return true
}

// status tells subscribers that the status of an upstream has changed.
func (c *changes) status(upstream string) { c.updated(statusURI, statusURI+"/"+upstream) }

// updated tells subscribers of our own resources that they have changed, at
// most once a second.
func (c *changes) updated(uris ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, uri := range uris {
		c.dirty[uri] = true
	}
	if c.updates == nil && !c.closed {
		c.updates = time.AfterFunc(updateCoalesce, c.tellUpdates)
	}
}

func (c *changes) tellUpdates() {
	defer wire.OnPanic()
	c.mu.Lock()
	c.updates = nil
	dirty := c.dirty
	c.dirty = map[string]bool{}
	if !c.begin() {
		return
	}
	defer c.running.Done()
	for _, uri := range sortedKeys(dirty) {
		c.p.tellUpdated("", uri, uriData(wire.AppendString(nil, uri)), func(*client) bool { return true })
	}
}

func (c *changes) close() {
	c.mu.Lock()
	c.closed = true
	for _, t := range []*time.Timer{c.lists, c.updates} {
		if t != nil {
			t.Stop()
		}
	}
	c.mu.Unlock()
	c.running.Wait()
}
