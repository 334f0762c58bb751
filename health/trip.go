package health

// Trip opens a closed breaker, for reasons that were counted elsewhere.
func (b *Breaker) Trip() {
	if b == nil {
		return
	}
	b.mu.Lock()
	from := b.state
	if b.state == BreakerClosed {
		b.failures = max(b.failures, b.o.Failures-1)
		b.countLocked(Failure)
	}
	b.unlock(from)
}
