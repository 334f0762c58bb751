package mcpproxy

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

func TestInstanceBecomesReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := supervise(t, newLegacyServer(), UpstreamConfig{Protocol: "legacy"})
		c, err := h.await(t.Context())
		if err != nil || c.modern || c.version != wire.Legacy || string(c.capabilities) != fakeCaps {
			t.Fatalf("await: %+v, %v", c, err)
		}
		synctest.Wait()
		s := h.status()
		if s.State != health.Ready || s.Pid != 42 || s.Skipped != 3 || s.Protocol != wire.Legacy || s.Transport != "stdio" || s.LastSuccess == nil {
			t.Errorf("status: %+v", s)
		}
		if diff := cmp.Diff([]health.State{health.Ready}, h.states); diff != "" {
			t.Error(diff)
		}
		p := h.srv.peer()
		want := `{"jsonrpc":"2.0","id":"a1","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"agentarmor","version":"9.9"}}}`
		if got := p.sent("initialize"); len(got) != 1 || got[0] != want {
			t.Errorf("initialize:\n%s\nwant\n%s", got, want)
		}
		if n := len(p.sent("notifications/initialized")); n != 1 || !p.ready || p.version != wire.Legacy {
			t.Errorf("initialized %d times, ready %v, version %q", n, p.ready, p.version)
		}
		h.end()
		if h.live() != nil || !p.isClosed() || h.lost != 1 {
			t.Errorf("after stop: live %v, closed %v, lost %d", h.live(), p.isClosed(), h.lost)
		}
	})
}

// CASES 12: a start of 8 s is one spawn that nothing disturbs.
func TestSlowStartIsOneSpawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.silent("server/discover")
		srv.on["initialize"] = func(p *fakePeer, id uint64, _ wire.Message) {
			time.Sleep(8 * time.Second)
			p.result(id, initOK)
		}
		h := supervise(t, srv, UpstreamConfig{CallTimeout: 2 * time.Second})
		for range 3 { // calls meanwhile do not disturb it either
			settle(time.Second)
			h.poke()
		}
		began := time.Now()
		if _, err := h.await(t.Context()); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited < 5*time.Second || srv.count("dial stdio") != 1 || srv.count("initialize") != 1 {
			t.Errorf("waited %v; %s", waited, srv.handshakes())
		}
		h.end()
	})
}

func TestStartupTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.silent("initialize")
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy", StartupTimeout: 45 * time.Second})
		settle(44 * time.Second)
		if h.state() != health.Starting {
			t.Errorf("after 44 s: %s", h.state())
		}
		settle(1500 * time.Millisecond)
		s := h.status()
		if s.State != health.Down || s.Reason != errStartup.Error() || s.NextAttempt == nil || !srv.peer().isClosed() {
			t.Errorf("after 45.5 s: %+v", s)
		}
		if !slices.Equal(s.Stderr, []string{"last words"}) || s.Pid != 0 {
			t.Errorf("the last words of a dead process: %+v", s)
		}
		h.end()
	})
}

// CASES 4: spawns follow the schedule, for ever, and the state says so.
func TestCrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.onStart = func(p *fakePeer) {
			time.Sleep(50 * time.Millisecond)
			p.exit("exit status 1")
		}
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy"})
		settle(500 * time.Millisecond)
		s := h.status()
		if s.State != health.Down || s.Reason != "the process ended: exit status 1" || s.LastError == "" || s.NextAttempt == nil {
			t.Errorf("after the first exit: %+v", s)
		}
		settle(30 * time.Second)
		if h.state() != health.CrashLoop {
			t.Errorf("after %d starts: %s", len(srv.dials), h.state())
		}
		settle(20 * time.Minute)
		gaps := srv.gaps()
		if len(gaps) < 6 {
			t.Fatalf("it gave up: %v", gaps)
		}
		want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 5 * time.Minute, 5 * time.Minute}
		for i, w := range want {
			if g := gaps[i] - 50*time.Millisecond; g < w*8/10 || g > w*12/10 {
				t.Errorf("gap %d is %v, want %v ± 20 %%", i, g, w)
			}
		}
		h.end()
	})
}

func TestBackoffResetsAfterAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy"})
		for range 4 {
			settle(20 * time.Second) // longer than a crash, too short to be stable
			srv.peer().exit("signal: killed")
		}
		settle(70 * time.Second)
		srv.peer().exit("signal: killed")
		settle(2 * time.Second)
		gaps := srv.gaps()
		last, before := gaps[len(gaps)-1]-70*time.Second, gaps[len(gaps)-2]
		if h.state() != health.Ready || last > 2*time.Second || before < 21*time.Second {
			t.Errorf("%s, gaps %v", h.state(), gaps)
		}
		h.end()
	})
}

// CASES 5: an exit is seen at once, and the next call brings the server back.
func TestDeathFailsCallsAndNextCallRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.silent("tools/call")
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy"})
		c, _ := h.await(t.Context())
		synctest.Wait()
		result := make(chan error)
		go func() {
			_, err := c.call(t.Context(), "tools/call", []byte(`{"name":"t1"}`))
			result <- err
		}()
		synctest.Wait()
		srv.peer().exit("signal: killed")
		e, _ := errors.AsType[*wire.Error](<-result)
		if e == nil || e.Kind != wire.Lost {
			t.Errorf("the call ended with %v", e)
		}
		synctest.Wait()
		if h.state() != health.Down || h.live() != nil || h.lost != 1 {
			t.Errorf("state %s, live %v, lost %d", h.state(), h.live(), h.lost)
		}
		before := time.Now()
		next, err := h.await(t.Context())
		if err != nil || next == c || time.Since(before) != 0 {
			t.Errorf("await after %v: %v", time.Since(before), err)
		}
		h.end()
	})
}

func TestPokeAtMostEveryFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.onDial = func(int, string) error {
			return &wire.Error{Kind: wire.NotSent, Err: errors.New("no such file")}
		}
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy"})
		settle(10 * time.Minute) // the schedule is at its slowest by now
		before := len(srv.dials)
		for range 20 * 4 { // 20 s of calls, four a second
			if _, err := h.await(t.Context()); err == nil {
				t.Error("await succeeded")
			}
			settle(250 * time.Millisecond)
		}
		if n := len(srv.dials) - before; n < 4 || n > 5 {
			t.Errorf("%d starts in 20 s, want one every 5 s", n)
		}
		_, err := h.await(t.Context())
		u, ok := errors.AsType[*unavailable](err)
		if !ok || u.state != health.Down || u.retryAt.IsZero() || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("await: %+v", err)
		}
		h.end()
	})
}

func TestAuthAndThrottleOfAStart(t *testing.T) {
	for _, tt := range []struct {
		name  string
		err   wire.Error
		state health.State
		wait  time.Duration
	}{
		{"401", wire.Error{Kind: wire.HTTPStatus, Status: 401}, health.NeedsAuth, 5 * time.Minute},
		{"403", wire.Error{Kind: wire.HTTPStatus, Status: 403}, health.NeedsAuth, 5 * time.Minute},
		{"429", wire.Error{Kind: wire.HTTPStatus, Status: 429, RetryAfter: 90 * time.Second}, health.Throttled, 90 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newLegacyServer()
				srv.fail("server/discover", &tt.err)
				h := supervise(t, srv, UpstreamConfig{URL: "http://127.0.0.1/mcp"})
				synctest.Wait()
				if h.state() != tt.state || srv.handshakes() != "dial http, server/discover" {
					t.Fatalf("%s after %s", h.state(), srv.handshakes())
				}
				for range 10 { // no call may shorten it
					time.Sleep(tt.wait * 7 / 100)
					if _, err := h.await(t.Context()); err == nil {
						t.Error("await succeeded")
					}
				}
				if n := srv.count("dial http"); n != 1 {
					t.Errorf("%d attempts before the time", n)
				}
				time.Sleep(tt.wait)
				if n := srv.count("dial http"); n < 2 {
					t.Error("no attempt after the time")
				}
				h.end()
			})
		})
	}
}

