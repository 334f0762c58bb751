package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// crashReport is the result of a crash test.
type crashReport struct {
	Steps     int     `json:"steps"`
	Runs      int     `json:"runs"`
	FaultRate float64 `json:"fault_rate"` // with a scenario: the share of the naive lane's steps that failed
	Scenario  string  `json:"scenario,omitempty"`
	Seed      int64   `json:"seed"`
	Predicted float64 `json:"predicted"` // share of runs that succeed without protection: (1 − fault_rate) ^ steps

	Naive    laneReport `json:"naive"`
	Armored  laneReport `json:"armored"`
	Overhead overhead   `json:"overhead"`
}

// overhead is what the armor costs a step, in the median.
type overhead struct {
	P50MS   float64 `json:"p50_ms"`
	Percent float64 `json:"percent"`
}

// laneReport is what one lane has measured. Latencies are of single steps.
type laneReport struct {
	Succeeded      int         `json:"succeeded"` // runs
	Success        interval    `json:"success"`
	Unaided        interval    `json:"unaided"` // share of the runs that succeeded without any repeat or lookup by the agent
	StepsMade      int         `json:"steps_made"`
	Faults         int         `json:"faults"` // requests that met one
	P50MS          float64     `json:"p50_ms"`
	P95MS          float64     `json:"p95_ms"`
	Retries        int         `json:"retries"`    // by AgentArmor
	Failovers      int         `json:"failovers"`  // steps that another model has answered
	Repeats        int         `json:"repeats"`    // by the agent
	Lookups        int         `json:"lookups"`    // by the agent, whether what may have been executed was
	Duplicates     int         `json:"duplicates"` // executions that must not have been
	BySteps        []float64   `json:"by_steps"`   // share of the runs whose first 1, 2, … steps succeeded
	UnaidedBySteps []float64   `json:"unaided_by_steps"`
	Latency        []histogram `json:"latency"`

	FaultsAtMS []float64     `json:"faults_at_ms"`
	Breakers   []breakerMark `json:"breakers,omitempty"`
	TookMS     float64       `json:"took_ms"`
}

