package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// End-to-end tests run the whole program as a process, in front of
// badserver processes, and talk raw JSON-RPC to it. TestMain puts both
// commands on the PATH.

// patience bounds every wait of these tests; nothing should come near it.
const patience = 60 * time.Second

// endpoint is one running "agentarmor serve" and the client of it.
type endpoint struct {
	*rawClient
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr *logBuffer
	over   chan struct{} // closed when the process is reaped
	url    string        // over HTTP
}

// up is one entry of mcpServers that runs badserver. keys are further
// settings in YAML's flow style, with a comma in front.
func up(name, keys string, args ...string) string {
	list, _ := json.Marshal(args) // strings always encode
	return fmt.Sprintf("  %s: {command: badserver, args: %s%s}\n", name, list, keys)
}

// atOnce lets a badserver built with the race detector exit without a second's
// sleep, where a test is about time.
const atOnce = ", env: {GORACE: atexit_sleep_ms=0}"

// shell is one entry of mcpServers that runs a script of sh.
func shell(name, keys, script string) string {
	return fmt.Sprintf("  %s: {command: sh, args: [-c, %q]%s}\n", name, script, keys)
}

// remote is one entry of mcpServers for a server at a URL.
func remote(name, url, keys string) string {
	return fmt.Sprintf("  %s: {url: %q%s}\n", name, url, keys)
}

// configFile writes a config with these upstreams and returns its name. top
// holds further keys, each on its line.
func configFile(t *testing.T, top string, upstreams ...string) string {
	t.Helper()
	dir := t.TempDir()
	text := fmt.Sprintf("state_dir: %q\n%s\nmcpServers:\n%s", filepath.Join(dir, "state"), top, strings.Join(upstreams, ""))
	file := filepath.Join(dir, "agentarmor.yaml")
	write(t, file, text)
	return file
}

// startServe runs serve with a config file. The client has not spoken yet.
func startServe(t *testing.T, config string, args ...string) *endpoint {
	t.Helper()
	return startProgram(t, "agentarmor", config, args...)
}

// startProgram is startServe for a program of TestMain that is agentarmor and
// more.
func startProgram(t *testing.T, program, config string, args ...string) *endpoint {
	t.Helper()
	e := &endpoint{stderr: &logBuffer{}, over: make(chan struct{})}
	e.cmd = exec.Command(program, append([]string{"serve", "--config", config, "--log-format", "json"}, args...)...)
	e.cmd.Env = append(os.Environ(), "AGENTARMOR_E2E_SECRET=s3cret-value")
	e.cmd.Stderr = e.stderr
	stdin, err := e.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	e.stdin = stdin
	stdout, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	overHTTP := strings.Contains(strings.Join(args, " "), "http")
	overPipe := newRawClient(t, func(raw string) {
		if _, err := stdin.Write([]byte(raw + "\n")); err != nil {
			t.Errorf("the endpoint does not read: %v", err)
		}
	})
	go func() {
		defer close(e.over)
		overPipe.readLines(bufio.NewReaderSize(stdout, 1<<20))
		_ = e.cmd.Wait()
	}()
	e.rawClient = overPipe
	t.Cleanup(func() {
		if overHTTP {
			_ = e.cmd.Process.Signal(syscall.SIGTERM)
		}
		stdin.Close()
		select {
		case <-e.over:
		case <-time.After(patience):
			_ = e.cmd.Process.Kill()
			t.Error("the endpoint did not end")
		}
		<-e.over
		if t.Failed() {
			t.Logf("stderr:\n%s", e.stderr.text.String())
		}
	})
	if overHTTP {
		found := e.stderr.waitFor(t, `"listening","url":"[^"]+"`)
		e.url = found[strings.Index(found, "http") : len(found)-1]
		e.rawClient = newHTTPClient(t, e.url)
	}
	return e
}

// closeInput ends the endpoint's stdin, as a client does that leaves.
func (e *endpoint) closeInput() { e.stdin.Close() }

// serveStdio starts an endpoint over stdio whose legacy client is ready.
func serveStdio(t *testing.T, config string, args ...string) *endpoint {
	t.Helper()
	e := startServe(t, config, args...)
	e.initialize(`{}`)
	return e
}

// serveWeb is serveStdio over streamable HTTP.
func serveWeb(t *testing.T, config string, args ...string) *endpoint {
	t.Helper()
	e := startServe(t, config, append([]string{"--transport", "http", "--listen", "127.0.0.1:0"}, args...)...)
	e.initialize(`{}`)
	return e
}

// upstreamState is what the status says of one upstream.
type upstreamState struct {
	State, Reason string
	Pid           int
	Restarts      int
	Tools         int
	Protocol      string
	Stderr        []string
	NextAttempt   time.Time         `json:"next_attempt"`
	SkippedLines  int               `json:"skipped_lines"`
	LastError     string            `json:"last_error"`
	Quarantined   map[string]string `json:"quarantined"`
	Breaker       struct{ State string }
	Window        struct {
		Calls     int
		ErrorRate float64 `json:"error_rate"`
	}
	DegradedTools map[string]struct {
		Name      string
		Breaker   struct{ State string }
		LastError string `json:"last_error"`
	} `json:"degraded_tools"`
}

// status reads one upstream's part of the status resource.
func (c *rawClient) status(name string) upstreamState {
	c.t.Helper()
	var result struct {
		Contents []struct{ Text string }
	}
	c.decode(c.rpc("resources/read", `{"uri":"agentarmor://status"}`), &result)
	var doc struct{ Upstreams map[string]upstreamState }
	if len(result.Contents) != 1 || json.Unmarshal([]byte(result.Contents[0].Text), &doc) != nil {
		c.t.Fatalf("no status: %+v", result)
	}
	return doc.Upstreams[name]
}

// eventually polls until ok, or fails the test.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("never happened: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// fileLines returns the lines of a file, none if it is not there.
func fileLines(file string) []string {
	b, err := os.ReadFile(file)
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}
