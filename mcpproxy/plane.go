package mcpproxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// The server plane of an instance answers one question: can the server be
// reached? Calls and probes feed its breaker; once that is open no call is
// sent, and probes try the server until one is answered. A process that answers
// nothing at all for twice as many probes as make it down, with no call of a
// client under way, is started anew.

// errUnresponsive ends a connection whose server answers nothing.
var errUnresponsive = errors.New("the server answers nothing any more")

// errMissed is a probe without an answer in time.
var errMissed = errors.New("a probe was not answered")

// newBreaker returns the server plane's breaker, nil if it is switched off.
func (in *instance) newBreaker() *health.Breaker {
	if !orNil(in.o.cfg.Breaker.Enabled, true) {
		return nil
	}
	o := in.o.cfg.Breaker.options()
	o.Manual = true
	o.OnChange = func(from health.BreakerState, now health.BreakerSnapshot) {
		in.reconsider()
		if in.up != nil && in == in.up.shared {
			in.up.p.breakerChanged(in.up, "", from, now)
		}
	}
	return health.NewBreaker(o)
}

// reconsider has the state of the instance looked at again, soon.
func (in *instance) reconsider() {
	select {
	case in.replan <- struct{}{}:
	default:
	}
}

// note feeds the server plane with the outcome of a call that began at a time.
func (in *instance) note(class health.Class, reason string, began time.Time) {
	switch v := class.Server(); v {
	case health.Success:
		in.breaker.Record(v)
	case health.Failure:
		in.tracker.Failed(reason)
		in.mu.Lock()
		news := newLoss(class, began, &in.lastLoss)
		in.mu.Unlock()
		if news {
			in.breaker.Record(v)
		}
	case health.Ask:
		if !in.throttled() {
			in.prober.Load().Kick()
		}
	}
}

// probe asks the server of c again and again whether it works, and hands each
// outcome to watch.
func (in *instance) probe(ctx context.Context, c *conn) {
	defer wire.OnPanic()
	cfg := &in.o.cfg.Probe
	every := cfg.every()
	p := health.NewProber(health.ProbeOptions{
		Name: in.o.cfg.Name, Every: every, EveryDown: cfg.everyDown(), Timeout: cfg.timeout(),
		Check: func(ctx context.Context) error { return in.check(ctx, c) },
		Down:  func() bool { return in.live() != c || c.missed.Load() > 0 },
		Skip:  func() bool { return in.throttled() || c.missed.Load() == 0 && in.live() == c && c.busy(every) },
		Result: func(err error) {
			if c.missed.Add(1); err == nil {
				c.missed.Store(0)
			}
			select {
			case c.probed <- err:
			case <-ctx.Done():
			}
		},
	})
	in.prober.Store(p)
	p.Run(ctx)
}

// busy tells whether there is traffic that shows how the server is doing.
func (c *conn) busy(lately time.Duration) bool {
	return len(c.routed()) > 0 || time.Since(c.lastUsed()) < lately
}

// nextProbe is when a server that is out of service is tried again, if not by the
// probe under way or asked for.
func (in *instance) nextProbe() time.Time {
	now := time.Now()
	latest := now.Add(in.o.cfg.Probe.everyDown())
	if next := in.prober.Load().Next(); next.After(now) && next.Before(latest) {
		return next
	}
	return latest
}

// throttled tells whether the server asked to be left alone.
func (in *instance) throttled() bool { return in.tracker.Snapshot().State == health.Throttled }

// check is one probe: the canary of the configuration, or an exchange that any
// living server answers.
func (in *instance) check(ctx context.Context, c *conn) error {
	if tool := in.o.cfg.Probe.Tool; tool != "" {
		if in.offers(tool) {
			return in.canary(ctx, c)
		}
		in.noCanary.Do(func() { in.log.Warn("probe.tool is not listed, so the server is probed by a ping", "tool", tool) })
	}
	asked := time.Now()
	err := c.verify(ctx, c.missed.Load()%2 == 1)
	e, ok := errors.AsType[*wire.Error](err)
	switch {
	case ok && refusesOnly(e): // no MCP server any more, if every request is
		return errors.New(e.Error())
	case ctx.Err() == nil:
		return err
	case c.lastHeard().After(asked):
		return nil // it says something, if not this
	}
	return errMissed
}