// interval is a share with its 95 % confidence interval.
type interval struct {
	Share float64 `json:"share"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// wilson returns the share of k in n with Wilson's score interval (E. B. Wilson, 1927).
func wilson(k, n int) interval {
	if n == 0 {
		return interval{High: 1}
	}
	const z = 1.959964 // of 95 %
	p, m := float64(k)/float64(n), float64(n)
	middle := (p + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	return interval{p, max(0, middle-half), min(1, middle+half)}
}

// histogram counts the steps that took up to so long, on a logarithmic scale.
type histogram struct {
	UpToMS float64 `json:"up_to_ms"`
	Steps  int     `json:"steps"`
}

const (
	histogramFirst = 0.25 // ms
	histogramRatio = 1.2
)

func histogramOf(sorted []time.Duration) (h []histogram) {
	limit := histogramFirst
	for _, took := range sorted {
		for h == nil || ms(took) > h[len(h)-1].UpToMS {
			h = append(h, histogram{UpToMS: math.Round(limit*1000) / 1000})
			limit *= histogramRatio
		}
		h[len(h)-1].Steps++
	}
	return h
}

// percentileOf returns the latency that p percent of sorted do not exceed, in ms.
func percentileOf(sorted []time.Duration, p int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return ms(sorted[(len(sorted)*p+99)/100-1])
}

// report sums a lane up.
func (r *laneResult) report(l lane, w *crashWorld, steps int, took time.Duration) laneReport {
	slices.Sort(r.took)
	met := w.metAt()
	out := laneReport{
		StepsMade: len(r.took), Faults: len(met), P50MS: percentileOf(r.took, 50), P95MS: percentileOf(r.took, 95),
		Retries: r.retries, Failovers: r.failovers, Repeats: r.repeats, Lookups: r.lookups, Duplicates: w.duplicates(),
		Latency: histogramOf(r.took), FaultsAtMS: []float64{}, Breakers: l.breakers(), TookMS: ms(took),
	}
	var unaided int
	out.Succeeded, out.BySteps = reached(r.lengths, steps)
	unaided, out.UnaidedBySteps = reached(r.unaided, steps)
	out.Success, out.Unaided = wilson(out.Succeeded, len(r.lengths)), wilson(unaided, len(r.unaided))
	for _, at := range met {
		out.FaultsAtMS = append(out.FaultsAtMS, ms(at))
	}
	return out
}

// reached counts the runs that are so many steps long, and the share of those
// that are at least 1, 2, … steps long.
func reached(lengths []int, steps int) (whole int, shares []float64) {
	shares = make([]float64, steps)
	for i := range shares {
		whole = 0
		for _, n := range lengths {
			if n > i {
				whole++
			}
		}
		shares[i] = float64(whole) / float64(len(lengths))
	}
	return whole, shares
}

// conclude compares the lanes.
func (c *crashReport) conclude() {
	c.Predicted = math.Pow(1-c.FaultRate, float64(c.Steps))
	c.Overhead.P50MS = c.Armored.P50MS - c.Naive.P50MS
	if c.Naive.P50MS > 0 {
		c.Overhead.Percent = 100 * c.Overhead.P50MS / c.Naive.P50MS
	}
}

// table is the report for people.
func (c *crashReport) table(paint func(colour, text string) string) string {
	var b strings.Builder
	what := fmt.Sprintf("%s of the requests meet a fault", shareText(c.FaultRate))
	if c.Scenario != "" {
		what = fmt.Sprintf("scenario %s, in which %s of the unprotected steps fail", c.Scenario, shareText(c.FaultRate))
	}
	fmt.Fprintf(&b, "%s of %s, seed %d: %s\n\n", count(c.Runs, "run"), count(c.Steps, "step"), c.Seed, what)
	t := newTable("", "NAIVE>", "ARMORED>")
	row := func(name, naive, armored, colour string) {
		t.add(cell{name, ""}, cell{naive, ""}, cell{armored, colour})
	}
	number := func(name string, naive, armored int, colour string) {
		row(name, strconv.Itoa(naive), strconv.Itoa(armored), colour)
	}
	row("predicted without protection, "+fmt.Sprintf("%.4g^%d", 1-c.FaultRate, c.Steps), shareText(c.Predicted), "-", "")
	row("runs that succeeded", shareText(c.Naive.Success.Share), shareText(c.Armored.Success.Share), green)
	row("  95 % interval", c.Naive.Success.String(), c.Armored.Success.String(), "")
	row("  without the agent's help", shareText(c.Naive.Unaided.Share), shareText(c.Armored.Unaided.Share), "")
	row("a step took, p50", milliseconds(c.Naive.P50MS), milliseconds(c.Armored.P50MS), "")
	row("a step took, p95", milliseconds(c.Naive.P95MS), milliseconds(c.Armored.P95MS), "")
	row("overhead, p50", "-", fmt.Sprintf("%+.2fms (%+.0f %%)", c.Overhead.P50MS, c.Overhead.Percent), "")
	number("faults met", c.Naive.Faults, c.Armored.Faults, "")
	row("retries", "-", strconv.Itoa(c.Armored.Retries), "")
	row("answered by another model", "-", strconv.Itoa(c.Armored.Failovers), "")
	row("repeated by the agent", "-", strconv.Itoa(c.Armored.Repeats), "")
	row("looked up: may have been executed", "-", strconv.Itoa(c.Armored.Lookups), "")
	colour := green
	if c.Armored.Duplicates > 0 {
		colour = red
	}
	number("duplicates", c.Naive.Duplicates, c.Armored.Duplicates, colour)
	t.write(&b, paint)
	return b.String()
}

// String is the interval alone.
func (i interval) String() string {
	return fmt.Sprintf("%.1f–%.1f %%", 100*i.Low, 100*i.High)
}

func shareText(p float64) string {
	return strconv.FormatFloat(math.Round(1000*p)/10, 'f', -1, 64) + " %"
}

// Percent is the share in percent.
func (i interval) Percent() float64 { return 100 * i.Share }
