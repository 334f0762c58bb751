package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/agentarmor/agentarmor/mcpproxy"
)

const checkHelp = `Read the config file, start every upstream once and say what clients will get:
state, protocol, time to ready, what is offered, which names change, what named
clients refuse or alter, and whether there are more tools than they take. Which
models llm.complete has keys for is told without asking them.

It warns of settings that come to nothing with these servers, and makes each
configured probe once if its tool is read-only, or idempotent in the config.

A tool whose definition has changed since it was first seen is shown with the
difference. --accept takes the new definitions for good, which lets a tool out
of the quarantine of on_change; without it nothing is accepted.

Exit code 0 if all upstreams are ready, 1 if one is not, 2 if the config has
mistakes.`

// checkCommand tries the config file and the upstreams.
func (a *app) checkCommand() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Try the config file and start every upstream once",
		Long:  checkHelp,
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.check(cmd.Context(), f) },
	}
	cmd.Flags().StringVar(&f.config, "config", "", "config `file`, YAML or JSON")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&f.accept, "accept", false, "accept tools whose definition has changed")
	return cmd
}

type checkFlags struct {
	config       string
	json, accept bool
}

func (a *app) check(ctx context.Context, f checkFlags) error {
	set, err := loadSettings(f.config, a.env)
	if err != nil {
		return err
	}
	for _, w := range set.warnings {
		fmt.Fprintln(a.stderr, "warning:", w)
	}
	cfg := set.proxy
	if f.accept && cfg.StateDir == "" {
		return usage("--accept needs catalog_cache: true; without it a restart of the endpoint accepts what the servers say then")
	}
	cfg.Anew, cfg.Accept = true, f.accept // what is remembered must not pass for what is there
	// The upstreams' reasons are in the report; the log adds what went on.
	cfg.Log, _ = newLogger(a.stderr, logSettings{level: "error", format: set.log.format}, a.env)
	if cfg.LLM, err = newChain(&set.llm, a.env, nil, new(atomic.Pointer[mcpproxy.Proxy])); err != nil {
		return err
	}
	p, err := mcpproxy.New(cfg)
	if err != nil {
		return err
	}
	report := checkReport{p.Check(ctx), checkModels(&set.llm, a.env)}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	p.Close(grace)
	if f.json {
		enc := json.NewEncoder(a.stdout)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		err = enc.Encode(report)
	} else {
		err = printCheck(a.stdout, set.file, &report)
	}
	if err == nil && !report.OK() {
		return errFailed
	}
	return err
}

// checkReport is what check prints as JSON.
type checkReport struct {
	mcpproxy.CheckReport
	Models []modelCheck `json:"models"` // of llm.complete
}

// printCheck writes the report for people.
func printCheck(w io.Writer, file string, r *checkReport) error {
	var b strings.Builder
	switch {
	case file == "":
		b.WriteString("no config file: no upstreams, only AgentArmor's own tools\n")
	case len(r.Upstreams) == 0:
		fmt.Fprintf(&b, "%s: no mistakes, but no upstreams either\n", file)
	default:
		fmt.Fprintf(&b, "%s: no mistakes\n", file)
	}
	for i := range r.Upstreams {
		b.WriteByte('\n')
		printUpstreamCheck(&b, &r.Upstreams[i])
	}
	b.WriteByte('\n')
	printModels(&b, r.Models)
	b.WriteByte('\n')
	if bad := notOK(&r.CheckReport); bad != nil {
		fmt.Fprintf(&b, "not ready: %s\n", strings.Join(bad, ", "))
	}
	fmt.Fprintf(&b, "%s in all, %d of them AgentArmor's own\n", count(r.Tools, "tool"), r.OwnTools)
	for _, l := range r.Exceeded {
		fmt.Fprintf(&b, "  too many for %s, which takes %d: filter them with tools.allow and tools.deny\n", l.Client, l.Tools)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func notOK(r *mcpproxy.CheckReport) (names []string) {
	for i := range r.Upstreams {
		if u := &r.Upstreams[i]; !u.OK() {
			names = append(names, u.Name)
		}
	}
	return names
}

func printUpstreamCheck(b *strings.Builder, u *mcpproxy.UpstreamCheck) {
	fmt.Fprintf(b, "%s: %s", u.Name, u.State)
	if u.Reason != "" {
		fmt.Fprintf(b, " (%s)", u.Reason)
	}
	b.WriteByte('\n')
	line := func(format string, args ...any) { fmt.Fprintf(b, "  "+format+"\n", args...) }
	if u.Protocol != "" {
		took := ""
		if u.ReadyMS > 0 {
			took = fmt.Sprintf(", ready after %d ms", u.ReadyMS)
		}
		line("%s over %s, %s%s", serverName(u.Server), u.Transport, era(u), took)
		line("%s, %s, %s, %s", count(u.Tools, "tool"), count(u.Prompts, "prompt"),
			count(u.Resources, "resource"), count(u.Templates, "template"))
	}
	for _, s := range u.Stderr {
		line("stderr: %s", s)
	}
	for _, r := range u.Renamed {
		line("renamed: %s → %s", r.Original, r.Exposed)
	}
	for _, what := range slices.Sorted(maps.Keys(u.Quarantined)) {
		line("quarantined: %s: %s", what, u.Quarantined[what])
	}
	for _, tool := range slices.Sorted(maps.Keys(u.Changed)) {
		line("changed: %s: %s", oneLine(tool), printable(u.Changed[tool]))
	}
	for _, tool := range slices.Sorted(maps.Keys(u.Accepted)) {
		line("accepted: %s: %s", oneLine(tool), printable(u.Accepted[tool]))
	}
	for _, f := range u.Findings {
		line("%s: %s %s", f.Tool, f.Client, f.Problem)
	}
	for _, w := range u.Warnings {
		line("warning: %s: %s", oneLine(w.Setting), oneLine(w.Problem))
	}
}

func era(u *mcpproxy.UpstreamCheck) string { return u.Era + " " + u.Protocol }

// serverName returns what a server calls itself.
func serverName(info json.RawMessage) string {
	var s struct{ Name, Version string }
	if json.Unmarshal(info, &s) != nil || s.Name == "" {
		return "a server without a name"
	}
	return strings.TrimSpace(s.Name + " " + s.Version)
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
