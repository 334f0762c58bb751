package wire

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// credential is one accepted bearer token, kept as its hash so that the
// comparison takes the same time for every token and length.
type credential struct {
	hash      [sha256.Size]byte
	principal string
}

func newCredentials(tokens []string) []credential {
	var cs []credential
	for _, t := range tokens {
		sum := sha256.Sum256([]byte(t))
		cs = append(cs, credential{sum, hex.EncodeToString(sum[:])})
	}
	return cs
}

// Guard puts the checks that every path needs in front of next: Host and
// Origin (DNS rebinding, foreign web pages) and the bearer token. It answers
// the CORS preflights of allowed origins itself.
func (h *HTTP) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := h.admit(w, r); ok {
			next.ServeHTTP(w, r)
		}
	})
}

// admit runs the checks of Guard and returns the digest of the token. When it
// returns false, the response has been written.
func (h *HTTP) admit(w http.ResponseWriter, r *http.Request) (principal string, ok bool) {
	if h.o.Loopback && !isLoopbackHost(r.Host) {
		h.refuse(w, r, http.StatusForbidden, "Forbidden: the Host header names no loopback address")
		return "", false
	}
	if origin := strings.Join(r.Header["Origin"], ", "); origin != "" { // several are no origin
		if !h.originAllowed(origin) {
			h.refuse(w, r, http.StatusForbidden, "Forbidden: this Origin is not allowed")
			return "", false
		}
		if h.cors(w, r, origin) {
			return "", false
		}
	}
	return h.authenticate(w, r)
}

func (h *HTTP) authenticate(w http.ResponseWriter, r *http.Request) (principal string, ok bool) {
	if len(h.credentials) == 0 {
		return "", true
	}
	challenge := "Bearer"
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
		for i := range h.credentials {
			if subtle.ConstantTimeCompare(sum[:], h.credentials[i].hash[:]) == 1 {
				principal, ok = h.credentials[i].principal, true
			}
		}
		if ok {
			return principal, true
		}
		challenge = `Bearer error="invalid_token"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	h.refuse(w, r, http.StatusUnauthorized, "Unauthorized: a valid bearer token is required")
	return "", false
}

// originAllowed accepts the configured origins and, for a listener on
// loopback, pages that were themselves served from loopback.
func (h *HTTP) originAllowed(origin string) bool {
	if slices.Contains(h.o.AllowedOrigins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && h.o.Loopback &&
		(u.Scheme == "http" || u.Scheme == "https") && isLoopbackHost(u.Host)
}

// cors lets the pages of configured origins read our responses, and nobody
// else's. It returns true if r was a preflight, which is then answered: it
// carries no token, so it comes before that check.
func (h *HTTP) cors(w http.ResponseWriter, r *http.Request, origin string) bool {
	hd := w.Header()
	hd.Add("Vary", "Origin")
	if !slices.Contains(h.o.AllowedOrigins, origin) {
		return false
	}
	hd.Set("Access-Control-Allow-Origin", origin)
	hd.Set("Access-Control-Expose-Headers", "Mcp-Session-Id, WWW-Authenticate")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	hd.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	// Mcp-Param-* names come from tools, so the list cannot be a fixed one.
	hd.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
	hd.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// isLoopbackHost tells whether a Host header or URL host, with or without a
// port, names this machine's loopback.
func isLoopbackHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil && ip.Unmap().IsLoopback()
}

// isJSON tells whether the body is declared as JSON. A page of another site
// cannot declare that without a preflight, text/plain it can.
func isJSON(r *http.Request) bool {
	ct := r.Header.Get("Content-Type")
	if ct == "application/json" {
		return true
	}
	media, _, _ := strings.Cut(ct, ";")
	return strings.EqualFold(strings.TrimSpace(media), "application/json")
}

// prefersEvents tells whether Accept lists event streams before JSON.
func prefersEvents(r *http.Request) bool {
	accept := r.Header.Get("Accept")
	events := strings.Index(accept, "text/event-stream")
	return events >= 0 && events < strings.Index(accept, "application/json")
}

// accepts tells which of our two response types the client takes. No Accept
// header at all means any (RFC 9110, section 12.5.1).
func accepts(r *http.Request) (json, stream bool) {
	values := r.Header["Accept"]
	if len(values) == 0 {
		return true, true
	}
	for _, v := range values {
		for entry := range strings.SplitSeq(v, ",") {
			media, _, _ := strings.Cut(entry, ";")
			switch strings.ToLower(strings.TrimSpace(media)) {
			case "*/*":
				return true, true
			case "application/json", "application/*":
				json = true
			case "text/event-stream", "text/*":
				stream = true
			}
		}
	}
	return json, stream
}
