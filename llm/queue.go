package llm

import (
	"context"
	"fmt"
	"time"
)

// pollTrial is how soon a call looks again at an entry that others are trying.
const pollTrial = 250 * time.Millisecond

// wait sleeps until an entry can be asked again: after a delay of this call's
// own, or, in the queue, when the entry is expected to recover. It returns false
// if that is not within the budget or the call's time in the queue.
func (r *run) wait(ctx context.Context) bool {
	changed := r.c.changed.wait() // what changes from here on ends the sleep
	at, e, recovery := r.earliest(time.Now(), false)
	if recovery && !r.enqueue() {
		at, e, recovery = r.earliest(time.Now(), true)
	}
	limit := r.deadline
	if recovery {
		limit = earlier(limit, r.queued.Add(r.c.o.Queue.Wait))
	}
	if e == nil || ctx.Err() != nil || !at.Before(limit) {
		return false
	}
	d := time.Until(at)
	if d <= 0 {
		return true // others took so long
	}
	r.t.next(fmt.Sprintf("waits %s for %s", d.Round(time.Millisecond), e.Name))
	sleep := time.NewTimer(d)
	defer sleep.Stop()
	if !recovery {
		changed = nil
	}
	select {
	case <-sleep.C:
	case <-changed:
	case <-ctx.Done():
		return false
	}
	return true
}

// earliest returns the entry that this call can ask first, and when. recovery
// is whether that depends on the entry's state and not only on this call's
// own delay; own leaves those entries out.
func (r *run) earliest(now time.Time, own bool) (at time.Time, first *entry, recovery bool) {
	for _, e := range r.order {
		t := r.try(e)
		if t.dead {
			continue
		}
		when, shared := t.notBefore, false
		_, until := e.blocked(now, r.q.need)
		for _, other := range []time.Time{until, t.poll} {
			if other.After(when) && other.After(now) {
				when, shared = other, true
			}
		}
		if shared && own {
			continue
		}
		if first == nil || when.Before(at) {
			at, first, recovery = when, e, shared
		}
	}
	return at, first, recovery
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// enqueue takes a place among those who wait for a recovery.
func (r *run) enqueue() bool {
	if r.waiting {
		return true
	}
	select {
	case r.c.queue <- struct{}{}:
	default:
		return false
	}
	r.waiting, r.queued = true, time.Now()
	return true
}

func (r *run) leaveQueue() {
	if r.waiting {
		<-r.c.queue
	}
}

// giveUp ends a call that no entry has answered: with the apology if asking
// later may help, with the first entry's reason if not.
func (r *run) giveUp() (*Response, error) {
	if r.caller.Err() != nil {
		return r.failed(&Error{
			Class: ClassCancelled, RetryAfter: -1, Message: shorten(context.Cause(r.caller).Error()), Err: context.Cause(r.caller),
		})
	}
	if r.cut != nil {
		if r.emit != nil { // nothing else was: what is emitted is never cut like this
			r.emit(r.cut.Text)
		}
		return r.answered(r.cut)
	}
	now := time.Now()
	outage, reason := false, (*Error)(nil)
	for _, e := range r.order {
		err := r.try(e).err
		switch why, _ := e.blocked(now, r.q.need); {
		case err == nil && (why == SkipAuth || why == SkipGone):
			err = e.resting(why)
		case err == nil && r.try(e).dead:
			err = newError(ClassRejected, "no model of the chain can take the request (%s)", r.try(e).skipped)
		case err == nil, classes[err.Class].outage:
			outage = true
		}
		if reason == nil {
			reason = err
		}
	}
	if outage {
		return r.degraded(now)
	}
	return r.failed(reason)
}

func (r *run) degraded(now time.Time) (*Response, error) {
	var notBefore time.Time
	for _, e := range r.order {
		when := r.try(e).notBefore
		if _, until := e.blocked(now, r.q.need); until.After(when) {
			when = until
		}
		if when.After(now) && (notBefore.IsZero() || when.Before(notBefore)) {
			notBefore = when
		}
	}
	if notBefore.IsZero() {
		notBefore = now.Add(r.c.o.Backoff.Max)
	}
	r.t.next(string(ClassDegraded))
	t := r.trace()
	t.Outcome = ClassDegraded
	resp := &Response{Text: r.c.o.DegradedMessage, Degraded: true, NotBefore: notBefore}
	until := &notBefore
	if r.tooShort() {
		resp.Text += fmt.Sprintf(" The timeout of %s was too short for an answer: ask again with a longer one.", r.q.Timeout)
		resp.NotBefore, until = time.Time{}, nil
	}
	r.c.event(Event{Kind: EventOutage, Until: until, Injected: t.Injected()})
	return r.end(resp, nil, t)
}

// tooShort tells whether nobody has answered only because the caller gave
// nobody the time.
func (r *run) tooShort() bool {
	if r.tried || r.q.Timeout <= 0 || r.q.Timeout >= r.c.o.Timeout {
		return false
	}
	if !time.Now().Before(r.deadline) {
		return true
	}
	for _, t := range r.tries {
		if t.sent > 0 {
			return true
		}
	}
	return false
}
