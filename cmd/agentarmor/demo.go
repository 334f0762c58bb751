package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/spf13/cobra"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
	"github.com/agentarmor/agentarmor/fixtures/fakellm"
	"github.com/agentarmor/agentarmor/mcpproxy"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

const demoHelp = `Live through two outages in a few seconds, without keys, network or
configuration: start two MCP servers and two model providers (fixtures, from
this very binary) behind one endpoint, list and call tools, kill a server and
watch it come back, ask a model and have its provider fail.
The exit status tells whether every step held.`

func (a *app) demoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Live through an outage on fake servers",
		Long:  demoHelp,
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context()) },
	}
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

// demoBudget bounds the whole demo.
const demoBudget = 30 * time.Second

// demo tells one outage, step by step; it ends with errFailed if a step did.
func (a *app) demo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, demoBudget)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	models, err := fakeModels()
	if err != nil {
		return err
	}
	defer models.close()
	proxy, err := mcpproxy.New(mcpproxy.Config{Version: version(), Log: slog.New(slog.DiscardHandler), LLM: models.chain, Upstreams: []mcpproxy.UpstreamConfig{
		{Name: "files", Command: self, Args: []string{"fixture", "-name", "files"}},
		{Name: "search", Command: self, Args: []string{"fixture", "-name", "search"}},
	}})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		proxy.Close(ctx)
	}()
	proxy.Start(ctx)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := wire.NewServer(proxy.HTTP(mcpproxy.HTTPOptions{Loopback: true}))
	go func() {
		defer wire.OnPanic()
		_ = srv.Serve(listener) // ends with Close
	}()
	defer srv.Close()
	url := "http://" + listener.Addr().String() + "/mcp"
	fmt.Fprintf(a.stdout, "AgentArmor at %s, in front of two MCP servers, files and search, and two model providers\n\n", url)
	d := &demonstration{out: a.stdout, paint: colours(a.stdout), models: models}
	if d.client, err = connect(ctx, url, "", "agentarmor-demo"); err != nil {
		return err
	}
	defer d.client.Close()
	d.run(ctx)
	if d.failed {
		return errFailed
	}
	return nil
}

// demonstration is the client that lives through the outage, and tells of it.
type demonstration struct {
	out    io.Writer
	paint  func(colour, text string) string
	client *client.Client
	models *demoModels
	failed bool
	step   int
}

func (d *demonstration) run(ctx context.Context) {
	var tools []string
	d.try("the tools of both servers are listed", func() (string, error) {
		var err error
		tools, err = d.await(ctx, "files__echo", "search__echo")
		return fmt.Sprintf("%d tools: %s …", len(tools), strings.Join(tools[:min(4, len(tools))], ", ")), err
	})
	d.try("a call reaches each of them", func() (string, error) {
		first, err := d.call(ctx, "files__echo", map[string]any{"text": "hello"})
		if err != nil {
			return first, err
		}
		second, err := d.call(ctx, "search__echo", map[string]any{"text": "hello"})
		return first + " / " + second, err
	})
	var pid int
	d.try("files is killed", func() (string, error) {
		up, err := d.upstream(ctx, "files")
		if err != nil {
			return "", err
		}
		if pid = up.Pid; pid <= 0 {
			return "", fmt.Errorf("no process to kill: %s", up.State)
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("SIGKILL to process %d", pid), p.Kill()
	})
	d.try("search still answers, and files' tools stay listed", func() (string, error) {
		if _, err := d.await(ctx, "files__echo"); err != nil {
			return "", err
		}
		return d.call(ctx, "search__echo", map[string]any{"text": "still here"})
	})
	d.try("the status says what happened", func() (string, error) {
		return d.text(ctx, func(up upstreamStatus) bool { return up.State != "ready" || up.Restarts > 0 && up.Pid != pid })
	})
	d.try("files is back by itself", func() (string, error) {
		answer, err := d.callUntil(ctx, "files__echo", map[string]any{"text": "back again"})
		if err != nil {
			return answer, err
		}
		up, err := d.upstream(ctx, "files")
		return fmt.Sprintf("%s, from process %d after %d restart", answer, up.Pid, up.Restarts), err
	})
	d.try("llm.complete is answered by Gemini", func() (string, error) { return d.complete(ctx, "gemini") })
	d.try("Gemini fails, and Groq answers", func() (string, error) {
		d.models.gemini.Script(fakellm.Reply{Status: http.StatusServiceUnavailable})
		return d.complete(ctx, "groq")
	})
}

// try runs one step and tells how it went; after a failure the rest is skipped.
func (d *demonstration) try(what string, f func() (string, error)) {
	if d.failed {
		return
	}
	d.step++
	began := time.Now()
	text, err := f()
	mark := d.paint("32", "ok")
	if err != nil {
		d.failed = true
		mark, text = d.paint("31", "FAILED"), err.Error()
	}
	fmt.Fprintf(d.out, "%d. %s: %s (%s)\n   %s\n", d.step, what, mark, time.Since(began).Round(time.Millisecond), d.paint("2", text))
}

// await lists the tools until all the named ones are there.
func (d *demonstration) await(ctx context.Context, names ...string) ([]string, error) {
	for {
		list, err := d.client.ListTools(ctx, mcp.ListToolsRequest{})
		if err != nil {
			return nil, err
		}
		have := make([]string, 0, len(list.Tools))
		for _, t := range list.Tools {
			have = append(have, t.Name)
		}
		if !slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(have, n) }) {
			return have, nil
		}
		if err := pause(ctx); err != nil {
			return have, err
		}
	}
}

// call returns the text of a tool's answer, or of its error.
func (d *demonstration) call(ctx context.Context, tool string, args map[string]any) (string, error) {
	res, err := d.client.CallTool(ctx, mcp.CallToolRequest{Params: mcp.CallToolParams{Name: tool, Arguments: args}})
	if err != nil {
		return "", err
	}
	text := "no text"
	if len(res.Content) > 0 {
		if t, ok := res.Content[0].(mcp.TextContent); ok {
			text = t.Text
		}
	}
	if res.IsError {
		return "", fmt.Errorf("%s", text)
	}
	return tool + " says " + text, nil
}

// callUntil repeats a harmless call until it is answered.
func (d *demonstration) callUntil(ctx context.Context, tool string, args map[string]any) (string, error) {
	for {
		text, err := d.call(ctx, tool, args)
		if err == nil || pause(ctx) != nil {
			return text, err
		}
	}
}

func (d *demonstration) status(ctx context.Context) (doc statusDocument, err error) {
	raw, err := statusResource(ctx, d.client)
	if err != nil {
		return doc, err
	}
	return doc, json.Unmarshal(raw, &doc)
}

func (d *demonstration) upstream(ctx context.Context, name string) (upstreamStatus, error) {
	doc, err := d.status(ctx)
	return doc.Upstreams[name], err
}

// text waits until the status of files shows what is looked for.
func (d *demonstration) text(ctx context.Context, seen func(upstreamStatus) bool) (string, error) {
	for {
		doc, err := d.status(ctx)
		if err != nil || seen(doc.Upstreams["files"]) {
			return doc.Summary.Text, err
		}
		if err := pause(ctx); err != nil {
			return doc.Summary.Text, err
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(50 * time.Millisecond):
		return nil
	}
}

// colours returns how to colour text: not at all unless out is a terminal.
func colours(out io.Writer) func(colour, text string) string {
	if terminal(out) && os.Getenv("NO_COLOR") == "" {
		return func(colour, text string) string { return "\x1b[" + colour + "m" + text + "\x1b[0m" }
	}
	return func(_, text string) string { return text }
}
