package mcpproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// era is the protocol generation of a server.
type era int

const (
	eraUnknown era = iota
	eraLegacy
	eraModern
)

// discoverBudget is how long an unknown server may take to answer
// server/discover before it is taken for a legacy one, which may stay silent.
const discoverBudget = 500 * time.Millisecond

// awakeBudget is the same for a server that has answered initialize, if only
// with an error.
const awakeBudget = 5 * time.Second

var (
	errStartup  = errors.New("not ready within its startup timeout")
	errDiscover = errors.New("no answer to server/discover")
)

// eraError tells that a server does not speak the generation tried.
type eraError struct{ err error }

func (e *eraError) Error() string { return e.err.Error() }
func (e *eraError) Unwrap() error { return e.err }

// rememberedEra is the generation that a remembered listing was made with.
func rememberedEra(l *listing) era {
	switch {
	case l == nil || l.Protocol == "":
		return eraUnknown
	case l.Protocol >= wire.Modern:
		return eraModern
	}
	return eraLegacy
}

// attempt is one try to get from nothing to a connection with its handshake
// done. It changes transport or generation, and with them the peer, where the
// server's behaviour asks for it.
type attempt struct {
	in        *instance
	ctx       context.Context // of the whole start
	c         *conn           // nil: to be opened
	transport string
	silent    bool  // discover was not answered in its short budget
	modernErr error // why it does not speak modern
	legacyErr error // why it does not speak legacy
}

// connect returns a connection that is ready for calls.
func (in *instance) connect(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, in.startBudget(), errStartup)
	defer cancel()
	a := &attempt{in: in, ctx: ctx, transport: in.transport()}
	c, err := a.run()
	if err != nil {
		if a.c != nil {
			in.countExit(a.c)
			if in.o.cfg.Stdio() {
				in.countStart()
			}
		}
		a.close()
		in.setFallback("")
		return nil, a.startError(err)
	}
	in.countStart()
	in.era = eraLegacy
	if c.modern {
		in.era = eraModern
	}
	return c, nil
}

// countStart counts what begins again: not attempts that began nothing.
func (in *instance) countStart() {
	if in.begun {
		in.tracker.Restarted()
	}
	in.begun = true
}

// startBudget bounds one start. A service that was there and comes back has
// nothing to install: one that hangs is asked again soon.
func (in *instance) startBudget() time.Duration {
	d := in.o.cfg.startupTimeout()
	if in.outage && in.era != eraUnknown && !in.o.cfg.Stdio() {
		d = min(d, 4*in.o.cfg.Probe.everyDown())
	}
	return d
}

// run tries the generations in order, as the config, memory, the only client
// or the specification's probe would have it.
func (a *attempt) run() (*conn, error) {
	first, second, err := a.order()
	if err != nil {
		return nil, err
	}
	budget := discoverBudget
	switch {
	case second == eraUnknown:
		budget = a.in.startBudget()
	case a.in.era == eraModern:
		budget = a.in.startBudget() / 2 // it has answered before, and may start slowly
	}
	for _, e := range []era{first, second} {
		if e == eraUnknown {
			continue
		}
		err := a.try(e, budget)
		if err == nil {
			return a.c, nil
		}
		if _, ok := errors.AsType[*eraError](err); !ok {
			return nil, err
		}
		budget = awakeBudget
	}
	return a.lastResort(first, second)
}

// lastResort is for a modern server that was too slow for the probe, and for a
// URL that serves nothing but HTTP+SSE.
func (a *attempt) lastResort(first, second era) (*conn, error) {
	if a.silent && second == eraLegacy {
		if err := a.try(eraModern, awakeBudget); err == nil {
			return a.c, nil
		}
	}
	if a.mayBeSSE() {
		a.close()
		a.transport = "sse"
		if err := a.try(eraLegacy, 0); err == nil {
			a.in.setFallback("sse")
			return a.c, nil
		}
	}
	if first == eraModern && second == eraUnknown {
		return nil, fmt.Errorf("it does not speak %s: %w", wire.Modern, a.modernErr)
	}
	return nil, cmp.Or(a.legacyErr, a.modernErr)
}

// mayBeSSE follows 2025-11-25, transports, "Backwards Compatibility": an
// initialize refused with 400, 404 or 405 may have met an HTTP+SSE server.
func (a *attempt) mayBeSSE() bool {
	e, ok := errors.AsType[*wire.Error](a.legacyErr)
	return ok && a.transport == "http" && a.in.o.cfg.Type == "" && slices.Contains([]int{400, 404, 405}, e.Status)
}

// order returns the generations to try, eraUnknown for none.
func (a *attempt) order() (first, second era, err error) {
	in := a.in
	switch {
	case in.o.cfg.Protocol == "legacy", a.transport == "sse" && in.o.cfg.Protocol != wire.Modern:
		return eraLegacy, eraUnknown, nil
	case in.o.cfg.Protocol == wire.Modern:
		return eraModern, eraUnknown, nil
	case in.era == eraLegacy:
		return eraLegacy, eraModern, nil
	case in.era == eraModern || in.o.preferLegacy == nil:
		return eraModern, eraLegacy, nil
	}
	// The process starts while we wait for the only client to speak.
	if err := a.open(); err != nil {
		return 0, 0, err
	}
	in.o.capabilities(a.ctx)
	if legacy, known := in.o.preferLegacy(); known && legacy {
		return eraLegacy, eraModern, nil
	}
	return eraModern, eraLegacy, nil
}

// try does one handshake, on a new peer if the last one has not survived.
func (a *attempt) try(e era, budget time.Duration) error {
	if err := a.open(); err != nil {
		return err
	}
	if e == eraLegacy {
		err := a.initialize()
		if _, ok := errors.AsType[*eraError](err); ok {
			a.legacyErr = err
		}
		return err
	}
	err := a.discover(budget)
	if _, ok := errors.AsType[*eraError](err); ok {
		a.modernErr = err
	}
	return err
}

func (a *attempt) open() error {
	if a.c != nil {
		return nil
	}
	c, err := a.in.open(a.ctx, a.transport)
	if err != nil {
		return err
	}
	a.c = c
	return nil
}

func (a *attempt) close() {
	if a.c != nil {
		a.in.closeConn(a.c)
		a.c = nil
	}
}

// startError names the startup budget where it is what ended err.
func (a *attempt) startError(err error) error {
	if a.ctx.Err() != nil {
		return context.Cause(a.ctx)
	}
	return err
}
