package mcpproxy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// standIn is what answers a call that its upstream did not: the fallback steps of
// the tool, in the order of the configuration.
//
// A step may be left out: another tool after an attempt that may have been
// executed, unless the tool is idempotent, for the effect could be had twice; the
// last good result of a tool that is not idempotent, for it would hide that
// nothing was done.
type standIn struct {
	k       *call
	class   health.Class // why the upstream did not answer
	account account
	steps   []FallbackStep
	maybe   atomic.Bool // an attempt of a step that failed may have been executed

	mu    sync.Mutex
	leave func() // cancels the step under way
	gone  bool   // the call has ended
}

// standIn tries the fallbacks of the call, unless that or something else has
// ended it; false: there are none.
func (k *call) standIn(class health.Class, reason string, retryAt time.Time) bool {
	if k.tool == nil || len(k.tool.cfg.Fallback) == 0 || k.r.instead != nil || class == health.Cancelled {
		return false
	}
	s := &standIn{k: k, class: class, steps: k.tool.cfg.Fallback, account: k.account(class, reason, retryAt)}
	k.mu.Lock()
	over := k.done || k.fallback != nil
	if over || k.parked != nil {
		k.mu.Unlock()
		return over
	}
	k.fallback = s
	k.budget.stop() // each step has its own
	k.stopWaitingLocked()
	k.mu.Unlock()
	s.next()
	return true
}

// next tries the steps that are left; without any the call is unavailable.
func (s *standIn) next() {
	k := s.k
	for len(s.steps) > 0 {
		step := s.steps[0]
		s.steps = s.steps[1:]
		s.account.tool = ""
		switch {
		case step.Result != nil:
			s.account.from = "result"
			s.answer(fixedResult(step.Result))
			return
		case step.Cached > 0 && k.repeatable():
			if result, age, ok := k.up.guard.results.get(k.resultKey(), step.Cached); ok {
				s.account.from, s.account.age = "cached", age
				s.answer(result)
				return
			}
		case step.Tool != "" && (s.account.executed == "no" || k.idempotent()):
			if s.call(step) {
				return
			}
		}
	}
	k.unavailable(s.class, s.account.reason, s.account.retryAt)
}

// answer ends the call with a result of a step.
func (s *standIn) answer(result []byte) {
	k := s.k
	if !k.finish(func() { s.answer(result) }) {
		return
	}
	k.p.metrics.Fallback(k.up.cfg.Name, s.account.from, s.account.injected != "")
	k.ended(s.account)
	k.r.answer(k.resultFor(result, s.account.json(k.up.cfg.Name)))
}

// leftOut warns of a step that cannot be tried, once for each reason.
func (k *call) leftOut(step, reason string) {
	k.tool.mu.Lock()
	known := k.tool.leftOut == step+reason
	k.tool.leftOut = step + reason
	k.tool.mu.Unlock()
	if !known {
		k.p.log.Warn("fallback left out", "upstream", k.up.cfg.Name, "tool", k.name, "fallback", step, "reason", reason)
	}
}

// call makes the call of another tool on behalf of the client; false: it
// cannot be made.
func (s *standIn) call(step FallbackStep) bool {
	k := s.k
	args := k.r.args
	if step.Arguments != nil {
		t, err := parseArguments(step.Arguments)
		if err == nil {
			args, err = t.render(args)
		}
		if err != nil {
			k.leftOut(step.Tool, err.Error())
			return false
		}
	}
	e, err := k.p.cat.Load().tool(step.Tool)
	if err != nil || e.upstream == "" || e.upstream == k.up.cfg.Name && e.original == k.name {
		k.leftOut(step.Tool, "there is no such tool")
		return false
	}
	up := k.p.upstream(e.upstream)
	if up == nil {
		return false
	}
	s.account.from, s.account.tool = "tool", e.exposed
	r := &request{
		c: k.r.c, st: s, id: []byte(`"step"`), method: "tools/call", instead: s,
		params: standInParams(e.exposed, args, k.r.meta),
	}
	r.read()
	r.modern = k.r.modern
	k.p.forward(r, target{up: up, key: "name", name: e.original, raw: e.rawName, asClients: e.exposed, params: e.params, entry: e})
	return true
}

