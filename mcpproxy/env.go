package mcpproxy

import (
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
)

// inherited names what a child gets of our environment. Everything else, above
// all our API keys, stays with us: an upstream's own env names what it needs.
//
// It is the default of the TypeScript SDK (getDefaultEnvironment) and what
// launchers need to fetch and run a server as they do from a shell: npx, uvx
// and docker find their caches, the proxy and the certificates through these.
var inherited = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ",
	"TMPDIR", "TMP", "TEMP",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE",
	"NVM_DIR", "NVM_BIN", "VOLTA_HOME", "FNM_DIR", "PNPM_HOME", "BUN_INSTALL", "DENO_DIR",
	"NPM_CONFIG_PREFIX", "NPM_CONFIG_CACHE", "NPM_CONFIG_USERCONFIG", "NPM_CONFIG_REGISTRY",
	"npm_config_prefix", "npm_config_cache", "npm_config_userconfig", "npm_config_registry",
	"UV_CACHE_DIR", "UV_TOOL_DIR", "UV_PYTHON_INSTALL_DIR", "PYENV_ROOT",
	"DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DBUS_SESSION_BUS_ADDRESS",
}

// inheritedPrefixes adds families of names.
var inheritedPrefixes = []string{"LC_", "XDG_"}

// inheritedWindows is what programs on Windows cannot do without; the names
// compare without case there.
var inheritedWindows = []string{
	"APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE",
	"PROGRAMDATA", "PROGRAMFILES", "PROGRAMFILES(X86)", "SYSTEMDRIVE", "SYSTEMROOT", "USERNAME", "USERPROFILE", "WINDIR",
}

// childEnv returns the environment of an upstream's process, as KEY=value.
func childEnv(own map[string]string) []string {
	return filterEnv(os.Environ(), own, runtime.GOOS == "windows")
}

// filterEnv keeps what may be inherited of environ and adds own, which wins.
// Exported shell functions (a value that starts with "()") are code, and stay.
func filterEnv(environ []string, own map[string]string, windows bool) []string {
	env := map[string]string{}
	for _, kv := range environ {
		name, value, ok := strings.Cut(kv, "=")
		if ok && mayInherit(name, windows) && !strings.HasPrefix(value, "()") {
			env[name] = value
		}
	}
	for name, value := range own {
		if windows {
			maps.DeleteFunc(env, func(k, _ string) bool { return strings.EqualFold(k, name) })
		}
		env[name] = value
	}
	out := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}

func mayInherit(name string, windows bool) bool {
	if windows {
		name = strings.ToUpper(name)
		if slices.Contains(inheritedWindows, name) {
			return true
		}
	}
	return slices.Contains(inherited, name) ||
		slices.ContainsFunc(inheritedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
