package mcpproxy

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/mcpproxy/event"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// Every change of state is one line and one event; a healthy upstream makes
// none, however often it lists or is called.
func TestTransitionsAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		srv := newLegacyServer()
		p, err := New(Config{
			Log:       slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: roundTimes})),
			Upstreams: []UpstreamConfig{{Name: "u", URL: "http://127.0.0.1/mcp", Protocol: "legacy", Probe: ProbeConfig{Every: time.Hour}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		in := p.upstream("u").shared
		in.dial = srv.dial
		p.Start(t.Context())
		settle(time.Second)
		srv.peer().say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		in.suspect(in.live(), failure(wire.Lost)) // one lost call
		settle(time.Second)
		srv.fail("ping", failure(wire.NotSent))
		srv.onDial = func(n int, _ string) error {
			if n == 2 {
				return errors.New("refused")
			}
			return nil
		}
		in.suspect(in.live(), failure(wire.NotSent))
		settle(10 * time.Second)
		in.suspect(in.live(), &wire.Error{Kind: wire.HTTPStatus, Status: 429, RetryAfter: 3 * time.Second})
		settle(10 * time.Second)
		if err := p.Reload(Config{Upstreams: []UpstreamConfig{{Name: "new", Disabled: true}}}); err != nil {
			t.Fatal(err)
		}
		p.Close(context.Background())

		wantLog := []string{
			`level=INFO msg="upstream is ready" upstream=u from=starting to=ready`,
			`level=WARN msg="upstream is not available" upstream=u from=ready to=down reason=trouble next_attempt=soon`,
			`level=INFO msg="upstream has recovered" upstream=u from=starting to=ready`,
			`level=WARN msg="upstream is not available" upstream=u from=ready to=throttled reason="HTTP status 429" next_attempt=soon`,
			`level=INFO msg="upstream has recovered" upstream=u from=throttled to=ready`,
		}
		if diff := cmp.Diff(wantLog, strings.Split(strings.TrimSpace(log.String()), "\n")); diff != "" {
			t.Error(diff)
		}
		state := func(from, to, text string) event.Event {
			return event.Event{Kind: event.UpstreamState, Upstream: "u", From: from, To: to, Text: text}
		}
		want := []event.Event{
			{Kind: event.CatalogChanged, Upstream: "u"},
			state("starting", "ready", ""),
			state("ready", "down", "trouble"), state("down", "starting", ""),
			state("starting", "down", "refused"), state("down", "starting", ""),
			state("starting", "ready", ""),
			state("ready", "throttled", "HTTP status 429"), state("throttled", "ready", ""),
			{Kind: event.ConfigReloaded, Text: "started: new; ended: u"},
		}
		got := p.events.Recent(event.History)
		for i := range got {
			if waits := got[i].To == "down" || got[i].To == "throttled"; waits != (got[i].NextAttempt != nil) {
				t.Errorf("next attempt of %+v", got[i])
			}
			got[i].Seq, got[i].Time, got[i].NextAttempt = 0, time.Time{}, nil
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

func roundTimes(_ []string, a slog.Attr) slog.Attr {
	switch {
	case a.Key == slog.TimeKey:
		return slog.Attr{}
	case a.Value.Kind() == slog.KindTime && time.Until(a.Value.Time()) > 0:
		return slog.String(a.Key, "soon")
	}
	return a
}

// logsOf leaves only log messages, as "level data".
func logsOf(got []string) (logs []string) {
	for _, raw := range got {
		m, _ := wire.Parse([]byte(raw))
		if m.Method == "notifications/message" {
			level, _ := wire.String(wire.Get(m.Params, "level"))
			logs = append(logs, level+" "+string(wire.Get(m.Params, "data")))
		}
	}
	return logs
}

// Who set no level hears warnings; nobody does before it is initialized, and no
// client of 2026-07-28 ever.
func TestTransitionsReachClientsByLevel(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		clients := map[string]*testClient{"": r.client(`{}`)}
		for _, level := range []string{"debug", "info", "warning", "error"} {
			c := r.client(`{}`)
			c.send(`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"` + level + `"}}`).text()
			c.take()
			clients[level] = c
		}
		early, modern := r.session("http"), r.listen(`{"toolsListChanged":true}`)
		early.send(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`)
		early.take()
		modern.c.take()

		repair := srv.broken()
		settle(time.Minute) // attempts fail, which is no news
		repair()
		settle(10 * time.Minute)
		const (
			down  = `warning {"event":"upstream.state","upstream":"fake","from":"ready","to":"down","reason":"the process ended: broken","next_attempt":"2000-01-01T00:00:01Z"}`
			ready = `info {"event":"upstream.state","upstream":"fake","from":"starting","to":"ready"}`
		)
		for level, want := range map[string][]string{"": {down}, "warning": {down}, "info": {down, ready}, "error": nil} {
			if diff := cmp.Diff(want, logsOf(clients[level].take())); diff != "" {
				t.Errorf("level %q: %s", level, diff)
			}
		}
		if got := logsOf(clients["debug"].take()); len(got) < 6 || !strings.HasPrefix(got[1], `debug {"event":"upstream.state","upstream":"fake","from":"down","to":"starting"`) {
			t.Errorf("debug: %v", got)
		}
		if got := append(early.take(), modern.c.take()...); got != nil {
			t.Errorf("not to be told: %v", got)
		}
	}, func(c *Config) { c.Alerts.Rules.BreakerOpen = new(false) })
}

// The breakers' transitions are told like those of upstreams; a trial is no news.
func TestPublishTellsOfBreakers(t *testing.T) {
	var log bytes.Buffer
	bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
		settle(2 * time.Second)
		c := r.client(`{}`)
		c.subscribe(t, "subscribe", "agentarmor://events")
		c.subscribe(t, "subscribe", "agentarmor://status/fake")
		log.Reset()
		at := time.Date(2030, 1, 1, 0, 0, 0, 5e8, time.UTC)
		for _, step := range []string{"closed open", "open half_open", "half_open open", "half_open closed"} {
			from, to, _ := strings.Cut(step, " ")
			e := event.Event{Kind: event.BreakerChanged, Upstream: "fake", Tool: "t1", From: from, To: to, Text: "last: bad ghp_0123456789abcdef"}
			if to == "open" {
				e.NextAttempt = &at
			}
			r.p.publish(e)
		}
		synctest.Wait()
		want := []string{`warning {"event":"breaker","upstream":"fake","tool":"t1","from":"closed","to":"open","reason":"last: bad [env TOKEN]","next_attempt":"2030-01-01T00:00:00Z"}`}
		if diff := cmp.Diff(want, logsOf(c.take())); diff != "" {
			t.Error(diff)
		}
		settle(1100 * time.Millisecond)
		if diff := cmp.Diff([]string{updatedNote("agentarmor://events"), updatedNote("agentarmor://status/fake")}, c.take()); diff != "" {
			t.Error(diff)
		}
	}, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: roundTimes}))
		c.Alerts.Rules.BreakerOpen = new(false)
		c.Upstreams[0].Env = map[string]string{"TOKEN": "ghp_0123456789abcdef"}
	})
	want := `level=WARN msg="breaker has opened" upstream=fake tool=t1 from=closed to=open reason="last: bad [env TOKEN]" next_attempt=soon
level=INFO msg="breaker has closed" upstream=fake tool=t1 from=half_open to=closed reason="last: bad [env TOKEN]"
`
	if diff := cmp.Diff(want, log.String()); diff != "" {
		t.Error(diff)
	}
}

// However much happens, a subscriber of the events is told once a second.
func TestEventUpdatesAreCoalesced(t *testing.T) {
	bubble(t, newLegacyServer(), func(t *testing.T, r *rig) {
		settle(2 * time.Second)
		c := r.client(`{}`)
		c.subscribe(t, "subscribe", "agentarmor://events")
		for range 25 {
			r.p.publish(event.Event{Kind: event.CallFailed, Upstream: "fake", To: "timeout"})
			settle(100 * time.Millisecond)
		}
		settle(2 * time.Second)
		if got := c.take(); len(got) != 3 {
			t.Errorf("%d updates in 2.5 s: %v", len(got), got)
		}
		settle(time.Minute)
		if got := c.take(); got != nil {
			t.Errorf("nothing has happened: %v", got)
		}
	})
}

// What happened can be read as a resource and asked for by armor.status.
func TestEventsCanBeRead(t *testing.T) {
	srv := newLegacyServer()
	bubble(t, srv, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		srv.broken()
		r.p.publish(event.Event{Kind: event.BreakerChanged, Upstream: "fake", Tool: "t1", From: "closed", To: "open"})
		wantPart(t, c.send(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"agentarmor://events"}}`).text(),
			`\"kind\": \"upstream.state\"`, `\"kind\": \"breaker\"`, `\"last_seq\": `)
		got := c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"armor.status","arguments":{"section":"events","upstream":"fake","kind":"breaker","tool":"t1"}}}`).text()
		wantPart(t, got, `"kind":"breaker"`, `"to":"open"`)
		if strings.Contains(got, "upstream.state") {
			t.Errorf("not filtered: %s", got)
		}
	})
}