func standInParams(name string, args, meta []byte) []byte {
	b := wire.AppendString([]byte(`{"name":`), name)
	if args != nil {
		b = append(append(b, `,"arguments":`...), args...)
	}
	if meta != nil {
		b = append(append(b, `,"_meta":`...), meta...)
	}
	return append(b, '}')
}

var _ wire.Stream = (*standIn)(nil)

// Send passes progress and logs of the step on to the client.
func (s *standIn) Send(raw []byte, more bool) error { return s.k.request().st.Send(raw, more) }

// Answer takes the outcome of the step: a good result is the call's.
func (s *standIn) Answer(raw []byte, _ bool) error {
	m, err := wire.Parse(raw)
	if err == nil && m.Result != nil && !isError(m.Result) && !asksInput(m.Result) {
		s.answer(m.Result)
		return nil
	}
	if s.maybe.Load() || mayBeDone(m) {
		s.account.executed = "maybe"
		s.k.mu.Lock()
		s.k.maybe = true
		s.k.mu.Unlock()
	}
	s.next()
	return nil
}

// mayBeDone tells whether AgentArmor says of a step that failed that it may have
// had its effect after all.
func mayBeDone(m wire.Message) bool {
	executed, _ := wire.String(wire.Get(wire.Get(wire.Get(m.Result, "_meta"), "agentarmor/call"), "executed"))
	return executed == "maybe"
}

// Drop is the end of a step that was cancelled with its call.
func (s *standIn) Drop() {}

// OnLeave keeps what cancels the step under way.
func (s *standIn) OnLeave(f func()) {
	s.mu.Lock()
	gone := s.gone
	s.leave = f
	s.mu.Unlock()
	if gone {
		f()
	}
}

// end cancels the step under way, because the call has ended.
func (s *standIn) end() {
	s.mu.Lock()
	f := s.leave
	s.gone = true
	s.mu.Unlock()
	if f != nil {
		f()
	}
}

// reuse answers a call with a result that is fresh enough, if there is one.
func (k *call) reuse() bool {
	if k.tool == nil || k.tool.cfg.Cache <= 0 || !k.repeatable() {
		return false
	}
	result, age, ok := k.up.guard.results.get(k.resultKey(), k.tool.cfg.Cache)
	if !ok {
		return false
	}
	a := account{outcome: health.OK.String(), executed: "no", from: "cache", age: age}
	if k.end() {
		k.ended(a)
		k.r.answer(k.resultFor(result, a.json(k.up.cfg.Name)))
	}
	return true
}

// keep stores a good result where a later call may need it.
func (k *call) keep(result []byte) {
	if k.tool != nil && k.tool.keepFor() > 0 && k.repeatable() {
		k.up.guard.results.put(k.resultKey(), result)
	}
}

// repeatable tells whether the same call can be expected to have the same
// result: nothing changes by it, and nobody was asked anything meanwhile.
func (k *call) repeatable() bool {
	return k.idempotent() && !k.questioned && k.r.state == nil && k.r.responses == nil
}

// keepFor is how long results of the tool may be of use.
func (t *toolGuard) keepFor() time.Duration {
	d := t.cfg.Cache
	for _, step := range t.cfg.Fallback {
		d = max(d, step.Cached)
	}
	return d
}

// resultKey names the result of the call, for its client alone where results
// may depend on who asks.
func (k *call) resultKey() resultKey {
	scope := k.r.c.s.Principal
	if k.up.cfg.Sharing == "session" && !k.r.c.s.Stateless {
		scope = "session " + k.r.c.s.ID
	}
	return keyFor(scope, k.name, k.r.args)
}
