package wire

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// HTTPOptions configures the HTTP server half. Only Handler is required.
type HTTPOptions struct {
	Handler        Handler
	Limits         Limits
	Tokens         []string // accepted bearer tokens; none: no authentication
	AllowedOrigins []string // "scheme://host[:port]" of web pages that may call us
	Loopback       bool     // the listener is on loopback: Host must name it too
	// ParamHeaders returns the x-mcp-header parameters of a tool, nil if it
	// has none or is not known. It must not block.
	ParamHeaders func(tool string) []ParamHeader
	Log          *slog.Logger
}

// HTTP is the server half of streamable HTTP, of both generations, and of
// HTTP+SSE. It starts no goroutine of its own: all work is done on those of
// the http.Server it is mounted on.
type HTTP struct {
	o           HTTPOptions
	lim         Limits
	log         *slog.Logger
	credentials []credential

	drain  chan struct{}  // closed: no new work, streams that wait for nothing end
	kill   chan struct{}  // closed: everything ends
	active sync.WaitGroup // handlers under way, see begin

	mu       sync.Mutex
	draining bool
	killed   bool
	sessions map[string]*httpSession
	writers  map[*httpConn]*http.ResponseController // may be blocked in a write
}

// NewHTTP returns the server half that o describes.
func NewHTTP(o HTTPOptions) *HTTP {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &HTTP{
		o:           o,
		lim:         o.Limits.Filled(),
		log:         log,
		credentials: newCredentials(o.Tokens),
		drain:       make(chan struct{}),
		kill:        make(chan struct{}),
		sessions:    map[string]*httpSession{},
		writers:     map[*httpConn]*http.ResponseController{},
	}
}

// NewServer returns an http.Server for h with the timeouts that [HTTP] counts
// on. They bound short exchanges, refused ones with their unread bodies
// included; handlers that take longer move them.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
}

// Mount registers /mcp, /sse and /message, with the checks of Guard.
func (h *HTTP) Mount(mux *http.ServeMux) {
	mux.Handle("/mcp", h.endpoint(h.serveMCP))
	mux.Handle("/sse", h.endpoint(h.serveSSE))
	mux.Handle("/message", h.endpoint(h.serveMessage))
}

// endpoint is Guard for our own paths, which are told the principal.
func (h *HTTP) endpoint(serve func(w http.ResponseWriter, r *http.Request, principal string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if principal, ok := h.admit(w, r); ok {
			serve(w, r, principal)
		}
	})
}

// begin counts the handler as active, which then must call active.Done. It
// returns false, with the refusal written, once Close has been called. A body
// is read before: Close does not wait for slow uploads.
func (h *HTTP) begin(w http.ResponseWriter, r *http.Request) bool {
	h.mu.Lock()
	draining := h.draining
	if !draining {
		h.active.Add(1)
	}
	h.mu.Unlock()
	if draining {
		h.shuttingDown(w, r)
	}
	return !draining
}

// Close refuses new requests, ends the streams that carry no request (GET,
// subscriptions/listen) and waits for the requests under way until ctx ends.
// Then it ends every stream and session; when it returns, no goroutine works
// for them any more. Call it before http.Server.Shutdown.
func (h *HTTP) Close(ctx context.Context) {
	h.mu.Lock()
	if h.draining {
		h.mu.Unlock()
		h.active.Wait()
		return
	}
	h.draining = true
	close(h.drain)
	h.mu.Unlock()

	idle := make(chan struct{})
	go func() {
		defer OnPanic()
		h.active.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	h.killAll()
	<-idle
	for _, hs := range h.snapshot() {
		hs.end()
	}
}

func (h *HTTP) killAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.killed = true
	close(h.kill)
	for _, rc := range h.writers {
		rc.SetWriteDeadline(time.Now())
	}
}

func (h *HTTP) snapshot() []*httpSession {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*httpSession, 0, len(h.sessions))
	for _, hs := range h.sessions {
		all = append(all, hs)
	}
	return all
}

func (h *HTTP) serveMCP(w http.ResponseWriter, r *http.Request, principal string) {
	switch r.Method {
	case http.MethodPost:
		h.post(w, r, principal)
	case http.MethodGet:
		h.get(w, r, principal)
	case http.MethodDelete:
		h.delete(w, r, principal)
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		h.refuse(w, r, http.StatusMethodNotAllowed, "Method Not Allowed")
	}
}
