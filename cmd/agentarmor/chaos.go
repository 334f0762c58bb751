package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/spf13/cobra"

	"github.com/agentarmor/agentarmor/chaos"
)

const chaosHelp = `Break what is behind a running endpoint, on purpose and for a limited time. The
endpoint must have been started with --chaos, or have chaos.enabled in its
configuration. Everything goes through its MCP tools chaos.inject, chaos.clear
and chaos.list, which agents can call too.

A target is llm/<model entry>, mcp/<server> (all its requests) or
mcp/<server>/<tool> (calls of that tool), with * and ? in each part.`

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
		Long:    "Inject one fault:\n\n" + strings.Join(about, "\n"),
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
	fs.Duration("ttl", 0, "when it ends by itself")
	fs.Float64("probability", 1, "share of the calls to hit")
	fs.Int("count", 0, "hits at most")
	fs.Int("after", 0, "calls that pass before the first hit")
	fs.Int64("seed", 0, "the same seed and the same calls have the same hits")
	fs.Int("status", 0, "error: the HTTP status")
	fs.Duration("retry-after", 0, "error, rate_limit: what the answer says in Retry-After")
	fs.Duration("delay", 0, "latency: how long requests wait")
	fs.Duration("jitter", 0, "latency: by how much delays differ")
	fs.String("distribution", "", "latency: fixed, uniform, normal or pareto")
	fs.Float64("shape", 0, "latency, pareto: the less, the more long delays")
	fs.Int("limit", 0, "rate_limit: requests that pass in each period")
	fs.Duration("per", 0, "rate_limit: the period")
	fs.Duration("up", 0, "flap: how long it is well")
	fs.Duration("down", 0, "flap: how long it is down")
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
		Example: "  agentarmor chaos scenario\n  agentarmor chaos scenario provider_outage --target llm/gemini --ttl 1m",
		Args:    atMost("the name of a scenario", 1),
	}
	fs := cmd.Flags()
	fs.Duration("ttl", 0, "when its faults end by themselves")
	fs.String("target", "", "whom it hits, instead of all models or servers")
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
		Use:   "clear [which]",
		Short: "End faults: all, the one with an id, or those of a target",
		Args:  atMost("the id or target of what is to end, or all", 1),
		RunE: func(cmd *cobra.Command, words []string) error {
			return a.clearFaults(cmd.Context(), f, append(words, "all")[0])
		},
	}
}

