package llm

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// limiter knows how much an entry will still take: from the config (rpm, tpm)
// by counting the last minute, and from the headers of its answers.
type limiter struct {
	rpm, tpm int // 0: no limit is configured

	mu       sync.Mutex
	slots    [60]second // of the last minute
	requests remaining
	tokens   remaining
}

// second is what was sent within one second.
type second struct {
	unix             int64
	requests, tokens int
}

// remaining is a limit of the provider's as its latest answer told it.
type remaining struct {
	known bool
	limit int // 0: it did not say
	left  int
	reset time.Time // left is whole again
}

// LimitStatus is what is known about an entry's rate limits.
type LimitStatus struct {
	RequestsRemaining *int       `json:"requests_remaining,omitempty"`
	TokensRemaining   *int       `json:"tokens_remaining,omitempty"`
	ResetAt           *time.Time `json:"reset_at,omitempty"`
}

// tooLarge tells whether a request can never be taken, however long one waits.
func (l *limiter) tooLarge(tokens int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tpm > 0 && tokens > l.tpm || l.tokens.known && l.tokens.limit > 0 && tokens > l.tokens.limit
}

// blocked returns when a request of so many tokens may be sent; zero: now.
func (l *limiter) blocked(now time.Time, tokens int) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blockedLocked(now, tokens)
}

func (l *limiter) blockedLocked(now time.Time, tokens int) time.Time {
	until := l.minuteLocked(now, tokens)
	for _, r := range []struct {
		remaining
		need int
	}{{l.requests, 1}, {l.tokens, tokens}} {
		if r.known && r.left < r.need && r.reset.After(now) && r.reset.After(until) {
			until = r.reset
		}
	}
	return until
}

// minuteLocked returns when the last minute's requests and tokens have room.
func (l *limiter) minuteLocked(now time.Time, tokens int) time.Time {
	if l.rpm <= 0 && l.tpm <= 0 {
		return time.Time{}
	}
	requests, spent := 1, tokens
	var until time.Time
	for ago := range int64(len(l.slots)) { // newest first: the slot that makes it too much must have left
		unix := now.Unix() - ago
		s := l.slots[unix%int64(len(l.slots))]
		if s.unix != unix {
			continue
		}
		requests += s.requests
		spent += s.tokens
		if l.rpm > 0 && requests > l.rpm || l.tpm > 0 && spent > l.tpm {
			until = time.Unix(unix+int64(len(l.slots)), 0)
			break
		}
	}
	return until
}

// take counts a request that is about to be sent, unless the limits say no.
func (l *limiter) take(now time.Time, tokens int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.blockedLocked(now, tokens).IsZero() {
		return false
	}
	s := l.slotLocked(now)
	s.requests++
	s.tokens += tokens
	l.requests.left = max(0, l.requests.left-1)
	l.tokens.left = max(0, l.tokens.left-tokens)
	return true
}

// correct adds the tokens that a request has cost beyond those that take
// counted when it was sent.
func (l *limiter) correct(sent time.Time, beyond int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := &l.slots[sent.Unix()%int64(len(l.slots))]; s.unix == sent.Unix() {
		s.tokens = max(0, s.tokens+beyond)
	}
}

func (l *limiter) slotLocked(now time.Time) *second {
	unix := now.Unix()
	s := &l.slots[unix%int64(len(l.slots))]
	if s.unix != unix {
		*s = second{unix: unix}
	}
	return s
}

// learn takes over what the headers of an answer say.
func (l *limiter) learn(now time.Time, h http.Header) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests.read(h, "requests", now)
	l.tokens.read(h, "tokens", now)
}

func (r *remaining) read(h http.Header, what string, now time.Time) {
	left, err := strconv.Atoi(strings.TrimSpace(header(h, remainingPrefix+what)))
	if err != nil || left < 0 {
		return
	}
	reset, ok := parseDelay(header(h, resetPrefix+what))
	if !ok && left == 0 {
		return // nobody knows until when
	}
	limit, _ := strconv.Atoi(strings.TrimSpace(header(h, "x-ratelimit-limit-"+what)))
	*r = remaining{known: true, limit: max(0, limit), left: left, reset: now.Add(reset)}
}

func (l *limiter) status(now time.Time) *LimitStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	requests, tokens := l.configuredLocked(now)
	requests, tokens = tighter(l.requests.at(now), requests.at(now)), tighter(l.tokens.at(now), tokens.at(now))
	if !requests.known && !tokens.known {
		return nil
	}
	s := &LimitStatus{}
	show := func(r remaining) *int {
		if !r.known {
			return nil
		}
		if r.reset.After(now) && (s.ResetAt == nil || r.reset.After(*s.ResetAt)) {
			s.ResetAt = new(r.reset.UTC())
		}
		return new(r.left)
	}
	s.RequestsRemaining, s.TokensRemaining = show(requests), show(tokens)
	return s
}

// configuredLocked returns what the last minute has left of rpm and tpm.
func (l *limiter) configuredLocked(now time.Time) (requests, tokens remaining) {
	requests = remaining{known: l.rpm > 0, limit: l.rpm, left: l.rpm}
	tokens = remaining{known: l.tpm > 0, limit: l.tpm, left: l.tpm}
	for _, s := range l.slots {
		gone := time.Unix(s.unix+int64(len(l.slots)), 0)
		if s.requests == 0 || !gone.After(now) {
			continue
		}
		requests.spend(s.requests, gone)
		tokens.spend(s.tokens, gone)
	}
	return requests, tokens
}

func (r *remaining) spend(n int, until time.Time) {
	r.left = max(0, r.left-n)
	if until.After(r.reset) {
		r.reset = until
	}
}

// at returns what is left now: all of it once the reset has passed.
func (r remaining) at(now time.Time) remaining {
	if !r.reset.After(now) {
		r.known, r.left = r.known && r.limit > 0, r.limit
	}
	return r
}

func tighter(a, b remaining) remaining {
	if !a.known || b.known && b.left < a.left {
		return b
	}
	return a
}
