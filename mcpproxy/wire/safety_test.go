package wire

import (
	"net/http"
	"strings"
	"testing"
)

func TestHTTPSafety(t *testing.T) {
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	tests := []struct {
		name    string
		options HTTPOptions
		headers []string
		status  int // on every path, 0: passes the guard
	}{
		{"plain", HTTPOptions{Loopback: true}, nil, 0},
		{"loopback names", HTTPOptions{Loopback: true}, []string{"Host", "LOCALHOST:7717"}, 0},
		{"loopback IPv4", HTTPOptions{Loopback: true}, []string{"Host", "127.0.0.1:1"}, 0},
		{"loopback IPv6", HTTPOptions{Loopback: true}, []string{"Host", "[::1]:1"}, 0},
		{"foreign host", HTTPOptions{Loopback: true}, []string{"Host", "evil.example"}, 403},
		{"look-alike host", HTTPOptions{Loopback: true}, []string{"Host", "localhost.evil.example:80"}, 403},
		{"any host off loopback", HTTPOptions{}, []string{"Host", "mcp.example"}, 0},
		{"foreign origin", HTTPOptions{Loopback: true}, []string{"Origin", "http://evil.example"}, 403},
		{"null origin", HTTPOptions{Loopback: true}, []string{"Origin", "null"}, 403},
		{"two origins", HTTPOptions{Loopback: true}, []string{"Origin", "http://localhost", "+Origin", "http://evil.example"}, 403},
		{"empty and foreign origin", HTTPOptions{Loopback: true}, []string{"+Origin", "", "+Origin", "http://evil.example"}, 403},
		{"local origin", HTTPOptions{Loopback: true}, []string{"Origin", "http://localhost:6274"}, 0},
		{"local origin, other scheme", HTTPOptions{Loopback: true}, []string{"Origin", "ftp://localhost"}, 403},
		{"local origin off loopback", HTTPOptions{}, []string{"Origin", "http://localhost"}, 403},
		{"allowed origin", HTTPOptions{AllowedOrigins: []string{"https://a.example"}}, []string{"Origin", "https://a.example"}, 0},
		{"no token", HTTPOptions{Tokens: []string{"s3cret"}}, nil, 401},
		{"wrong token", HTTPOptions{Tokens: []string{"s3cret"}}, []string{"Authorization", "Bearer s3creT"}, 401},
		{"wrong scheme", HTTPOptions{Tokens: []string{"s3cret"}}, []string{"Authorization", "Basic s3cret"}, 401},
		{"token", HTTPOptions{Tokens: []string{"x", "s3cret"}}, []string{"Authorization", "bearer s3cret"}, 0},
		{"empty token is none", HTTPOptions{Tokens: []string{"s3cret"}}, []string{"Authorization", "Bearer "}, 401},
	}
	// What each path answers to this request once it has passed the guard.
	paths := map[string]int{"/mcp": 400, "/sse": 405, "/message": 400, "/healthz": 200}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.options.Handler = &toyHandler{}
			c := newToyClient(t, tt.options)
			for path, want := range paths {
				if tt.status != 0 {
					want = tt.status
				}
				resp, body := c.call(http.MethodPost, path, ping, tt.headers...)
				if resp.StatusCode != want {
					t.Errorf("%s: status %d, want %d: %s", path, resp.StatusCode, want, body)
				}
				if tt.status != 0 && (!strings.Contains(body, `"error":{"code":`) || strings.Contains(body, `"id"`)) {
					t.Errorf("%s: body %s, want a JSON-RPC error without id", path, body)
				}
				if got := resp.Header.Get("WWW-Authenticate"); (got != "") != (want == 401) {
					t.Errorf("%s: WWW-Authenticate %q with status %d", path, got, want)
				}
				if got := resp.Header.Get("Access-Control-Allow-Origin"); (got != "") != (tt.name == "allowed origin") {
					t.Errorf("%s: Access-Control-Allow-Origin %q", path, got)
				}
			}
		})
	}
}

func TestHTTPPreflight(t *testing.T) {
	h := &toyHandler{}
	c := newToyClient(t, HTTPOptions{Handler: h, Tokens: []string{"s3cret"}, AllowedOrigins: []string{"https://a.example"}})
	resp, _ := c.call(http.MethodOptions, "/mcp", "", "Origin", "https://a.example",
		"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type, mcp-param-x")
	if resp.StatusCode != 204 || resp.Header.Get("Access-Control-Allow-Origin") != "https://a.example" ||
		resp.Header.Get("Access-Control-Allow-Headers") != "content-type, mcp-param-x" || resp.Header.Get("Vary") != "Origin" {
		t.Errorf("preflight: %s %v", resp.Status, resp.Header)
	}
	resp, _ = c.call(http.MethodOptions, "/mcp", "", "Origin", "https://b.example", "Access-Control-Request-Method", "POST")
	if resp.StatusCode != 403 || resp.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("foreign preflight: %s %v", resp.Status, resp.Header)
	}
}

func TestHTTPMediaTypes(t *testing.T) {
	c := newToyClient(t, HTTPOptions{Handler: &toyHandler{}, Limits: Limits{Message: 200}})
	c.initialize(Legacy)
	ping := toyRequest("ping", "{}")
	tests := []struct {
		name    string
		body    string
		headers []string
		status  int
	}{
		{"text/plain", ping, []string{"Content-Type", "text/plain"}, 415},
		{"form", ping, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
		{"none", ping, []string{"Content-Type", ""}, 415},
		{"text/plain that mentions JSON", ping, []string{"Content-Type", "text/plain; x=application/json"}, 415},
		{"compressed", ping, []string{"Content-Encoding", "gzip"}, 415},
		{"not compressed", ping, []string{"Content-Encoding", "identity"}, 200},
		{"charset", ping, []string{"Content-Type", "Application/JSON; charset=utf-8"}, 200},
		{"accept JSON only", ping, []string{"Accept", "application/json"}, 406},
		{"accept events only", ping, []string{"Accept", "text/event-stream"}, 406},
		{"accept all", ping, []string{"Accept", "*/*"}, 200},
		{"accept groups", ping, []string{"Accept", "application/*;q=0.9, text/*"}, 200},
		{"accept unsaid", ping, []string{"Accept", ""}, 200},
		{"too large", toyRequest("ping", `"`+strings.Repeat("x", 300)+`"`), nil, 413},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if resp, body := c.post(tt.body, tt.headers...); resp.StatusCode != tt.status {
				t.Errorf("status %d, want %d: %s", resp.StatusCode, tt.status, body)
			}
		})
	}
}

// A body of unknown length is bounded as well.
func TestHTTPChunkedBodyTooLarge(t *testing.T) {
	c := newToyClient(t, HTTPOptions{Handler: &toyHandler{}, Limits: Limits{Message: 200}})
	r, _ := http.NewRequest(http.MethodPost, "http://localhost/mcp", struct{ *strings.Reader }{strings.NewReader(strings.Repeat("x", 300))})
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 413 {
		t.Errorf("status %d, want 413", resp.StatusCode)
	}
}
