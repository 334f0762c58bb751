package wire

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// seen records the headers of each request by method.
type seen struct {
	mu sync.Mutex
	h  map[string]http.Header
}

func (s *seen) take(method string) http.Header {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.h[method]
}

func TestHTTPHeaders(t *testing.T) {
	noLeaks(t)
	got := &seen{h: map[string]http.Header{}}
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		m := Message{Method: r.Method}
		if r.Method == http.MethodPost {
			m = readMessage(t, r)
		}
		r.Header.Set("Host", r.Host)
		got.mu.Lock()
		got.h[m.Method] = r.Header
		got.mu.Unlock()
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Mcp-Session-Id", "s-"+m.Method) // only that of initialize counts
		answerJSON(w, m)
	})
	spec := HTTPSpec{URL: strings.Replace(u, "://", "://me:pw@", 1), Headers: map[string]string{"x-key": "k", "accept": "text/html", "Host": "elsewhere"}}
	check := func(method string, want map[string]string) {
		t.Helper()
		h := got.take(method)
		for k, v := range want {
			if strings.Join(h.Values(k), "|") != v {
				t.Errorf("%s: %s is %q, want %q", method, k, h.Values(k), v)
			}
		}
	}
	p, o := dialSpec(t, spec, Limits{})
	id := uint64(0)
	ask := func(method string, with Outgoing) {
		t.Helper()
		id++
		out := sent(id, method)
		out.Name, out.Headers = with.Name, with.Headers
		send(t, p, out)
		o.answered(t, id)
	}
	always := map[string]string{"X-Key": "k", "Host": "elsewhere", "Authorization": "Basic bWU6cHc=", "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

	ask("server/discover", Outgoing{})
	check("server/discover", map[string]string{"Mcp-Protocol-Version": Modern, "Mcp-Method": "server/discover", "Mcp-Session-Id": ""})
	check("server/discover", always)

	ask("initialize", Outgoing{})
	check("initialize", map[string]string{"Mcp-Protocol-Version": "", "Mcp-Method": "", "Mcp-Session-Id": ""})
	check("initialize", always)
	p.SetVersion(V20250326)
	ask("early", Outgoing{})
	check("early", map[string]string{"Mcp-Protocol-Version": "", "Mcp-Session-Id": "s-initialize"})
	p.SetVersion(Legacy)
	ask("tools/call", Outgoing{Name: "t", Headers: [][2]string{{"Mcp-Param-X", "1"}}})
	check("tools/call", map[string]string{"Mcp-Protocol-Version": Legacy, "Mcp-Session-Id": "s-initialize", "Mcp-Method": "", "Mcp-Name": "", "Mcp-Param-X": ""})
	check("tools/call", always)
	ask("initialize", Outgoing{})
	check("initialize", map[string]string{"Mcp-Session-Id": "", "Mcp-Protocol-Version": ""})
	p.Close(t.Context())
	check("DELETE", map[string]string{"Mcp-Session-Id": "s-initialize", "Mcp-Protocol-Version": Legacy, "X-Key": "k"})

	delete(got.h, "DELETE")
	p, o = dialSpec(t, spec, Limits{})
	p.SetVersion(Modern)
	p.Ready()
	ask("tools/call", Outgoing{Name: "größe", Headers: [][2]string{{"Mcp-Param-region", " eu "}, {"authorization", "mine"}}})
	check("tools/call", always)
	check("tools/call", map[string]string{
		"Mcp-Protocol-Version": Modern, "Mcp-Session-Id": "", "Mcp-Method": "tools/call",
		"Mcp-Name": "=?base64?Z3LDtsOfZQ==?=", "Mcp-Param-Region": "=?base64?IGV1IA==?=", "Mcp-Param-Authorization": "mine",
	})
	p.Close(t.Context())
	if got.take("DELETE") != nil || got.take("GET") != nil {
		t.Error("a modern peer sent GET or DELETE")
	}
}

func answerJSON(w http.ResponseWriter, m Message) {
	writeJSON(w, 200, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID))
}

// A 307 or 308 on the origin is followed and remembered, as for a missing slash.
func TestHTTPRedirect(t *testing.T) {
	noLeaks(t)
	var hops atomic.Int32
	p, o := dialServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/mcp" {
			hops.Add(1)
			http.Redirect(w, r, "/mcp/", http.StatusTemporaryRedirect)
			return
		}
		answerJSON(w, readMessage(t, r))
	})
	for id := uint64(1); id <= 3; id++ {
		send(t, p, sent(id, "echo"))
		o.answered(t, id)
	}
	if n := hops.Load(); n != 1 {
		t.Errorf("%d redirects, want 1", n)
	}
}
