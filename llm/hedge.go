package llm

import (
	"context"
	"time"
)

// race is pass with hedging: an entry that has not answered (of a stream: begun
// to) after HedgeAfter gets a second one beside it. The first answer wins, the
// other attempt is cancelled, and race returns only when it has ended.
func (r *run) race(ctx context.Context, rest []*entry) (over bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	results := make(chan outcome, len(rest))
	running := 0
	defer func() {
		cancel(errLost)
		for ; running > 0; running-- {
			r.settleLost(<-results)
		}
	}()
	launch := func(hedge bool) {
		if e := r.pick(&rest); e != nil {
			t := r.open(e, hedge)
			running++
			go func() { results <- r.attempt(ctx, t) }()
		}
	}
	launch(false)
	slow := time.NewTimer(r.c.o.HedgeAfter)
	defer slow.Stop()
	for running > 0 {
		select {
		case o := <-results:
			running--
			if over = r.settle(o); over || ctx.Err() != nil {
				return over
			}
			if running == 0 {
				launch(false)
				slow.Reset(r.c.o.HedgeAfter)
			}
		case <-slow.C:
			if running == 1 && r.claimedBy() == nil {
				launch(true)
			}
		}
	}
	return false
}

// settleLost notes the end of an attempt that lost against another one.
func (r *run) settleLost(o outcome) {
	if o.a.Skipped == "" && o.err != nil && o.err.Class != ClassCancelled {
		r.failedAttempt(o, r.try(o.e), time.Now())
	}
}

// claim tells whether the text of an attempt goes to the caller: the first one
// that has any. The others are cancelled.
func (r *run) claim(a *Attempt) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claimed == nil {
		r.claimed = a
		for other, cancel := range r.running {
			if other != a {
				cancel(errLost)
			}
		}
	}
	return r.claimed == a
}

// started lets other attempts of the call cancel this one.
func (r *run) started(a *Attempt, cancel context.CancelCauseFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claimed != nil {
		cancel(errLost)
	}
	if r.running == nil {
		r.running = map[*Attempt]context.CancelCauseFunc{}
	}
	r.running[a] = cancel
}
