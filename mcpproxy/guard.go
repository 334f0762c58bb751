package mcpproxy

import (
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/telemetry"
)

// guard protects one upstream from its callers and them from it. A call
// passes, in this order:
//
//  1. its budget, which bounds all that follows (budget.go);
//  2. whether the definition of its tool is trusted (pins.go), and a result
//     that is fresh enough to be used again (results.go): neither costs the
//     upstream anything;
//  3. the breakers of the server (plane.go) and of the tool: an open one
//     answers at once, before the call takes a token or a place from those
//     that have a chance;
//  4. the rate limit, then the bulkhead, which bounds what is under way and
//     what waits (bulkhead.go): a token is spent by calls that will be sent,
//     and waiting for one holds no place;
//  5. the breaker of the tool again, as it is when the call's turn has come
//     and the server is there: here a half-open one takes it as its trial.
//
// Then it is sent. When that fails, the outcome is noted once for both planes,
// the call is retried where its class allows it (retry.go), back at step 5
// and with its place kept, and at last what stands in for it is tried
// (fallback.go). Retries come before fallbacks: the real answer is better.
//
// A spent budget ends a call without a retry: there is no time left for one.
type guard struct {
	p       *Proxy
	up      *upstream
	cfg     *UpstreamConfig
	rate    *rate.Limiter // nil: no limit
	places  bulkhead
	retries *retryBudget
	window  health.Window // of all attempts
	results *results
	others  *telemetry.CallMetrics // of methods other than tools/call

	mu      sync.Mutex
	tools   map[string]*toolGuard // by original name
	pausing map[*call]bool        // calls that wait for a token or their next attempt
	closed  bool
}

func newGuard(p *Proxy, up *upstream) *guard {
	cfg := up.cfg
	g := &guard{
		p: p, up: up, cfg: cfg, retries: newRetryBudget(cfg.Retry.budget()),
		places:  bulkhead{limit: cfg.concurrency(), room: orNil(cfg.Queue, 64)},
		tools:   map[string]*toolGuard{},
		pausing: map[*call]bool{},
		results: newResults(maxResults, maxResultBytes),
		others:  p.metrics.Call(cfg.Name, ""),
	}
	if r := cfg.RateLimit; r.Calls > 0 {
		// The whole quota may come at once, as servers count it; it refills evenly.
		g.rate = rate.NewLimiter(rate.Limit(r.Calls/r.Per.Seconds()), max(1, int(math.Floor(r.Calls))))
	}
	return g
}

// The bounds of the results that are kept of one upstream.
const (
	maxResults     = 256
	maxResultBytes = 16 << 20
)

// admit takes a new call through the guard, as far as it gets at once.
func (k *call) admit() {
	g := k.up.guard
	g.retries.earn()
	if k.quarantined() || k.reuse() || k.refused() {
		return
	}
	if g.rate == nil {
		k.enter()
		return
	}
	turn := g.rate.Reserve()
	switch wait := turn.Delay(); {
	case wait >= k.rest():
		turn.Cancel()
		k.busy(fmt.Sprintf("its rate limit of %s is used up", g.cfg.RateLimit), wait)
	case wait == 0:
		k.enter()
	case !k.await(turn, wait):
		k.upstreamGone()
	}
}

func (r Rate) String() string {
	unit := map[time.Duration]string{time.Second: "s", time.Minute: "m", time.Hour: "h"}[r.Per]
	return fmt.Sprintf("%g/%s", r.Calls, unit)
}

// enter goes through the bulkhead.
func (k *call) enter() {
	g := k.up.guard
	k.mu.Lock()
	if k.overLocked() {
		k.mu.Unlock()
		return
	}
	k.turn = nil // the token is spent
	at := g.places.enter(k)
	k.mu.Unlock()
	switch at {
	case inside:
		k.try()
	case outside:
		active, queued := g.places.load()
		k.busy(fmt.Sprintf("%d calls are under way and %d wait", active, queued), g.turnover(queued))
	}
}

// turnover guesses when a queue of so many will have moved on.
func (g *guard) turnover(queued int) time.Duration {
	each := time.Duration(g.window.Snapshot().P50MS * float64(time.Millisecond))
	rounds := time.Duration(queued/g.places.limit + 1)
	return min(max(each*rounds, time.Second), time.Minute)
}

// quarantined answers a call of a tool whose definition is not trusted.
func (k *call) quarantined() bool {
	if k.tool == nil {
		return false
	}
	reason, yes := k.up.quarantinedTool(k.name)
	if yes {
		k.giveUp(health.Open, reason, time.Time{})
	}
	return yes
}

// busy answers a call for which there is no room.
func (k *call) busy(why string, wait time.Duration) {
	k.giveUp(health.Open, "it is busy: "+why, time.Now().Add(wait))
}

