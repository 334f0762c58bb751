package mcpproxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// verifyWithin bounds the exchange that tells a lost call from a lost server.
const verifyWithin = 5 * time.Second

// watch waits for the end of c and sets the state meanwhile. A single failed
// call ends nothing: a server that answers an exchange of ours stays in service.
func (in *instance) watch(ctx context.Context, c *conn) error {
	now := standing{state: health.Starting}
	if !in.o.lists {
		now.state = health.Ready
	}
	var v vitals
	var rested <-chan time.Time // ends a 429
	var verified <-chan error   // the outcome of an exchange under way
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.done:
			return endOf(c)
		case <-c.expired:
			return errSessionLost
		case e := <-c.trouble:
			in.tracker.Failed(in.secrets.mask(e.Error()))
			switch {
			case isThrottled(e) || e.Status == 401:
				err = e
			case verified == nil:
				verified = c.verifySoon(ctx)
			}
		case err = <-verified:
			verified = nil
		case err = <-c.probed:
			err = in.probed(c, &v, err)
		case <-rested:
			rested = nil
			in.enter(serving, c)
			c.lists.repeat()
		case <-in.wake:
			if rested != nil {
				rested = time.After(0)
			}
		case now = <-c.lists.standing:
			in.tracker.Succeeded()
		case <-in.replan:
		}
		if e, ok := errors.AsType[*wire.Error](err); ok && isThrottled(e) {
			rested = time.After(in.throttle(e))
		} else if err != nil {
			return err
		}
		if rested == nil {
			in.stand(c, now, &v)
		}
	}
}

// stand puts c in or out of service as its breaker says, and sets the state.
func (in *instance) stand(c *conn, now standing, v *vitals) {
	if !in.breaker.Closed() {
		if in.live() != nil {
			in.enter(serving, nil)
			if v.misses == 0 { // it was the calls that failed
				in.prober.Load().Kick()
			}
		}
		in.tracker.Set(health.Down, in.secrets.mask(in.why(v)), in.nextProbe())
		return
	}
	if in.live() != c {
		in.enter(serving, c)
	}
	state, reason, next := now.state, now.reason, time.Time{}
	if broken, until := in.brokenTools(); broken != "" && (state == health.Ready || state == health.Degraded) {
		state, next = health.Degraded, until
		if reason != "" {
			reason += "; "
		}
		reason += broken
	}
	in.tracker.Set(state, in.secrets.mask(reason), next)
}

// throttle takes the connection out of service, for the time returned.
func (in *instance) throttle(e *wire.Error) time.Duration {
	delay := throttleDelay(e)
	in.rest(e)
	in.enter(serving, nil)
	in.tracker.Set(health.Throttled, "HTTP status 429", time.Now().Add(delay))
	return delay
}

func throttleDelay(err *wire.Error) time.Duration { return max(err.RetryAfter, throttleAtMin) }

// verifySoon runs verify beside the calls.
func (c *conn) verifySoon(ctx context.Context) <-chan error {
	verified := make(chan error, 1)
	c.work.Go(func() {
		defer wire.OnPanic()
		silent := &wire.Error{Kind: wire.Lost, Err: fmt.Errorf("no answer within %v", verifyWithin)}
		ctx, cancel := context.WithTimeoutCause(ctx, verifyWithin, silent)
		defer cancel()
		err := c.verify(ctx, false)
		if e, ok := errors.AsType[*wire.Error](err); ok && refusesOnly(e) {
			err = nil // it is there
		}
		verified <- err
	})
	return verified
}

// refusesOnly tells whether a server has refused a request, and no more.
func refusesOnly(e *wire.Error) bool {
	return e.Kind == wire.HTTPStatus && e.Status < 500 && !isAuth(e) && !isThrottled(e)
}

// verify makes an exchange that a living server answers, if only with an
// error: a ping, or a list for servers that ignore those. Otherwise it returns how that failed.
func (c *conn) verify(ctx context.Context, list bool) error {
	method := "ping"
	switch {
	case list:
		method = "tools/list"
	case c.modern:
		method = "server/discover"
	}
	_, err := c.call(ctx, method, nil)
	e, ok := errors.AsType[*wire.Error](err)
	if ok && e.Kind == wire.Lost && ctx.Err() == nil {
		// It may have met another idle connection that the server has closed.
		_, err = c.call(ctx, method, nil)
		e, ok = errors.AsType[*wire.Error](err)
	}
	switch {
	case !ok:
		return err
	case e.Kind == wire.SessionLost:
		return errSessionLost
	}
	return e
}
