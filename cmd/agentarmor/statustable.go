package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// The colours of states and breakers, as ANSI codes.
const (
	green, yellow, red, dim, bold = "32", "33", "31", "2", "1"
)

var stateColours = map[string]string{
	"ready": green, "starting": yellow, "degraded": yellow, "throttled": yellow, "exhausted": yellow, "disabled": dim,
	"closed": "", "half_open": yellow, "open": red, "off": dim, "-": dim,
}

// colourOf returns the colour of a state; what is not known is trouble.
func colourOf(state string) string {
	if c, ok := stateColours[state]; ok {
		return c
	}
	return red
}

// printStatus writes the document for a person.
func printStatus(w io.Writer, raw []byte) error {
	doc, err := readDocument(raw)
	if err != nil {
		return err
	}
	v := statusView{now: time.Now(), paint: colours(w)}
	_, err = io.WriteString(w, v.render(doc))
	return err
}

// statusView shows documents at one moment.
type statusView struct {
	now   time.Time
	paint func(colour, text string) string
}

// render returns one line on the endpoint, a table of its upstreams and one of
// its models, each with a line for every problem.
func (v *statusView) render(doc *statusDocument) string {
	var b strings.Builder
	fmt.Fprintf(&b, "AgentArmor %s, up %s: %s\n", oneLine(doc.Version), span(v.now.Sub(doc.StartedAt)), summary(doc))
	if doc.Chaos.Enabled {
		b.WriteString(v.paint(yellow, "chaos is on: "+count(doc.Chaos.Active, "fault")+" active") + "\n")
	}
	if len(doc.Upstreams) > 0 {
		b.WriteByte('\n')
		v.upstreams(&b, doc)
	}
	if doc.LLM != nil {
		b.WriteByte('\n')
		v.models(&b, doc.LLM)
	}
	v.alerts(&b, doc)
	return b.String()
}

// alerts writes a line for each that holds.
func (v *statusView) alerts(b *strings.Builder, doc *statusDocument) {
	first := true
	for _, one := range doc.Alerts {
		if one.ResolvedAt != nil {
			continue
		}
		if first {
			b.WriteByte('\n')
			first = false
		}
		b.WriteString(painted(v.paint, red, "alert") + " for " + span(v.now.Sub(one.Since)) + ": " + oneLine(one.Text))
		if one.Injected != "" {
			b.WriteString(" (injected: " + oneLine(one.Injected) + ")")
		}
		b.WriteByte('\n')
	}
}

func (v *statusView) upstreams(b *strings.Builder, doc *statusDocument) {
	t := newTable("UPSTREAM", "STATE", "BREAKER", "CALLS>", "ERRORS>", "P95>", "RESTARTS>", "NEXT ATTEMPT", "TOOLS>")
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(doc.Upstreams)) {
		u := doc.Upstreams[name]
		t.add(v.row(name, &u)...)
		problems = append(problems, v.problems(name, &u)...)
	}
	t.write(b, v.paint)
	if len(problems) > 0 {
		b.WriteString("\n" + strings.Join(problems, "\n") + "\n")
	}
}

// summary counts what is meant to work.
func summary(doc *statusDocument) string {
	wanted := 0
	for _, u := range doc.Upstreams {
		if u.State != "disabled" {
			wanted++
		}
	}
	if wanted == 0 {
		return "no upstream is configured"
	}
	s := doc.Summary
	text := fmt.Sprintf("%d of %s ready, ", s.Ready, count(wanted, "upstream"))
	if s.ToolsUnavailable > 0 {
		return text + fmt.Sprintf("%d of %s unavailable", s.ToolsUnavailable, count(s.Tools, "tool"))
	}
	return text + count(s.Tools, "tool")
}

func (v *statusView) row(name string, u *upstreamStatus) []cell {
	breaker, window := u.Breaker, u.Window
	if u.State == "disabled" {
		breaker, window = nil, nil
	}
	state := cmp.Or(u.State, "-")
	calls, errors, p95 := window.cells()
	return []cell{
		{oneLine(name), bold}, {oneLine(state), colourOf(state)}, {breaker.word(), breaker.colour()}, calls, errors, p95,
		{fmt.Sprint(u.Restarts), ""}, {v.next(u), ""}, {fmt.Sprint(u.Tools), ""},
	}
}

// word is how a breaker's state is spelled for people.
func (b *breakerStatus) word() string {
	if b == nil || b.State == "" {
		return "-"
	}
	return oneLine(strings.ReplaceAll(b.State, "_", "-"))
}

func (b *breakerStatus) colour() string {
	if b == nil || b.State == "" {
		return dim
	}
	return colourOf(b.State)
}

