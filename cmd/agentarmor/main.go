package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

func main() {
	// No upstream process may outlive us, whatever ends us.
	defer wire.OnPanic()
	ctx, stop := signals()
	err := run(ctx, os.Args[1:], os.LookupEnv, os.Stdin, os.Stdout, os.Stderr)
	stop()
	wire.KillAll()
	os.Exit(report(os.Stderr, err))
}

// signals returns a context that ends at the first SIGINT or SIGTERM; the
// second one ends the process at once.
func signals() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	c := make(chan os.Signal, 2)
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	// A client that closes our stdout must not kill us before the upstreams
	// are down. Caught, not ignored: children would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go func() {
		defer wire.OnPanic()
		<-c
		cancel()
		<-c
		wire.KillAll()
		os.Exit(1)
	}()
	return ctx, cancel
}

// app is what every command works with.
type app struct {
	env            lookup
	stdin          io.Reader
	stdout, stderr io.Writer
}

// run is the whole program. The caller turns its error into an exit code with
// [report].
func run(ctx context.Context, args []string, env lookup, stdin io.Reader, stdout, stderr io.Writer) error {
	a := &app{env, stdin, stdout, stderr}
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root.ExecuteContext(ctx)
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "agentarmor",
		Short:         "One MCP endpoint that stays up when the servers behind it do not",
		Args:          noArguments,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%v; see %s --help", err, cmd.CommandPath())
	})
	root.SuggestionsMinimumDistance = 2
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(a.serveCommand(), a.checkCommand(), a.statusCommand(), a.demoCommand(), a.crashCommand(), a.chaosCommand(), a.versionCommand(), a.fixtureCommand())
	return root
}

// noArguments is for commands that take flags only.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		msg := fmt.Sprintf("unknown command %q", args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			msg += fmt.Sprintf(", did you mean %q?", near[0])
		}
		return usage("%s; see %s --help", msg, cmd.CommandPath())
	}
	return usage("%s takes no arguments, only flags: %q", cmd.CommandPath(), args[0])
}

// usageError is a mistake on the command line or around the config file.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

func usage(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// errFailed is the error of a command that has already said what is wrong.
var errFailed = errors.New("failed")

// report prints err and returns the exit code: 0 done, 1 failed, 2 for a
// mistake in usage or config.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	if ce, ok := errors.AsType[*configError](err); ok {
		fmt.Fprintln(w, ce)
		return 2
	}
	if err != errFailed {
		fmt.Fprintln(w, "agentarmor:", err)
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		return 2
	}
	return 1
}
