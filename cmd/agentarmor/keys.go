package main

import (
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy"
)

// document is a config file as decoded: what its keys say, defaults elsewhere.
type document struct {
	listen    string
	toolNames string
	remember  bool // catalog_cache
	stateDir  string
	log       logSettings
	tokens    []string
	origins   []string
	limits    limits
	upstreams []mcpproxy.UpstreamConfig
}

type limits struct {
	message, sessions, queue int
	idle                     time.Duration
}

// logSettings are the log's level and form.
type logSettings struct{ level, format string }

// defaultListen is where the HTTP transports listen.
const defaultListen = "127.0.0.1:7717"

func newDocument() *document {
	return &document{
		listen:   defaultListen,
		remember: true,
		log:      logSettings{level: "info", format: "auto"},
	}
}

// root reads the whole file into f.
func (d *decoder) root(n *node, f *document) {

	servers := func(n *node) { d.servers(n, f) }
	d.object(n, fields{
		"listen":        d.text(&f.listen, address),
		"tool_names":    d.oneOf(&f.toolNames, toolNames...),
		"catalog_cache": d.flag(&f.remember),
		"state_dir":     d.text(&f.stateDir),
		"log": func(n *node) {
			d.object(n, fields{
				"level":  d.oneOf(&f.log.level, logLevels...),
				"format": d.oneOf(&f.log.format, logFormats...),
			})
		},
		"auth": func(n *node) {
			d.object(n, fields{"tokens": d.list(&f.tokens, bearer)})
		},
		"allowed_origins": d.list(&f.origins, origin),
		"limits": func(n *node) {
			d.object(n, fields{
				"message":      d.size(&f.limits.message, 1<<10),
				"session_idle": d.duration(&f.limits.idle, false),
				"sessions":     d.whole(&f.limits.sessions, 1),
				"queue":        d.whole(&f.limits.queue, 1),
			})
		},
		"mcpServers": servers,
		"servers":    servers,
		"llm":        d.later(d.llm),
		"chaos":      d.later(d.chaos),
		"alerts":     d.later(d.alerts),
	}, foreignTop...)
	if n.kind == kindMapping && len(f.tokens) == 0 && !loopback(f.listen) {
		d.fail(n.get("listen"), "%s", needsToken)
	}
}

const needsToken = "an address other than loopback needs auth.tokens"

var (
	toolNames  = []string{"auto", "safe", "dotted"}
	logLevels  = []string{"debug", "info", "warn", "error"}
	logFormats = []string{"auto", "tint", "json"}
)

// servers reads mcpServers. A name may stand in only one of the two spellings.
func (d *decoder) servers(n *node, f *document) {
	d.each(n, func(name string, at, val *node) {
		for _, u := range f.upstreams {
			if u.Name == name {
				d.fail(at, "duplicate name")
				return
			}
		}
		f.upstreams = append(f.upstreams, d.upstream(name, at, val))
	})
}

