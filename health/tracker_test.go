package health_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/agentarmor/agentarmor/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
