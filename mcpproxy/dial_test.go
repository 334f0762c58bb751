package mcpproxy

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentarmor/agentarmor/health"
)

func TestTransport(t *testing.T) {
	for _, tt := range []struct {
		cfg      UpstreamConfig
		fallback string
		want     string
	}{
		{UpstreamConfig{Command: "npx"}, "", "stdio"},
		{UpstreamConfig{URL: "https://example.com/mcp"}, "", "http"},
		{UpstreamConfig{URL: "https://example.com/mcp"}, "sse", "sse"},
		{UpstreamConfig{URL: "https://example.com/mcp", Type: "http"}, "sse", "http"},
		{UpstreamConfig{URL: "https://example.com/v1/sse/?a=/x"}, "", "sse"},
		{UpstreamConfig{URL: "https://example.com/sse", Type: "http"}, "", "http"},
		{UpstreamConfig{URL: "https://example.com/mcp?x=/sse"}, "", "http"},
	} {
		in := newInstance(instanceOptions{cfg: &tt.cfg})
		in.fallback = tt.fallback
		if got := in.transport(); got != tt.want {
			t.Errorf("%+v after %q: %s, want %s", tt.cfg, tt.fallback, got, tt.want)
		}
	}
}

// CASES 3: a command that does not exist is down with a reason that says so.
func TestCommandThatDoesNotExist(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no-such-server")
	in := newInstance(instanceOptions{cfg: &UpstreamConfig{Name: "u", Command: missing}})
	in.start(t.Context())
	defer in.stop(t.Context())
	_, err := in.await(t.Context())
	s := in.status()
	if err == nil || s.State != health.Down || s.NextAttempt == nil || !strings.HasPrefix(s.Reason, "it cannot be started: ") || !strings.Contains(s.Reason, missing) {
		t.Errorf("%v: %+v", err, s)
	}
}
