package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// npm returns the directory with the npm packages that a test drives, or
// skips the test: go test alone needs nothing but Go.
func npm(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("AGENTARMOR_NPM")
	if dir == "" {
		t.Skip("AGENTARMOR_NPM is not set: no npm packages to test with (.ci/run installs them)")
	}
	return dir
}

// nodeBin is node's path among the npm packages.
func nodeBin(t *testing.T) string {
	t.Helper()
	return filepath.Join(npm(t), "node_modules", "node", "bin", "node")
}

// module is the path of a file of one of MCP's npm packages.
func module(t *testing.T, file string) string {
	t.Helper()
	return filepath.Join(npm(t), "node_modules", "@modelcontextprotocol", filepath.FromSlash(file))
}

// runNode runs a script under node and returns its stdout.
func runNode(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, nodeBin(t), args...)
	cmd.Dir = t.TempDir()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		t.Logf("node %v: %v\n%s", args, err, stderr.Bytes())
	}
	return stdout.Bytes(), err
}

// everything is the Go SDK's reference server, or skips the test.
func everything(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("AGENTARMOR_EVERYTHING")
	if bin == "" {
		t.Skip("AGENTARMOR_EVERYTHING is not set: no reference server to test with (.ci/run builds it)")
	}
	return bin
}

// startEverything serves the reference server over HTTP until the test ends.
func startEverything(t *testing.T, stateless bool) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	mode := "-stateless=false"
	if stateless {
		mode = "-stateless=true"
	}
	cmd := exec.Command(everything(t), "-http", addr, mode)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	eventually(t, "the reference server listens", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return "http://" + addr
}
