package mcpproxy

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/agentarmor/agentarmor/mcpproxy/event"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// AlertConfig says what deserves an alert and where it is sent beside the
// events, the log and the clients. The zero value has every rule, and no webhook.
type AlertConfig struct {
	Webhook string // URL that gets each alert as JSON, also Slack's; a secret; "": none
	Rules   AlertRules
}

// AlertRules are the conditions; nil is the default, false or 0 switches a rule off.
type AlertRules struct {
	BreakerOpen       *bool
	BreakersIn60s     *int     // alert over so many that opened within 60 s; nil: 2
	PrimaryErrorRate  *float64 // alert over this share of failed requests to the first provider; nil: 0.03
	FailoversPerHour  *int     // alert over so many; nil: 5
	NoHealthyProvider *bool
	CrashLoop         *bool
	DefinitionChanged *bool
}

// The rules by name.
const (
	ruleBreakerOpen       = "breaker_open"
	ruleBreakersIn60s     = "breakers_in_60s"
	rulePrimaryErrorRate  = "primary_error_rate"
	ruleFailoversPerHour  = "failovers_per_hour"
	ruleNoHealthyProvider = "no_healthy_provider"
	ruleCrashLoop         = "crash_loop"
	ruleDefinitionChanged = "definition_changed"
)

// Alert is a condition that a person should look at.
type Alert struct {
	alertKey
	Text     string     `json:"text"`
	Since    time.Time  `json:"since"`
	Resolved *time.Time `json:"resolved_at,omitempty"` // nil: it holds
	Count    int        `json:"count"`                 // times it has come up since it was first told
	Injected string     `json:"injected,omitempty"`    // the fault of chaos that has caused it, or may have

	once   bool      // it has no end to tell of: an accepted definition
	told   bool      // that it has come up
	toldAt time.Time // the last time
	well   time.Time // since when it does not hold; zero: it does
}

// alertKey is what makes two alerts the same one.
type alertKey struct {
	Rule     string `json:"rule"`
	Upstream string `json:"upstream,omitempty"`
	Tool     string `json:"tool,omitempty"`
	Provider string `json:"provider,omitempty"`
}

const (
	alertEvery = 10 * time.Second // how often it is looked whether an alert still holds, and how long it must not to be over
	alertQuiet = 5 * time.Minute  // what comes up again within this is told then, if it still holds
	alertKept  = time.Hour        // how long the status shows what is resolved
	maxAlerts  = 50
	openings   = time.Minute // of breakers_in_60s

	// Thousands of tools can break at once: so many of their alerts are told at
	// once, then one in so long, while it holds.
	alertBurst = 20
	alertPace  = 10 * time.Second

	// rateCalls is how many requests a rate needs: of fewer, one failure would be too many.
	rateCalls = 20
	rateTime  = 5 * time.Minute // of a health.Window
)

// alerts watches the events by rules. What an alert is raised by is an event
// or the state of the chain; whether it still holds is read from the state of
// what it is about, so that nothing that is missed leaves one behind. What was
// missed, or had no room, and still holds is found there too.
type alerts struct {
	p    *Proxy
	cfg  AlertConfig
	sub  *event.Subscription
	look chan struct{} // something has happened to the chain
	hook *webhook      // nil: none

	// These belong to the goroutine.
	opened map[string]stroke // breakers that have opened lately
	down   map[string]bool   // servers that may be out of service, and that was not told yet
	pace   *rate.Limiter
	seen   uint64 // events that were dropped and made up for
	full   bool   // something had no room

	mu     sync.Mutex
	all    []*Alert          // oldest first
	struck map[string]stroke // providers that chaos has hit
}

// stroke is when something happened, and the fault of chaos behind it, if any.
type stroke struct {
	at       time.Time
	injected string
}

func newAlerts(p *Proxy, cfg AlertConfig) *alerts {
	return &alerts{
		p: p, cfg: cfg, hook: newWebhook(cfg.Webhook, p.log), look: make(chan struct{}, 1),
		opened: map[string]stroke{}, down: map[string]bool{}, struck: map[string]stroke{}, pace: rate.NewLimiter(rate.Every(alertPace), alertBurst),
		sub: p.events.Subscribe(256, event.BreakerChanged, event.LLMBreaker, event.UpstreamState, event.DefinitionChanged, event.ConfigReloaded),
	}
}

// start watches until the proxy ends.
func (a *alerts) start() {
	a.p.work.Go(func() {
		defer wire.OnPanic()
		a.run(a.p.ctx)
	})
	if a.hook != nil {
		a.p.work.Go(func() {
			defer wire.OnPanic()
			a.hook.run(a.p.ctx)
		})
	}
}

// nudge has the rules about the chain looked at. It does not block.
func (a *alerts) nudge() {
	select {
	case a.look <- struct{}{}:
	default:
	}
}

