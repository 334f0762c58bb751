package mcpproxy

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// Calls wait at the guard for a token, for a place, or for their next attempt.
// Whoever ends a call, or the upstream, ends that too.

// await lets a call wait for its token; false: its upstream is gone.
func (k *call) await(turn *rate.Reservation, wait time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.overLocked() {
		turn.Cancel()
		return true
	}
	k.turn = turn
	return k.afterLocked(wait, k.enter)
}

// afterLocked goes on with f after a while, unless the call ends before; false:
// its upstream is gone.
func (k *call) afterLocked(wait time.Duration, f func()) bool {
	g := k.up.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.pausing[k] = true
	k.later = time.AfterFunc(wait, func() {
		defer wire.OnPanic()
		if g.resumes(k) {
			f()
		}
	})
	return true
}

// resumes ends a pause of k; false: it was ended by close.
func (g *guard) resumes(k *call) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.pausing[k]
	delete(g.pausing, k)
	return was
}

// waiting tells whether calls wait that are not under way.
func (g *guard) waiting() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, queued := g.places.load()
	return queued > 0 || len(g.pausing) > 0
}

// close gives up the calls that wait for a token or their next attempt, once
// the upstream is stopped. Those in the queue find that themselves.
func (g *guard) close() {
	g.mu.Lock()
	g.closed = true
	calls := g.pausing
	g.pausing = map[*call]bool{}
	g.mu.Unlock()
	for k := range calls {
		k.upstreamGone()
	}
}

// upstreamGone gives up a call whose upstream was removed before its turn.
func (k *call) upstreamGone() {
	k.mu.Lock()
	last := k.failure
	k.mu.Unlock()
	if last.reason == "" {
		last = lastFailure{health.NotSent, k.up.cfg.Name + " is stopped"}
	}
	k.giveUp(last.class, last.reason, time.Time{})
}

// overLocked tells that no attempt is to follow: the call has ended, its time is
// over, or what stands in for it is tried.
func (k *call) overLocked() bool { return k.done || k.spent || k.fallback != nil }

// stopWaitingLocked gives up the call's token, place and next attempt.
func (k *call) stopWaitingLocked() {
	if k.later != nil && k.later.Stop() {
		k.up.guard.resumes(k)
	}
	if k.turn != nil {
		k.turn.Cancel()
		k.turn = nil
	}
	k.giveWay()
}
