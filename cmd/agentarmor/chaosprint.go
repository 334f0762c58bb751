package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

// injectedFault is a fault as the tools tell of it.
type injectedFault struct {
	ID      string   `json:"id"`
	Target  string   `json:"target"`
	Fault   string   `json:"fault"`
	Hits    int      `json:"hits"`
	Calls   int      `json:"calls"`
	Seed    int64    `json:"seed"`
	TTL     string   `json:"ttl"`
	Left    string   `json:"left"`
	Targets []string `json:"targets"`
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
		return false, errors.New(oneLine(joinedText(r)))
	}
	if f.json {
		enc := json.NewEncoder(a.stdout)
		enc.SetIndent("", "  ")
		return true, enc.Encode(r.StructuredContent)
	}
	remarshal(r.StructuredContent, into)
	return false, nil
}

// joinedText is all text of a result.
func joinedText(r *mcp.CallToolResult) string {
	var texts []string
	for _, content := range r.Content {
		if t, ok := content.(mcp.TextContent); ok {
			texts = append(texts, t.Text)
		}
	}
	return strings.Join(texts, " ")
}

func (a *app) inject(ctx context.Context, f *statusFlags, in map[string]any) error {
	var out struct {
		Injected []injectedFault              `json:"injected"`
		Would    []map[string]json.RawMessage `json:"would_inject"`
		Targets  []string                     `json:"targets"`
	}
	done, err := a.chaosTool(ctx, f, "chaos.inject", in, &out)
	if err != nil || done {
		return err
	}
	if in["dry_run"] == true {
		fmt.Fprintln(a.stdout, "nothing is injected; it would be")
		for _, spec := range out.Would {
			fmt.Fprintf(a.stdout, "  %s\n", described(spec))
		}
		fmt.Fprintf(a.stdout, "and hit\n%s", byServer(out.Targets))
		return nil
	}
	for _, one := range out.Injected {
		fmt.Fprintf(a.stdout, "%s: %s on %s for %s, seed %d\n", one.ID, one.Fault, oneLine(one.Target), one.TTL, one.Seed)
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

// chaosList calls chaos.list. It is done when all is printed: with --json, and while chaos is off.
func (a *app) chaosList(ctx context.Context, f *statusFlags) (out chaosList, done bool, err error) {
	done, err = a.chaosTool(ctx, f, "chaos.list", nil, &out)
	if err == nil && !done && !out.Enabled {
		_, err = fmt.Fprintln(a.stdout, oneLine(out.Text))
		done = true
	}
	return out, done, err
}

func (a *app) listFaults(ctx context.Context, f *statusFlags) error {
	out, done, err := a.chaosList(ctx, f)
	if err != nil || done {
		return err
	}
	fmt.Fprintf(a.stdout, "chaos is on, seed %d: %s active\n", out.Seed, count(len(out.Active), "fault"))
	if len(out.Active) > 0 {
		t := newTable("ID", "TARGET", "FAULT", "HITS>", "CALLS>", "LEFT>", "SEED>")
		for _, one := range out.Active {
			left, _ := time.ParseDuration(one.Left)
			t.add(cell{one.ID, bold}, cell{oneLine(one.Target), ""}, cell{one.Fault, ""}, cell{strconv.Itoa(one.Hits), ""}, cell{strconv.Itoa(one.Calls), ""},
				cell{span(left), ""}, cell{strconv.FormatInt(one.Seed, 10), dim})
		}
		var b strings.Builder
		t.write(&b, colours(a.stdout))
		fmt.Fprintf(a.stdout, "\n%s", b.String())
	}
	fmt.Fprintf(a.stdout, "\ncan be broken:\n%s", byServer(out.Targets))
	return nil
}

func (a *app) scenarios(ctx context.Context, f *statusFlags) error {
	out, done, err := a.chaosList(ctx, f)
	if err != nil || done {
		return err
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

// described tells of a fault in a line: what, on whom, and its other arguments.
func described(spec map[string]json.RawMessage) string {
	word := func(name string) string { return strings.Trim(string(spec[name]), `"`) }
	var more []string
	for _, name := range slices.Sorted(maps.Keys(spec)) {
		if name != "fault" && name != "target" {
			more = append(more, name+" "+word(name))
		}
	}
	return oneLine(fmt.Sprintf("%s on %s: %s", word("fault"), word("target"), strings.Join(more, ", ")))
}

// byServer has a line for each target, and one for all tools of a server.
func byServer(targets []string) string {
	var lines []string
	tools := map[string]int{} // the line of a server's tools
	for _, target := range targets {
		parts := strings.SplitN(printable(target), "/", 3)
		if len(parts) < 3 {
			lines = append(lines, strings.Join(parts, "/"))
			continue
		}
		server := parts[0] + "/" + parts[1]
		if at, known := tools[server]; known {
			lines[at] += ", " + parts[2]
			continue
		}
		tools[server] = len(lines)
		lines = append(lines, server+"/ "+parts[2])
	}
	if lines == nil {
		return "  nothing that is known now\n"
	}
	return "  " + strings.Join(lines, "\n  ") + "\n"
}
