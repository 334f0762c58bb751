package mcpproxy

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/agentarmor/agentarmor/health"
)

const (
	retryReserve = 10              // retries that need no calls to pay for them …
	retryRefill  = 5 * time.Second // … of which one comes back so often
)

// retryBudget holds the retries of an upstream to a share of its calls, so that
// an outage is not multiplied by those who meet it. A small reserve serves an
// upstream with little traffic.
type retryBudget struct {
	share float64 // retries that one call pays for; 0: no retries at all

	mu     sync.Mutex
	tokens float64
	last   time.Time
}

func newRetryBudget(share float64) *retryBudget {
	return &retryBudget{share: share, tokens: retryReserve, last: time.Now()}
}

// earn is called once per call.
func (b *retryBudget) earn() {
	b.mu.Lock()
	b.tokens = min(b.tokens+b.share, retryReserve)
	b.mu.Unlock()
}

// take tells whether one more retry is within the budget.
func (b *retryBudget) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.tokens = min(b.tokens+float64(now.Sub(b.last))/float64(retryRefill), retryReserve)
	b.last = now
	if b.share == 0 || b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// retry makes a call that failed again, after a while; false: it is not to be,
// or there is no time left for it.
func (k *call) retry(class health.Class, notBefore time.Time) bool {
	switch class.Retry() {
	case health.Never:
		return false
	case health.IfIdempotent:
		if !k.idempotent() {
			return false
		}
	}
	g := k.up.guard
	k.mu.Lock()
	defer k.mu.Unlock()
	waits := class == health.RateLimited && !k.sent // nothing was tried
	switch {
	case k.overLocked():
		return true
	case !waits && k.retries >= k.up.cfg.Retry.attempts(), k.questioned:
		return false
	}
	delay := g.backoff(k.retries)
	if wait := time.Until(notBefore); wait > delay {
		delay = wait + spread(wait)
	}
	// What has not been sent costs the upstream nothing.
	if delay >= k.budget.rest() || class.Retry() != health.Later && !g.retries.take() || !k.afterLocked(delay, k.try) {
		return false
	}
	if !waits {
		k.retries++
		k.p.metrics.Retry(k.up.cfg.Name, k.injected != "")
	}
	return true
}

// backoff is the pause before a retry: exponential, ±20 %.
func (g *guard) backoff(retries int) time.Duration {
	b := backoff{base: g.cfg.Retry.base(), max: g.cfg.Retry.max(), failures: retries}
	return b.next()
}

// spread keeps those who were all told the same time from coming back at once.
func spread(wait time.Duration) time.Duration {
	return rand.N(min(wait/5+100*time.Millisecond, 2*time.Second))
}

func (c *RetryConfig) attempts() int       { return orNil(c.Attempts, 2) }
func (c *RetryConfig) base() time.Duration { return orDefault(c.Base, 200*time.Millisecond) }
func (c *RetryConfig) max() time.Duration  { return max(c.base(), orDefault(c.Max, 5*time.Second)) }
func (c *RetryConfig) budget() float64     { return orNil(c.Budget, 0.2) }

func orNil[T any](p *T, def T) T {
	if p == nil {
		return def
	}
	return *p
}