func (a *alerts) run(ctx context.Context) {
	defer a.sub.Close()
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-a.sub.C():
			a.meet(e)
		case <-a.look:
			a.models()
		case <-again:
			again = nil
			if dropped := a.sub.Dropped(); a.full || dropped > a.seen {
				a.full, a.seen = false, dropped
				a.survey()
			}
			a.outages()
		}
		if (a.settle() || a.full || len(a.down) > 0 || a.sub.Dropped() > a.seen) && again == nil {
			again = time.After(alertEvery)
		}
	}
}

// raise notes that a condition holds, and tells of it unless that was done lately.
func (a *alerts) raise(key alertKey, text, injected string) {
	now := time.Now().UTC()
	once := key.Rule == ruleDefinitionChanged && !a.holds(key)
	one := &Alert{alertKey: key, Text: text, Since: now, Count: 1, Injected: injected, once: once}
	if !a.add(one, now) {
		return
	}
	if !a.may(key) {
		a.p.changes.updated(statusURI)
		return
	}
	a.mu.Lock()
	one.told, one.toldAt = true, now
	copied := *one
	a.mu.Unlock()
	a.tell(copied)
}

// add tells whether an alert is another one than those that are known, and has
// a place among them.
func (a *alerts) add(one *Alert, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.all, func(old *Alert) bool { return old.alertKey == one.alertKey })
	if i >= 0 {
		old := a.all[i]
		outdone := old.Injected != "" && one.Injected == "" // what is real is told, whatever was injected before
		if !outdone && (old.Resolved == nil || now.Sub(old.toldAt) < alertQuiet) {
			if old.Resolved != nil || one.once {
				old.Text, old.Injected, old.once = one.Text, one.Injected, one.once
				old.Resolved, old.told = nil, false
				old.Count++
				a.p.changes.updated(statusURI)
			}
			old.well = time.Time{}
			return false
		}
	} else if len(a.all) >= maxAlerts {
		i = slices.IndexFunc(a.all, func(old *Alert) bool { return old.Resolved != nil })
		if i < 0 && one.many() {
			a.full = true
			return false
		}
	}
	if i >= 0 {
		a.all = slices.Delete(a.all, i, i+1)
	}
	a.all = append(a.all, one)
	return true
}

// many tells whether there may be thousands of its kind at once.
func (k alertKey) many() bool { return k.Rule == ruleBreakerOpen || k.Rule == ruleDefinitionChanged }

// may tells whether an alert can be told now.
func (a *alerts) may(key alertKey) bool { return !key.many() || a.pace.Allow() }

// settle resolves what does not hold any more, tells what could not be told
// before, and returns whether anything is left.
func (a *alerts) settle() (active bool) {
	now := time.Now().UTC()
	a.mu.Lock()
	held := slices.Clone(a.all)
	a.mu.Unlock()
	var news []Alert
	for _, one := range held { // only this goroutine changes them
		if one.Resolved != nil {
			continue
		}
		active = true
		holds := a.holds(one.alertKey)
		a.mu.Lock()
		if a.follow(one, holds, now) {
			news = append(news, *one)
		}
		a.mu.Unlock()
	}
	for _, one := range news {
		a.tell(one)
	}
	return active
}

// follow notes whether the condition holds, and tells whether that is news.
func (a *alerts) follow(one *Alert, holds bool, now time.Time) (news bool) {
	holds = holds || one.once && !one.told
	switch {
	case holds && !one.told && now.Sub(one.toldAt) >= alertQuiet && a.may(one.alertKey):
		one.well, one.told, one.toldAt = time.Time{}, true, now
		return true
	case holds:
		one.well = time.Time{}
	case one.well.IsZero():
		one.well = now
	case now.Sub(one.well) >= alertEvery:
		one.Resolved = &now
		a.p.changes.updated(statusURI)
		return one.told && !one.once
	}
	return false
}

// The values of To in an event of kind alert.
const (
	alertRaised   = "raised"
	alertResolved = "resolved"
)

// state says whether an alert holds.
func (one *Alert) state() string {
	if one.Resolved != nil {
		return alertResolved
	}
	return alertRaised
}

// tell publishes an alert or its end: an event, a line in the log, a log
// message to clients, and the webhook.
func (a *alerts) tell(one Alert) {
	level, line := slog.LevelWarn, "alert"
	if one.Resolved != nil {
		level, line = slog.LevelInfo, "alert is resolved"
	}
	a.p.publishAs(event.Event{
		Kind: event.Alert, Rule: one.Rule, Upstream: one.Upstream, Tool: one.Tool, Provider: one.Provider, To: one.state(), Text: one.Text, Injected: one.Injected,
	}, level, line)
	if a.hook != nil {
		a.hook.send(one)
	}
}

// list is what holds or was resolved lately, the newest first.
func (a *alerts) list() []Alert {
	out := []Alert{}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = slices.DeleteFunc(a.all, func(one *Alert) bool { return one.Resolved != nil && time.Since(*one.Resolved) > alertKept })
	for _, one := range slices.Backward(a.all) {
		out = append(out, *one)
	}
	return out
}

// alertList is what armor.status tells of alerts.
func (p *Proxy) alertList() any {
	return struct {
		Alerts []Alert `json:"alerts"`
	}{p.alerts.list()}
}
