package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// marked shows where colour begins and ends.
func marked(colour, text string) string { return "<" + colour + ":" + text + ">" }

func plain(_, text string) string { return text }

var statusNow = time.Date(2026, 11, 30, 10, 2, 50, 0, time.UTC)

func TestStatusTable(t *testing.T) {
	doc := must(readDocument(must(os.ReadFile("testdata/status.json"))))
	for file, paint := range map[string]func(_, text string) string{"testdata/status.want": plain, "testdata/status.colours": marked} {
		v := statusView{now: statusNow, paint: paint}
		got := v.render(doc)
		if *update {
			write(t, file, got)
		}
		if diff := cmp.Diff(string(must(os.ReadFile(file))), got); diff != "" {
			t.Errorf("%s\n%s", file, diff)
		}
	}
}

// An endpoint without upstreams, and one that says less than ours.
func TestStatusTableOfLittle(t *testing.T) {
	for src, want := range map[string]string{
		`{}`: "AgentArmor , up ",
		`{"version": "9", "started_at": "2026-11-30T10:02:00Z"}`: "AgentArmor 9, up 50s: no upstream is configured\n",
		`{"version": "9", "started_at": "2026-11-28T09:02:50Z", "summary": {"ready": 0, "tools": 1}, "upstreams": {"a": {}}}`: `AgentArmor 9, up 2d1h: 0 of 1 upstream ready, 1 tool

UPSTREAM  STATE  BREAKER  CALLS  ERRORS  P95  RESTARTS  NEXT ATTEMPT  TOOLS
a         -      -            -       -    -         0  -                 0
`,
		`{"version": "9", "started_at": "2026-11-30T10:02:00Z", "llm": {"chain": [], "providers": {}}}`: `AgentArmor 9, up 50s: no upstream is configured

llm.complete: no model is configured; agentarmor check says what is missing
`,
		`{"version": "9", "started_at": "2026-11-30T10:02:00Z", "llm": {"providers": {"b": {}, "a": {"state": "ready", "model": "m"}}, "healthy": 1}}`: `AgentArmor 9, up 50s: no upstream is configured

llm.complete: 1 of 2 models can be asked; 0 failovers in the last hour

PROVIDER  STATE  BREAKER  CALLS  ERRORS  P95  NEXT ATTEMPT  LIMITS LEFT  MODEL
a         ready  -            -       -    -  -             -            m
b         -      -            -       -    -  -             -            -
`,
	} {
		v := statusView{now: statusNow, paint: plain}
		if got := v.render(must(readDocument([]byte(src)))); !strings.HasPrefix(got, want) {
			t.Errorf("%s\n got %q\nwant %q", src, got, want)
		}
	}
	if err := printStatus(&bytes.Buffer{}, []byte("[]")); err == nil {
		t.Error("no error for a list")
	}
}

func TestFigures(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", time.Millisecond: "1s", 59 * time.Second: "59s", 125 * time.Second: "2m5s",
		10 * time.Minute: "10m", 200 * time.Minute: "3h20m", 50 * time.Hour: "2d2h",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%v) = %s, want %s", d, got, want)
		}
	}
	for p, want := range map[float64]string{0: "0%", 0.0001: "<0.1%", 0.0731: "7.3%", 0.5: "50%", 1: "100%"} {
		if got := percent(p); got != want {
			t.Errorf("percent(%v) = %s, want %s", p, got, want)
		}
	}
	for ms, want := range map[float64]string{0: "0ms", 0.34: "0.3ms", 9.4: "9.4ms", 840.2: "840ms", 12345: "12.3s"} {
		if got := milliseconds(ms); got != want {
			t.Errorf("milliseconds(%v) = %s, want %s", ms, got, want)
		}
	}
	if got := oneLine("a\x1b[2J\nb\x1b[1;31m\u202e" + strings.Repeat("é", 500)); len([]rune(got)) != maxShown || !strings.HasPrefix(got, "a b é") {
		t.Errorf("oneLine: %q", got)
	}
}
