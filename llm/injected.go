package llm

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// mark is where an attempt learns that a fault was injected into it.
type mark struct{ fault atomic.Pointer[string] }

type markKey struct{}

// withMark returns a context whose requests can be marked.
func withMark(ctx context.Context) (context.Context, *mark) {
	m := &mark{}
	return context.WithValue(ctx, markKey{}, m), m
}

// MarkInjected notes, for the trace, the id of a fault that was injected on
// purpose into the request with this context. It is for a Transport; contexts of
// other requests are left alone.
func MarkInjected(ctx context.Context, fault string) {
	if m, ok := ctx.Value(markKey{}).(*mark); ok {
		m.fault.Store(&fault)
	}
}

// text is the id of the fault, "" if there was none.
func (m *mark) text() string {
	if f := m.fault.Load(); f != nil {
		return *f
	}
	return ""
}

// injected is the fault behind the entry's last failure, and so behind its
// breaker; "": none.
func (e *entry) injected() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fault
}

// Forgive has entries asked again that are left alone because of a fault, see
// [MarkInjected]: for what it made them say, or with a breaker that it opened. It
// is for the end of the fault.
func (c *Chain) Forgive(fault string) {
	for _, e := range c.entries {
		e.mu.Lock()
		if e.asked == fault {
			e.until, e.asked = time.Time{}, ""
		}
		broken := e.fault == fault
		e.mu.Unlock()
		if broken {
			e.breaker.Reset()
		}
	}
	c.changed.ring()
}

// passed notes that an entry is not asked, why, and the fault behind that.
func (a *Attempt) passed(e *entry, why Skip) {
	a.Skipped = why
	switch why {
	case SkipOpen, SkipBusy:
		a.Injected = e.injected()
	case SkipThrottled, SkipQuota, SkipAuth, SkipGone:
		e.mu.Lock()
		a.Injected = e.asked
		e.mu.Unlock()
	}
}

// Injected is the id of the last fault that had a part in an attempt, or in that
// an entry was not asked; "": none had.
func (t *Trace) Injected() string {
	for _, a := range slices.Backward(t.Attempts) {
		if a.Injected != "" {
			return a.Injected
		}
	}
	return ""
}
