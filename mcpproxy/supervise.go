package mcpproxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

const (
	stableAfter   = time.Minute      // of service, after which the backoff begins anew
	fastExit      = 10 * time.Second // an exit within this of the start is part of a crash loop
	crashLoopAt   = 5                // fast exits in a row
	maxFastLosses = 3                // of sessions, in the same sense
	authRetry     = 5 * time.Minute
	throttleAtMin = time.Second      // for a 429 that names no time
	stopWithin    = 10 * time.Second // for a connection that ends while we go on
)

// errSessionLost ends the service of a connection whose session is forgotten.
var errSessionLost = errors.New("the server has forgotten the session")

// run connects, serves and waits, until ctx ends.
func (in *instance) run(ctx context.Context) {
	defer wire.OnPanic()
	defer in.enter(ended, nil)
	for ctx.Err() == nil {
		in.enter(connecting, nil)
		in.tracker.Set(health.Starting, "", time.Time{})
		c, err := in.connect(ctx)
		if err == nil {
			err = in.serve(ctx, c)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errSessionLost) && in.renewsAtOnce(c):
			continue // the server is well, and calls wait for the new session
		}
		in.pause(ctx, err)
	}
}

// renewsAtOnce tells whether a lost session is replaced without a pause: not
// when the server loses one after the other.
func (in *instance) renewsAtOnce(c *conn) bool {
	if time.Since(c.started) >= fastExit {
		in.fastLosses = 0
	}
	in.fastLosses++
	return in.fastLosses <= maxFastLosses
}

// serve is the life of a connection after its handshake. It returns why that ended.
func (in *instance) serve(ctx context.Context, c *conn) error {
	in.breaker.Reset() // the handshake was the good probe
	if in.outage {
		in.outage = false
		in.recovered()
	}
	in.enter(serving, c)
	began := time.Now()
	work, cancel := context.WithCancel(ctx)
	c.work.Go(func() { in.keepWanted(work, c) })
	if in.up == nil || !in.up.p.cfg.Anew { // a check makes each probe once, and of the harmless alone
		c.work.Go(func() { in.probe(work, c) })
		c.work.Go(func() { in.probeTools(work, c) })
	}
	if in.o.lists {
		c.work.Go(func() { c.lists.run(work) })
	} else {
		in.tracker.Set(health.Ready, "", time.Time{})
	}
	err := in.watch(work, c)
	in.enter(ending, nil)
	cancel()
	c.work.Wait()
	in.countExit(c)
	in.retire(ctx, c, err)
	if time.Since(began) >= stableAfter {
		in.backoff.reset()
	}
	return err
}

// retire ends a connection. One that has not failed as a whole keeps the calls
// that are under way on it, in the background.
func (in *instance) retire(ctx context.Context, c *conn, err error) {
	_, inPart := errors.AsType[*wire.Error](err)
	select {
	case <-c.done:
		inPart = false
	default:
	}
	if ctx.Err() != nil || !(inPart || errors.Is(err, errSessionLost)) {
		in.closeConn(c)
		return
	}
	in.wg.Go(func() {
		defer wire.OnPanic()
		wait := time.NewTimer(in.o.cfg.maxCallTime())
		defer wait.Stop()
		select {
		case <-c.drain():
		case <-wait.C:
		case <-c.done:
		case <-ctx.Done():
		}
		in.closeConn(c)
	})
}

// closeConn closes the peer, fails what still waits and tells that c is gone.
func (in *instance) closeConn(c *conn) {
	in.mu.Lock()
	ctx := in.stopCtx
	in.mu.Unlock()
	if ctx == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.Background(), stopWithin)
		defer cancel()
	}
	c.peer.Close(ctx)
	stats := c.peer.Stats()
	stats.Pid = 0
	in.mu.Lock()
	if in.last == c {
		in.last, in.lastStats = nil, stats
	}
	in.mu.Unlock()
	c.fail(&wire.Error{Kind: wire.Lost, Err: errGone})
	if c.opened.Load() {
		in.o.hooks.lost(c)
	}
}

// pause sets the state that err asks for and waits for the next attempt.
func (in *instance) pause(ctx context.Context, err error) {
	in.outage = true
	in.rest(err)
	state, delay, held := in.verdict(err)
	next := time.Now().Add(delay)
	in.tracker.Failed(in.secrets.mask(err.Error()))
	select {
	case <-in.wake: // of a pause that is over
	default:
	}
	in.tracker.Set(state, in.secrets.mask(reason(state, err)), next)
	in.mu.Lock()
	in.held = held
	in.enterLocked(pausing, nil)
	in.mu.Unlock()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-in.wake:
	case <-ctx.Done():
	}
}

// verdict decides how to go on after err: the state, how long to wait, and
// whether a call may cut that short.
func (in *instance) verdict(err error) (state health.State, delay time.Duration, held bool) {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		switch {
		case isAuth(e):
			return health.NeedsAuth, jitter(authRetry), true
		case isThrottled(e):
			return health.Throttled, max(throttleDelay(e), in.backoff.next()), true
		case e.RetryAfter > 0:
			return health.Down, max(e.RetryAfter, in.backoff.next()), true
		}
	}
	if in.fastExits >= crashLoopAt {
		return health.CrashLoop, in.backoff.slowest(), false
	}
	return health.Down, in.backoff.next(), false
}

// reason says in a few words why an upstream cannot be used.
func reason(state health.State, err error) string {
	if state == health.CrashLoop {
		return fmt.Sprintf("it ends again and again right after its start, last: %v", err)
	}
	return err.Error()
}

// countExit counts the ends of processes that come right after their start.
func (in *instance) countExit(c *conn) {
	select {
	case <-c.done:
	default:
		return
	}
	switch {
	case c.transport != "stdio":
	case time.Since(c.started) < fastExit:
		in.fastExits++
	default:
		in.fastExits = 0
	}
}
