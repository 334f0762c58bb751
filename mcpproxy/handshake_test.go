package mcpproxy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// TestEraSelection holds the whole of "protocol: auto": what is asked, in which
// order, on how many processes or connections, and what comes of it.
func TestEraSelection(t *testing.T) {
	exits := func(p *fakePeer, _ uint64, _ wire.Message) { p.exit("exit status 1") }
	status := func(code int) *wire.Error { return &wire.Error{Kind: wire.HTTPStatus, Status: code} }
	unsupported := func(versions string) func(*fakePeer, uint64, wire.Message) {
		return func(p *fakePeer, id uint64, _ wire.Message) {
			p.end(id)
			p.ev.Answer(id, wire.Message{Error: []byte(`{"code":-32022,"message":"no","data":{"supported":[` + versions + `]}}`)})
		}
	}
	dual := func() *fakeServer {
		s := newModernServer()
		s.result("initialize", initOK)
		return s
	}
	stdio, http := UpstreamConfig{}, UpstreamConfig{URL: "http://127.0.0.1/mcp"}
	pinned := func(c UpstreamConfig, protocol string) UpstreamConfig {
		c.Protocol = protocol
		return c
	}
	typed := func(c UpstreamConfig, typ string) UpstreamConfig {
		c.Type = typ
		return c
	}
	remember := func(v string) func(*instanceOptions) {
		return func(o *instanceOptions) { o.remembered = &listing{Protocol: v} }
	}
	client := func(legacy, known bool) func(*instanceOptions) {
		return func(o *instanceOptions) { o.preferLegacy = func() (bool, bool) { return legacy, known } }
	}
	for _, tt := range []struct {
		name    string
		srv     *fakeServer
		on      func(s *fakeServer)
		cfg     UpstreamConfig
		opt     func(*instanceOptions)
		want    string // handshakes
		version string // "" if it does not come up
		reason  string // then, a part of it
	}{
		{name: "modern", srv: newModernServer(), cfg: stdio, want: "dial stdio, server/discover", version: wire.Modern},
		{name: "legacy", srv: newLegacyServer(), cfg: stdio, want: "dial stdio, server/discover, initialize", version: wire.Legacy},
		{name: "dual", srv: dual(), cfg: stdio, want: "dial stdio, server/discover", version: wire.Modern},
		{name: "silent legacy", srv: newLegacyServer(), on: func(s *fakeServer) { s.silent("server/discover") }, cfg: stdio,
			want: "dial stdio, server/discover, initialize", version: wire.Legacy},
		{name: "late discover", srv: newLegacyServer(), on: func(s *fakeServer) {
			s.on["server/discover"] = func(p *fakePeer, id uint64, _ wire.Message) {
				time.Sleep(600 * time.Millisecond)
				p.result(id, discover1)
			}
			s.on["initialize"] = func(p *fakePeer, id uint64, _ wire.Message) {
				time.Sleep(time.Second)
				p.result(id, initOK)
			}
		}, cfg: stdio, want: "dial stdio, server/discover, initialize", version: wire.Legacy},
		{name: "slow modern", srv: newModernServer(), on: func(s *fakeServer) {
			n := 0
			s.on["server/discover"] = func(p *fakePeer, id uint64, _ wire.Message) {
				if n++; n == 1 {
					time.Sleep(8 * time.Second)
				}
				p.result(id, discover1)
			}
			s.on["initialize"] = func(p *fakePeer, id uint64, _ wire.Message) {
				time.Sleep(8 * time.Second)
				p.error(id, -32601, "unknown method")
			}
		}, cfg: stdio, want: "dial stdio, server/discover, initialize, server/discover", version: wire.Modern},
		{name: "exits on discover", srv: newLegacyServer(), on: func(s *fakeServer) { s.on["server/discover"] = exits }, cfg: stdio,
			want: "dial stdio, server/discover, dial stdio, initialize", version: wire.Legacy},
		{name: "no DiscoverResult", srv: newLegacyServer(), on: func(s *fakeServer) { s.result("server/discover", `{}`) }, cfg: stdio,
			want: "dial stdio, server/discover, initialize", version: wire.Legacy},
		{name: "discover names legacy only", srv: newLegacyServer(), on: func(s *fakeServer) {
			s.result("server/discover", `{"supportedVersions":["2025-06-18"]}`)
			s.result("initialize", strings.Replace(initOK, wire.Legacy, wire.V20250618, 1))
		}, cfg: stdio, want: "dial stdio, server/discover, initialize", version: wire.V20250618},
		{name: "unsupported, legacy named", srv: newLegacyServer(), on: func(s *fakeServer) { s.on["server/discover"] = unsupported(`"2025-11-25"`) },
			cfg: http, want: "dial http, server/discover, initialize", version: wire.Legacy},
		{name: "unsupported, nothing of ours", srv: newLegacyServer(), on: func(s *fakeServer) { s.on["server/discover"] = unsupported(`"2099-01-01"`) },
			cfg: http, want: "dial http, server/discover", reason: "2099-01-01"},
		{name: "modern error is no reason to fall back", srv: newLegacyServer(), on: func(s *fakeServer) { s.error("server/discover", -32021) },
			cfg: http, want: "dial http, server/discover", reason: "-32021"},
		{name: "http 400", srv: newLegacyServer(), on: func(s *fakeServer) { s.fail("server/discover", status(400)) }, cfg: http,
			want: "dial http, server/discover, initialize", version: wire.Legacy},
		{name: "http refused", srv: newLegacyServer(), on: func(s *fakeServer) {
			s.fail("server/discover", &wire.Error{Kind: wire.NotSent, Err: errors.New("connection refused")})
		}, cfg: http, want: "dial http, server/discover", reason: "connection refused"},
		{name: "http initialize 500", srv: newLegacyServer(), on: func(s *fakeServer) {
			s.fail("server/discover", status(500))
			s.fail("initialize", status(500))
		}, cfg: http, want: "dial http, server/discover, initialize", reason: "HTTP status 500"},
		{name: "sse behind a guessed type", srv: newLegacyServer(), on: func(s *fakeServer) {
			refuse := func(p *fakePeer, id uint64, m wire.Message) {
				if p.transport == "http" {
					p.fail(id, status(405))
					return
				}
				p.result(id, initOK)
			}
			s.on["server/discover"], s.on["initialize"] = refuse, refuse
		}, cfg: http, want: "dial http, server/discover, initialize, dial sse, initialize", version: wire.Legacy},
		{name: "no sse behind type http", srv: newLegacyServer(), on: func(s *fakeServer) {
			s.fail("server/discover", status(404))
			s.fail("initialize", status(404))
		}, cfg: typed(http, "http"), want: "dial http, server/discover, initialize", reason: "HTTP status 404"},
		{name: "sse by path", srv: newLegacyServer(), cfg: UpstreamConfig{URL: "http://127.0.0.1/sse"}, want: "dial sse, initialize", version: wire.Legacy},
		{name: "pinned legacy", srv: dual(), cfg: pinned(stdio, "legacy"), want: "dial stdio, initialize", version: wire.Legacy},
		{name: "pinned modern", srv: dual(), cfg: pinned(stdio, wire.Modern), want: "dial stdio, server/discover", version: wire.Modern},
		{name: "pinned modern, not spoken", srv: newLegacyServer(), cfg: pinned(stdio, wire.Modern), want: "dial stdio, server/discover", reason: "-32601"},
		{name: "remembered legacy", srv: dual(), cfg: stdio, opt: remember(wire.V20250326), want: "dial stdio, initialize", version: wire.Legacy},
		{name: "remembered modern", srv: dual(), cfg: stdio, opt: remember(wire.Modern), want: "dial stdio, server/discover", version: wire.Modern},
		{name: "remembered modern starts slowly", srv: dual(), on: func(s *fakeServer) {
			s.on["server/discover"] = func(p *fakePeer, id uint64, _ wire.Message) {
				time.Sleep(8 * time.Second)
				p.result(id, discover1)
			}
		}, cfg: stdio, opt: remember(wire.Modern), want: "dial stdio, server/discover", version: wire.Modern},
		{name: "remembered legacy, now modern", srv: newModernServer(), cfg: stdio, opt: remember(wire.Legacy),
			want: "dial stdio, initialize, server/discover", version: wire.Modern},
		{name: "remembered modern, now legacy", srv: newLegacyServer(), cfg: stdio, opt: remember(wire.Modern),
			want: "dial stdio, server/discover, initialize", version: wire.Legacy},
		{name: "remembered wins over the client", srv: dual(), cfg: stdio, opt: func(o *instanceOptions) {
			remember(wire.Modern)(o)
			client(true, true)(o)
		}, want: "dial stdio, server/discover", version: wire.Modern},
		{name: "legacy client", srv: dual(), cfg: stdio, opt: client(true, true), want: "dial stdio, initialize", version: wire.Legacy},
		{name: "legacy client, modern server", srv: newModernServer(), cfg: stdio, opt: client(true, true),
			want: "dial stdio, initialize, server/discover", version: wire.Modern},
		{name: "modern client", srv: dual(), cfg: stdio, opt: client(false, true), want: "dial stdio, server/discover", version: wire.Modern},
		{name: "no client yet", srv: dual(), cfg: stdio, opt: client(true, false), want: "dial stdio, server/discover", version: wire.Modern},
		{name: "oldest version", srv: newLegacyServer(), on: func(s *fakeServer) {
			s.result("initialize", strings.Replace(initOK, wire.Legacy, wire.V20241105, 1))
		}, cfg: pinned(stdio, "legacy"), want: "dial stdio, initialize", version: wire.V20241105},
		{name: "unknown version", srv: newLegacyServer(), on: func(s *fakeServer) {
			s.result("initialize", strings.Replace(initOK, wire.Legacy, "2024-10-07", 1))
		}, cfg: pinned(stdio, "legacy"), want: "dial stdio, initialize", reason: "2024-10-07"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tt.on != nil {
					tt.on(tt.srv)
				}
				opt := tt.opt
				if opt == nil {
					opt = func(*instanceOptions) {}
				}
				h := supervise(t, tt.srv, tt.cfg, opt)
				c, err := h.await(context.Background())
				synctest.Wait()
				if got := tt.srv.handshakes(); got != tt.want {
					t.Errorf("asked %s\nwant %s", got, tt.want)
				}
				switch {
				case tt.version == "":
					if err == nil || h.state() != health.Down || !strings.Contains(h.status().Reason, tt.reason) {
						t.Errorf("%v, %+v", err, h.status())
					}
				case err != nil:
					t.Error(err)
				case c.version != tt.version || c.modern != (tt.version == wire.Modern) || tt.srv.peer().version != tt.version:
					t.Errorf("version %s, modern %v, peer told %q", c.version, c.modern, tt.srv.peer().version)
				}
				for _, p := range tt.srv.peers {
					for _, body := range p.sent("notifications/cancelled") {
						t.Errorf("a handshake was cancelled: %s", body)
					}
				}
				h.end()
			})
		})
	}
}

