package mcpproxy

import (
	"fmt"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// budget is the time one call may take: a timeout that progress extends, and a
// cap that nothing extends. It pauses while a person is asked for input. The
// owner's lock guards it; expire runs without that lock.
type budget struct {
	timeout  time.Duration
	began    time.Time
	deadline time.Time // of the cap
	timer    *time.Timer
	pausedAt time.Time // zero: running
}

func (b *budget) start(timeout, limit time.Duration, expire func()) {
	b.timeout, b.began = min(timeout, limit), time.Now()
	b.deadline = b.began.Add(limit)
	b.timer = time.AfterFunc(b.timeout, expire)
}

// extend gives the call its timeout anew, never past the cap.
func (b *budget) extend() {
	if b.timer != nil && b.pausedAt.IsZero() && b.timer.Stop() {
		b.timer.Reset(min(b.timeout, time.Until(b.deadline)))
	}
}

// pause stops the clock, resume starts it with a fresh timeout and moves the cap
// by the time it stood still.
func (b *budget) pause() {
	if b.timer != nil && b.pausedAt.IsZero() && b.timer.Stop() {
		b.pausedAt = time.Now()
	}
}

func (b *budget) resume() {
	if b.timer != nil && !b.pausedAt.IsZero() {
		b.deadline = b.deadline.Add(time.Since(b.pausedAt))
		b.pausedAt = time.Time{}
		b.timer.Reset(min(b.timeout, time.Until(b.deadline)))
	}
}

func (b *budget) stop() {
	if b.timer != nil {
		b.timer.Stop()
	}
}

// spent is what to tell about a budget that ran out: the timeout, or the cap.
func (b *budget) spent() time.Duration {
	if time.Until(b.deadline) <= 0 {
		return b.deadline.Sub(b.began).Round(time.Millisecond)
	}
	return b.timeout
}

// unavailable answers a call that was not served: a tool result with isError
// that says what, why, whether it was executed and when to try again; for other
// methods an error with the same data.
func (k *call) unavailable(class health.Class, reason string, retryAt time.Time) {
	if !k.finish(func() { k.unavailable(class, reason, retryAt) }) {
		return
	}
	k.p.observeFailure(k, class, reason)
	text := k.text(class, reason, retryAt)
	meta := k.callMeta(class, reason, retryAt)
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
func (k *call) text(class health.Class, reason string, retryAt time.Time) string {
	var b strings.Builder
	executed := class.Executed()
	if !strings.HasPrefix(reason, k.up.cfg.Name+" is ") {
		reason = k.up.cfg.Name + ": " + reason
	}
	fmt.Fprintf(&b, "%s is unavailable: %s.", cut(k.asClients, 80), cut(reason, 140))
	switch executed {
	case "no":
		b.WriteString(" It was not executed.")
	default:
		b.WriteString(" It may have been executed: check before you repeat it.")
	}
	if !retryAt.IsZero() {
		fmt.Fprintf(&b, " Do not retry before %s.", retryAt.UTC().Format(time.RFC3339))
	}
	return cut(b.String(), 300)
}

// callMeta is the machine-readable twin of text: _meta["agentarmor/call"].
func (k *call) callMeta(class health.Class, reason string, retryAt time.Time) []byte {
	b := append([]byte(`{"upstream":`), wire.AppendString(nil, k.up.cfg.Name)...)
	b = append(b, `,"outcome":`...)
	b = wire.AppendString(b, class.String())
	b = append(b, `,"executed":`...)
	b = wire.AppendString(b, class.Executed())
	b = append(b, `,"reason":`...)
	b = wire.AppendString(b, cut(reason, 200))
	if !retryAt.IsZero() {
		b = append(b, `,"retry_at":`...)
		b = wire.AppendString(b, retryAt.UTC().Format(time.RFC3339))
	}
	return append(b, '}')
}
