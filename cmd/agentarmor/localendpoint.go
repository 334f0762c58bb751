package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"

	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// localEndpoint serves a proxy over HTTP on loopback, without a token.
type localEndpoint struct {
	listener net.Listener
	server   *http.Server
	served   chan struct{} // closed when server has ended
}

// serveLocally takes the listener over.
func serveLocally(l net.Listener, p *mcpproxy.Proxy) *localEndpoint {
	e := &localEndpoint{l, wire.NewServer(p.HTTP(mcpproxy.HTTPOptions{Loopback: true})), make(chan struct{})}
	e.server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	go func() {
		defer wire.OnPanic()
		defer close(e.served)
		_ = e.server.Serve(l) // ends with closeEndpoint
	}()
	return e
}

func (e *localEndpoint) url() string { return "http://" + e.listener.Addr().String() + "/mcp" }

// closeEndpoint ends what there is of an endpoint: its open streams, then its
// listener, then its models. What is nil was not opened.
func closeEndpoint(e *localEndpoint, p *mcpproxy.Proxy, c *llm.Chain) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	if p != nil {
		p.Close(ctx)
	}
	if e != nil {
		_ = e.server.Close() // of a listener that is of no more use
		<-e.served
	}
	_ = c.Close() // of idle connections
}
