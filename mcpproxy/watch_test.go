package mcpproxy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

var errTrouble = errors.New("trouble")

func status(code int) *wire.Error {
	return &wire.Error{Kind: wire.HTTPStatus, Status: code, Err: errTrouble}
}

func failure(k wire.ErrorKind) *wire.Error { return &wire.Error{Kind: k, Err: errTrouble} }

// One failed call says little about a server: an exchange of ours decides.
func TestSuspect(t *testing.T) {
	for _, tt := range []struct {
		name      string
		err       *wire.Error
		ping      *wire.Error // nil: it is answered with an error
		transport string
		want      health.State
		pings     int
	}{
		{"lost, the server lives", failure(wire.Lost), nil, "http", health.Ready, 1},
		{"not sent, the server lives", failure(wire.NotSent), nil, "http", health.Ready, 1},
		{"not sent, refused", failure(wire.NotSent), failure(wire.NotSent), "http", health.Down, 1},
		{"lost, lost twice more", failure(wire.Lost), failure(wire.Lost), "http", health.Down, 2},
		{"lost, a gateway remains", failure(wire.Lost), status(502), "http", health.Down, 1},
		{"lost, ping is unknown", failure(wire.Lost), status(400), "http", health.Ready, 1},
		{"lost, throttled", failure(wire.Lost), status(429), "http", health.Throttled, 1},
		{"not sent on stdio", failure(wire.NotSent), nil, "stdio", health.Ready, 0},
		{"401", status(401), nil, "http", health.NeedsAuth, 0},
		{"403 of one call", status(403), nil, "http", health.Ready, 1},
		{"403 of everything", status(403), status(403), "http", health.NeedsAuth, 1},
		{"429", status(429), nil, "http", health.Throttled, 0},
		{"500", status(500), nil, "http", health.Ready, 0},
		{"malformed", failure(wire.Malformed), nil, "http", health.Ready, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := UpstreamConfig{Protocol: "legacy"}
				if tt.transport == "http" {
					cfg.URL = "http://127.0.0.1/mcp"
				}
				srv := newLegacyServer()
				if tt.ping != nil {
					srv.fail("ping", tt.ping)
				}
				h := supervise(t, srv, cfg)
				c, _ := h.await(t.Context())
				synctest.Wait()
				h.suspect(c, tt.err)
				synctest.Wait()
				if h.state() != tt.want || srv.count("ping") != tt.pings {
					t.Errorf("state %s after %d pings, want %s after %d", h.state(), srv.count("ping"), tt.want, tt.pings)
				}
				if usable := h.live() == c; usable != (tt.want == health.Ready) {
					t.Errorf("live: %v", usable)
				}
				h.end()
			})
		})
	}
}

// While the exchange runs the connection serves, and further failures start no
// other; one without an answer within 5 s takes the server down, but the calls
// under way keep their connection.
func TestSilentServerIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newModernServer()
		h := supervise(t, srv, UpstreamConfig{URL: "http://127.0.0.1/mcp", Probe: ProbeConfig{Every: time.Hour}})
		c, _ := h.await(t.Context())
		synctest.Wait()
		srv.silent("server/discover")
		srv.silent("tools/call")
		w := make(callWaiter, 1)
		id := c.begin(w)
		c.send(wire.Outgoing{ID: id, Method: "tools/call", Body: c.request(id, "tools/call", nil)})
		for range 20 {
			h.suspect(c, failure(wire.Lost))
			settle(100 * time.Millisecond)
		}
		settle(2900 * time.Millisecond)
		if h.live() != c || h.state() != health.Ready || srv.count("server/discover") != 2 {
			t.Errorf("meanwhile: %s, live %v, %s", h.state(), h.live() == c, srv.handshakes())
		}
		settle(200 * time.Millisecond)
		s := h.status()
		if s.State != health.Down || s.NextAttempt == nil || s.Reason != "no answer within 5s" {
			t.Errorf("afterwards: %+v", s)
		}
		srv.peers[0].result(id, `{}`)
		synctest.Wait()
		if a := <-w; a.err != nil {
			t.Errorf("the call under way: %v", a.err)
		}
		h.end()
	})
}

// The end of an instance does not wait for an exchange under way.
func TestStopWhileVerifying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.silent("ping")
		h := supervise(t, srv, UpstreamConfig{URL: "http://127.0.0.1/mcp", Protocol: "legacy"})
		c, _ := h.await(t.Context())
		h.suspect(c, failure(wire.Lost))
		synctest.Wait()
		began := time.Now()
		h.stop(context.Background())
		if time.Since(began) != 0 || srv.count("ping") != 1 {
			t.Errorf("stopped after %v and %d pings", time.Since(began), srv.count("ping"))
		}
	})
}

// After a 429 the same connection is used again, when the server said so.
func TestThrottledServiceResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := supervise(t, newLegacyServer(), UpstreamConfig{URL: "http://127.0.0.1/mcp", Protocol: "legacy"})
		c, _ := h.await(t.Context())
		synctest.Wait()
		h.suspect(c, &wire.Error{Kind: wire.HTTPStatus, Status: 429, RetryAfter: 7 * time.Second})
		synctest.Wait()
		_, err := h.await(t.Context())
		if u, ok := errors.AsType[*unavailable](err); !ok || time.Until(u.retryAt) != 7*time.Second {
			t.Errorf("await: %+v", err)
		}
		settle(7*time.Second + time.Millisecond)
		if h.live() != c || h.state() != health.Ready || h.srv.count("initialize") != 1 {
			t.Errorf("live %v, %s", h.live() == c, h.state())
		}
		if diff := cmp.Diff([]int{1, 1}, h.toolCounts()); diff != "" || h.srv.count("tools/list") != 1 {
			t.Errorf("its listing is published again, and not asked for: %s", diff)
		}
		h.end()
	})
}
