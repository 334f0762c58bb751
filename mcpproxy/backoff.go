package mcpproxy

import (
	"math/rand/v2"
	"time"
)

// backoff paces repeated attempts: the delay doubles from base to max, each
// time ±20 % so that those who failed together do not come back together.
type backoff struct {
	base, max time.Duration
	failures  int // in a row
}

// next returns the delay before the next attempt.
func (b *backoff) next() time.Duration {
	d := b.max
	// 2^20 base is beyond any max in use, and a shift never overflows.
	if b.failures < 20 {
		d = min(b.base<<b.failures, b.max)
	}
	b.failures++
	return jitter(d)
}

// slowest returns the longest delay, for what fails whatever the pace.
func (b *backoff) slowest() time.Duration {
	b.failures++
	return jitter(b.max)
}

func (b *backoff) reset() { b.failures = 0 }

// jitter returns d ± 20 %.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