// The era that was found is asked first from then on, and an exit on discover
// was no crash.
func TestEraIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.on["server/discover"] = func(p *fakePeer, _ uint64, _ wire.Message) { p.exit("exit status 2") }
		h := supervise(t, srv, UpstreamConfig{})
		_, err := h.await(t.Context())
		synctest.Wait()
		if err != nil || h.fastExits != 0 {
			t.Fatalf("%v, %d fast exits", err, h.fastExits)
		}
		synctest.Wait()
		srv.peer().exit("exit status 1")
		settle(2 * time.Second)
		want := "dial stdio, server/discover, dial stdio, initialize, dial stdio, initialize"
		if got := srv.handshakes(); got != want {
			t.Errorf("asked %s", got)
		}
		h.end()
	})
}

// A server that crashes whatever it is asked is started once per attempt.
func TestCrashOnEveryStartIsNotProbedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		exit := func(p *fakePeer, _ uint64, _ wire.Message) { p.exit("exit status 1") }
		srv.on["server/discover"], srv.on["initialize"] = exit, exit
		h := supervise(t, srv, UpstreamConfig{})
		settle(time.Minute)
		if n := srv.count("server/discover"); n != 1 {
			t.Errorf("%d probes: %s", n, srv.handshakes())
		}
		if h.state() != health.CrashLoop {
			t.Errorf("state %s", h.state())
		}
		h.end()
	})
}

