package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/fixtures/badserver"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy"
)

const demoHelp = `Live through outages in a few seconds, without keys, network or configuration.
Two MCP servers and two models (fixtures, from this very binary) stand behind one
endpoint; a client lists and calls tools, talks with a model that dies in
mid-conversation, calls a server that is killed in mid-call, and measures what the
armor buys. The faults are injected through the endpoint itself, with its tools
chaos.inject and chaos.clear.

The exit status tells whether every step held. With --keep the endpoint then stays
up until ctrl-C, for clients of your own, at ` + defaultListen + ` if that is free.`

// demoFlags are the flags of demo.
type demoFlags struct {
	keep    bool
	listen  string
	fixture string // the program whose command fixture is the servers; "": this one
}

func (a *app) demoCommand() *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Live through outages on fake servers and models",
		Long:  demoHelp,
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context(), f) },
	}
	fs := cmd.Flags()
	fs.BoolVar(&f.keep, "keep", false, "leave the endpoint up until ctrl-C, and tell how to connect")
	fs.StringVar(&f.listen, "listen", "", "`host:port` of the endpoint, on loopback")
	return cmd
}

// fixtureCommand is the server that demo starts, in a process of its own.
func (a *app) fixtureCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "fixture",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if badserver.Main(args, a.stdin, a.stdout, a.stderr) != 0 {
				return errFailed
			}
			return nil
		},
	}
}

// demoBudget bounds the whole story.
const demoBudget = 30 * time.Second

// demo tells the story; it ends with errFailed if a step did not hold.
func (a *app) demo(ctx context.Context, f demoFlags) error {
	w, err := newDemoWorld(ctx, f)
	if err != nil {
		return err
	}
	defer w.close()
	if err := a.story(ctx, w); err != nil || !f.keep {
		return err
	}
	fmt.Fprintf(a.stdout, keepText, w.url())
	<-ctx.Done()
	return nil
}

// keepText takes the URL.
const keepText = `
The endpoint stays up at %[1]s until ctrl-C; chaos is on, no token is needed. Connect a client:

  Claude Code               claude mcp add --transport http agentarmor-demo %[1]s
  Cursor, .cursor/mcp.json  {"mcpServers": {"agentarmor-demo": {"url": "%[1]s"}}}
  VS Code, .vscode/mcp.json {"servers": {"agentarmor-demo": {"type": "http", "url": "%[1]s"}}}
  MCP Inspector             npx @modelcontextprotocol/inspector --transport http --server-url %[1]s

Watch it, and break it:

  agentarmor status --watch --url %[1]s
  agentarmor chaos inject llm/gemini error --status 503 --ttl 1m --url %[1]s
  agentarmor chaos inject 'mcp/files/*' kill --count 1 --ttl 1m --url %[1]s
  agentarmor chaos scenario everything --ttl 1m --url %[1]s
  agentarmor chaos list --url %[1]s
  agentarmor chaos clear --url %[1]s
`

// demoWorld is the endpoint of the demo and all that is behind it.
type demoWorld struct {
	models   *demoModels
	chaos    *chaos.Injector
	chain    *llm.Chain
	proxy    *mcpproxy.Proxy
	endpoint *localEndpoint
}

// filesStart is how long the server that is killed takes to start, as npx
// does: long enough for a client to notice that it is away.
const filesStart = time.Second

// newDemoWorld starts everything. Its processes end with ctx.
func newDemoWorld(ctx context.Context, f demoFlags) (*demoWorld, error) {
	w := &demoWorld{chaos: chaos.New(chaos.Options{Enabled: true, Seed: 1}), models: newDemoModels()}
	if err := w.open(ctx, f); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// open is wired as serve is.
func (w *demoWorld) open(ctx context.Context, f demoFlags) (err error) {
	if f.fixture == "" {
		if f.fixture, err = os.Executable(); err != nil {
			return err
		}
	}
	var later atomic.Pointer[mcpproxy.Proxy]
	if w.chain, err = newChain(w.models.settings(), nil, w.chaos, &later); err != nil {
		return err
	}
	w.proxy, err = mcpproxy.New(mcpproxy.Config{
		Version: version(), Log: slog.New(slog.DiscardHandler), LLM: w.chain, Chaos: w.chaos,
		Upstreams: []mcpproxy.UpstreamConfig{
			{Name: "files", Command: f.fixture, Args: []string{"fixture", "-name", "files", "-init-delay", filesStart.String()}},
			{Name: "search", Command: f.fixture, Args: []string{"fixture", "-name", "search"}},
		},
	})
	if err != nil {
		return err
	}
	later.Store(w.proxy)
	listener, err := f.open()
	if err != nil {
		return err
	}
	w.proxy.Start(ctx)
	w.endpoint = serveLocally(listener, w.proxy)
	return nil
}

// open listens where the flags say. What was not asked for by name need not be that port.
func (f *demoFlags) open() (net.Listener, error) {
	addr := f.listen
	switch {
	case addr != "":
		if msg := address(addr); msg != "" {
			return nil, usage("--listen: %s", msg)
		}
		if !loopback(addr) {
			return nil, usage("--listen: the demo wants no token, so it listens on loopback only")
		}
	case f.keep:
		if l, err := net.Listen("tcp", defaultListen); err == nil {
			return l, nil
		}
	}
	return listen(cmp.Or(addr, "127.0.0.1:0"))
}

func (w *demoWorld) url() string { return w.endpoint.url() }

// close ends everything that was opened, and waits for it.
func (w *demoWorld) close() {
	w.chaos.Close() // no fault holds up the end
	closeEndpoint(w.endpoint, w.proxy, w.chain)
	w.models.close()
}

// errTooLong is why a story ends that takes longer than demoBudget.
var errTooLong = errors.New("the demo took longer than " + demoBudget.String())

// story tells it over a client of its own.
func (a *app) story(ctx context.Context, w *demoWorld) error {
	ctx, cancel := context.WithTimeoutCause(ctx, demoBudget, errTooLong)
	defer cancel()
	fmt.Fprintf(a.stdout, "AgentArmor at %s, with chaos on, in front of two MCP servers and two models (fakes: no keys, no network)\n", w.url())
	c, err := connect(ctx, w.url(), "", "agentarmor-demo")
	if err != nil {
		return err
	}
	defer c.Close()
	d := &demonstration{app: a, paint: colours(a.stdout), demoClient: demoClient{client: c}}
	d.run(ctx)
	cancel()
	d.calls.Wait()
	if d.failed {
		return errFailed
	}
	return nil
}

// colours returns how to colour text: not at all unless out is a terminal.
func colours(out io.Writer) func(colour, text string) string {
	if terminal(out) && os.Getenv("NO_COLOR") == "" {
		return func(colour, text string) string { return "\x1b[" + colour + "m" + text + "\x1b[0m" }
	}
	return func(_, text string) string { return text }
}
