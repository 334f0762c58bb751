package mcpproxy

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Paths that lead nowhere are guarded like all others.
func TestEveryPathIsGuarded(t *testing.T) {
	p, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	h := p.HTTP(HTTPOptions{Loopback: true})
	for host, want := range map[string]int{"localhost": http.StatusNotFound, "evil.example": http.StatusForbidden} {
		for _, path := range []string{"/", "/nothing", "/mcp/"} {
			r, w := httptest.NewRequest("GET", path, nil), httptest.NewRecorder()
			r.Host = host
			h.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%s%s: %d, want %d", host, path, w.Code, want)
			}
		}
	}
}