// upstream reads one server.
func (d *decoder) upstream(name string, at, n *node) mcpproxy.UpstreamConfig {
	u := mcpproxy.UpstreamConfig{Name: name}
	if n.kind == kindNull {
		d.fail(at, "needs a command or a url")
		return u
	}
	if off := n.get("disabled"); off != nil && off.text == "true" {
		env := d.env
		d.env = env.orUnset
		defer func() { d.env = env }()
	}
	var ignored struct {
		text  string
		flag  bool
		count int
	}
	before := len(d.issues)
	remote := func(kind string) setter {
		return func(n *node) {
			if u.URL != "" {
				d.fail(n, "a second URL")
				return
			}
			d.text(&u.URL, webURL)(n)
			if kind != "" {
				u.Type = kind
			}
		}
	}
	d.object(n, fields{
		"command":  d.text(&u.Command, notEmpty),
		"args":     d.list(&u.Args, noNUL),
		"env":      d.dict(&u.Env, variableName, noNUL),
		"cwd":      d.text(&u.Cwd, noNUL),
		"disabled": d.flag(&u.Disabled),

		"type":          d.transport(&u.Type),
		"transport":     d.transport(&u.Type),
		"transportType": d.transport(&u.Type),
		"url":           remote(""),
		"serverUrl":     remote(""),     // Windsurf
		"httpUrl":       remote("http"), // Gemini CLI
		"headers":       d.dict(&u.Headers, headerName, headerValue),

		"prefix": func(n *node) {
			var p string
			d.text(&p, prefix)(n)
			u.Prefix = &p
		},
		"protocol":        d.oneOf(&u.Protocol, "auto", "legacy", "2026-07-28"),
		"sharing":         d.oneOf(&u.Sharing, "shared", "session"),
		"sampling":        d.oneOf(&u.Sampling, "client", "chain", "refuse"),
		"startup_timeout": d.duration(&u.StartupTimeout, false),
		"call_timeout":    d.duration(&u.CallTimeout, false),
		"max_call_time":   d.duration(&u.MaxCallTime, false),

		"concurrency": d.later(d.whole(&ignored.count, 1)),
		"queue":       d.later(d.whole(&ignored.count, 0)),
		"rate_limit":  d.later(d.text(&ignored.text, rate)),
		"retry":       d.later(d.retry),
		"breaker":     d.later(d.breaker),
		"probe":       d.later(d.probe),
		"trust_hints": d.later(d.flag(&ignored.flag)),
		"on_outage":   d.later(d.oneOf(&ignored.text, "keep", "hide")),
		"on_change":   d.later(d.oneOf(&ignored.text, "allow", "warn", "quarantine")),

		"tools":         func(n *node) { d.tools(n, &u) },
		"includeTools":  d.list(&u.Allow, pattern), // Gemini CLI
		"excludeTools":  d.list(&u.Deny, pattern),  // Gemini CLI
		"disabledTools": d.list(&u.Deny, pattern),  // Windsurf, Roo
	}, foreignEntry...)
	if n.kind == kindMapping && len(d.issues) == before {
		d.consistent(at, n, &u)
	}
	return u
}

// transport reads a type in any client's spelling.
func (d *decoder) transport(p *string) setter {
	return func(n *node) {
		var s string
		d.oneOf(&s, "http", "sse", "stdio", "streamableHttp", "streamable-http", "streamable_http", "local", "remote")(n)
		switch s {
		case "":
		case "local":
			*p = "stdio"
		case "remote": // guessed from the URL
		case "stdio", "sse":
			*p = s
		default:
			*p = "http"
		}
	}
}

// tools reads the filter and the settings of single tools. A list is what
// Copilot writes there: the tools to allow.
func (d *decoder) tools(n *node, u *mcpproxy.UpstreamConfig) {
	if n.kind == kindSequence {
		d.list(&u.Allow, pattern)(n)
		return
	}
	d.object(n, fields{
		"allow": d.list(&u.Allow, pattern),
		"deny":  d.list(&u.Deny, pattern),
		"settings": func(n *node) {
			u.Tools = map[string]mcpproxy.ToolConfig{}
			d.each(n, func(name string, at, val *node) {
				if val.kind != kindNull {
					u.Tools[name] = d.tool(val)
				}
			})
		},
	})
}

func (d *decoder) tool(n *node) (t mcpproxy.ToolConfig) {
	var idempotent bool
	var cache time.Duration
	var expect string
	d.object(n, fields{
		"call_timeout": d.duration(&t.CallTimeout, false),
		"idempotent":   d.later(d.flag(&idempotent)),
		"cache":        d.later(d.duration(&cache, true)),
		"breaker":      d.later(d.breaker),
		"fallback":     d.later(d.fallback),
		"probe": d.later(func(n *node) {
			d.object(n, fields{"arguments": d.arguments, "expect": d.text(&expect)})
		}),
	})
	return t
}
