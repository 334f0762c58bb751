package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// logBuffer is a stderr that a test can wait on.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
	seen int // up to where waitFor has read
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// waitFor returns the first match after the last one, or fails the test.
func (b *logBuffer) waitFor(t *testing.T, expr string) string {
	t.Helper()
	re := regexp.MustCompile(expr)
	for range 2000 {
		b.mu.Lock()
		rest := b.text.Bytes()[b.seen:]
		if at := re.FindIndex(rest); at != nil {
			found := string(rest[at[0]:at[1]])
			b.seen += at[1]
			b.mu.Unlock()
			return found
		}
		b.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no %s in the log:\n%s", expr, b.text.String())
	return ""
}

// serveHTTP runs the endpoint on a free port until the test ends and returns
// its log and URL.
func serveHTTP(t *testing.T, config string) (*logBuffer, string) {
	t.Helper()
	log := &logBuffer{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"serve", "--transport", "http", "--listen", "127.0.0.1:0", "--config", config, "--log-format", "json"},
			contractEnv, nil, io.Discard, log)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v\n%s", err, log.text.String())
		}
	})
	found := log.waitFor(t, `"listening","url":"[^"]+"`)
	return log, found[strings.Index(found, "http") : len(found)-1]
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReload(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Run("", func(t *testing.T) {
		config := filepath.Join(t.TempDir(), "c.yaml")
		write(t, config, "mcpServers: {a: {command: x, disabled: true}}")
		log, _ := serveHTTP(t, config)

		write(t, config, "mcpServers: {a: {command: x, disabled: true}, b: {command: y, disabled: true}}")
		log.waitFor(t, `"config reloaded","upstreams":2`)

		// A file with mistakes changes nothing and says where they are.
		write(t, config, "mcpServers: {a: {comand: x}}")
		log.waitFor(t, `"ERROR","msg":"config not reloaded, the old one stays in effect","reason":"[^"]*c.yaml:1:18: mcpServers.a.comand: unknown key`)

		// Editors write another file and rename it.
		write(t, config+"~", "mcpServers: {}\nlisten: 127.0.0.1:1\nlog: {level: debug}\nretry: 1")
		write(t, config+"~", "mcpServers: {}\nlimits: {queue: 5}\nlog: {level: debug}\nchaos: {seed: 7}\nalerts: {rules: {crash_loop: false}}")
		if err := os.Rename(config+"~", config); err != nil {
			t.Fatal(err)
		}
		log.waitFor(t, `"takes effect after a restart","keys":\["limits","chaos","alerts"\]`)
		log.waitFor(t, `"config reloaded","upstreams":0`)

		if err := os.Remove(config); err != nil {
			t.Fatal(err)
		}
		log.waitFor(t, `"config not reloaded.*there is no config file`)
	})
}

func TestStatus(t *testing.T) {
	config := filepath.Join(t.TempDir(), "c.yaml")
	write(t, config, `
auth: {tokens: [right]}
mcpServers:
  gone: {command: /nonexistent/server}
  off: {command: x, disabled: true}
`)
	_, url := serveHTTP(t, config)
	env := mapEnv(map[string]string{"RIGHT": "right", "WRONG": "wrong"})
	status := func(args ...string) (string, error) {
		var out bytes.Buffer
		err := run(t.Context(), append([]string{"status", "--url", url}, args...), env, nil, &out, io.Discard)
		return out.String(), err
	}

	out, err := status("--token-env", "RIGHT")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"AgentArmor ", "UPSTREAM", "\ngone      down ", "\noff       disabled ", "/nonexistent/server"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	out, err = status("--config", config, "--json")
	if err != nil || !strings.Contains(out, `"state": "disabled"`) {
		t.Errorf("%v\n%s", err, out)
	}
	for _, args := range [][]string{{"--token-env", "WRONG"}, {}} {
		_, err = status(args...)
		if err == nil || !strings.Contains(err.Error(), "wants another token") || strings.Contains(err.Error(), "wrong") {
			t.Errorf("status %q: %v", args, err)
		}
	}
}

// A watch hears of changes from the endpoint, and its session leaves nothing behind.
func TestStatusIsFollowed(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Run("", func(t *testing.T) {
		config := filepath.Join(t.TempDir(), "c.yaml")
		write(t, config, "mcpServers: {gone: {command: /nonexistent/server, probe: {every_down: 1s}}}")
		_, url := serveHTTP(t, config)
		r := &statusReader{url: url}
		defer r.close()
		changed := make(chan struct{}, 1)
		if _, err := r.read(t.Context(), changed); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		case <-time.After(30 * time.Second):
			t.Error("nobody told that the server was tried again")
		}
	})
}

func TestReport(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		text string
	}{
		{nil, 0, ""},
		{errFailed, 1, ""},
		{errors.New("broken"), 1, "agentarmor: broken\n"},
		{usage("wrong %s", "flag"), 2, "agentarmor: wrong flag\n"},
		{newConfigError("f", []issue{{2, 1, "b", "y"}, {1, 2, "a", "x"}, {1, 2, "a", "x"}}), 2, "f:1:2: a: x\nf:2:1: b: y\n"},
	} {
		var out bytes.Buffer
		if code := report(&out, c.err); code != c.code || out.String() != c.text {
			t.Errorf("%v: %d %q", c.err, code, out.String())
		}
	}
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "LOCALHOST:1": true, "[::ffff:127.0.0.1]:1": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "localhost.example.com:1": false, "localhost": false,
	} {
		if got := loopback(addr); got != want {
			t.Errorf("loopback(%s) = %v", addr, got)
		}
	}
}
