package llm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// run is one call on its way through a chain. Everything but what mu guards
// belongs to the goroutine of the call.
type run struct {
	c        *Chain
	q        *question
	caller   context.Context
	strategy Strategy
	deadline time.Time
	emit     func(string) // nil: not a stream
	order    []*entry
	tries    map[*entry]*try
	t        tracer

	answer *Response
	fatal  *Error    // ends the call: a stream that broke
	cut    *Response // the best of those that ran out of tokens

	queued  time.Time // since when the call waits for a recovery; zero: it never did
	waiting bool      // it holds a place in the queue
	tried   bool      // an entry had its time to answer, and has not

	mu      sync.Mutex
	claimed *Attempt // whose text the caller has begun to receive
	running map[*Attempt]context.CancelCauseFunc
}

// question is a request as the providers get it, and what the chain checks.
type question struct {
	Request
	schema *jsonschema.Schema
	need   need
}

// try is what one call knows of one entry.
type try struct {
	sent      int
	dead      bool      // not again in this call
	notBefore time.Time // its own next attempt
	poll      time.Time // others were trying it: look again then
	skipped   Skip      // as the trace says already
	err       *Error    // of the latest attempt
}

var (
	errBudget  = errors.New("the time for the whole chain is spent")
	errAttempt = errors.New("the entry's timeout has passed")
	errShare   = errors.New("its share of the time for the whole chain has passed")
	errLost    = errors.New("another entry was faster")
)

func (c *Chain) do(ctx context.Context, r *Request, emit func(string)) (*Response, error) {
	if c == nil { // of a FromEnv whose error nobody has looked at
		c = &Chain{}
	}
	if r == nil {
		r = &Request{}
	}
	run := &run{c: c, caller: ctx, strategy: cmp.Or(r.Strategy, c.o.Strategy), emit: emit,
		tries: make(map[*entry]*try, len(c.entries)), t: tracer{started: time.Now()}}
	run.t.last = run.t.started
	if len(c.entries) == 0 {
		return run.failed(newError(ClassNone, "no model is configured: set %s", keyVariables))
	}
	var err error
	if run.q, err = c.question(r); err != nil {
		return run.failed(newError(ClassRejected, "%v", err))
	}
	budget := c.o.Timeout
	if r.Timeout > 0 {
		budget = min(budget, r.Timeout)
	}
	own, cancel := context.WithTimeoutCause(ctx, budget, errBudget)
	defer cancel()
	run.deadline, _ = own.Deadline()
	defer run.leaveQueue()
	for {
		run.order = c.order(r, run.q.need)
		if run.pass(own) {
			return run.finished()
		}
		if !run.wait(own) {
			return run.giveUp()
		}
	}
}

// question prepares a request: the note joins the system prompt, never what
// the user says.
func (c *Chain) question(r *Request) (*question, error) {
	q := &question{Request: *r}
	if err := r.check(); err != nil {
		return nil, err
	}
	var err error
	if q.schema, err = compileSchema(r.Schema); err != nil {
		return nil, fmt.Errorf("the response schema: %w", err)
	}
	if c.o.SystemNote != nil && !r.Bare {
		if note := c.o.SystemNote(); note != "" {
			q.Messages = withNote(r.Messages, note)
		}
	}
	q.need = needs(&q.Request)
	return q, nil
}

func withNote(messages []Message, note string) []Message {
	i := slices.IndexFunc(messages, func(m Message) bool { return m.Role == RoleSystem })
	if i < 0 {
		return slices.Insert(slices.Clone(messages), 0, System(note))
	}
	messages = slices.Clone(messages)
	messages[i].Parts = append(slices.Clone(messages[i].Parts), Part{Text: "\n\n" + note})
	return messages
}

// pass asks every entry that can be asked now, one after the other. It returns
// true if the call is over.
func (r *run) pass(ctx context.Context) bool {
	rest := r.order
	if r.c.o.HedgeAfter > 0 {
		return r.race(ctx, rest)
	}
	for ctx.Err() == nil {
		e := r.pick(&rest)
		if e == nil {
			return false
		}
		if r.settle(r.attempt(ctx, r.open(e, false))) {
			return true
		}
	}
	return false
}

// pick takes the next entry that can be asked now out of rest, and notes why
// those before it cannot.
func (r *run) pick(rest *[]*entry) *entry {
	now := time.Now()
	for len(*rest) > 0 {
		e := (*rest)[0]
		*rest = (*rest)[1:]
		t := r.try(e)
		if t.dead || t.notBefore.After(now) {
			continue
		}
		why := e.unfit(r.q.need)
		if why != "" {
			t.dead = true
			r.skip(e, why, time.Time{})
			continue
		}
		if why, until := e.blocked(now, r.q.need); why != "" {
			r.skip(e, why, until)
			continue
		}
		return e
	}
	return nil
}

