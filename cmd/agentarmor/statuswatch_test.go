package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// watched runs a watch over one reading after the other, until they are used up, and
// returns what it wrote and how long it took.
func watched(t *testing.T, w *statusWatch, readings ...any) (out, errs string, took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		w.out, w.errs, w.paint = &stdout, &stderr, plain
		w.changed = make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		err := w.run(ctx, func() ([]byte, error) {
			if len(readings) == 0 {
				cancel()
				return nil, ctx.Err()
			}
			r := readings[0]
			readings = readings[1:]
			switch r := r.(type) {
			case error:
				return nil, r
			case string:
				return []byte(r), nil
			}
			panic("a reading is a string or an error")
		})
		if err != nil {
			t.Errorf("the watch ended with %v", err)
		}
		out, errs, took = stdout.String(), stderr.String(), time.Since(began)
	})
	return out, errs, took
}

// upstreamDoc is a status document with one upstream.
func upstreamDoc(keys string) string {
	return `{"version": "1", "summary": {"upstreams": 1, "text": "now"}, "upstreams": {"a": {` + keys + `}}}`
}

var (
	ready     = upstreamDoc(`"state": "ready", "tools": 1, "window": {"calls": 1}, "breaker": {"state": "closed"}`)
	readyBusy = upstreamDoc(`"state": "ready", "tools": 1, "window": {"calls": 9}, "breaker": {"state": "closed"}, "last_success": "2026-11-30T10:02:41Z"`)
	down      = upstreamDoc(`"state": "down", "reason": "gone", "tools": 1, "breaker": {"state": "open"}, "next_attempt": "2026-11-30T10:02:41Z"`)
	downLater = upstreamDoc(`"state": "down", "reason": "gone", "tools": 1, "breaker": {"state": "open", "until": "2026-11-30T10:02:41Z"}, "retry_after_ms": 5`)
)

// In a pipe there is a block for each change, and none for what only counts or waits.
func TestWatchWritesChanges(t *testing.T) {
	out, errs, took := watched(t, &statusWatch{}, ready, readyBusy, down, downLater, errors.New("refused"), errors.New("refused"), down)
	var states []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "a  ") {
			states = append(states, strings.Fields(line)[1])
		}
	}
	if got := fmt.Sprint(states); got != "[ready down down]" {
		t.Errorf("states %s in\n%s", got, out)
	}
	if errs != "agentarmor: refused\n" {
		t.Errorf("stderr: %q", errs)
	}
	if took != 7*watchEvery {
		t.Errorf("8 readings took %v", took)
	}
}

// Of the models, too, only what happens to them is a change.
func TestWatchedModels(t *testing.T) {
	doc := func(m string) string {
		return `{"version": "1", "llm": {"chain": ["m"], "providers": {"m": {` + m + `}}, "failovers_last_hour": ` + fmt.Sprint(len(m)) + `, "queued": ` + fmt.Sprint(len(m)) + `}}`
	}
	out, _, _ := watched(t, &statusWatch{}, doc(`"state": "ready"`),
		doc(`"state": "ready", "window": {"calls": 2}, "limits": {"tokens_remaining": 3}`),
		doc(`"state": "down", "breaker": {"state": "open", "until": "2026-11-30T10:02:41Z"}, "until": "2026-11-30T10:02:41Z"`),
		doc(`"state": "down", "breaker": {"state": "open"}`), doc(`"state": "down", "breaker": {"state": "half_open"}`))
	if n := strings.Count(out, "PROVIDER"); n != 3 {
		t.Errorf("%d blocks:\n%s", n, out)
	}
}

func TestWatchWritesJSONLines(t *testing.T) {
	out, _, _ := watched(t, &statusWatch{json: true}, ready, readyBusy, down)
	if n := strings.Count(out, "\n"); n != 2 || !strings.Contains(out, `"state":"down","reason":"gone"`) {
		t.Errorf("%d lines:\n%s", n, out)
	}
}

// On a terminal everything is drawn anew, an endpoint that went away too.
func TestWatchRedraws(t *testing.T) {
	out, errs, _ := watched(t, &statusWatch{live: true}, ready, readyBusy, errors.New("refused\nby it"), "[]")
	screens := strings.Split(out, "\x1b[H")
	if len(screens) != 5 || !strings.Contains(screens[3], "refused by it\x1b[K\n\x1b[J") || !strings.Contains(screens[4], "unknown shape") || errs != "" {
		t.Errorf("%q, stderr %q", screens, errs)
	}
	for _, s := range screens[1:] {
		if strings.Count(s, "\n") != strings.Count(s, "\x1b[K\n") || !strings.HasSuffix(s, "\x1b[J") {
			t.Errorf("leaves something on the screen: %q", s)
		}
	}
}

// What the endpoint says is read at once.
func TestWatchFollowsUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &statusWatch{out: &bytes.Buffer{}, paint: plain, changed: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		reads := 0
		err := w.run(ctx, func() ([]byte, error) {
			if reads++; reads == 4 {
				cancel()
			}
			w.changed <- struct{}{}
			return []byte(ready), nil
		})
		if err != nil || time.Since(began) != 0 {
			t.Errorf("4 readings took %v: %v", time.Since(began), err)
		}
	})
}

// Nothing to show at the start is an error, and so is nowhere to show it.
func TestWatchErrors(t *testing.T) {
	refused := errors.New("refused")
	w := &statusWatch{out: &bytes.Buffer{}, paint: plain}
	if err := w.run(t.Context(), func() ([]byte, error) { return nil, refused }); err != refused {
		t.Errorf("got %v", err)
	}
	for _, w := range []*statusWatch{{}, {live: true}, {json: true}} {
		w.out, w.paint = closedPipe{}, plain
		if err := w.run(t.Context(), func() ([]byte, error) { return []byte(ready), nil }); err != errClosed {
			t.Errorf("got %v", err)
		}
	}
}

var errClosed = errors.New("closed")

type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, errClosed }