// refused answers a call that an open breaker does not let pass.
func (k *call) refused() bool {
	if shut := k.in.shut(); shut != nil {
		k.mark(k.in.blamed())
		k.giveUp(health.Open, shut.Error(), shut.retryAt)
		return true
	}
	// What holds for the server comes before its tool.
	if k.tool == nil || k.tool.breaker.Closed() || k.in.live() == nil {
		return false
	}
	until := k.tool.breaker.Until()
	if probes := k.probes(); !probes && time.Until(until) <= 0 {
		return false // it may be the trial
	} else if probes {
		until = later(until, time.Now().Add(k.up.cfg.Probe.everyDown()))
	}
	k.mark(k.tool.blamed())
	k.giveUp(health.Open, "the tool's breaker is open after failures, last: "+k.tool.error(), until)
	return true
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// try makes an attempt.
func (k *call) try() {
	k.mu.Lock()
	if k.overLocked() {
		k.mu.Unlock()
		return
	}
	k.trying, k.sent, k.conn, k.cause = true, false, nil, ""
	k.mu.Unlock()
	if conn := k.in.live(); conn != nil {
		k.pass(conn)
		return
	}
	k.p.work.Go(k.sendWhenReady)
}

// pass goes through the breaker of the tool, and on conn to the server.
func (k *call) pass(conn *conn) {
	var permit health.Permit
	if k.tool != nil {
		var ok bool
		if permit, ok = k.tool.allow(k.probes); !ok {
			k.shut()
			return
		}
	}
	k.mu.Lock()
	if k.overLocked() || !k.trying {
		k.mu.Unlock()
		permit.Done(health.Neutral)
		return
	}
	k.permit, k.began = permit, time.Now()
	k.mu.Unlock()
	k.send(conn)
}

// shut gives up because the tool's breaker does not let the next attempt pass.
func (k *call) shut() {
	k.mu.Lock()
	f := k.failure
	k.mu.Unlock()
	until := later(k.tool.breaker.Until(), time.Now().Add(time.Second))
	k.mark(k.tool.blamed())
	if f.reason == "" {
		f.class, f.reason = health.Open, "the tool's breaker is open after failures, last: "+k.tool.error()
	}
	k.giveUp(f.class, f.reason, until)
}

// lastFailure is how the last attempt of a call has ended.
type lastFailure struct {
	class  health.Class
	reason string
}

// attemptFailed ends an attempt: the call is retried, or given up.
func (k *call) attemptFailed(class health.Class, reason string, retryAt time.Time) {
	k.settle(class, 0, reason)
	if !k.retry(class, retryAt) {
		k.giveUp(class, reason, retryAt)
	}
}

// settle notes the outcome of the attempt under way, once.
func (k *call) settle(class health.Class, code int, reason string) {
	k.mu.Lock()
	if !k.trying {
		k.mu.Unlock()
		return
	}
	if k.done { // by its client: what follows from that is nobody's failure
		class = health.Cancelled
	}
	k.trying, k.settled = false, class.Retry() == health.Never
	permit, began, sent, attempt, fault := k.permit, k.began, k.sent, k.attempt, k.cause
	k.permit = health.Permit{}
	if class != health.OK && class != health.ToolError {
		k.failure = lastFailure{class, reason}
	}
	k.maybe = k.maybe || sent && class.Executed() == "maybe"
	if s := k.r.instead; s != nil && k.maybe {
		s.maybe.Store(true)
	}
	k.attempt = nil
	k.mu.Unlock()
	attempt.End(class.String(), class.Executed(), reason)
	if !sent { // what never left says nothing about anybody
		permit.Done(health.Neutral)
		return
	}
	g := k.up.guard
	if class != health.Cancelled {
		failed := counts(class, code)
		took := time.Since(began)
		g.window.Add(failed, took)
		if k.tool != nil {
			k.tool.window.Add(failed, took)
		}
	}
	k.in.note(class, reason, began)
	if k.tool != nil {
		permit.Done(k.tool.note(class, code, reason, fault, began, k.up.cfg.Stdio()))
	}
}

// counts tells whether an outcome is an error in the rates of the status: what
// speaks against the server or the tool.
func counts(class health.Class, code int) bool {
	return class.Server() == health.Failure || class.Tool(code) == health.Failure
}

// questions notes that the upstream asked for input: the call is not made
// again, and tells nothing more about its tool. The call's lock is held.
func (k *call) questions() {
	k.questioned = true
	k.permit.Done(health.Neutral)
	k.permit = health.Permit{}
}

// giveUp ends a call that the upstream will not answer: with what stands in
// for it, else by saying so.
func (k *call) giveUp(class health.Class, reason string, retryAt time.Time) {
	k.settle(class, 0, reason)
	if !k.standIn(class, reason, retryAt) {
		k.unavailable(class, reason, retryAt)
	}
}

// rest is what is left of the call's budget.
func (k *call) rest() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.budget.rest()
}

func (u *UpstreamConfig) concurrency() int {
	if u.Concurrency > 0 {
		return u.Concurrency
	}
	return 16
}
