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
			`level=WARN msg="upstream is not available" upstream=u from=starting to=down reason=refused next_attempt=soon`,
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
			got[i].Seq, got[i].Time = 0, time.Time{}
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
