package llm

import (
	"encoding/json"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// MaxRetryAfter caps every delay that an answer asks for.
const MaxRetryAfter = 10 * time.Minute

// retryAfter returns how long an answer asks to be left alone, -1 if it does
// not say. The first source that can be read decides:
//
//	retry-after-ms          milliseconds (OpenAI, Azure)
//	Retry-After             seconds, also with a fraction, or an HTTP date, which
//	                        is read against the answer's own Date (RFC 9110, 10.2.3)
//	RetryInfo.retryDelay    "34.07s" or {"seconds":34,"nanos":70000000} (Gemini)
//	x-ratelimit-reset-*     of each x-ratelimit-remaining-* that is 0: the longest
//	text                    "retry in 34.07s", "try again in 7m12s" (Gemini, Groq), "retry after 20 seconds" (Azure)
func retryAfter(h http.Header, b errorBody, now time.Time) time.Duration {
	if d, ok := parseSeconds(header(h, "retry-after-ms"), time.Millisecond); ok {
		return d
	}
	if d, ok := parseRetryAfter(header(h, "retry-after"), header(h, "date"), now); ok {
		return d
	}
	if d, ok := parseRetryDelay(b.retryDelay); ok {
		return d
	}
	if d, ok := parseResets(h); ok {
		return d
	}
	if d, ok := parseText(b.message); ok {
		return d
	}
	return -1
}

// header returns a header whatever the case of its name in the map.
func header(h http.Header, name string) string {
	if v := h.Get(name); v != "" {
		return v
	}
	for k, v := range h {
		if len(v) > 0 && strings.EqualFold(k, name) {
			return v[0]
		}
	}
	return ""
}

// parseRetryAfter reads the value of Retry-After. A date in the past is 0.
func parseRetryAfter(value, date string, now time.Time) (time.Duration, bool) {
	if d, ok := parseSeconds(value, time.Second); ok {
		return d, true
	}
	at, err := http.ParseTime(strings.TrimSpace(value))
	if err != nil {
		return 0, false
	}
	if theirs, err := http.ParseTime(strings.TrimSpace(date)); err == nil {
		now = theirs // their clock set both
	}
	return clamp(at.Sub(now)), true
}

// parseSeconds reads a decimal number of units. It is capped before it is
// multiplied; below 0 it is 0.
func parseSeconds(s string, unit time.Duration) (time.Duration, bool) {
	n, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if math.IsNaN(n) || (err != nil && !math.IsInf(n, 0)) || (err == nil && math.IsInf(n, 0)) {
		return 0, false // the error of a number out of range comes with an infinity
	}
	n = min(max(n, 0), float64(MaxRetryAfter/unit))
	return clamp(time.Duration(n * float64(unit))), true
}

var durations = regexp.MustCompile(`^([0-9]*\.?[0-9]+(ns|us|µs|ms|s|m|h|d))+$`)

// parseDelay reads a duration such as 7m12s, 2m59.56s, 6ms or 1d2h, or seconds.
func parseDelay(s string) (time.Duration, bool) {
	s = strings.TrimSpace(s)
	if d, ok := parseSeconds(s, time.Second); ok {
		return d, true
	}
	s, negative := strings.CutPrefix(s, "-")
	switch d, err := time.ParseDuration(s); {
	case !durations.MatchString(s):
		return 0, false
	case negative:
		return 0, true
	case err != nil: // days, or more than a Duration holds
		return MaxRetryAfter, true
	default:
		return clamp(d), true
	}
}

// parseRetryDelay reads a protobuf Duration as JSON writes it, or as an object.
func parseRetryDelay(raw json.RawMessage) (time.Duration, bool) {
	var text string
	if json.Unmarshal(raw, &text) == nil && text != "" {
		return parseDelay(text)
	}
	var d struct {
		Seconds json.Number `json:"seconds"` // protobuf writes an int64 as a string
		Nanos   float64     `json:"nanos"`
	}
	if json.Unmarshal(raw, &d) != nil || d.Seconds == "" && d.Nanos == 0 {
		return 0, false
	}
	s, ok := parseSeconds(string(d.Seconds), time.Second)
	if !ok && d.Seconds != "" {
		return 0, false
	}
	return clamp(s + time.Duration(min(max(d.Nanos, 0), 1e9))), true
}

const (
	remainingPrefix = "x-ratelimit-remaining-"
	resetPrefix     = "x-ratelimit-reset-"
)

// parseResets returns the longest reset among the limits that are used up.
func parseResets(h http.Header) (longest time.Duration, found bool) {
	for k, v := range h {
		what, ok := strings.CutPrefix(strings.ToLower(k), remainingPrefix)
		if !ok || len(v) == 0 || strings.TrimSpace(v[0]) != "0" {
			continue
		}
		if d, ok := parseDelay(header(h, resetPrefix+what)); ok {
			longest, found = max(longest, d), true
		}
	}
	return longest, found
}

// phrases are the documented texts that name a delay.
var phrases = []string{"retry in ", "try again in ", "retry after "}

func parseText(message string) (time.Duration, bool) {
	lower := strings.ToLower(message)
	for _, p := range phrases {
		_, rest, ok := strings.Cut(lower, p)
		if !ok {
			continue
		}
		token, rest, _ := strings.Cut(rest, " ")
		token = strings.TrimRight(token, ".,;")
		if strings.Trim(token, "0123456789.") == "" && !strings.HasPrefix(rest, "second") {
			continue // a number of who knows what
		}
		if d, ok := parseDelay(token); ok {
			return d, true
		}
	}
	return 0, false
}

func clamp(d time.Duration) time.Duration { return min(max(d, 0), MaxRetryAfter) }
