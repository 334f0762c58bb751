package llm

import (
	"cmp"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/agentarmor/agentarmor/health"
)

// Entry is one place in a chain.
type Entry struct {
	Name     string // default: the provider's
	Provider Provider
	Timeout  time.Duration // of one attempt; of a stream up to its first and between two texts; 0: 20 s
	RPM, TPM int           // requests and tokens per minute; 0: only what the provider's headers say
	Price    Price
}

// entry is an Entry at work.
type entry struct {
	Entry
	info    Info
	breaker *health.Breaker
	window  health.Window
	gate    gate
	limits  limiter

	mu    sync.Mutex
	rest  Skip // why it is left alone until then
	until time.Time
	cause *Error // of that
	last  *Error
	fault string // that was injected into the attempt of last; "": none
	asked string // … into that of cause
}

const (
	authCoolDown = time.Minute    // a key does not heal by itself
	goneCoolDown = 24 * time.Hour // neither does a model
)

func newEntry(c Entry, o Options) *entry {
	e := &entry{Entry: c, info: c.Provider.Info()}
	e.Name = cmp.Or(e.Name, e.info.Name, e.info.API)
	e.Timeout = cmp.Or(e.Timeout, defaultAttemptTimeout)
	e.limits.rpm, e.limits.tpm = c.RPM, c.TPM
	e.gate.slots = o.Breaker.Failures
	return e
}

// need is what a request asks of a model, in tokens as estimated.
type need struct {
	input, output int
	vision, tools bool
}

// Estimates: an English token is about four characters, an image that Gemini
// sees is 258 tokens a tile.
const (
	charsPerToken  = 4
	tokensPerImage = 258
)

func needs(r *Request) need {
	n := need{tools: len(r.Tools) > 0, output: min(max(r.MaxTokens, 0), 1<<30)}
	chars := len(r.Schema)
	for _, m := range r.Messages {
		for _, p := range m.Parts {
			chars += utf8.RuneCountInString(p.Text)
			if p.Image != nil {
				n.vision = true
				n.input += tokensPerImage
			}
		}
		for _, c := range m.ToolCalls {
			chars += len(c.Name) + len(c.Arguments)
		}
	}
	for _, t := range r.Tools {
		chars += len(t.Name) + len(t.Description) + len(t.Parameters)
	}
	n.input += chars/charsPerToken + 1
	return n
}

func (n need) tokens() int { return n.input + n.output }

// unfit returns why the entry can never answer the request; "": it can.
func (e *entry) unfit(n need) Skip {
	l := e.info.Limits
	switch {
	case l.Context > 0 && n.tokens() > l.Context:
		return SkipContext
	case l.NoVision && n.vision:
		return SkipVision
	case l.NoTools && n.tools:
		return SkipTools
	case e.limits.tooLarge(n.tokens()):
		return SkipTooLarge
	}
	return ""
}

// blocked returns why the entry is not asked now, and until when; "": it is.
func (e *entry) blocked(now time.Time, n need) (Skip, time.Time) {
	e.mu.Lock()
	rest, until := e.rest, e.until
	e.mu.Unlock()
	if until.After(now) {
		return rest, until
	}
	if until := e.breaker.Until(); until.After(now) {
		return SkipOpen, until
	}
	if until := e.limits.blocked(now, n.tokens()); until.After(now) {
		return SkipExhausted, until
	}
	return "", time.Time{}
}

// coolDown returns how long a failure leaves the entry alone, and why.
func coolDown(err *Error, backoff time.Duration) (Skip, time.Duration) {
	switch err.Class {
	case ClassThrottled:
		if err.RetryAfter < 0 {
			return SkipThrottled, backoff
		}
		return SkipThrottled, err.RetryAfter
	case ClassOverloaded:
		return SkipThrottled, err.RetryAfter // only if it says how long
	case ClassQuota:
		return SkipQuota, max(err.RetryAfter, 0)
	case ClassAuth:
		return SkipAuth, authCoolDown
	case ClassGone:
		return SkipGone, goneCoolDown
	}
	return "", 0
}

// failed remembers an attempt's error and leaves the entry alone if that says
// so. It tells whether the entry has newly been given up.
func (e *entry) failed(now time.Time, err *Error, injected string, backoff time.Duration) (rested Skip) {
	why, d := coolDown(err, backoff)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = &Error{Class: err.Class, Provider: err.Provider, Status: err.Status, Code: err.Code, Message: err.Message}
	e.fault = injected
	if until := now.Add(d); d > 0 && until.After(e.until) {
		if e.rest != why || !e.until.After(now) {
			rested = why
		}
		e.rest, e.until, e.cause, e.asked = why, until, e.last, injected
	}
	return rested
}

// tookMore notes that an answer, for which nobody waited, would have taken
// longer than d. That is news only about an entry that is taken to be faster.
func (e *entry) tookMore(d time.Duration) {
	if ms(d) > e.window.Snapshot().P50MS {
		e.window.Add(false, d)
	}
}

// resting returns the error of a call that does not ask the entry because of
// an earlier failure.
func (e *entry) resting(why Skip) *Error {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := new(*e.cause)
	err.Class, err.RetryAfter = Class(why), -1
	return err
}
