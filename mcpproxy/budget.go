package mcpproxy

import "time"

// budget is the time one call may take: a timeout that progress extends, and a
// cap that nothing extends. It pauses while a person is asked for input. The
// owner's lock guards it; expire runs without that lock.
type budget struct {
	timeout  time.Duration
	began    time.Time
	deadline time.Time // of the cap
	expires  time.Time // when the timer fires
	timer    *time.Timer
	pausedAt time.Time // zero: running
}

func (b *budget) start(timeout, limit time.Duration, expire func()) {
	b.timeout, b.began = min(timeout, limit), time.Now()
	b.deadline = b.began.Add(limit)
	b.expires = b.began.Add(b.timeout)
	b.timer = time.AfterFunc(b.timeout, expire)
}

// renew starts the timer anew after it was stopped.
func (b *budget) renew() {
	rest := min(b.timeout, time.Until(b.deadline))
	b.expires = time.Now().Add(rest)
	b.timer.Reset(rest)
}

// rest is what is left of the budget.
func (b *budget) rest() time.Duration { return time.Until(b.expires) }

// extend gives the call its timeout anew, never past the cap.
func (b *budget) extend() {
	if b.timer != nil && b.pausedAt.IsZero() && b.timer.Stop() {
		b.renew()
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
		b.renew()
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