// offers tells whether the server lists a tool, as far as is known.
func (in *instance) offers(tool string) bool {
	return in.up == nil || !in.o.lists || in.listing() == nil || in.up.guard.listed(tool)
}

// canary probes the server by the tool that the configuration names.
func (in *instance) canary(ctx context.Context, c *conn) error {
	cfg := &in.o.cfg.Probe
	err := c.synthetic(ctx, cfg.Tool, cfg.Arguments, cfg.Expect)
	e, ok := errors.AsType[*wire.Error](err)
	if ok && e.Kind == wire.Lost { // as in verify
		err = c.synthetic(ctx, cfg.Tool, cfg.Arguments, cfg.Expect)
		e, ok = errors.AsType[*wire.Error](err)
	}
	if !ok {
		return err
	}
	switch health.Classify(evidence(e)) {
	case health.SessionLost:
		return errSessionLost
	case health.Rejected, health.Malformed: // by a server that is there
		return errors.New(e.Error())
	}
	return err
}

// synthetic makes a harmless call of a tool.
func (c *conn) synthetic(ctx context.Context, tool string, arguments []byte, expect string) error {
	params := append([]byte(`{"name":`), wire.AppendString(nil, tool)...)
	if arguments == nil {
		arguments = []byte(`{}`)
	}
	params = append(append(append(params, `,"arguments":`...), arguments...), '}')
	m, err := c.call(ctx, "tools/call", params)
	switch {
	case ctx.Err() != nil:
		return errMissed
	case err != nil:
		return err
	case m.Error != nil:
		text, _ := wire.String(wire.Get(m.Error, "message"))
		return fmt.Errorf("its probe was answered with an error: %s", cut(text, 100))
	case isError(m.Result):
		return fmt.Errorf("its probe failed: %s", cut(contentText(m.Result), 100))
	case !contains(m.Result, expect):
		return fmt.Errorf("the answer to its probe lacks %q", cut(expect, 60))
	}
	return nil
}

// recovered closes the breakers of tools that an outage of the whole server has
// opened. A breaker that the server's plane opened without a probe that failed, too,
// is the tool's own affair.
func (in *instance) recovered() {
	if in.up == nil || in != in.up.shared {
		return
	}
	for _, t := range in.up.guard.watched() {
		t.mu.Lock()
		own := t.own
		t.mu.Unlock()
		if !own && !t.breaker.Closed() {
			t.breaker.Reset()
		}
	}
}

// vitals is what the probes of a connection say.
type vitals struct {
	misses  int    // probes in a row that failed
	silent  int    // of them: without any sign of life
	failing string // why the last one failed
}

// probed takes the outcome of a probe; an error ends the connection.
func (in *instance) probed(c *conn, v *vitals, err error) error {
	if err == nil {
		if v.misses > 0 && !in.breaker.Closed() {
			in.recovered()
		}
		*v = vitals{}
		in.breaker.Reset()
		return nil
	}
	if _, ok := errors.AsType[*wire.Error](err); ok || errors.Is(err, errSessionLost) {
		return err // as after a lost call: refused, 5xx, 401, 429
	}
	v.misses++
	v.failing = err.Error()
	if errors.Is(err, errMissed) {
		v.silent++
	} else {
		v.silent = 0
	}
	in.tracker.Failed(in.secrets.mask(v.failing))
	limit := in.o.cfg.Probe.misses()
	if v.misses >= limit {
		in.breaker.Trip()
	}
	if c.transport == "stdio" && in.breaker != nil && v.silent >= 2*limit && len(c.routed()) == 0 {
		return errUnresponsive
	}
	return nil
}

// why says why the server plane is open.
func (in *instance) why(v *vitals) string {
	if v.misses > 0 {
		return fmt.Sprintf("%d probes in a row have failed: %s", v.misses, v.failing)
	}
	return "too many calls have failed, last: " + in.tracker.Snapshot().LastError
}

func (p *ProbeConfig) every() time.Duration     { return orDefault(p.Every, 30*time.Second) }
func (p *ProbeConfig) everyDown() time.Duration { return orDefault(p.EveryDown, 5*time.Second) }
func (p *ProbeConfig) timeout() time.Duration   { return orDefault(p.Timeout, 5*time.Second) }
func (p *ProbeConfig) misses() int {
	if p.Misses > 0 {
		return p.Misses
	}
	return 3
}
