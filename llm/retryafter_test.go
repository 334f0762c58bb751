package llm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	h := func(kv ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(kv); i += 2 {
			h[kv[i]] = []string{kv[i+1]} // as it comes, without a canonical name
		}
		return h
	}
	const none = -1
	for _, tt := range []struct {
		name   string
		header http.Header
		delay  string // RetryInfo.retryDelay
		text   string
		want   time.Duration
	}{
		{name: "nothing", want: none},
		{name: "seconds", header: h("Retry-After", "432"), want: 432 * time.Second},
		{name: "lower case", header: h("retry-after", "4"), want: 4 * time.Second},
		{name: "spaces", header: h("Retry-After", " 5 "), want: 5 * time.Second},
		{name: "fraction", header: h("Retry-After", "1.5"), want: 1500 * time.Millisecond},
		{name: "negative", header: h("Retry-After", "-1"), want: 0},
		{name: "zero", header: h("Retry-After", "0"), want: 0},
		{name: "beyond int64 nanoseconds", header: h("Retry-After", "9223372037"), want: MaxRetryAfter},
		{name: "twenty nines", header: h("Retry-After", "99999999999999999999"), want: MaxRetryAfter},
		{name: "beyond float64", header: h("Retry-After", "1e999"), want: MaxRetryAfter},
		{name: "far below", header: h("Retry-After", "-1e999"), want: 0},
		{name: "NaN", header: h("Retry-After", "NaN"), want: none},
		{name: "Inf", header: h("Retry-After", "Inf"), want: none},
		{name: "word", header: h("Retry-After", "soon"), want: none},
		{name: "date", header: h("Retry-After", date(30*time.Second)), want: 30 * time.Second},
		{name: "date of a skewed clock", header: h("Retry-After", date(time.Hour+30*time.Second), "Date", date(time.Hour)), want: 30 * time.Second},
		{name: "date in the past", header: h("Retry-After", date(-time.Hour)), want: 0},
		{name: "date in a year", header: h("Retry-After", date(8760*time.Hour)), want: MaxRetryAfter},
		{name: "RFC 850 date", header: h("Retry-After", "Monday, 30-Nov-26 10:00:07 GMT"), want: 7 * time.Second},
		{name: "asctime date", header: h("Retry-After", "Mon Nov 30 10:00:07 2026"), want: 7 * time.Second},
		{name: "milliseconds first", header: h("retry-after-ms", "250", "Retry-After", "1"), want: 250 * time.Millisecond},
		{name: "unreadable milliseconds", header: h("retry-after-ms", "x", "Retry-After", "1"), want: time.Second},
		{name: "header before body", header: h("Retry-After", "2"), delay: `"34s"`, want: 2 * time.Second},
		{name: "RetryInfo", delay: `"34.07s"`, text: "Please retry in 9s.", want: 34070 * time.Millisecond},
		{name: "RetryInfo to the nanosecond", delay: `"45.837906927s"`, want: 45837906927},
		{name: "RetryInfo as an object", delay: `{"seconds":34,"nanos":70000000}`, want: 34070 * time.Millisecond},
		{name: "RetryInfo as an object of texts", delay: `{"seconds":"34"}`, want: 34 * time.Second},
		{name: "RetryInfo of nanos", delay: `{"nanos":5e8}`, want: 500 * time.Millisecond},
		{name: "RetryInfo of nothing", delay: `{}`, text: "Please retry in 9s.", want: 9 * time.Second},
		{name: "RetryInfo beyond a Duration", delay: `"99999999999999999999s"`, text: "Please retry in 9s.", want: MaxRetryAfter},
		{name: "RetryInfo of years", delay: `"9223372036854775807h"`, text: "Please retry in 9s.", want: MaxRetryAfter},
		{name: "RetryInfo far below zero", delay: `"-9223372036854775807h"`, want: 0},
		{name: "RetryInfo that is none", delay: `"s"`, text: "Please retry in 9s.", want: 9 * time.Second},
		{name: "RetryInfo below zero", delay: `"-3s"`, want: 0},
		{name: "reset of what is used up", header: h("x-ratelimit-remaining-requests", "12", "x-ratelimit-reset-requests", "5m0s", "x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "7.66s"), want: 7660 * time.Millisecond},
		{name: "the later of two", header: h("x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "2m59.56s", "x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "6ms"), want: 179560 * time.Millisecond},
		{name: "reset without a unit", header: h("x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "120"), want: 2 * time.Minute},
		{name: "reset in days", header: h("x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "1d"), want: MaxRetryAfter},
		{name: "nothing is used up", header: h("x-ratelimit-remaining-tokens", "5", "x-ratelimit-reset-tokens", "7s"), text: "try again in 5.289s.", want: 5289 * time.Millisecond},
		{name: "Gemini's text", text: "You exceeded your current quota.\nPlease retry in 34.074824224s.", want: 34074824224},
		{name: "Groq's text", text: "Rate limit reached. Please try again in 7m12s. Visit https://console.groq.com", want: 432 * time.Second},
		{name: "Azure's text", text: "Please retry after 20 seconds.", want: 20 * time.Second},
		{name: "a text of years", text: "try again in 99999999999999999999s.", want: MaxRetryAfter},
		{name: "minutes in words", text: "try again in 5 minutes", want: none},
		{name: "a word", text: "please try again in a while", want: none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := errorBody{message: tt.text}
			if tt.delay != "" {
				b.retryDelay = json.RawMessage(tt.delay)
			}
			if got := retryAfter(tt.header, b, now); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"432", "-1", "1.5", "1e999", "NaN", "0x1p-2", "34.07s", "7m12s", "1d2h", "9223372036854775807h", "Mon, 30 Nov 2026 10:00:00 GMT", `{"seconds":34,"nanos":1e300}`, "\x00", "d", "µs"} {
		f.Add(s, s, s, s)
	}
	now := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, head, date, delay, text string) {
		for _, key := range []string{"Retry-After", "retry-after-ms", "X-Ratelimit-Reset-Tokens"} {
			h := http.Header{key: {head}, "Date": {date}, "X-Ratelimit-Remaining-Tokens": {"0"}}
			quoted, _ := json.Marshal(delay)
			for _, raw := range []json.RawMessage{nil, json.RawMessage(delay), quoted} {
				d := retryAfter(h, errorBody{retryDelay: raw, message: "try again in " + text}, now)
				if d < -1 || d > MaxRetryAfter {
					t.Errorf("%s", d)
				}
			}
			HTTPError(429, h, fmt.Appendf(nil, `{"error":{"message":%q,"details":[{"@type":"RetryInfo","retryDelay":%s}]}}`, text, delay))
			HTTPError(429, h, []byte(delay))
		}
	})
}