func TestModernRequestsCarryMeta(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newModernServer()
		h := supervise(t, srv, UpstreamConfig{})
		synctest.Wait()
		meta := `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"agentarmor","version":"9.9"},"io.modelcontextprotocol/clientCapabilities":{}}`
		for method, want := range map[string]string{
			"server/discover":      meta + "}",
			"tools/list":           meta + "}",
			"subscriptions/listen": meta + `,"notifications":{"toolsListChanged":true,"resourcesListChanged":true}}`,
		} {
			got := srv.peer().sent(method)
			if len(got) != 1 || string(wire.Get([]byte(got[0]), "params")) != want {
				t.Errorf("%s: %s", method, got)
			}
		}
		h.end()
	})
}

func TestMessagesDuringTheHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.on["initialize"] = func(p *fakePeer, id uint64, _ wire.Message) {
			p.say(`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
			p.say(`{"jsonrpc":"2.0","id":"x y","method":"ping"}`)
			time.Sleep(time.Second)
			if got := p.sent(""); len(got) != 1 || got[0] != `{"jsonrpc":"2.0","id":"x y","result":{}}` {
				t.Errorf("pong before the handshake is over: %s", got)
			}
			p.result(id, initOK)
			p.say(`{"jsonrpc":"2.0","id":7,"method":"roots/list"}`)
		}
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy"})
		settle(2 * time.Second)
		srv.peer().say(`{"jsonrpc":"2.0","id":8,"method":"ping"}`)
		srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`)
		synctest.Wait()
		if diff := cmp.Diff([]string{"notifications/message", "roots/list", "notifications/progress"}, h.messages); diff != "" {
			t.Error(diff)
		}
		if n := len(srv.peer().sent("")); n != 2 {
			t.Errorf("%d pongs", n)
		}
		h.end()
	})
}
