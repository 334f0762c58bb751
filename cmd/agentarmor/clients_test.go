package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/mcpproxy"
)

// Files as other clients keep them, pasted unchanged.
func TestPastedConfigs(t *testing.T) {
	type ups = []mcpproxy.UpstreamConfig
	for name, c := range map[string]struct {
		src     string
		want    ups
		ignored []string // keys warned about, in the order of the file
	}{
		"Claude Desktop": {`{
			"globalShortcut": "Alt+Space",
			"preferences": {"menuBarEnabled": false},
			"mcpServers": {
				"filesystem": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/tmp"], "env": {"A": "b$c"}}
			}
		}`, ups{{Name: "filesystem", Command: "npx", Args: []string{"-y", "@modelcontextprotocol/server-filesystem", "/tmp"}, Env: map[string]string{"A": "b$c"}}},
			[]string{"globalShortcut", "preferences"}},

		"Claude Code": {`{"mcpServers": {"a": {"type": "http", "url": "http://127.0.0.1:1/mcp", "timeout": 120000, "headers": {"X": "${TOKEN:-none}"}}}}`,
			ups{{Name: "a", Type: "http", URL: "http://127.0.0.1:1/mcp", Headers: map[string]string{"X": "none"}}},
			[]string{"mcpServers.a.timeout"}},

		"Cursor": {`{"mcpServers": {
			"local": {"command": "python", "args": ["s.py"], "envFile": "${workspaceFolder}/.env", "env": {"K": "${env:HOME}"}},
			"remote": {"url": "https://h/sse", "headers": {"K": "v"}}
		}}`, ups{
			{Name: "local", Command: "python", Args: []string{"s.py"}, Env: map[string]string{"K": "/home/u"}},
			{Name: "remote", URL: "https://h/sse", Headers: map[string]string{"K": "v"}},
		}, []string{"mcpServers.local.envFile"}},

		"VS Code": {`{
			// asked at the first start
			"inputs": [{"type": "promptString", "id": "key", "password": true}],
			"servers": {
				"a": {"type": "stdio", "command": "npx", "args": ["x"], "dev": {"watch": "**"}, "gallery": true,},
				"b": {"type": "http", "url": "https://h/mcp", "gallery": true},
			},
		}`, ups{
			{Name: "a", Type: "stdio", Command: "npx", Args: []string{"x"}},
			{Name: "b", Type: "http", URL: "https://h/mcp"},
		}, []string{"inputs", "servers.a.dev", "servers.a.gallery"}},

		"Windsurf": {`{"mcpServers": {"a": {"serverUrl": "https://h/mcp", "disabledTools": ["rm"]}}}`,
			ups{{Name: "a", URL: "https://h/mcp", Deny: []string{"rm"}}}, nil},

		"Gemini CLI": {`{"theme": "Dark", "mcpServers": {
			"a": {"httpUrl": "https://h/sse", "timeout": 5000, "trust": true, "includeTools": ["x"], "excludeTools": ["y"]},
			"b": {"command": "x", "cwd": "/c", "trust": false}
		}}`, ups{
			{Name: "a", Type: "http", URL: "https://h/sse", Allow: []string{"x"}, Deny: []string{"y"}},
			{Name: "b", Command: "x", Cwd: "/c"},
		}, []string{"theme", "mcpServers.a.timeout", "mcpServers.a.trust"}},

		"Cline": {`{"mcpServers": {
			"a": {"command": "x", "disabled": true, "autoApprove": ["t"], "timeout": 60, "transportType": "stdio"},
			"b": {"type": "streamableHttp", "url": "https://h/mcp", "alwaysAllow": []},
			"c": {"type": "sse", "url": "https://h/events", "autoApprove": []}
		}}`, ups{
			{Name: "a", Command: "x", Disabled: true, Type: "stdio"},
			{Name: "b", Type: "http", URL: "https://h/mcp"},
			{Name: "c", Type: "sse", URL: "https://h/events"},
		}, []string{"mcpServers.a.autoApprove", "mcpServers.a.timeout", "mcpServers.b.alwaysAllow"}},

		"Copilot CLI": {`{"mcpServers": {"a": {"type": "local", "command": "x", "tools": ["*"]}}}`,
			ups{{Name: "a", Type: "stdio", Command: "x", Allow: []string{"*"}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := parseSettings("f.json", []byte(c.src), contractEnv)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, s.proxy.Upstreams); diff != "" {
				t.Error(diff)
			}
			var ignored []string
			for _, w := range s.warnings {
				key, _, ok := strings.Cut(w[strings.Index(w, ": ")+2:], ": ignored: ")
				if !ok {
					t.Errorf("warning %q", w)
				}
				ignored = append(ignored, key)
			}
			slices.Sort(ignored)
			slices.Sort(c.ignored)
			if diff := cmp.Diff(c.ignored, ignored); diff != "" {
				t.Errorf("ignored keys: %s", diff)
			}
		})
	}
}
