package llm

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/health"
)

// outcome is how an attempt ended: passed over (Attempt.Skipped), with an
// answer, or with an error. With [ClassCut] there is both.
type outcome struct {
	e       *entry
	a       *Attempt
	resp    *Response
	err     *Error
	backoff time.Duration // until the next attempt, if err does not say
	hurried bool          // err is a timeout that is no fault of the entry's
}

// turn is one entry's to answer.
type turn struct {
	e     *entry
	a     *Attempt
	limit time.Duration
	alone bool // no other entry could be asked instead
	whole bool // limit is the entry's own timeout, or about all that the chain's allows
}

// attempt asks one entry, once. It may run beside another attempt of the same
// call: of what belongs to the call it only reads.
func (r *run) attempt(ctx context.Context, t turn) (o outcome) {
	e, a := t.e, t.a
	o = outcome{e: e, a: a}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(t.limit, func() { cancel(errAttempt) })
	defer timer.Stop()
	r.started(a, cancel)

	arrived := time.Now()
	trial, err := e.gate.enter(ctx, e.breaker, t.alone)
	if err != nil {
		return r.refused(ctx, o)
	}
	verdict := health.Neutral
	defer func() {
		if o.resp != nil {
			verdict = health.Success // whatever it says, it works
		}
		e.gate.leave(trial, verdict)
	}()
	if why, _ := e.blocked(time.Now(), r.q.need); why != "" { // those that the gate waited for found out
		return r.refused(ctx, o)
	}
	a.BreakerBefore = e.breaker.Snapshot().State
	permit, ok := e.breaker.Allow()
	if !ok {
		return r.refused(ctx, o)
	}
	defer func() { // before the gate is left
		permit.Done(verdict)
		a.BreakerAfter = e.breaker.Snapshot().State
		if a.BreakerBefore != health.BreakerClosed {
			r.c.changed.ring() // the next trial may follow
		}
	}()
	sent := time.Now()
	if !e.limits.take(sent, r.q.need.tokens()) {
		return r.refused(ctx, o)
	}
	a.WaitMS = math.Round((a.WaitMS+ms(sent.Sub(arrived)))*1000) / 1000
	s := &sink{r: r, e: e, a: a, sent: sent, timer: timer}
	emit := s.emit(r.emit)
	live := emit
	if r.q.schema != nil {
		live = nil // half a document is of no use, and one that does not match is no answer
	}
	asked, injected := withMark(ctx)
	resp, err := e.Provider.Generate(asked, &r.q.Request, live)
	took := time.Since(sent)
	a.Injected = injected.text()
	a.LatencyMS = ms(took)
	verdict = r.judge(ctx, &o, resp, err)
	if o.err != nil && o.err.Class == ClassTimeout && !s.begun && t.limit < e.Timeout {
		o.err.Message = errShare.Error()
		if !t.whole {
			o.hurried, verdict = true, health.Neutral
		}
	}
	r.account(&o, s, took)
	if live == nil && emit != nil && o.err == nil {
		emit(o.resp.Text)
	}
	return o
}

// turn returns how long an entry may take: its timeout, but at most half of
// what is left while another entry has not been asked yet and could be. If a
// caller in a hurry is why that is little, a timeout is not its fault.
func (r *run) turn(e *entry, a *Attempt) turn {
	now := time.Now()
	left := r.deadline.Sub(now)
	t := turn{e: e, a: a, limit: e.Timeout, alone: true, whole: true}
	for _, other := range r.order {
		if tried := r.try(other); other == e || tried.sent > 0 || tried.poll.After(now) || other.unfit(r.q.need) != "" {
			continue
		}
		if why, _ := other.blocked(now, r.q.need); why == "" {
			t.alone = false
			left /= 2
			if left < t.limit {
				t.limit, t.whole = left, left >= r.c.o.Timeout*2/5
			}
			break
		}
	}
	return t
}

// refused ends an attempt before anything was sent.
func (r *run) refused(ctx context.Context, o outcome) outcome {
	o.a.Number = 0
	if why, until := o.e.blocked(time.Now(), r.q.need); why != "" {
		o.a.passed(o.e, why)
		o.a.Until = new(until.UTC())
	} else if ctx.Err() == nil && !o.e.breaker.Closed() {
		o.a.passed(o.e, SkipOpen) // another call is its trial
	} else {
		o.a.passed(o.e, SkipBusy)
	}
	return o
}