// cells are calls, error rate and p95; without a call the others are unknown.
func (w *windowStatus) cells() (calls, errors, p95 cell) {
	none := cell{"-", dim}
	if w == nil {
		return none, none, none
	}
	calls = cell{fmt.Sprint(w.Calls), ""}
	if w.Calls == 0 {
		return calls, none, none
	}
	errors = cell{percent(w.ErrorRate), ""}
	switch {
	case w.ErrorRate >= 0.5:
		errors.colour = red
	case w.ErrorRate > 0:
		errors.colour = yellow
	}
	return calls, errors, cell{milliseconds(w.P95MS), ""}
}

// next is when an upstream is tried again, "-" if that is not planned.
func (v *statusView) next(u *upstreamStatus) string {
	switch {
	case u.RetryAfterMS > 0: // its clock may differ from ours
		return "in " + span(time.Duration(u.RetryAfterMS)*time.Millisecond)
	case u.NextAttempt != nil:
		return v.in(*u.NextAttempt)
	}
	return "-"
}

func (v *statusView) in(t time.Time) string {
	if d := t.Sub(v.now); d > 0 {
		return "in " + span(d)
	}
	return "now"
}

// maxStderr is how many of the last lines of stderr are shown.
const maxStderr = 3

// problems are what a person should know of u, one line each.
func (v *statusView) problems(name string, u *upstreamStatus) (lines []string) {
	say := func(colour, who, format string, args ...any) {
		lines = append(lines, painted(v.paint, colour, oneLine(who))+oneLine(fmt.Sprintf(format, args...)))
	}
	if u.State != "ready" && u.State != "disabled" {
		if why := v.why(u); why != "" {
			say(colourOf(u.State), name, " is %s: %s", u.State, why)
		}
		for _, s := range u.Stderr[max(0, len(u.Stderr)-maxStderr):] {
			lines = append(lines, v.paint(dim, "  stderr: "+oneLine(s)))
		}
	}
	if u.Window != nil && u.Window.Queued > 0 {
		say(yellow, name, " is busy: %s under way, %d waiting", count(u.Window.InFlight, "call"), u.Window.Queued)
	}
	for _, original := range slices.Sorted(maps.Keys(u.DegradedTools)) {
		t := u.DegradedTools[original]
		say(t.Breaker.colour(), cmp.Or(t.Name, name+": "+original), ": %s", v.degraded(&t))
	}
	for _, what := range slices.Sorted(maps.Keys(u.Quarantined)) {
		say(red, name, ": %s is quarantined: %s", what, u.Quarantined[what])
	}
	return lines
}

// why tells why an upstream is not ready.
func (v *statusView) why(u *upstreamStatus) string {
	var parts []string
	if u.Reason != "" {
		parts = append(parts, u.Reason)
	}
	if u.LastError != "" && !strings.Contains(u.Reason, u.LastError) {
		parts = append(parts, "last error: "+u.LastError)
	}
	if u.LastSuccess != nil && len(parts) > 0 {
		parts = append(parts, "last success "+span(v.now.Sub(*u.LastSuccess))+" ago")
	}
	return strings.Join(parts, "; ")
}

// degraded tells what is wrong with a tool, when it is tried again and what to use instead.
func (v *statusView) degraded(t *toolStatus) string {
	text := "breaker " + t.Breaker.word()
	if t.Breaker != nil && t.Breaker.Until != nil {
		text += ", tried again " + v.in(*t.Breaker.Until)
	}
	if t.LastError != "" {
		text += ": " + t.LastError
	}
	if len(t.Alternatives) > 0 {
		text += "; instead: " + strings.Join(t.Alternatives, ", ")
	}
	return text
}

// span is a duration in the units that matter: 12s, 2m5s, 3h, 4d2h.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", math.Ceil(d.Seconds()))
	case d < time.Hour:
		return twoUnits(int(d.Minutes()), "m", int(d.Seconds())%60, "s")
	case d < 24*time.Hour:
		return twoUnits(int(d.Hours()), "h", int(d.Minutes())%60, "m")
	}
	return twoUnits(int(d.Hours())/24, "d", int(d.Hours())%24, "h")
}

func twoUnits(n int, unit string, rest int, smaller string) string {
	if rest == 0 {
		return fmt.Sprint(n, unit)
	}
	return fmt.Sprint(n, unit, rest, smaller)
}

func percent(share float64) string {
	switch p := 100 * share; {
	case p > 0 && p < 0.1:
		return "<0.1%"
	case p > 0 && p < 10:
		return fmt.Sprintf("%.1f%%", p)
	default:
		return fmt.Sprintf("%.0f%%", p)
	}
}

func milliseconds(ms float64) string {
	switch {
	case ms >= 1000:
		return fmt.Sprintf("%.1fs", ms/1000)
	case ms >= 10 || ms == 0:
		return fmt.Sprintf("%.0fms", ms)
	}
	return fmt.Sprintf("%.1fms", ms)
}
