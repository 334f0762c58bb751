package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/mcpproxy"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// settings are a config file made ready for use: what the proxy is made of
// and what the server around it needs.
type settings struct {
	file     string // "" when there is none
	source   []byte // its text
	proxy    mcpproxy.Config
	listen   string
	tokens   []string
	origins  []string
	log      logSettings
	llm      llmSettings
	chaos    chaos.Options
	warnings []string // file:line:col: …
}

// maxConfig bounds the size of a config file, in bytes.
const maxConfig = 8 << 20

// configNames are looked for in the config folder, in this order.
var configNames = []string{"agentarmor.yaml", "agentarmor.yml", "agentarmor.json"}

// loadSettings reads the config file named, else the one in the user's config
// folder; without any the settings are the defaults.
func loadSettings(file string, env lookup) (*settings, error) {
	if file == "" {
		file = findConfig(env)
	}
	if file == "" {
		s := newSettings("", nil, newDocument(), env)
		s.warnings = unreadConfigs()
		return s, nil
	}
	src, err := readConfig(file)
	if err != nil {
		return nil, err
	}
	return parseSettings(file, src, env)
}

// findConfig returns the config file in the user's folder, "" if there is
// none. The working directory is not searched: a client may start us in a
// folder whose author must not choose what we run.
func findConfig(env lookup) string {
	dir := userFolder(env, "XDG_CONFIG_HOME", ".config")
	if dir == "" {
		return ""
	}
	for _, name := range configNames {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && !info.IsDir() {
			return file
		}
	}
	return ""
}

// unreadConfigs warns of config files that a user may think are read.
func unreadConfigs() (warnings []string) {
	for _, name := range configNames {
		if _, err := os.Stat(name); err == nil {
			warnings = append(warnings, fmt.Sprintf("%s in the working directory is not read by itself; name it: --config %s", name, name))
		}
	}
	return warnings
}

// userFolder returns agentarmor's folder below the XDG variable or below its
// place in the home directory, "" if neither is known.
func userFolder(env lookup, variable, fallback string) string {
	// The XDG specification: a relative path is to be ignored.
	if dir, _ := env(variable); filepath.IsAbs(dir) {
		return filepath.Join(dir, "agentarmor")
	}
	home, _ := env("HOME")
	if home == "" {
		home, _ = env("USERPROFILE")
	}
	if home == "" {
		return ""
	}
	return filepath.Join(home, fallback, "agentarmor")
}

func readConfig(file string) ([]byte, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usage("there is no config file %s; create it, name another with --config, or leave --config out to start without upstreams", file)
	}
	if err != nil {
		return nil, usage("the config file cannot be read: %v", err)
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return nil, usage("the config file cannot be read: %v", err)
	}
	if len(src) > maxConfig {
		return nil, usage("the config file %s is larger than 8 MiB", file)
	}
	return src, nil
}

// parseSettings decodes and checks the text of a config file. The error is a
// *configError with all problems, in the order of the file.
func parseSettings(file string, src []byte, env lookup) (*settings, error) {
	root, issues := parse(src, strings.EqualFold(filepath.Ext(file), ".json"))
	d := &decoder{env: env, issues: issues}
	doc := newDocument()
	if root != nil && root.kind != kindNull {
		d.root(root, doc)
	}
	if len(d.issues) > 0 {
		return nil, newConfigError(file, d.issues)
	}
	s := newSettings(file, bytes.Clone(src), doc, env)
	for _, w := range inOrder(d.warnings) {
		s.warnings = append(s.warnings, w.in(file))
	}
	return s, nil
}

func newSettings(file string, src []byte, doc *document, env lookup) *settings {
	s := &settings{
		file: file, source: src,
		listen: doc.listen, tokens: doc.tokens, origins: doc.origins, log: doc.log, llm: doc.llm, chaos: doc.chaos,
		proxy: mcpproxy.Config{
			Version:   version(),
			Upstreams: doc.upstreams,
			ToolNames: doc.toolNames,
			Alerts:    doc.alerts,
			Limits: wire.Limits{
				Message:     doc.limits.message,
				Queue:       doc.limits.queue,
				Sessions:    doc.limits.sessions,
				SessionIdle: doc.limits.idle,
			},
		},
	}
	if doc.remember {
		s.proxy.StateDir = cmp.Or(doc.stateDir, userFolder(env, "XDG_STATE_HOME", filepath.Join(".local", "state")))
	}
	return s
}
