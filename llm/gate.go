package llm

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentarmor/agentarmor/health"
)

// gate keeps a crowd from an entry of which nobody knows whether it works:
// until one call has succeeded since the last failure, only few are sent at
// once. The others wait for how those end, or ask another entry. It is what
// bounds the requests that reach a dead provider before its breaker has counted
// to its threshold.
type gate struct {
	slots int          // calls at once while not known to work
	known atomic.Int32 // what the latest call to end has shown: a knowledge

	mu     sync.Mutex
	trials int
	bell   bell
}

// What is known about an entry.
const (
	nothing int32 = iota // at first
	works
	failing
)

// patience is how long a call waits at a gate while it can ask another entry
// instead; not at all once this one has failed.
const patience = 2 * time.Second

// enter waits for its turn; it returns at once while the breaker, which lets
// one call through at a time, decides. trial is for leave.
func (g *gate) enter(ctx context.Context, b *health.Breaker, alone bool) (trial bool, err error) {
	if !alone && g.known.Load() != works {
		most := patience
		if g.known.Load() == failing {
			most = 0
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, most)
		defer cancel()
	}
	for g.known.Load() != works && b.Closed() {
		g.mu.Lock()
		changed := g.bell.wait()
		if g.trials < g.slots {
			g.trials++
			g.mu.Unlock()
			return true, nil
		}
		g.mu.Unlock()
		if g.known.Load() == works || !b.Closed() {
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
	if !trial && v != health.Failure && g.known.Load() == works {
		return
	}
	switch v {
	case health.Success:
		g.known.Store(works)
	case health.Failure:
		g.known.Store(failing)
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
	if g.known.Swap(works) != works {
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
