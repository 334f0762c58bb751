//go:build linux

package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// panicking is agentarmor with a goroutine that panics at SIGUSR1.
func panicking() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR1)
	go func() {
		defer wire.OnPanic()
		<-c
		panic("at the test's wish")
	}()
	main()
}

// procStat is what /proc tells of one process. A start time beside the pid
// tells it from a later process of the same number.
type procStat struct {
	pid, parent int
	state       string
	started     string
}

func readStat(pid int) (s procStat, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	return procStat{pid, must(strconv.Atoi(f[1])), f[0], f[19]}, true
}

// descendants are the running processes below pid, the children first.
func descendants(pid int) (found []procStat) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	children := map[int][]procStat{}
	for _, dir := range all {
		if s, ok := readStat(must(strconv.Atoi(filepath.Base(dir)))); ok && s.state != "Z" {
			children[s.parent] = append(children[s.parent], s)
		}
	}
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		for _, s := range children[next[0]] {
			found = append(found, s)
			next = append(next, s.pid)
		}
	}
	return found
}

// running tells whether it still runs; one that only waits to be reaped does not.
func (s procStat) running() bool {
	now, ok := readStat(s.pid)
	return ok && now.started == s.started && now.state != "Z"
}

func (s procStat) String() string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.pid))
	return fmt.Sprintf("%d %q", s.pid, line)
}

// family starts three servers with relatives: sleepers in the server's group,
// one of them the child of another, a server that is not the direct child, and
// one that does not end with its stdin.
func family(t *testing.T) string {
	return configFile(t, "",
		shell("a", "", "sleep 300 & (sleep 300 & exec sleep 300) & exec badserver"),
		shell("b", "", "badserver; exit 0"),
		shell("c", "", "badserver; exec sleep 300"))
}

const familySize = 8 // a and its 3 sleepers, 2 shells and their servers

// However the endpoint ends, no process of its upstreams is left. Only after
// SIGKILL, when nothing of ours runs any more, are its children gone by the
// kernel's doing, and what reads stdin sees its end.
func TestCase08NoProcessIsLeft(t *testing.T) {
	for _, transport := range []string{"stdio", "http"} {
		for _, end := range []string{"eof", "SIGTERM", "SIGINT", "two signals", "panic", "SIGKILL"} {
			if transport == "http" && end == "eof" {
				continue
			}
			t.Run(transport+" "+end, func(t *testing.T) {
				t.Parallel()
				args := []string{}
				if transport == "http" {
					args = []string{"--transport", "http", "--listen", "127.0.0.1:0"}
				}
				program := "agentarmor"
				if end == "panic" {
					program = "panicking"
				}
				e := startProgram(t, program, family(t), args...)
				e.initialize(`{}`)
				e.awaitTools("a__echo", "b__echo", "c__echo")
				all := descendants(e.cmd.Process.Pid)
				t.Cleanup(func() {
					for _, s := range all {
						if s.running() {
							_ = syscall.Kill(s.pid, syscall.SIGKILL)
						}
					}
				})
				if len(all) != familySize {
					t.Fatalf("%d processes instead of %d: %v", len(all), familySize, all)
				}
				e.endBy(end)
				<-e.over
				for _, s := range all {
					left := s.parent != e.cmd.Process.Pid && strings.Contains(s.String(), "sleep")
					if end == "SIGKILL" && left {
						continue
					}
					eventually(t, s.String()+" is gone", func() bool { return !s.running() })
				}
			})
		}
	}
}

// endBy ends the endpoint in one of the ways there are.
func (e *endpoint) endBy(end string) {
	signals := map[string][]syscall.Signal{
		"SIGTERM": {syscall.SIGTERM}, "SIGINT": {syscall.SIGINT}, "two signals": {syscall.SIGTERM, syscall.SIGINT},
		"panic": {syscall.SIGUSR1}, "SIGKILL": {syscall.SIGKILL},
	}
	if end == "eof" {
		e.closeInput()
	}
	for _, s := range signals[end] {
		_ = e.cmd.Process.Signal(s)
	}
}

// Neither a call that hangs, nor a question to the client, nor an open
// subscription keeps an endpoint that is told to end.
func TestSignalEndsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	for _, start := range []func(*testing.T, string, ...string) *endpoint{serveStdio, serveWeb} {
		e := start(t, configFile(t, "", up("a", "")))
		e.awaitTools("a__hang")
		e.start("tools/call", toolCall("a__hang", `{}`))
		eventually(t, "the call is under way", func() bool {
			return strings.Contains(e.result(e.call("a__calls", `{}`)).text(), `"tools/call":2`)
		})
		all := descendants(e.cmd.Process.Pid)
		_ = e.cmd.Process.Signal(syscall.SIGTERM)
		<-e.over
		for _, s := range all {
			eventually(t, s.String()+" is gone", func() bool { return !s.running() })
		}
	}
}

// At the end of stdin the client can answer nothing any more, and needs no
// news: what waits for either ends, and with it the endpoint.
func TestEndOfInputEndsWhatWaitsForTheClient(t *testing.T) {
	t.Parallel()
	t.Run("subscription", func(t *testing.T) {
		t.Parallel()
		e := startServe(t, configFile(t, "", up("a", "")))
		e.version = "2026-07-28"
		e.awaitTools("a__echo")
		id := e.start("subscriptions/listen", `{"notifications":{"toolsListChanged":true}}`)
		e.notification("notifications/subscriptions/acknowledged")
		e.closeInput()
		e.answer(id)
		<-e.over
	})
	t.Run("question", func(t *testing.T) {
		t.Parallel()
		e := startServe(t, configFile(t, "", up("a", ", protocol: legacy", "-era", "legacy")))
		e.initialize(`{"elicitation":{}}`)
		e.awaitTools("a__elicit")
		id := e.start("tools/call", toolCall("a__elicit", `{}`))
		e.notification("elicitation/create")
		e.closeInput()
		if m := e.answer(id); m.Result == nil && m.Error == nil {
			t.Errorf("the call got %s", m.raw)
		}
		<-e.over
	})
}
