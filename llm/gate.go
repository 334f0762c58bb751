package llm

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/agentarmor/agentarmor/health"
)

// gate keeps a crowd from an entry of which nobody knows whether it works:
// until one call has succeeded since the last failure, only few are sent at
// once, and the others wait for how those end. It is what bounds the requests
// that reach a dead provider before its breaker has counted to its threshold.
type gate struct {
	slots  int         // calls at once while unproven
	proven atomic.Bool // the latest call to end has shown that the entry works

	mu     sync.Mutex
	trials int
	bell   bell
}

// enter waits for its turn; it returns at once while the breaker, which lets
// one call through at a time, decides. trial is for leave.
func (g *gate) enter(ctx context.Context, b *health.Breaker) (trial bool, err error) {
	for !g.proven.Load() && b.Closed() {
		g.mu.Lock()
		changed := g.bell.wait()
		if g.trials < g.slots {
			g.trials++
			g.mu.Unlock()
			return true, nil
		}
		g.mu.Unlock()
		if g.proven.Load() || !b.Closed() {
			return false, nil // it rang before we listened
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	return false, nil
}

// leave ends a call that entered; its outcome is told to the breaker before.
func (g *gate) leave(trial bool, v health.Verdict) {
	if !trial && v != health.Failure && g.proven.Load() {
		return
	}
	switch v {
	case health.Success:
		g.proven.Store(true)
	case health.Failure:
		g.proven.Store(false)
	}
	g.mu.Lock()
	if trial {
		g.trials--
	}
	g.mu.Unlock()
	g.bell.ring()
}

// alive lets everybody in, before the call that has shown it ends.
func (g *gate) alive() {
	if !g.proven.Swap(true) {
		g.bell.ring()
	}
}

// bell wakes all who wait for it. The zero value is ready.
type bell struct {
	mu sync.Mutex
	ch chan struct{}
}

// wait returns a channel that is closed by the next ring.
func (b *bell) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}
