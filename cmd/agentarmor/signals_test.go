//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// SIGHUP reloads even what has not changed.
func TestSIGHUP(t *testing.T) {
	config := filepath.Join(t.TempDir(), "c.yaml")
	write(t, config, "mcpServers: {a: {command: x, disabled: true}}")
	log, _ := serveHTTP(t, config)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	log.waitFor(t, `"config reloaded","upstreams":1`)
}

// SIGTERM ends the endpoint with exit code 0, and its upstreams with it.
func TestSIGTERM(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"agentarmor", "fakeserver"} { // see TestMain
		if err := os.Symlink(must(os.Executable()), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	pidFile := filepath.Join(dir, "pid")
	write(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf("mcpServers: {a: {command: %q, env: {FAKE_PID: %q}}}", filepath.Join(dir, "fakeserver"), pidFile))
	cmd := exec.Command(filepath.Join(dir, "agentarmor"), "serve", "--transport", "http", "--listen", "127.0.0.1:0", "--config", "c.yaml")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+dir)
	log := &logBuffer{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	log.waitFor(t, `"listening"`)
	var pid []byte
	for range 2000 {
		if pid, _ = os.ReadFile(pidFile); pid != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, log.text.String())
	}
	if err := syscall.Kill(must(strconv.Atoi(string(pid))), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the upstream is still there: %v", err)
	}
}
