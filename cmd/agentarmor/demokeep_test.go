//go:build unix

package main

import (
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// What --keep leaves up is there for everyone, with chaos on, until a signal
// ends it and its servers; the commands that it prints work.
func TestDemoKeeps(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			out := &logBuffer{}
			cmd := exec.Command("agentarmor", "demo", "--keep", "--listen", "127.0.0.1:0")
			cmd.Stdout, cmd.Stderr = out, out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			out.waitFor(t, `chaos clear --url http\S+\n`)
			text := out.text.String()
			url := regexp.MustCompile(`claude mcp add --transport http agentarmor-demo (http\S+)\n`).FindStringSubmatch(text)
			if url == nil {
				t.Fatal(text)
			}
			commands := regexp.MustCompile(`(?m)^  agentarmor (.*)$`).FindAllStringSubmatch(text, -1)
			if len(commands) < 6 {
				t.Fatal(text)
			}
			for _, c := range commands {
				if args := strings.Fields(strings.ReplaceAll(c[1], "'", "")); args[1] != "--watch" {
					if out, err := exec.CommandContext(t.Context(), "agentarmor", args...).CombinedOutput(); err != nil {
						t.Errorf("%s: %v\n%s", c[1], err, out)
					}
				}
			}
			pids := keptProcesses(t, url[1])
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
			for _, pid := range pids {
				if !gone(pid) {
					t.Errorf("process %d is still there", pid)
				}
			}
		})
	}
}

// keptProcesses are those of both servers, once they are ready, without a fault.
func keptProcesses(t *testing.T, url string) []int {
	t.Helper()
	c, err := connect(t.Context(), url, "", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d := &demoClient{client: c}
	var doc *statusDocument
	if err := d.until(t.Context(), func(now *statusDocument) bool { doc = now; return now.Summary.Ready == 2 }); err != nil {
		t.Fatal(err)
	}
	if !doc.Chaos.Enabled || doc.Chaos.Active != 0 {
		t.Errorf("%+v", doc.Chaos)
	}
	pids := []int{doc.Upstreams["files"].Pid, doc.Upstreams["search"].Pid}
	if gone(pids[0]) || gone(pids[1]) {
		t.Errorf("no processes: %v", pids)
	}
	return pids
}