// judge notes the answer or the error of an attempt and returns what it says
// about the provider.
func (r *run) judge(ctx context.Context, o *outcome, resp *Response, err error) health.Verdict {
	if err != nil {
		o.err = r.failure(ctx, err)
		if o.err.unsent() {
			return health.Neutral
		}
		return classes[o.err.Class].breaker
	}
	o.resp = new(*resp) // the provider may have kept it
	class, why := r.q.judge(o.resp)
	if class != ClassOK {
		o.err = newError(class, "%s", why)
		o.err.Status, o.err.Header = resp.Status, resp.Header
	}
	return classes[class].breaker
}

// failure returns a provider's error as the chain's own. If the context has
// ended, that and not the broken connection is the cause.
func (r *run) failure(ctx context.Context, err error) *Error {
	var e Error
	if theirs, ok := errors.AsType[*Error](err); ok {
		e = *theirs
	} else {
		e = *TransportError(err)
	}
	if ctx.Err() == nil || e.Status >= 400 {
		return &e
	}
	e.Message = context.Cause(ctx).Error()
	switch cause := context.Cause(ctx); {
	case r.caller.Err() != nil:
		e.Class, e.Err = ClassCancelled, context.Cause(r.caller)
	case errors.Is(cause, errAttempt):
		e.Class = ClassTimeout
	case errors.Is(cause, errLost), errors.Is(cause, context.Canceled):
		e.Class, e.Message, e.Err = ClassCancelled, errLost.Error(), errLost
	default:
		e.Class = ClassBudget
	}
	return &e
}

// account writes down what an attempt has shown.
func (r *run) account(o *outcome, s *sink, took time.Duration) {
	a, e := o.a, o.e
	a.Class = ClassOK
	if o.err != nil {
		o.err.Provider, o.err.Partial = e.Name, s.text.String()
		a.Class, a.Status, a.Code, a.Error = o.err.Class, o.err.Status, o.err.Code, o.err.Message
		a.RetryAfterMS = max(0, o.err.RetryAfter).Milliseconds()
		e.limits.learn(time.Now(), o.err.Header)
	}
	switch a.Class {
	case ClassCancelled, ClassBudget, ClassRejected, ClassGone: // say nothing about how well or fast it answers
		if o.err.Err == errLost && !a.Hedge {
			e.tookMore(took)
		}
	default:
		if !o.hurried {
			e.window.Add(classes[a.Class].bad, took)
		}
	}
	if o.resp != nil {
		r.accountAnswer(o, s)
	}
	if o.err != nil && a.Class != ClassCancelled {
		o.backoff = r.c.o.Backoff.delay(a.Number)
		r.rest(o)
	}
}

func (r *run) accountAnswer(o *outcome, s *sink) {
	a, e := o.a, o.e
	a.Status = o.resp.Status
	o.resp.Provider = e.Name
	if o.resp.Model == "" {
		o.resp.Model = e.info.Model
	}
	a.Model = o.resp.Model
	e.limits.learn(time.Now(), o.resp.Header)
	if u := o.resp.Usage; u != (Usage{}) {
		a.Usage = &u
		e.limits.correct(s.sent, u.Input+u.Output-r.q.need.tokens())
	}
	if a.Class == ClassCut && s.begun {
		o.err = nil // the caller has the text, and the finish reason says that it is cut
	}
}

// rest has the entry left alone if the failure says so. It comes before the
// next call in the gate's crowd has its turn.
func (r *run) rest(o *outcome) {
	now := time.Now()
	if why := o.e.failed(now, o.err, o.a.Injected, o.backoff); why != "" {
		o.e.gate.known.Store(failing) // the end of a rest is not for a crowd either
		_, until := o.e.blocked(now, r.q.need)
		r.c.event(Event{Kind: EventRest, Provider: o.e.Name, To: string(why), Until: &until, Text: o.err.Message, Injected: o.a.Injected})
	}
}

// sink hands the text of one attempt to the caller, if that is the first to have any.
type sink struct {
	r     *run
	e     *entry
	a     *Attempt
	sent  time.Time
	timer *time.Timer
	begun bool
	text  strings.Builder
}

func (s *sink) emit(to func(string)) func(string) {
	if to == nil {
		return nil
	}
	return func(text string) {
		if text == "" || !s.r.claim(s.a) {
			return
		}
		s.timer.Stop() // the caller may take its time
		if !s.begun {
			s.begun = true
			s.a.FirstTokenMS = ms(time.Since(s.sent))
			s.e.gate.alive()
		}
		s.text.WriteString(text)
		to(text)
		s.timer.Reset(s.e.Timeout)
	}
}
