package mcpproxy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFilterEnv(t *testing.T) {
	environ := []string{
		"PATH=/bin", "HOME=/h", "LC_ALL=C.UTF-8", "XDG_CACHE_HOME=/c", "HTTPS_PROXY=http://p", "TERM=xterm=256",
		"GEMINI_API_KEY=secret", "AWS_SECRET_ACCESS_KEY=secret", "AGENTARMOR_TOKEN=secret", "LD_PRELOAD=/x.so", "NODE_OPTIONS=--inspect",
		"SHELL=() { :; }", "=C:=C:\\", "broken",
	}
	own := map[string]string{"GITHUB_TOKEN": "t", "HOME": "/other", "EMPTY": ""}
	want := []string{
		"EMPTY=", "GITHUB_TOKEN=t", "HOME=/other", "HTTPS_PROXY=http://p", "LC_ALL=C.UTF-8", "PATH=/bin", "TERM=xterm=256", "XDG_CACHE_HOME=/c",
	}
	if diff := cmp.Diff(want, filterEnv(environ, own, false)); diff != "" {
		t.Error(diff)
	}
}

func TestFilterEnvOnWindows(t *testing.T) {
	environ := []string{"Path=C:\\bin", "SystemRoot=C:\\Windows", "ProgramFiles(x86)=C:\\P", "Secret=1"}
	want := []string{"PATH=C:\\mine", "ProgramFiles(x86)=C:\\P", "SystemRoot=C:\\Windows"}
	if diff := cmp.Diff(want, filterEnv(environ, map[string]string{"PATH": "C:\\mine"}, true)); diff != "" {
		t.Error(diff)
	}
}