func (a *app) listCommand(f *statusFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the active faults",
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

// injectedFault is a fault as the tools tell of it.
type injectedFault struct {
	ID      string     `json:"id"`
	Target  string     `json:"target"`
	Fault   string     `json:"fault"`
	Hits    int        `json:"hits"`
	Calls   int        `json:"calls"`
	Seed    int64      `json:"seed"`
	Left    string     `json:"left"`
	Targets []string   `json:"targets"`
	Spec    *faultSpec `json:"spec"` // in chaos.list
}

type faultSpec struct {
	Target string `json:"target"`
	Fault  string `json:"fault"`
}

// chaosTool calls a tool of the endpoint and reads its structured answer. With
// --json the answer is printed, and done is true.
func (a *app) chaosTool(ctx context.Context, f *statusFlags, tool string, args map[string]any, into any) (done bool, err error) {
	url, token, err := a.endpoint(*f)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	c, err := connect(ctx, url, token, "agentarmor-chaos")
	if err != nil {
		return false, explain(url, err)
	}
	defer c.Close()
	r, err := c.CallTool(ctx, mcp.CallToolRequest{Params: mcp.CallToolParams{Name: tool, Arguments: args}})
	if err != nil {
		return false, fmt.Errorf("%s: %w", tool, err)
	}
	if r.IsError {
		var texts []string
		for _, content := range r.Content {
			if t, ok := content.(mcp.TextContent); ok {
				texts = append(texts, t.Text)
			}
		}
		return false, errors.New(oneLine(strings.Join(texts, " ")))
	}
	if f.json {
		enc := json.NewEncoder(a.stdout)
		enc.SetIndent("", "  ")
		return true, enc.Encode(r.StructuredContent)
	}
	remarshal(r.StructuredContent, into)
	return false, nil
}

func (a *app) inject(ctx context.Context, f *statusFlags, in map[string]any) error {
	var out struct {
		Injected []injectedFault `json:"injected"`
		Targets  []string        `json:"targets"`
	}
	done, err := a.chaosTool(ctx, f, "chaos.inject", in, &out)
	if err != nil || done {
		return err
	}
	if in["dry_run"] == true {
		fmt.Fprintf(a.stdout, "nothing is injected; it would hit %s\n", listed(out.Targets))
		return nil
	}
	for _, one := range out.Injected {
		fmt.Fprintf(a.stdout, "%s: %s on %s for %s, seed %d\n", one.ID, one.Fault, oneLine(one.Target), one.Left, one.Seed)
		fmt.Fprintf(a.stdout, "  hits %s\n", listed(one.Targets))
	}
	return nil
}

func (a *app) clearFaults(ctx context.Context, f *statusFlags, which string) error {
	var out struct {
		Cleared []injectedFault `json:"cleared"`
		Active  int             `json:"active"`
	}
	done, err := a.chaosTool(ctx, f, "chaos.clear", map[string]any{"which": which}, &out)
	if err != nil || done {
		return err
	}
	for _, one := range out.Cleared {
		fmt.Fprintf(a.stdout, "%s: %s on %s has ended; it has hit %d of %s\n", one.ID, one.Fault, oneLine(one.Target), one.Hits, count(one.Calls, "call"))
	}
	fmt.Fprintf(a.stdout, "%s active\n", count(out.Active, "fault"))
	return nil
}

// chaosList is what chaos.list answers.
type chaosList struct {
	Enabled   bool            `json:"enabled"`
	Seed      int64           `json:"seed"`
	Active    []injectedFault `json:"active"`
	Scenarios []string        `json:"scenarios"`
	Targets   []string        `json:"targets"`
	Text      string          `json:"text"`
}

func (a *app) listFaults(ctx context.Context, f *statusFlags) error {
	var out chaosList
	done, err := a.chaosTool(ctx, f, "chaos.list", nil, &out)
	if err != nil || done {
		return err
	}
	if !out.Enabled {
		fmt.Fprintln(a.stdout, oneLine(out.Text))
		return nil
	}
	fmt.Fprintf(a.stdout, "chaos is on, seed %d: %s active\n", out.Seed, count(len(out.Active), "fault"))
	if len(out.Active) > 0 {
		t := newTable("ID", "TARGET", "FAULT", "HITS>", "CALLS>", "LEFT>", "SEED>")
		for _, one := range out.Active {
			if one.Spec != nil {
				one.Target, one.Fault = one.Spec.Target, one.Spec.Fault
			}
			left, _ := time.ParseDuration(one.Left)
			t.add(cell{one.ID, bold}, cell{oneLine(one.Target), ""}, cell{one.Fault, ""}, cell{strconv.Itoa(one.Hits), ""}, cell{strconv.Itoa(one.Calls), ""},
				cell{span(left), ""}, cell{strconv.FormatInt(one.Seed, 10), dim})
		}
		var b strings.Builder
		t.write(&b, colours(a.stdout))
		fmt.Fprintf(a.stdout, "\n%s", b.String())
	}
	fmt.Fprintf(a.stdout, "\ncan be broken: %s\n", listed(out.Targets))
	return nil
}

func (a *app) scenarios(ctx context.Context, f *statusFlags) error {
	var out chaosList
	done, err := a.chaosTool(ctx, f, "chaos.list", nil, &out)
	if err != nil || done {
		return err
	}
	if !out.Enabled {
		fmt.Fprintln(a.stdout, oneLine(out.Text))
	}
	for _, name := range out.Scenarios {
		fmt.Fprintln(a.stdout, oneLine(name))
	}
	return nil
}

// listed joins names of foreign origin, or says that there are none.
func listed(names []string) string {
	if len(names) == 0 {
		return "nothing that is known now"
	}
	return oneLine(strings.Join(names, ", "))
}