// CASES 21: 20 calls find the session lost; one initialize serves them all.
func TestRenewIsSingleFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		h := supervise(t, srv, UpstreamConfig{URL: "http://127.0.0.1/mcp", Protocol: "legacy"})
		old, _ := h.await(t.Context())
		synctest.Wait()
		srv.silent("tools/call")
		w := make(callWaiter, 1)
		id := old.begin(w)
		old.send(wire.Outgoing{ID: id, Method: "tools/call", Body: old.request(id, "tools/call", nil)})
		synctest.Wait()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				c, err := h.renew(old)
				if err != nil || c == old || c == nil {
					t.Errorf("renew: %v, %v", c, err)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		if n := srv.count("initialize"); n != 2 {
			t.Errorf("%d handshakes, want one more than the first", n)
		}
		if old.pending() != 1 || srv.peers[0].isClosed() {
			t.Error("the call under way has lost its connection")
		}
		srv.peers[0].result(id, `{}`)
		synctest.Wait()
		if a := <-w; a.err != nil || !srv.peers[0].isClosed() || h.lost != 1 {
			t.Errorf("its answer: %+v; closed %v, lost %d", a, srv.peers[0].isClosed(), h.lost)
		}
		h.end()
	})
}

// A service that comes back from an outage only to hang is asked again soon,
// not after the time that a first start may take.
func TestHangingRestartIsCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		h := supervise(t, srv, UpstreamConfig{URL: "http://127.0.0.1/mcp", Protocol: "legacy"})
		c, _ := h.await(t.Context())
		srv.fail("ping", failure(wire.NotSent))
		srv.silent("initialize")
		h.suspect(c, failure(wire.NotSent))
		settle(10 * time.Second)
		srv.result("initialize", initOK)
		srv.result("ping", `{}`)
		settle(25 * time.Second)
		if h.state() != health.Ready {
			t.Errorf("25 s after the hang: %s", h.state())
		}
		h.end()
	})
}

// A server that forgets its session at once is not asked in a tight loop.
func TestSessionLostAtOnceBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.fail("tools/list", &wire.Error{Kind: wire.SessionLost, Status: 404})
		srv.silent("resources/list")
		h := supervise(t, srv, UpstreamConfig{URL: "http://127.0.0.1/mcp", Protocol: "legacy"})
		settle(time.Minute)
		if n := srv.count("initialize"); n > 20 { // at once three times, then every 5 s
			t.Errorf("%d handshakes in a minute", n)
		}
		h.end()
	})
}

func TestWantedSurvivesReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy"})
		h.setLevel("debug")
		h.setSubscriptions([]string{"b://2", "a://1"})
		synctest.Wait()
		h.setSubscriptions([]string{"b://2", "c://\u00e9\""})
		synctest.Wait()
		params := func(method string) (out []string) {
			for _, body := range srv.peer().sent(method) {
				out = append(out, string(wire.Get([]byte(body), "params")))
			}
			return out
		}
		want := []string{`{"uri":"a://1"}`, `{"uri":"b://2"}`, `{"uri":"c://` + "\u00e9" + `\""}`}
		if diff := cmp.Diff(want, params("resources/subscribe")); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(want[:1], params("resources/unsubscribe")); diff != "" {
			t.Error(diff)
		}
		srv.peer().exit("exit status 1")
		settle(2 * time.Second)
		if diff := cmp.Diff(want[1:], params("resources/subscribe")); diff != "" {
			t.Errorf("after the reconnect: %s", diff)
		}
		if diff := cmp.Diff([]string{`{"level":"debug"}`}, params("logging/setLevel")); diff != "" {
			t.Error(diff)
		}
		h.end()
	})
}

func TestListenFollowsTheFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newModernServer()
		h := supervise(t, srv, UpstreamConfig{})
		synctest.Wait()
		filters := func() (out []string) {
			for _, body := range srv.peer().sent("subscriptions/listen") {
				out = append(out, string(wire.Get(wire.Get([]byte(body), "params"), "notifications")))
			}
			return out
		}
		lists := `"toolsListChanged":true,"resourcesListChanged":true`
		want := []string{"{" + lists + "}"}
		if diff := cmp.Diff(want, filters()); diff != "" {
			t.Fatal(diff)
		}
		h.setSubscriptions([]string{"a://<1>"})
		synctest.Wait()
		want = append(want, "{"+lists+`,"resourceSubscriptions":["a://<1>"]}`)
		if diff := cmp.Diff(want, filters()); diff != "" {
			t.Fatal(diff)
		}
		p := srv.peer()
		if n := len(p.sent("notifications/cancelled")); n != 1 || len(p.cancelled) != 1 {
			t.Errorf("the old stream was cancelled %d times", n)
		}
		// The server ends it: as stdio does, then gracefully.
		id := h.live().listen.Load()
		p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + string(wire.AppendID(nil, id)) + `}}`)
		settle(2 * time.Second)
		p.result(h.live().listen.Load(), `{"resultType":"complete"}`)
		settle(4 * time.Second)
		want = append(want, want[1], want[1])
		if diff := cmp.Diff(want, filters()); diff != "" {
			t.Error(diff)
		}
		p.say(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{}}`)
		p.say(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a://1"}}`)
		if diff := cmp.Diff([]string{"notifications/resources/updated"}, h.messages); diff != "" {
			t.Error(diff)
		}
		h.end()
	})
}

// A server without subscriptions/listen is asked once per filter, not for ever.
func TestListenRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newModernServer()
		srv.error("subscriptions/listen", -32601)
		h := supervise(t, srv, UpstreamConfig{})
		settle(time.Hour)
		if n := srv.count("subscriptions/listen"); n != 1 {
			t.Errorf("asked %d times", n)
		}
		h.end()
	})
}

func TestStopWhilePausedStartingAndUnstarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := newLegacyServer()
		down.onDial = func(int, string) error { return errors.New("refused") }
		paused := supervise(t, down, UpstreamConfig{Protocol: "legacy"})
		mute := newLegacyServer()
		mute.silent("initialize")
		starting := supervise(t, mute, UpstreamConfig{Protocol: "legacy"})
		disabled := supervise(t, newLegacyServer(), UpstreamConfig{Disabled: true})
		synctest.Wait()
		waiting := make(chan error)
		go func() {
			_, err := starting.await(context.Background())
			waiting <- err
		}()
		synctest.Wait()
		for _, h := range []*harness{paused, starting, disabled} {
			h.end()
			if _, err := h.await(t.Context()); err == nil {
				t.Error("await after stop succeeded")
			}
		}
		if err := <-waiting; err == nil || !mute.peer().isClosed() {
			t.Errorf("await during stop: %v", err)
		}
		if disabled.state() != health.Disabled || len(disabled.srv.dials) != 0 {
			t.Errorf("disabled: %s", disabled.state())
		}
	})
}

func TestPerSessionInstanceListsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := supervise(t, newLegacyServer(), UpstreamConfig{Protocol: "legacy"}, func(o *instanceOptions) { o.lists = false })
		synctest.Wait()
		if h.state() != health.Ready || h.srv.count("tools/list") != 0 || len(h.listings) != 0 {
			t.Errorf("%s, %v", h.state(), h.srv.log)
		}
		h.end()
	})
}

func TestStatusJSON(t *testing.T) {
	b, err := json.Marshal(instanceStatus{Snapshot: health.Snapshot{State: health.Ready}, Transport: "stdio", Server: json.RawMessage(`{"name":"x"}`)})
	want := `{"state":"ready","since":"0001-01-01T00:00:00Z","restarts":0,"transport":"stdio","server":{"name":"x"},"pid":0,"skipped_lines":0}`
	if err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
}

// What is down is tried again within each probe interval, jitter included: so
// soon after the end of an outage it serves again.
func TestReconnectsWithinAProbeInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.onDial = func(int, string) error { return &wire.Error{Kind: wire.NotSent, Err: errGone} }
		h := supervise(t, srv, UpstreamConfig{URL: "http://127.0.0.1/mcp", Probe: ProbeConfig{EveryDown: 20 * time.Second}})
		settle(20 * time.Minute)
		if longest := slices.Max(srv.gaps()); longest > 20*time.Second || longest < 15*time.Second {
			t.Errorf("once %v have passed between two attempts", longest)
		}
		h.end()
	})
}
