package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// crashFlags are the flags of crashtest.
type crashFlags struct {
	steps, runs         int
	rate                float64
	seed                int64
	scenario, html, cfg string
	json                bool
}

const crashHelp = `Measure what resilience buys, on fakes and without keys: many runs of an agent,
each of so many steps, meet the same faults twice. The naive lane makes one
attempt at everything. The armored lane goes through a whole AgentArmor endpoint
with the settings of production; its agent does what it is told: it repeats what
was not executed, or does no harm twice, when it may. Whether something else that
may have been executed was, it looks up before, with a tool that can fail as well.

Of ten steps six read, two ask a model, one writes what may be written twice and
one what must not. A fault is HTTP 503, a connection that ends before or after the
work, or an answer that cannot be read. --scenario takes those of chaos instead
(agentarmor chaos scenario lists them), also from the config file; what is there to
be hit is mcp/tools, its tools echo, append, append_idempotent and appended, and the
models llm/gemini and llm/groq.

All times, of AgentArmor's settings too, are a twentieth of production's, and an
agent gives a step up after 6 s. At fault rates over 10 % that scale shows: breakers
stay open for as long as agents have patience, and the times they are told have
whole seconds, as in production; what succeeds then differs much between two tests.

With --scenario times are real: the faults last 30 s, the runs (100 unless --runs
says otherwise) begin within 20 s, a call may take 5 s, a breaker is open for 5 s,
and an agent gives up after a minute.
The exit status is 1 if anything was executed twice.`

func (a *app) crashCommand() *cobra.Command {
	var f crashFlags
	cmd := &cobra.Command{
		Use:   "crashtest",
		Short: "Measure what resilience buys: naive against armored",
		Long:  crashHelp,
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := cmd.Flags().Changed
			switch {
			case f.scenario != "" && given("fault-rate"):
				return usage("--scenario and --fault-rate are two kinds of faults: choose one")
			case f.scenario == "" && given("config"):
				return usage("--config is for its scenarios: name one with --scenario")
			case f.scenario != "" && !given("runs"):
				f.runs = 100
			}
			return a.crashtest(cmd.Context(), f)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&f.steps, "steps", 20, "steps of a run")
	fs.IntVar(&f.runs, "runs", 500, "runs in each lane")
	fs.Float64Var(&f.rate, "fault-rate", 0.02, "share of the requests that meet a fault")
	fs.Int64Var(&f.seed, "seed", 1, "the same seed has the same faults")
	fs.StringVar(&f.scenario, "scenario", "", "`name` of a chaos scenario instead of --fault-rate")
	fs.StringVar(&f.cfg, "config", "", "config `file` with scenarios")
	fs.BoolVar(&f.json, "json", false, "print the report as JSON")
	fs.StringVar(&f.html, "html", "", "write a report with charts to this `file`")
	return cmd
}

// The most that is taken: beyond it is a slip of the pen.
const (
	maxSteps = 1000
	maxRuns  = 100_000
)

func (f *crashFlags) check() error {
	switch {
	case f.steps < 1 || f.steps > maxSteps:
		return usage("--steps must be 1 to %d", maxSteps)
	case f.runs < 1 || f.runs > maxRuns:
		return usage("--runs must be 1 to %d", maxRuns)
	case !(f.rate >= 0 && f.rate <= 1):
		return usage("--fault-rate must be 0 to 1")
	}
	return nil
}

// crashtest runs both lanes and prints the report.
func (a *app) crashtest(ctx context.Context, f crashFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	c, err := a.crash(ctx, f)
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted")
	}
	if err != nil {
		return err
	}
	if f.html != "" {
		if err := c.writeHTML(f.html); err != nil {
			return err
		}
	}
	if f.json {
		enc := json.NewEncoder(a.stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(c)
	} else {
		_, err = fmt.Fprint(a.stdout, c.table(colours(a.stdout)))
	}
	if err != nil {
		return err
	}
	if n := c.Armored.Duplicates; n > 0 {
		return fmt.Errorf("%s: something was executed twice that must not be", count(n, "duplicate"))
	}
	return nil
}

// crash runs both lanes, one after the other so that neither slows the other.
func (a *app) crash(ctx context.Context, f crashFlags) (*crashReport, error) {
	c := &crashReport{Steps: f.steps, Runs: f.runs, FaultRate: f.rate, Scenario: f.scenario, Seed: f.seed}
	bar := newProgress(a.stderr, 2*f.runs)
	defer bar.end()
	for _, l := range []struct {
		name string
		open func(context.Context, *crashWorld) (lane, error)
		into *laneReport
	}{{"naive", newNaive, &c.Naive}, {"armored", newArmored, &c.Armored}} {
		faults, p, err := a.faults(f)
		if err != nil {
			return nil, err
		}
		bar.stage(l.name)
		if *l.into, err = crashLane(ctx, faults, p, l.open, f, bar.step); err != nil {
			return nil, err
		}
	}
	if f.scenario != "" && c.Naive.StepsMade > 0 {
		c.FaultRate = float64(f.runs-c.Naive.Succeeded) / float64(c.Naive.StepsMade)
	}
	c.conclude()
	return c, nil
}

// faults are those of one lane, and its pace.
func (a *app) faults(f crashFlags) (decider, pace, error) {
	if f.scenario == "" {
		return evenFaults{f.rate, f.seed}, quickPace(), nil
	}
	set, err := loadSettings(f.cfg, a.env)
	if err != nil {
		return nil, pace{}, err
	}
	o := set.chaos
	o.Seed = cmp.Or(f.seed, o.Seed, 1)
	faults, err := newScenarioFaults(f.scenario, o)
	return faults, scenarioPace(f.runs), err
}

// crashLane runs one lane from its world's begin to its end.
func crashLane(ctx context.Context, faults decider, p pace, open func(context.Context, *crashWorld) (lane, error), f crashFlags, done func()) (laneReport, error) {
	w, err := newCrashWorld(faults, p)
	if err != nil {
		return laneReport{}, err
	}
	defer w.close()
	l, err := open(ctx, w)
	if err != nil {
		return laneReport{}, err
	}
	defer l.close()
	w.begin()
	res := runLane(ctx, l, &p, f.steps, f.runs, done)
	if ctx.Err() != nil {
		return laneReport{}, context.Cause(ctx)
	}
	return res.report(l, w, f.steps, time.Since(w.began)), nil
}

// writeHTML writes the report with its charts.
func (c *crashReport) writeHTML(file string) error {
	page, err := c.page()
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, page, 0o644); err != nil {
		return usage("--html: %v", err)
	}
	return nil
}
