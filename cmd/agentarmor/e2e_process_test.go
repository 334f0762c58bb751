package main

import (
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
)

// The cases are the inputs that broke other gateways, by number; each name
// says what is right.

func TestCase01PendingCallFailsWhenItsServerDies(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"exit", "mute"} {
		e := serveStdio(t, configFile(t, "", up("bad", atOnce, "-fault", `{"kind":"`+fault+`","method":"tools/call","skip":1}`)))
		e.awaitTools("bad__hang")
		pending := e.start("tools/call", toolCall("bad__hang", `{}`))
		began := time.Now()
		m := e.call("bad__hang", `{}`)
		other := e.answer(pending)
		// Under 200 ms where nothing else runs; no timeout is this short.
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("%s: answered after %v", fault, d)
		}
		e.wantUnserved(m, "lost", "maybe")
		e.wantUnserved(other, "lost", "maybe")
	}
}

func TestCase02StderrIsDrainedAndKept(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("chatty", "", "-stderr", "1048576")))
	e.awaitTools("chatty__echo")
	e.wantText(e.call("chatty__echo", `{"text":"x"}`), "x")
	if s := e.status("chatty"); len(s.Stderr) == 0 || !strings.HasPrefix(s.Stderr[0], "eee") {
		t.Errorf("stderr in the status: %q", s.Stderr)
	}
}

func TestCase03BrokenServersDoNotHideTheOthers(t *testing.T) {
	t.Parallel()
	broken := badserver.New(badserver.Options{Faults: []badserver.Fault{{Kind: "status", Status: 500}}})
	ts := httptest.NewServer(broken)
	defer ts.Close()
	e := serveStdio(t, configFile(t, "", up("good", ""),
		"  missing: {command: /nonexistent}\n", remote("broken", ts.URL+"/mcp", "")))
	e.awaitTools("good__echo")
	for _, name := range []string{"missing", "broken"} {
		eventually(t, name+" is down with a reason", func() bool {
			s := e.status(name)
			return s.State == "down" && s.Reason != ""
		})
	}
	if s := e.status("missing"); !strings.Contains(s.Reason+s.LastError, "/nonexistent") {
		t.Errorf("the reason does not name the command: %+v", s)
	}
	if s := e.status("broken"); !strings.Contains(s.Reason+s.LastError, "500") {
		t.Errorf("the reason does not name the HTTP status: %+v", s)
	}
}

func TestCase04CrashingServerIsPacedAndAlone(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "spawns")
	e := serveStdio(t, configFile(t, "", up("healthy", ""), up("crashing", atOnce, "-exit-after", "50ms", "-spawn-log", log)))
	e.awaitTools("healthy__echo")
	const fastExits = 5
	for e.status("crashing").State != "crash_loop" {
		e.wantText(e.call("healthy__sleep", `{"ms":2000}`), "slept")
		if n := len(fileLines(log)); n > fastExits {
			t.Fatalf("%d starts, and no crash loop", n)
		}
	}
	if s := e.status("crashing"); time.Until(s.NextAttempt) < 3*time.Minute || !strings.Contains(s.Reason, "exit status 1") {
		t.Errorf("in the crash loop: %+v", s)
	}
	starts := startTimes(t, log)
	if len(starts) != fastExits {
		t.Errorf("%d starts before the crash loop", len(starts))
	}
	for i := 1; i < len(starts); i++ {
		// 1 s, 2 s, … each ± 20 %; starting and ending take time, too.
		gap, pause := starts[i].Sub(starts[i-1]), time.Second<<(i-1)
		if gap < pause*8/10 || gap > pause*12/10+3*time.Second {
			t.Errorf("start %d came %v after the one before, want %v", i+1, gap, pause)
		}
	}
	if s := e.status("healthy"); s.State != "ready" || s.Restarts != 0 {
		t.Errorf("the healthy one: %+v", s)
	}
}

// startTimes reads what badserver -spawn-log writes.
func startTimes(t *testing.T, log string) (starts []time.Time) {
	t.Helper()
	for _, line := range fileLines(log) {
		ms, _, _ := strings.Cut(line, " ")
		at, err := strconv.ParseInt(ms, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		starts = append(starts, time.UnixMilli(at))
	}
	return starts
}

func TestCase05KilledServerIsNoticedAndRestarted(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", "")))
	e.awaitTools("a__pid")
	first := e.result(e.call("a__pid", `{}`))
	pid, err := strconv.Atoi(first.text())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	for e.status("a").State == "ready" {
		if d := time.Since(killed); d > 2*time.Second { // a second of our own is for the machine
			t.Fatalf("still ready %v after its process was killed", d)
		}
	}
	began := time.Now()
	m := e.call("a__pid", `{}`)
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("the next call took %v", d)
	}
	if r := e.result(m); r.IsError && (r.Meta.Call == nil || r.Meta.Call.Executed != "no") {
		t.Errorf("the next call neither works nor fails: %s", m.Result)
	}
	eventually(t, "calls work again", func() bool {
		r := e.result(e.call("a__pid", `{}`))
		return !r.IsError && r.text() != first.text()
	})
	if s := e.status("a"); s.Restarts < 1 {
		t.Errorf("restarts: %+v", s)
	}
}

func TestCase09NoiseOnStdoutIsSkipped(t *testing.T) {
	t.Parallel()
	for _, noise := range []string{"banner,ansi,blank,halfjson,json,crlf", "banner,bom", "bom,crlf"} {
		e := serveStdio(t, configFile(t, "", up("noisy", "", "-noise", noise)))
		e.awaitTools("noisy__echo")
		e.wantText(e.call("noisy__echo", `{"text":"x"}`), "x")
		if s := e.status("noisy"); strings.Contains(noise, "banner") && s.SkippedLines == 0 {
			t.Errorf("%s: nothing counted: %+v", noise, s)
		}
	}
}

func TestCase12SlowStartIsNotCutShort(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a slow start")
	}
	t.Parallel()
	for _, slow := range []string{"-ready-delay", "-init-delay", "-list-delay"} {
		t.Run(slow, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "spawns")
			e := serveStdio(t, configFile(t, "", up("slow", ", call_timeout: 2s", slow, "8s", "-spawn-log", log)))
			if names, _ := e.tools(); slices.Contains(names, "slow__echo") || !slices.Contains(names, "armor.status") {
				t.Errorf("meanwhile the client sees %v", names)
			}
			e.notification("notifications/tools/list_changed")
			e.wantText(e.call("slow__echo", `{"text":"x"}`), "x")
			if starts := startTimes(t, log); len(starts) != 1 || time.Since(starts[0]) < 8*time.Second {
				t.Errorf("starts: %v", starts)
			}
			if s := e.status("slow"); s.Restarts != 0 || s.LastError != "" {
				t.Errorf("the start was not undisturbed: %+v", s)
			}
		})
	}
}
