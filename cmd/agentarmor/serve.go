package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentarmor/agentarmor/mcpproxy"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// serveFlags are the flags of serve; each one given wins over the file.
type serveFlags struct {
	config, transport, listen, toolNames string
	log                                  logSettings
	chaos                                bool
}

const serveHelp = `Serve one MCP endpoint in front of the servers of the config file.

The config is YAML or JSON. Its "mcpServers" (or "servers") is what Claude
Desktop, Cursor, VS Code and others hold: paste it as it is. Without --config
the first of these is read:
  $XDG_CONFIG_HOME/agentarmor/agentarmor.yaml, .yml, .json   (~/.config if unset)
A file in the working directory is read only when --config names it. Without
any file the endpoint has its own tools only.

Any string may hold ${VAR}, ${VAR:-default} and $$ for one $.
SIGHUP or a change of the file reloads it; upstreams that did not change keep
running, and a file with mistakes changes nothing.

llm.complete asks Gemini and Groq if GEMINI_API_KEY (or GOOGLE_API_KEY) and
GROQ_API_KEY are set, or the models of the file's "llm".

Transports: stdio serves one client on stdin and stdout; sse and http both
serve /mcp (streamable HTTP), /sse and /message (HTTP+SSE), /healthz and
/readyz on --listen. An address other than loopback needs auth.tokens.`

// serveCommand runs the endpoint until its client leaves or a signal comes.
func (a *app) serveCommand() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the endpoint",
		Long:  serveHelp,
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context(), f) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.config, "config", "", "config `file`, YAML or JSON")
	fs.Var(choice(&f.transport, "stdio", "stdio", "sse", "http"), "transport", "stdio, sse or http")
	fs.StringVar(&f.listen, "listen", "", "`host:port` for sse and http (default "+defaultListen+")")
	fs.Var(choice(&f.toolNames, "", toolNames...), "tool-names", "spelling of own tools: auto, safe (llm_complete) or dotted (llm.complete)")
	fs.BoolVar(&f.chaos, "chaos", false, "turn fault injection on")
	fs.Var(choice(&f.log.level, "", logLevels...), "log-level", "debug, info, warn or error")
	fs.Var(choice(&f.log.format, "", logFormats...), "log-format", "auto, tint or json")
	return cmd
}

// serve is the command without its flags' parsing.
func (a *app) serve(ctx context.Context, f serveFlags) error {
	s, err := a.build(f)
	if err != nil {
		return err
	}
	defer s.close()
	s.start(ctx)
	if f.transport == "stdio" {
		return a.serveStdio(ctx, s)
	}
	return a.serveHTTP(ctx, s)
}

func (a *app) serveStdio(ctx context.Context, s *server) error {
	in, ok1 := a.stdin.(*os.File)
	out, ok2 := a.stdout.(*os.File)
	if !ok1 || !ok2 {
		return errors.New("stdin and stdout must be files")
	}
	err := s.proxy.ServeStdio(ctx, in, out)
	if ctx.Err() != nil {
		return nil // a signal is how one ends it
	}
	return err
}

// shutdownGrace bounds how long requests and upstreams may take to end.
const shutdownGrace = 5 * time.Second

// listen opens the address; its error says what to do.
func listen(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w; choose another address with --listen", addr, err)
	}
	return l, nil
}

func (a *app) serveHTTP(ctx context.Context, s *server) error {
	ln, err := listen(s.settings.listen)
	if err != nil {
		return err
	}
	handler := s.proxy.HTTP(mcpproxy.HTTPOptions{
		Tokens:         s.settings.tokens,
		AllowedOrigins: s.settings.origins,
		Loopback:       loopback(s.settings.listen),
	})
	srv := wire.NewServer(handler)
	srv.ErrorLog = s.httpErrors()
	s.log.Info("listening", "url", "http://"+ln.Addr().String()+"/mcp")
	served := make(chan error, 1)
	go func() {
		defer wire.OnPanic()
		served <- srv.Serve(ln)
	}()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	// The listener closes first; the open streams end with the proxy.
	shut := make(chan error, 1)
	go func() {
		defer wire.OnPanic()
		shut <- srv.Shutdown(grace)
	}()
	s.close()
	if <-shut != nil {
		srv.Close()
	}
	return nil
}

// choice is a flag that takes one of a few words.
func choice(p *string, value string, words ...string) *choiceFlag {
	*p = value
	return &choiceFlag{p, words}
}

type choiceFlag struct {
	value *string
	words []string
}

func (c *choiceFlag) String() string {
	if c.value == nil {
		return ""
	}
	return *c.value
}

func (c *choiceFlag) Type() string { return strings.Join(c.words, "|") }

func (c *choiceFlag) Set(s string) error {
	if slices.Contains(c.words, s) {
		*c.value = s
		return nil
	}
	msg := "must be one of " + strings.Join(c.words, ", ")
	if near := suggest(s, c.words); near != "" {
		msg += "; did you mean " + near + "?"
	}
	return errors.New(msg)
}
