package main

import (
	"time"

	"github.com/agentarmor/agentarmor/chaos"
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
	llm       llmSettings
	chaos     chaos.Options
	alerts    mcpproxy.AlertConfig
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
		"llm":        func(n *node) { d.llm(n, &f.llm) },
		"chaos":      func(n *node) { d.chaos(n, &f.chaos) },
		"alerts":     func(n *node) { d.alerts(n, &f.alerts) },
	}, foreignTop...)
	if n.kind == kindMapping && len(f.tokens) == 0 && !loopback(f.listen) {
		d.fail(n.get("listen"), "%s", needsToken)
	}
	d.targets(n, f)
	d.samplers(n, f)
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

		"prefix":          pointer(&u.Prefix, func(v *string) setter { return d.text(v, prefix) }),
		"protocol":        d.oneOf(&u.Protocol, "auto", "legacy", "2026-07-28"),
		"sharing":         d.oneOf(&u.Sharing, "shared", "session"),
		"sampling":        d.oneOf(&u.Sampling, "client", "chain", "refuse"),
		"startup_timeout": d.duration(&u.StartupTimeout, false),
		"call_timeout":    d.duration(&u.CallTimeout, false),
		"max_call_time":   d.duration(&u.MaxCallTime, false),

		"concurrency": d.ranged(&u.Concurrency, 1, maxConcurrency),
		"queue":       pointer(&u.Queue, func(v *int) setter { return d.ranged(v, 0, maxWaiting) }),
		"rate_limit":  d.rate(&u.RateLimit),
		"retry":       d.retry(&u.Retry),
		"breaker":     d.breaker(&u.Breaker),
		"probe":       d.probe(&u.Probe),
		"trust_hints": d.unless(&u.DistrustHints),
		"on_outage":   d.oneOf(&u.OnOutage, "keep", "hide"),
		"on_change":   d.oneOf(&u.OnChange, "allow", "warn", "quarantine"),

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
