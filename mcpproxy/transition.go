package mcpproxy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/event"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// publish tells of one thing that happened: the bus at once, subscribers of
// agentarmor://events within a second. A transition is a line in the log and a
// log message to clients too. It never blocks, and what the text repeats of an
// upstream's secrets is masked.
func (p *Proxy) publish(e event.Event) {
	level, text := slog.LevelDebug, ""
	switch e.Kind {
	case event.BreakerChanged:
		level, text = breakerLine(e)
	case event.DefinitionChanged:
		level, text = slog.LevelWarn, "the definition of a tool has changed"
		if e.From == definitionQuarantined && e.To == definitionAccepted {
			level, text = slog.LevelInfo, "the definition of a tool is accepted"
		}
	}
	p.publishAs(e, level, text)
}

// breakerLine says that a breaker opens or closes; its trials in between are
// no news. What the server's own does shows in the state of the upstream.
func breakerLine(e event.Event) (slog.Level, string) {
	from, to := health.BreakerState(e.From), health.BreakerState(e.To)
	switch {
	case e.Tool == "":
		return slog.LevelDebug, "breaker of the server has changed"
	case to == health.BreakerClosed:
		return slog.LevelInfo, "breaker has closed"
	case to == health.BreakerOpen && from == health.BreakerClosed:
		return slog.LevelWarn, "breaker has opened"
	}
	return slog.LevelDebug, "breaker is tried"
}

// publishAs is publish with the level and text of the line; no text, no line.
func (p *Proxy) publishAs(e event.Event, level slog.Level, text string) {
	if up := p.upstream(e.Upstream); up != nil {
		e.Text = up.shared.secrets.mask(e.Text)
	}
	e.Injected = cmp.Or(e.Injected, p.drifting(e))
	p.events.Publish(e)
	p.changes.updated(eventsURI)
	if text == "" {
		return
	}
	if e.Upstream == "" {
		p.changes.updated(llmURI, statusURI)
	} else {
		p.changes.status(e.Upstream)
	}
	p.logTransition(e, level, text)
	p.tellClients(e, level)
}

func (p *Proxy) logTransition(e event.Event, level slog.Level, text string) {
	var attrs []slog.Attr
	for _, a := range []struct{ key, value string }{{"rule", e.Rule}, {"upstream", e.Upstream}, {"provider", e.Provider}, {"tool", e.Tool}, {"from", e.From}, {"to", e.To}, {"reason", e.Text}, {"injected", e.Injected}} {
		if a.value != "" {
			attrs = append(attrs, slog.String(a.key, a.value))
		}
	}
	if e.NextAttempt != nil {
		attrs = append(attrs, slog.Time("next_attempt", *e.NextAttempt))
	}
	p.log.LogAttrs(context.Background(), level, text, attrs...)
}

// transitionData is what clients are told of a transition.
type transitionData struct {
	Event       event.Kind `json:"event"`
	Upstream    string     `json:"upstream,omitempty"`
	Tool        string     `json:"tool,omitempty"`
	Provider    string     `json:"provider,omitempty"`
	Rule        string     `json:"rule,omitempty"`
	From        string     `json:"from,omitempty"`
	To          string     `json:"to,omitempty"`
	Reason      string     `json:"reason,omitempty"`
	Injected    string     `json:"injected,omitempty"`
	NextAttempt *time.Time `json:"next_attempt,omitempty"`
}

// tellClients sends a transition as a log message to the clients whose level
// lets it pass. Clients of 2026-07-28 get log messages on requests of theirs
// only, and a transition belongs to none.
func (p *Proxy) tellClients(e event.Event, level slog.Level) {
	rank := slices.Index(levels, map[slog.Level]string{slog.LevelDebug: "debug", slog.LevelInfo: "info", slog.LevelWarn: "warning"}[level])
	data := transitionData{e.Kind, e.Upstream, e.Tool, e.Provider, e.Rule, e.From, e.To, e.Text, e.Injected, inSeconds(e.NextAttempt)}
	if e.Kind == event.DefinitionChanged {
		data.Reason = "" // an agent must not take a changed description for an instruction
	}
	raw, _ := json.Marshal(data) // strings and a time always encode
	params := append([]byte(`{"level":"`+levels[rank]+`","logger":"agentarmor","data":`), raw...)
	params = append(params, '}')
	for _, c := range p.legacyClients() {
		if c.hears(rank) {
			_ = c.s.Send(wire.AppendNotification(nil, "notifications/message", params), false) // a client that does not read loses logs only
		}
	}
}

// inSeconds is a time as agents are told it.
func inSeconds(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return new(t.Truncate(time.Second))
}

// quietLevel is the rank of what a session that never set a level hears of us.
var quietLevel = slices.Index(levels, "warning")

// hears tells whether the client wants our own log messages of this rank. None
// is sent before it is initialized.
func (c *client) hears(rank int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	least := c.level
	if least < 0 {
		least = quietLevel
	}
	return c.ready && rank >= least
}

// teller knows what was last told of an instance: while it stays down, further
// attempts to start it are no news.
type teller struct {
	mu      sync.Mutex
	settled health.State // the last one but starting
}

func (t *teller) isNews(s health.State) bool {
	if s == health.Starting {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	news := t.settled != s
	t.settled = s
	return news
}

// tellState tells that an instance has entered another state: of the one that all
// clients share everybody, of others the log.
func (p *Proxy) tellState(in *instance, t *teller, from health.State, now health.Snapshot) {
	level, text := slog.LevelWarn, "upstream is not available"
	switch {
	case now.State == health.Starting:
		text = "upstream is starting"
	case now.State == health.Ready && (from != health.Starting || now.Restarts > 0):
		level, text = slog.LevelInfo, "upstream has recovered"
	case now.State == health.Ready:
		level, text = slog.LevelInfo, "upstream is ready"
	case now.State == health.Degraded:
		text = "upstream is not available in full"
	}
	if !t.isNews(now.State) {
		level = slog.LevelDebug
	}
	e := event.Event{
		Kind: event.UpstreamState, Upstream: in.o.cfg.Name, From: string(from), To: string(now.State), Text: now.Reason, NextAttempt: now.NextAttempt,
		Injected: in.behind(now.State),
	}
	if in == in.up.shared {
		p.publishAs(e, level, text)
	} else {
		p.logTransition(e, level, text)
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
