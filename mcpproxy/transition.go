package mcpproxy

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
)

// tellState logs that an instance has entered another state, and publishes it
// for the one that all clients share.
func (p *Proxy) tellState(in *instance, from health.State, now health.Snapshot) {
	level, text := slog.LevelWarn, "upstream is not available"
	switch {
	case now.State == health.Starting:
		level, text = slog.LevelDebug, "upstream is starting"
	case now.State == health.Ready && (from != health.Starting || now.Restarts > 0):
		level, text = slog.LevelInfo, "upstream has recovered"
	case now.State == health.Ready:
		level, text = slog.LevelInfo, "upstream is ready"
	case now.State == health.Degraded:
		text = "upstream is not available in full"
	}
	attrs := []slog.Attr{slog.String("from", string(from)), slog.String("to", string(now.State))}
	if now.Reason != "" {
		attrs = append(attrs, slog.String("reason", now.Reason))
	}
	if now.NextAttempt != nil {
		attrs = append(attrs, slog.Time("next_attempt", *now.NextAttempt))
	}
	in.log.LogAttrs(context.Background(), level, text, attrs...)
	if in == in.up.shared {
		p.events.Publish(event.Event{
			Kind: event.UpstreamState, Upstream: in.o.cfg.Name, From: string(from), To: string(now.State), Text: now.Reason,
		})
	}
}

// reloaded says in a few words what a new configuration has changed.
func reloaded(fresh, gone []*upstream) string {
	var started, ended []string
	for _, up := range fresh {
		started = append(started, up.cfg.Name)
	}
	for _, up := range gone {
		ended = append(ended, up.cfg.Name)
	}
	return fmt.Sprintf("started: %s; ended: %s", orNone(started), orNone(ended))
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
