package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/llm"
)

// chapter begins a part of the story.
func (d *demonstration) chapter(title string) {
	if !d.failed {
		fmt.Fprintf(d.app.stdout, "\n%s\n", d.paint(bold, title))
	}
}

// try makes one step and tells how it went; after a failure the rest is skipped.
func (d *demonstration) try(ctx context.Context, what string, step func(context.Context) (string, error)) {
	if d.failed {
		return
	}
	d.step++
	began := time.Now()
	text, err := step(ctx)
	switch why := context.Cause(ctx); {
	case err == nil || why == nil:
	case why == context.Canceled:
		err = errors.New("interrupted")
	case !errors.Is(err, why):
		err = fmt.Errorf("%w: %w", why, err)
	}
	mark := d.paint(green, "ok")
	if err != nil {
		d.failed = true
		mark = d.paint(red, "FAILED")
		text = strings.TrimLeft(text+"\n"+d.paint(red, printable(err.Error())), "\n")
	}
	took := d.paint(dim, "("+time.Since(began).Round(time.Millisecond).String()+")")
	fmt.Fprintf(d.app.stdout, "%2d. %s: %s %s\n%s", d.step, what, mark, took, indented(text))
}

// indented puts a text below its step.
func indented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		if line != "\n" {
			b.WriteString("    ")
		}
		b.WriteString(line)
	}
	return b.String()
}

// says is one line of the conversation.
func (d *demonstration) says(who, text string) string {
	return d.paint(bold, fmt.Sprintf("%-6s", who)) + "  " + oneLine(text) + "\n"
}

// account shows the attempts of a trace.
func (d *demonstration) account(t *llm.Trace) string {
	table := newTable("PROVIDER", "OUTCOME", "BREAKER", "TOOK>", "THEN")
	for _, a := range t.Attempts {
		outcome, colour := fmt.Sprintf("%s (HTTP %d)", a.Class, a.Status), red
		switch {
		case a.Skipped != "":
			outcome, colour = "not asked: "+string(a.Skipped), yellow
		case a.Class == llm.ClassOK:
			colour = green
		}
		if a.Injected != "" {
			outcome += ", injected by " + a.Injected
		}
		breaker := breakerStatus{State: string(cmp.Or(a.BreakerAfter, a.BreakerBefore))}
		table.add(cell{oneLine(a.Provider), bold}, cell{oneLine(outcome), colour}, cell{breaker.word(), breaker.colour()},
			cell{milliseconds(a.LatencyMS), ""}, cell{oneLine(a.Next), ""})
	}
	var b strings.Builder
	table.write(&b, d.paint)
	return b.String()
}
