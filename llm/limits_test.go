package llm

import (
	"net/http"
	"strconv"
	"testing"
	"time"
)

// TestMinute holds that no minute ever sees more than is configured, wherever
// in it the requests fall.
func TestMinute(t *testing.T) {
	l := &limiter{rpm: 10, tpm: 100}
	start := time.Unix(1_000_000, 0)
	var sent []time.Time
	for ms := 0; ms < 200_000; ms += 170 {
		now := start.Add(time.Duration(ms) * time.Millisecond)
		until := l.blocked(now, 12)
		if l.take(now, 12) {
			sent = append(sent, now)
		} else if !until.After(now) {
			t.Fatalf("refused at %s until %s", now, until)
		}
	}
	for i, at := range sent {
		n := 0
		for _, other := range sent[i:] {
			if other.Sub(at) < 59*time.Second {
				n++
			}
		}
		if n > 8 { // 8 × 12 tokens
			t.Fatalf("%d requests within a minute of %s", n, at.Sub(start))
		}
	}
	if len(sent) != 32 {
		t.Errorf("%d requests in 200 s, want 8 in each of four minutes", len(sent))
	}
}

// TestCorrect holds that what an answer costs counts for when it was asked for.
func TestCorrect(t *testing.T) {
	l := &limiter{tpm: 100}
	now := time.Unix(1_000_000, 0)
	for i := range 10 {
		sent := now.Add(time.Duration(i) * 5 * time.Second)
		if !l.take(sent, 90) {
			t.Fatalf("request %d is refused", i)
		}
		l.correct(sent, -89)
	}
	l.correct(now, 91) // the first was longer than it seemed
	if later := now.Add(59 * time.Second); l.take(later, 1) || !l.take(later.Add(time.Second), 1) {
		t.Error("101 tokens in a minute")
	}
	l.correct(now, -99) // too late
	if l.slots[now.Unix()%60].tokens != 1 {
		t.Error("another minute is corrected")
	}
}

// TestConfiguredRemaining holds that rpm and tpm are shown as what a header
// tells is, and of both the one with less left.
func TestConfiguredRemaining(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	l := limiter{rpm: 5, tpm: 1000}
	if s := l.status(now); *s.RequestsRemaining != 5 || *s.TokensRemaining != 1000 || s.ResetAt != nil {
		t.Errorf("at first %+v", s)
	}
	l.take(now, 300)
	l.take(now.Add(20*time.Second), 300)
	at := now.Add(30 * time.Second)
	if s := l.status(at); *s.RequestsRemaining != 3 || *s.TokensRemaining != 400 || !s.ResetAt.Equal(now.Add(80*time.Second)) {
		t.Errorf("after two %+v", s)
	}
	l.learn(at, http.Header{
		"X-Ratelimit-Remaining-Requests": {"1"}, "X-Ratelimit-Reset-Requests": {"2m"},
		"X-Ratelimit-Remaining-Tokens": {"9000"}, "X-Ratelimit-Reset-Tokens": {"1h"},
	})
	if s := l.status(at); *s.RequestsRemaining != 1 || *s.TokensRemaining != 400 || !s.ResetAt.Equal(at.Add(2*time.Minute)) {
		t.Errorf("with headers %+v", s)
	}
	if s := l.status(now.Add(time.Hour)); *s.RequestsRemaining != 5 || *s.TokensRemaining != 1000 || s.ResetAt != nil {
		t.Errorf("an hour later %+v", s)
	}
}

// TestRemaining holds that calls at once do not all take the last request.
func TestRemaining(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	h := func(requests, tokens int) http.Header {
		return http.Header{
			"X-Ratelimit-Limit-Requests": {"30"}, "X-Ratelimit-Remaining-Requests": {strconv.Itoa(requests)}, "X-Ratelimit-Reset-Requests": {"2m"},
			"X-Ratelimit-Limit-Tokens": {"6000"}, "X-Ratelimit-Remaining-Tokens": {strconv.Itoa(tokens)}, "X-Ratelimit-Reset-Tokens": {"30s"},
		}
	}
	var l limiter
	if l.status(now) != nil || !l.blocked(now, 1<<30).IsZero() {
		t.Error("limits that nobody has told")
	}
	l.learn(now, h(2, 5000))
	for i, want := range []bool{true, true, false} {
		if ok := l.take(now, 10); ok != want {
			t.Errorf("request %d: %t", i, ok)
		}
	}
	if s := l.status(now); *s.RequestsRemaining != 0 || *s.TokensRemaining != 4980 || !s.ResetAt.Equal(now.Add(2*time.Minute)) {
		t.Errorf("%+v", s)
	}
	l.learn(now, h(2, 50))
	if until := l.blocked(now, 51); !until.Equal(now.Add(30 * time.Second)) {
		t.Errorf("51 of 50 tokens: %s", until)
	}
	if !l.blocked(now, 50).IsZero() || l.tooLarge(6000) || !l.tooLarge(6001) {
		t.Error("50 of 50 tokens, 6001 of 6000")
	}
	if s := l.status(now.Add(time.Hour)); *s.RequestsRemaining != 30 || s.ResetAt != nil {
		t.Errorf("an hour later %+v", s)
	}
	for _, odd := range []http.Header{
		{"X-Ratelimit-Remaining-Requests": {"-5"}}, {"X-Ratelimit-Remaining-Requests": {"0"}}, {"X-Ratelimit-Remaining-Requests": {"x"}, "X-Ratelimit-Reset-Requests": {"y"}},
	} {
		var l limiter
		if l.learn(now, odd); !l.blocked(now, 1).IsZero() {
			t.Errorf("%v blocks", odd)
		}
	}
}
