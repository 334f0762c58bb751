package mcpproxy

import (
	"context"
	"net/http"
	"sync"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// HTTPOptions says who may talk to the HTTP endpoint.
type HTTPOptions struct {
	Tokens         []string // bearer tokens; empty admits everyone
	AllowedOrigins []string // beside loopback's own
	Loopback       bool     // the listener is on loopback: foreign Hosts are refused
}

// transports are the HTTP halves that Close ends.
type transports struct {
	mu  sync.Mutex
	all []*wire.HTTP
}

func (t *transports) close(ctx context.Context) {
	t.mu.Lock()
	all := t.all
	t.all = nil
	t.mu.Unlock()
	for _, h := range all {
		h.Close(ctx)
	}
}

// HTTP returns the handler of /mcp, /sse, /message, /healthz, /readyz and /metrics.
func (p *Proxy) HTTP(o HTTPOptions) http.Handler {
	h := wire.NewHTTP(wire.HTTPOptions{
		Handler: p, Limits: p.cfg.Limits, Tokens: o.Tokens, AllowedOrigins: o.AllowedOrigins, Loopback: o.Loopback,
		ParamHeaders: p.exposedParamHeaders, Log: p.log,
	})
	p.transports.mu.Lock()
	p.transports.all = append(p.transports.all, h)
	p.transports.mu.Unlock()
	mux := http.NewServeMux()
	h.Mount(mux)
	mux.Handle("/healthz", h.Guard(getOnly(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n")) // the prober may have left
	})))
	mux.Handle("/readyz", h.Guard(getOnly(p.readyz)))
	mux.Handle("/metrics", h.Guard(getOnly(p.metrics.Handler().ServeHTTP)))
	mux.Handle("/", h.Guard(http.NotFoundHandler())) // foreign pages learn nothing here either
	return mux
}

func getOnly(f http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		f(w, r)
	})
}

// readyz is 200 once every enabled upstream has been ready or has a known
// trouble, 503 while one still starts.
func (p *Proxy) readyz(w http.ResponseWriter, _ *http.Request) {
	for _, up := range p.ups() {
		if s := up.shared.status(); s.State == health.Starting {
			http.Error(w, up.cfg.Name+" is starting", http.StatusServiceUnavailable)
			return
		}
	}
	_, _ = w.Write([]byte("ready\n")) // the prober may have left
}

// exposedParamHeaders returns the x-mcp-header properties of a tool as clients name it.
func (p *Proxy) exposedParamHeaders(tool string) []wire.ParamHeader {
	e, err := p.cat.Load().tool(tool)
	if err != nil {
		return nil
	}
	return e.params
}
