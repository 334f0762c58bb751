package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentarmor/agentarmor/chaos"
)

const chaosHelp = `Break what is behind a running endpoint, on purpose and for a limited time. The
endpoint must have been started with --chaos, or have chaos.enabled in its
configuration. Everything goes through its MCP tools chaos.inject, chaos.clear
and chaos.list, which agents can call too.

` + targetHelp

const targetHelp = `A target is llm/<model entry>, mcp/<server> (all its requests) or
mcp/<server>/<tool> (calls of that tool), with * and ? in each part. In a shell
such a pattern wants quotes. "agentarmor chaos list" names what there is.`

func (a *app) chaosCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "chaos",
		Short: "Inject faults into a running endpoint",
		Long:  chaosHelp,
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var f statusFlags
	fs := cmd.PersistentFlags()
	fs.StringVar(&f.config, "config", "", "config `file`, for the address and the token")
	fs.StringVar(&f.url, "url", "", "`URL` of the endpoint (default http://<listen>/mcp)")
	fs.StringVar(&f.tokenEnv, "token-env", "", "environment `variable` that holds the token")
	fs.BoolVar(&f.json, "json", false, "print what the tool answers as JSON")
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(a.injectCommand(&f), a.clearCommand(&f), a.listCommand(&f), a.scenarioCommand(&f))
	return cmd
}

func (a *app) injectCommand(f *statusFlags) *cobra.Command {
	var about []string
	for _, k := range chaos.Kinds {
		about = append(about, fmt.Sprintf("  %-12s %s", k, k.About()))
	}
	cmd := &cobra.Command{
		Use:     "inject target fault --ttl duration",
		Short:   "Inject one fault",
		Long:    "Inject one fault:\n\n" + strings.Join(about, "\n") + "\n\n" + targetHelp,
		Example: "  agentarmor chaos inject llm/gemini error --status 503 --ttl 1m\n  agentarmor chaos inject 'mcp/github/create_*' drop --probability 0.2 --ttl 30s",
		Args:    exactly("a target and a fault", 2),
	}
	specFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		in := given(cmd)
		in["target"], in["fault"] = words[0], words[1]
		return a.inject(cmd.Context(), f, in)
	}
	return cmd
}

// specFlags adds the flags of a fault. What they mean and whether they fit is up to the endpoint.
func specFlags(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.Duration("ttl", 0, "required: when it ends by itself")
	fs.Float64("probability", 1, "share of the calls to hit")
	fs.Int("count", 0, "hits at most (default no limit)")
	fs.Int("after", 0, "calls that pass before the first hit")
	fs.Int64("seed", 0, "the same seed and the same calls have the same hits (default one is chosen)")
	fs.Int("status", 0, "error: the HTTP status (default 503)")
	fs.Duration("retry-after", 0, "error, rate_limit: what the answer says in Retry-After")
	fs.Duration("delay", 0, "latency, required: how long requests wait")
	fs.Duration("jitter", 0, "latency: by how much delays differ")
	fs.String("distribution", "", "latency: fixed, uniform (the default with a jitter), normal or pareto (some very long)")
	fs.Float64("shape", 0, "latency, pareto: the less, the more long delays (default 2)")
	fs.Int("limit", 0, "rate_limit: requests that pass in each period (default none)")
	fs.Duration("per", 0, "rate_limit: the period (default 1m)")
	fs.Duration("up", 0, "flap: how long it is well (default 10s)")
	fs.Duration("down", 0, "flap: how long it is down, which comes first (default 5s)")
	fs.String("message", "", "tool_error: what the tool says")
	fs.Bool("dry-run", false, "only tell what would be hit")
}

// injectFlags are the flags that are arguments of chaos.inject.
var injectFlags = []string{"ttl", "probability", "count", "after", "seed", "status", "retry-after", "delay", "jitter", "distribution",
	"shape", "limit", "per", "up", "down", "message", "dry-run", "target"}

// given are the flags that were given, as arguments of chaos.inject.
func given(cmd *cobra.Command) map[string]any {
	in := map[string]any{}
	for _, name := range injectFlags {
		g := cmd.Flags().Lookup(name)
		if g == nil || !g.Changed {
			continue
		}
		var v any = g.Value.String()
		switch g.Value.Type() {
		case "bool":
			v = g.Value.String() == "true"
		case "int", "int64", "float64":
			if n := json.Number(g.Value.String()); json.Valid([]byte(n)) {
				v = n
			}
		}
		in[strings.ReplaceAll(name, "-", "_")] = v
	}
	return in
}

func (a *app) scenarioCommand(f *statusFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "scenario [name --ttl duration]",
		Short:   "Inject a ready-made scenario of several faults, or list them",
		Long:    "Inject a ready-made scenario of several faults. Without a name it prints the names,\nwith --dry-run the faults. The configuration can have more: chaos.scenarios.",
		Example: "  agentarmor chaos scenario\n  agentarmor chaos scenario provider_outage --ttl 1m --dry-run\n  agentarmor chaos scenario provider_outage --target llm/gemini --ttl 1m",
		Args:    atMost("the name of a scenario", 1),
	}
	fs := cmd.Flags()
	fs.Duration("ttl", 0, "required: when its faults end by themselves")
	fs.String("target", "", "whom it hits, instead of the first model, or all models or servers")
	fs.Int64("seed", 0, "the same seed and the same calls have the same hits")
	fs.Bool("dry-run", false, "only tell what would be hit")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if len(words) == 0 {
			return a.scenarios(cmd.Context(), f)
		}
		in := given(cmd)
		in["scenario"] = words[0]
		return a.inject(cmd.Context(), f, in)
	}
	return cmd
}

func (a *app) clearCommand(f *statusFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "clear [id or target]",
		Short:   "End faults: all, the one with an id, or those of a target",
		Example: "  agentarmor chaos clear\n  agentarmor chaos clear f1\n  agentarmor chaos clear 'mcp/github/create_*'",
		Args:    atMost("the id or target of what is to end, or all", 1),
		RunE: func(cmd *cobra.Command, words []string) error {
			return a.clearFaults(cmd.Context(), f, append(words, "all")[0])
		},
	}
}

func (a *app) listCommand(f *statusFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the active faults, and what can be broken",
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.listFaults(cmd.Context(), f) },
	}
}

func exactly(what string, n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usage("%s takes %s; see %s --help", cmd.CommandPath(), what, cmd.CommandPath())
		}
		return nil
	}
}

func atMost(what string, n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usage("%s takes at most %s; see %s --help", cmd.CommandPath(), what, cmd.CommandPath())
		}
		return nil
	}
}