func (r *run) try(e *entry) *try {
	t := r.tries[e]
	if t == nil {
		t = &try{}
		r.tries[e] = t
	}
	return t
}

// skip notes that an entry is passed over, once per reason.
func (r *run) skip(e *entry, why Skip, until time.Time) {
	t := r.try(e)
	if t.skipped == why {
		return
	}
	t.skipped = why
	a := &Attempt{Provider: e.Name, Model: e.info.Model}
	a.passed(e, why)
	if !until.IsZero() {
		a.Until = new(until.UTC())
	}
	r.t.add(a)
}

// open begins the account of an attempt.
func (r *run) open(e *entry, hedge bool) turn {
	t := r.try(e)
	t.sent++
	if hedge {
		r.t.next("asks " + e.Name + " beside it")
	} else {
		r.t.next("asks " + e.Name)
	}
	a := &Attempt{Provider: e.Name, Model: e.info.Model, Number: t.sent, Hedge: hedge}
	if len(r.t.attempts) > 0 && !hedge {
		a.WaitMS = ms(time.Since(r.t.last))
	}
	return r.turn(e, r.t.add(a))
}

// settle draws the consequences of an attempt. It returns true if the call is over.
func (r *run) settle(o outcome) (over bool) {
	t, now := r.try(o.e), time.Now()
	r.t.last = now
	switch {
	case o.a.Skipped != "":
		t.sent--
		t.poll = now.Add(pollTrial)
		if t.skipped == o.a.Skipped {
			r.t.drop(o.a)
		}
		t.skipped = o.a.Skipped
		return false
	case r.claimedBy() != nil && r.claimedBy() != o.a:
		return false // it has lost
	case o.err == nil:
		r.answer = o.resp
		return true
	case r.claimedBy() == o.a:
		r.fatal, over = o.err, true
	}
	if o.err.Class != ClassCancelled {
		r.failedAttempt(o, t, now)
	}
	return over
}

func (r *run) failedAttempt(o outcome, t *try, now time.Time) {
	t.err, t.skipped = o.err, ""
	r.tried = r.tried || !o.hurried && o.err.Class != ClassBudget
	if o.err.Class == ClassCut && o.resp.Text != "" && r.cut == nil {
		r.cut = o.resp
	}
	t.dead = !o.err.Class.Transient() || t.sent >= r.c.o.Attempts
	t.notBefore = now.Add(o.backoff)
	if o.err.RetryAfter > 0 {
		t.notBefore = now.Add(o.err.RetryAfter)
	}
}

// delay returns how long to wait after the nth failure in a row.
func (b Backoff) delay(n int) time.Duration {
	d := b.Max
	if double := min(n-1, 62); b.Base < b.Max>>double { // a shift to the left might overflow
		d = b.Base << double
	}
	return time.Duration(float64(d) * (1 + b.Jitter*(2*rand.Float64()-1)))
}

func (r *run) claimedBy() *Attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.claimed
}

// finished returns the answer of a call that is over.
func (r *run) finished() (*Response, error) {
	if r.fatal != nil {
		return r.failed(r.fatal)
	}
	return r.answered(r.answer)
}

func (r *run) answered(resp *Response) (*Response, error) {
	r.t.next("answered")
	t := r.trace()
	t.Provider, t.Model, t.Outcome = resp.Provider, resp.Model, ClassOK
	if first := r.order[0].Name; resp.Provider != first {
		r.c.hours.add(time.Now())
		r.c.event(Event{Kind: EventFailover, Provider: resp.Provider, From: first, To: resp.Provider, Injected: t.Injected()})
	}
	return r.end(resp, nil, t)
}

// failed returns an error that ends the call.
func (r *run) failed(err *Error) (*Response, error) {
	r.t.next("error")
	t := r.trace()
	t.Outcome = err.Class
	return r.end(nil, err, t)
}

func (r *run) trace() *Trace {
	var queued time.Duration
	if !r.queued.IsZero() {
		queued = time.Since(r.queued)
	}
	return r.t.finish(r.strategy, queued)
}

func (r *run) end(resp *Response, err *Error, t *Trace) (*Response, error) {
	r.c.traces.keep(t)
	if r.c.o.OnTrace != nil {
		r.c.o.OnTrace(t)
	}
	if err != nil {
		err.Trace = t
		return nil, err
	}
	resp.Trace, resp.Latency = t, time.Since(r.t.started)
	return resp, nil
}
