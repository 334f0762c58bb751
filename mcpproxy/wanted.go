package mcpproxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// keepWanted makes the server send what is wanted of it, the log level and the
// updates of resources, and follows changes until ctx ends.
func (in *instance) keepWanted(ctx context.Context, c *conn) {
	defer wire.OnPanic()
	if c.modern {
		in.keepListening(ctx, c)
		return
	}
	level, have := "", map[string]bool{}
	for ctx.Err() == nil {
		wantLevel, uris := in.wanted()
		if wantLevel != level && declared(c.capabilities, "logging") {
			in.ask(ctx, c, "logging/setLevel", "level", wantLevel)
			level = wantLevel
		}
		if declared(c.capabilities, "resources", "subscribe") {
			in.subscribe(ctx, c, have, uris)
		}
		select {
		case <-in.resync:
		case <-ctx.Done():
		}
	}
}

func (in *instance) wanted() (level string, uris []string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.level, in.uris
}

// subscribe brings the server's subscriptions from have to want. A refused
// one is not tried again on this connection.
func (in *instance) subscribe(ctx context.Context, c *conn, have map[string]bool, want []string) {
	for _, uri := range slices.Sorted(maps.Keys(have)) {
		if !slices.Contains(want, uri) {
			in.ask(ctx, c, "resources/unsubscribe", "uri", uri)
			delete(have, uri)
		}
	}
	for _, uri := range want {
		if !have[uri] && ctx.Err() == nil {
			in.ask(ctx, c, "resources/subscribe", "uri", uri)
			have[uri] = true
		}
	}
}

// ask makes a request with one parameter whose result says nothing.
func (in *instance) ask(ctx context.Context, c *conn, method, key, value string) {
	budget := in.o.cfg.callTimeout()
	ctx, cancel := context.WithTimeoutCause(ctx, budget, fmt.Errorf("no answer within %v", budget))
	defer cancel()
	params := wire.AppendString([]byte(`{"`+key+`":`), value)
	m, err := c.call(ctx, method, append(params, '}'))
	if e, ok := errors.AsType[*wire.Error](err); ok {
		in.failedOwn(c, e)
	}
	if err == nil && m.Error != nil {
		err = parseRPCError(m.Error)
	}
	if err != nil {
		in.log.Info("the server refuses a request of ours", "method", method, "reason", in.secrets.mask(err.Error()))
	}
}

// keepListening keeps one subscriptions/listen open for the list changes that
// the server declares and the resources that are wanted. A new filter opens
// the new stream before it ends the old one, so that nothing is missed.
func (in *instance) keepListening(ctx context.Context, c *conn) {
	pace := backoff{base: time.Second, max: 5 * time.Minute}
	var open *listening
	for {
		filter := in.listenFilter(c)
		if open == nil || !bytes.Equal(filter, open.filter) {
			old := open
			open = in.openListen(c, filter)
			old.end(c)
		}
		select {
		case <-ctx.Done():
			open.end(c)
			return
		case <-in.resync:
		case err := <-open.over:
			if again := in.listenEnded(c, open, err, &pace); again > 0 {
				open = nil
				sleep(ctx, again)
				c.lists.ask(allKinds, 0) // what has changed meanwhile was not told
			}
			if ctx.Err() != nil {
				return
			}
		}
	}
}

// listening is one subscriptions/listen. Its stream is over when something
// arrives in over.
type listening struct {
	id     uint64 // 0: none was needed
	filter []byte // nil: nothing to listen for
	began  time.Time
	over   chan error
}

var _ waiter = (*listening)(nil)

func (l *listening) answered(m wire.Message) {
	if m.Error != nil {
		l.over <- parseRPCError(m.Error)
		return
	}
	l.over <- nil
}

func (l *listening) failed(err *wire.Error) { l.over <- err }

func (l *listening) end(c *conn) {
	if l != nil && l.id != 0 && c.forget(l.id) {
		c.cancel(l.id, "replaced")
	}
}

func (in *instance) openListen(c *conn, filter []byte) *listening {
	l := &listening{filter: filter, began: time.Now(), over: make(chan error, 1)}
	if filter == nil {
		return l
	}
	l.id = c.begin(l)
	c.listen.Store(l.id)
	params := append(append([]byte(`{"notifications":`), filter...), '}')
	const method = "subscriptions/listen"
	if err := c.send(wire.Outgoing{ID: l.id, Method: method, Body: c.request(l.id, method, params)}); err != nil {
		l.over <- err
	}
	return l
}

// listenEnded returns when to open the stream again; 0: not before the filter changes.
func (in *instance) listenEnded(c *conn, l *listening, err error, pace *backoff) time.Duration {
	if e, ok := errors.AsType[*rpcError](err); ok && (e.code == wire.CodeMethodNotFound || e.code == wire.CodeInvalidParams) {
		in.log.Info("the server does not tell about changes", "reason", in.secrets.mask(err.Error()))
		return 0
	}
	if e, ok := errors.AsType[*wire.Error](err); ok && (e.Kind == wire.HTTPStatus || e.Kind == wire.NotSent) {
		in.failedOwn(c, e)
	}
	if time.Since(l.began) >= stableAfter {
		pace.reset()
	}
	return pace.next()
}

// listenFilter is the filter of 2026-07-28's subscriptions/listen; nil when
// there is nothing to listen for.
func (in *instance) listenFilter(c *conn) []byte {
	var f struct {
		Tools     bool     `json:"toolsListChanged,omitempty"`
		Prompts   bool     `json:"promptsListChanged,omitempty"`
		Resources bool     `json:"resourcesListChanged,omitempty"`
		URIs      []string `json:"resourceSubscriptions,omitempty"`
	}
	if in.o.lists {
		f.Tools = declared(c.capabilities, "tools", "listChanged")
		f.Prompts = declared(c.capabilities, "prompts", "listChanged")
		f.Resources = declared(c.capabilities, "resources", "listChanged")
	}
	if declared(c.capabilities, "resources", "subscribe") {
		_, f.URIs = in.wanted()
	}
	if !f.Tools && !f.Prompts && !f.Resources && len(f.URIs) == 0 {
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(f) // plain strings always encode
	return bytes.TrimSpace(b.Bytes())
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
