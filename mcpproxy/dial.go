package mcpproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// transport is how the upstream is reached; a URL whose path ends in /sse is
// taken for HTTP+SSE unless the config says otherwise.
func (in *instance) transport() string {
	cfg := in.o.cfg
	if cfg.Stdio() {
		return "stdio"
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if t := cmp.Or(cfg.Type, in.fallback); t != "" {
		return t
	}
	if u, err := url.Parse(cfg.URL); err == nil && strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/sse") {
		return "sse"
	}
	return "http"
}

// dialWire starts the process or opens the connection.
func (in *instance) dialWire(ctx context.Context, transport string, ev wire.Events) (wire.Peer, error) {
	cfg := in.o.cfg
	spec := wire.HTTPSpec{URL: cfg.URL, Headers: cfg.Headers}
	switch transport {
	case "stdio":
		p, err := wire.StartProcess(wire.ProcessSpec{Command: cfg.Command, Args: cfg.Args, Env: childEnv(cfg.Env), Dir: cfg.Cwd}, in.o.limits, ev)
		if err != nil {
			return nil, fmt.Errorf("it cannot be started: %w", err)
		}
		return p, nil
	case "sse":
		return wire.DialSSE(ctx, spec, in.o.limits, ev)
	}
	return wire.DialHTTP(spec, in.o.limits, ev), nil
}

// open returns a connection without a handshake.
func (in *instance) open(ctx context.Context, transport string) (*conn, error) {
	c := newConn(in, transport)
	peer, err := in.dial(ctx, transport, wire.Events{
		Answer:  c.answer,
		Message: c.message,
		Failed:  c.failed,
		Closed:  c.died,
		Trouble: func(err *wire.Error) { in.suspect(c, err) },
	})
	if err != nil {
		return nil, err
	}
	c.attach(peer)
	in.mu.Lock()
	in.last = c
	in.mu.Unlock()
	return c, nil
}

func (in *instance) setFallback(transport string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.fallback = transport
}

// failedOwn is what a request of our own that failed in transport leads to.
func (in *instance) failedOwn(c *conn, err *wire.Error) {
	if err.Kind == wire.SessionLost {
		c.expire()
		return
	}
	in.suspect(c, err)
}

// endOf names the end of a connection.
func endOf(c *conn) error {
	err := cmp.Or(c.err, errGone)
	if c.transport == "stdio" {
		return fmt.Errorf("the process ended: %w", err)
	}
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return fmt.Errorf("the stream ended: %w", e)
	}
	return err
}
