package mcpproxy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// account is what AgentArmor tells about a call in which it acted: the members
// of _meta["agentarmor/call"].
type account struct {
	outcome, executed string
	reason            string    // "" on success
	retryAt           time.Time // a whole second; zero: unknown
	attempts          int       // told from two on
	injected          string    // the fault that chaos has injected, by its id
	from              string    // what answered instead: "cache", "cached", "result" or "tool"
	tool              string    // with from "tool": as clients know it
	age               time.Duration
}

func (k *call) account(class health.Class, reason string, retryAt time.Time) account {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := account{outcome: class.String(), executed: class.Executed(), reason: reason, retryAt: notEarlier(retryAt), attempts: k.tries, injected: k.injected}
	if k.maybe && a.executed == "no" { // an earlier attempt may have been
		a.executed = "maybe"
	}
	return a
}

// notEarlier is the first whole second that is not before t: what is told has
// whole seconds, and who comes back then must not be too early.
func notEarlier(t time.Time) time.Time { return t.Add(time.Second - 1).Truncate(time.Second) }

// json is the account as raw JSON.
func (a account) json(upstream string) []byte {
	b := append([]byte(`{"upstream":`), wire.AppendString(nil, upstream)...)
	text := func(key, value string) {
		if value != "" {
			b = wire.AppendString(append(b, `,"`+key+`":`...), value)
		}
	}
	text("outcome", a.outcome)
	text("executed", a.executed)
	text("reason", cut(a.reason, 200))
	if !a.retryAt.IsZero() {
		text("retry_at", a.retryAt.UTC().Format(time.RFC3339))
	}
	if a.attempts > 1 {
		b = strconv.AppendInt(append(b, `,"attempts":`...), int64(a.attempts), 10)
	}
	text("injected", a.injected)
	text("answered_from", a.from)
	text("tool", a.tool)
	if a.from == "cache" || a.from == "cached" {
		b = strconv.AppendInt(append(b, `,"age_ms":`...), a.age.Milliseconds(), 10)
		b = strconv.AppendBool(append(b, `,"stale":`...), a.from == "cached")
	}
	return append(b, '}')
}

// unavailable answers a call that was not served: a tool result with isError
// that says what, why, whether it was executed and when to try again; for other
// methods an error with the same data.
func (k *call) unavailable(class health.Class, reason string, retryAt time.Time) {
	if !k.finish(func() { k.unavailable(class, reason, retryAt) }) {
		return
	}
	a := k.account(class, reason, retryAt)
	k.p.observeFailure(k, class, reason)
	k.ended(a)
	text := k.text(a, k.alternatives(a))
	meta := a.json(k.up.cfg.Name)
	if k.r.method != "tools/call" {
		k.r.fail(wire.CodeInternal, text, meta)
		return
	}
	result := append([]byte(`{"content":[{"type":"text","text":`), wire.AppendString(nil, text)...)
	result = append(result, `}],"isError":true,"_meta":{"agentarmor/call":`...)
	result = append(result, meta...)
	if k.r.modern {
		result = append(result, `,"`+wire.MetaPrefix+`serverInfo":`...)
		result = append(result, k.p.info...)
		result = append(result, `},"resultType":"complete"}`...)
	} else {
		result = append(result, `}}`...)
	}
	k.r.answer(result)
}

// text tells an agent in at most 300 characters what to do instead.
func (k *call) text(a account, alternatives []string) string {
	var b strings.Builder
	reason := a.reason
	if !strings.HasPrefix(reason, k.up.cfg.Name+" is ") {
		reason = k.up.cfg.Name + ": " + reason
	}
	fmt.Fprintf(&b, "%s is unavailable: %s.", cut(k.asClients, 80), cut(reason, 120))
	switch {
	case a.executed == "no":
		b.WriteString(" It was not executed.")
	case k.idempotent():
		b.WriteString(" It may have been executed; to repeat it does no harm.")
	default:
		b.WriteString(" It may have been executed: check before you repeat it.")
	}
	if !a.retryAt.IsZero() {
		fmt.Fprintf(&b, " Do not retry before %s.", a.retryAt.UTC().Format(time.RFC3339))
	}
	if alternatives != nil {
		if text := fmt.Sprintf(" Alternative: %s.", strings.Join(alternatives, " or ")); b.Len()+len(text) <= 300 {
			b.WriteString(text)
		}
	}
	return cut(b.String(), 300)
}

// alternatives are read-only tools of the same name at servers that work, as
// clients know them. Of what changes something, and of what may have been done,
// none is told: another server is another effect.
func (k *call) alternatives(a account) []string {
	if k.r.method != "tools/call" || a.executed != "no" {
		return nil
	}
	return k.p.alternatives(k.up, k.name)
}

func (p *Proxy) alternatives(up *upstream, original string) (names []string) {
	for _, e := range p.cat.Load().entries[tools] {
		if e.original != original || e.hidden || !hinted(e.raw, "readOnlyHint") {
			continue
		}
		if other := p.upstream(e.upstream); other != nil && other != up && other.works(original) {
			names = append(names, e.exposed)
		}
	}
	slices.Sort(names)
	return names[:min(len(names), 2)]
}

// works tells whether a tool of the upstream is expected to answer.
func (up *upstream) works(tool string) bool {
	return up.shared.live() != nil && up.guard.tool(tool).breaker.Closed()
}
