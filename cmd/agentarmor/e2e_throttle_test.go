package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
)

// says and httpDate are what a Retry-After may hold, the latter a time from now.
func says(s string) func() string { return func() string { return s } }
func httpDate(in time.Duration) func() string {
	return func() string { return time.Now().Add(in).UTC().Format(http.TimeFormat) }
}

// A wait that fits the call's budget is waited for: nothing was executed.
func TestThrottledCallWaitsAndIsServed(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, "")
	for name, c := range map[string]struct {
		header func() string
		least  time.Duration
	}{
		"seconds":  {says("1"), time.Second},
		"fraction": {says("1.5"), 1500 * time.Millisecond},
		"date":     {httpDate(2 * time.Second), 0}, // a date has whole seconds
		"past":     {httpDate(-time.Hour), 0},
		"negative": {says("-5"), 0},
		"garbage":  {says("soon"), 0},
		"none":     {says(""), 0},
	} {
		eventually(t, "it is ready", func() bool { return e.status("a").State == "ready" })
		bad.Fault(badserver.Fault{Kind: "status", Status: 429, Count: 1, RetryAfter: c.header(), Tool: "log"})
		began := time.Now()
		e.wantServed(e.call("a__log", `{}`), "logged", 2, "")
		if d := time.Since(began); d < c.least {
			t.Errorf("%s: tried again after %v", name, d)
		}
	}
	if n := bad.Count("tools/call log"); n != 7 { // those that were throttled never got there
		t.Errorf("%d calls were worked on, want 7", n)
	}
}

// A longer wait is told at once, and kept.
func TestThrottledCallIsToldWhenToComeBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		header      func() string
		least, most time.Duration
	}{
		"seconds":  {says("120"), 100 * time.Second, 130 * time.Second},
		"fraction": {says("120.5"), 100 * time.Second, 130 * time.Second},
		"date":     {httpDate(2 * time.Minute), 90 * time.Second, 130 * time.Second},
		"huge":     {says("99999999999999999999"), time.Minute, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, bad := badHTTP(t, soon)
			bad.Fault(badserver.Fault{Kind: "status", Status: 429, RetryAfter: c.header(), Tool: "log"})
			said := e.wantUnserved(e.call("a__log", `{}`), "throttled", "no")
			if in := time.Until(said.RetryAt); in < c.least || in > c.most {
				t.Errorf("told to come back in %v", in)
			}
			eventually(t, "it is throttled", func() bool { return e.status("a").State == "throttled" })
			asked := bad.Count("tools/call")
			again := e.unserved(e.call("a__echo", `{"text":"x"}`))
			if again.Executed != "no" || again.RetryAt.Sub(said.RetryAt).Abs() > 5*time.Second {
				t.Errorf("a call meanwhile: %+v", again)
			}
			if bad.Count("tools/call") != asked {
				t.Error("a call was sent to a server that asked to be left alone")
			}
			s := e.status("a")
			if s.Breaker.State == "open" || s.NextAttempt.Sub(said.RetryAt).Abs() > 5*time.Second {
				t.Errorf("the status: %+v", s)
			}
			if text := e.result(e.call("a__log", `{}`)).text(); !strings.Contains(text, "Do not retry before") {
				t.Errorf("the text: %s", text)
			}
		})
	}
}
