package main

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
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
	for _, fault := range []string{"-exit-on-call", "-close-stdout-on-call"} {
		e := serveStdio(t, configFile(t, "", up("bad", "", fault, "1")))
		e.awaitTools("bad__echo")
		began := time.Now()
		m := e.call("bad__echo", `{"text":"x"}`)
		// 200 ms on an idle machine; what counts is that no timeout was waited for.
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("%s: answered after %v", fault, d)
		}
		e.wantUnserved(m, "lost", "maybe")
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
	broken := badserver.New(badserver.Options{Status: 500})
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
	e := serveStdio(t, configFile(t, "", up("healthy", ""), up("crashing", "", "-exit-after", "50ms", "-spawn-log", log)))
	e.awaitTools("healthy__echo")
	e.wantText(e.call("healthy__sleep", `{"ms":2000}`), "slept")
	eventually(t, "it is started again", func() bool { return len(fileLines(log)) >= 3 })
	var last int64
	for i, line := range fileLines(log) {
		ms, _, _ := strings.Cut(line, " ")
		at, err := strconv.ParseInt(ms, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		// 1 s, 2 s, … each ± 20 %, and the clock of another process.
		if gap, least := at-last, int64(700)<<max(i-1, 0); i > 0 && gap < least {
			t.Errorf("start %d came after %d ms, expected %d or more", i+1, gap, least)
		}
		last = at
	}
	e.wantText(e.call("healthy__echo", `{"text":"still here"}`), "still here")
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
	eventually(t, "the status tells", func() bool {
		s := e.status("a")
		return s.State != "ready" || s.Pid != pid
	})
	eventually(t, "calls work again", func() bool {
		r := e.result(e.call("a__pid", `{}`))
		return !r.IsError && r.text() != first.text()
	})
	if s := e.status("a"); s.Restarts < 1 {
		t.Errorf("restarts: %+v", s)
	}
}

func TestCase08NoProcessIsLeft(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for processes to end")
	}
	t.Parallel()
	for _, end := range []string{"eof", "terminate", "kill"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			pids := filepath.Join(t.TempDir(), "pids")
			script := fmt.Sprintf("sleep 300 & echo $! > %s; echo $$ >> %s; exec badserver", pids, pids)
			script = strings.ReplaceAll(script, "$", "$$") // the config expands variables
			e := serveStdio(t, configFile(t, "", fmt.Sprintf("  a: {command: sh, args: [-c, %q]}\n", script)))
			e.awaitTools("a__echo")
			lines := fileLines(pids)
			if len(lines) != 2 {
				t.Fatalf("pids %q", lines)
			}
			grandchild, child := must(strconv.Atoi(lines[0])), must(strconv.Atoi(lines[1]))
			t.Cleanup(func() { _ = syscall.Kill(grandchild, syscall.SIGKILL) })
			switch end {
			case "eof":
				e.closeInput()
			case "terminate":
				_ = e.cmd.Process.Signal(syscall.SIGTERM)
			case "kill":
				_ = e.cmd.Process.Kill()
			}
			eventually(t, "the child is gone", func() bool { return !alive(child) })
			if end != "kill" {
				eventually(t, "the grandchild is gone", func() bool { return !alive(grandchild) })
			}
		})
	}
}

// alive tells whether a process runs; one that only waits to be reaped does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
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
	t.Parallel()
	log := filepath.Join(t.TempDir(), "spawns")
	e := serveStdio(t, configFile(t, "", up("slow", ", call_timeout: 1s", "-ready-delay", "4s", "-spawn-log", log)))
	if e.seen("notifications/tools/list_changed") > 0 {
		t.Error("the list changed before the server was ready")
	}
	e.notification("notifications/tools/list_changed")
	e.awaitTools("slow__echo")
	e.wantText(e.call("slow__echo", `{"text":"x"}`), "x")
	if n := len(fileLines(log)); n != 1 {
		t.Errorf("%d starts", n)
	}
}
