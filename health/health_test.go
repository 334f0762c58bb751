package health_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/health"
)

func TestClassify(t *testing.T) {
	status := func(n int) health.Evidence {
		return health.Evidence{Kind: health.FailHTTPStatus, Status: n}
	}
	code := func(n int) health.Evidence { return health.Evidence{HasRPCError: true, RPCCode: n} }
	kind := func(k health.Kind) health.Evidence { return health.Evidence{Kind: k} }
	for _, tt := range []struct {
		name     string
		of       []health.Evidence
		want     health.Class
		executed string
	}{
		{"ok", []health.Evidence{{}}, health.OK, "yes"},
		{"tool_error", []health.Evidence{{IsToolError: true}}, health.ToolError, "yes"},
		{"rejected", []health.Evidence{
			code(-32600), code(-32601), code(-32602), code(-32002), code(-32042), code(-32020), code(-32021), code(-32022),
			status(400), status(404), status(405), status(422),
		}, health.Rejected, "no"},
		{"upstream_error", []health.Evidence{code(-32603), code(-32000), code(0), code(-32700)}, health.UpstreamError, "maybe"},
		{"session_lost", []health.Evidence{{Kind: health.FailSessionLost, Status: 404}}, health.SessionLost, "no"},
		{"auth", []health.Evidence{status(401), status(403)}, health.Auth, "no"},
		{"throttled", []health.Evidence{status(429)}, health.RateLimited, "no"},
		{"overloaded", []health.Evidence{status(500), status(503), status(408), status(498)}, health.Overloaded, "maybe"},
		{"timeout", []health.Evidence{kind(health.FailTimeout)}, health.Timeout, "maybe"},
		{"lost", []health.Evidence{kind(health.FailLost), kind(health.Kind(99))}, health.Lost, "maybe"},
		{"not_sent", []health.Evidence{kind(health.FailNotSent)}, health.NotSent, "no"},
		{"malformed", []health.Evidence{kind(health.FailMalformed), status(202), status(302)}, health.Malformed, "maybe"},
		{"open", []health.Evidence{kind(health.FailOpen)}, health.Open, "no"},
		{"cancelled", []health.Evidence{kind(health.FailCancelled)}, health.Cancelled, "maybe"},
	} {
		for _, e := range tt.of {
			got := health.Classify(e)
			if got != tt.want || got.String() != tt.name || got.Executed() != tt.executed {
				t.Errorf("Classify(%+v) = %v (executed %s), want %s (%s)", e, got, got.Executed(), tt.name, tt.executed)
			}
		}
	}
}

func TestUnknownClass(t *testing.T) {
	if c := health.Class(99); c.String() != "class(99)" || c.Executed() != "maybe" {
		t.Errorf("class 99 = %s, executed %s", c, c.Executed())
	}
}

func TestTracker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []health.State
		tr := health.NewTracker(health.Starting, health.Options{OnChange: func(from health.State, now health.Snapshot) {
			seen = append(seen, from, now.State)
		}})
		born := time.Now().UTC()
		time.Sleep(time.Second)
		if !tr.Set(health.Down, "refused", time.Now().Add(3*time.Second)) {
			t.Error("a new state is no change")
		}
		down := time.Now().UTC()
		if tr.Set(health.Down, "refused", down.Add(3*time.Second)) {
			t.Error("the same again is a change")
		}
		time.Sleep(time.Second)
		tr.Failed("exit status 1")
		tr.Restarted()
		tr.Succeeded()
		want := health.Snapshot{
			State: health.Down, Reason: "refused", Since: down, NextAttempt: new(down.Add(3 * time.Second)),
			RetryAfterMS: 2000, Restarts: 1, LastError: "exit status 1", LastSuccess: new(time.Now().UTC()),
		}
		if diff := cmp.Diff(want, tr.Snapshot()); diff != "" {
			t.Error(diff)
		}
		tr.Set(health.Down, "refused again", time.Time{})
		if s := tr.Snapshot(); !s.Since.Equal(down) || s.NextAttempt != nil || s.RetryAfterMS != 0 {
			t.Errorf("the same state for another reason: %+v", s)
		}
		tr.Set(health.Ready, "", time.Time{})
		if s := tr.Snapshot(); s.Since.Equal(born) || s.LastError == "" {
			t.Errorf("ready: %+v", s)
		}
		if diff := cmp.Diff([]health.State{health.Starting, health.Down, health.Down, health.Down, health.Down, health.Ready}, seen); diff != "" {
			t.Error(diff)
		}
	})
}

// TestOnChangeMayRead holds the promise that no lock is held.
func TestOnChangeMayRead(t *testing.T) {
	var tr *health.Tracker
	called := false
	tr = health.NewTracker(health.Starting, health.Options{OnChange: func(health.State, health.Snapshot) {
		called = tr.Snapshot().State == health.Ready
	}})
	tr.Set(health.Ready, "", time.Time{})
	if !called {
		t.Error("OnChange was not called after the change")
	}
}

func TestSnapshotJSON(t *testing.T) {
	at := time.Date(2026, 11, 30, 10, 2, 50, 0, time.UTC)
	b, err := json.Marshal(health.Snapshot{State: health.CrashLoop, Reason: "r", Since: at, NextAttempt: &at, RetryAfterMS: 5, LastError: "e"})
	want := `{"state":"crash_loop","reason":"r","since":"2026-11-30T10:02:50Z","next_attempt":"2026-11-30T10:02:50Z","retry_after_ms":5,"restarts":0,"last_error":"e"}`
	if err != nil || string(b) != want {
		t.Errorf("%s, %v\nwant %s", b, err, want)
	}
}
