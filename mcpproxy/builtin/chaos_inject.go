package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/agentarmor/agentarmor/chaos"
)

const injectText = "Breaks something behind this endpoint on purpose, for a limited time, to see what happens: one fault, or a ready-made scenario of several. " +
	"It really happens: processes die, calls fail, and clients and other agents on this endpoint meet it too. Whatever a fault has a part in is marked as injected. chaos.clear ends faults earlier, chaos.list tells what can be broken."

func addInject(s *server.MCPServer, src Source) {
	tool := mcp.NewToolWithRawSchema("chaos.inject", injectText, injectInput(src.Chaos))
	tool.Annotations = mcp.ToolAnnotation{
		Title: "Inject a fault", ReadOnlyHint: new(false), DestructiveHint: new(true), IdempotentHint: new(false), OpenWorldHint: new(false),
	}
	s.AddTool(tool, src.injectChaos)
}

// injection is the arguments of chaos.inject.
type injection struct {
	chaos.Spec
	Scenario string `json:"scenario"`
	DryRun   bool   `json:"dry_run"`
}

// injectChaos answers chaos.inject.
func (src Source) injectChaos(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if !src.Chaos.Enabled() {
		return mcp.NewToolResultError(chaos.ErrOff.Error()), nil
	}
	var in injection
	err := strictly(r.Params.RawArguments, &in, injectArguments()...)
	if err != nil {
		return mcp.NewToolResultError(err.Error()), nil
	}
	var out struct {
		Injected []chaos.Active `json:"injected"`
		Would    []chaos.Spec   `json:"would_inject,omitempty"` // with dry_run
		Targets  []string       `json:"targets,omitempty"`      // with dry_run: what they match now
	}
	if in.DryRun {
		out.Injected = []chaos.Active{}
		out.Would, out.Targets, err = src.wouldInject(&in)
	} else {
		out.Injected, err = src.inject(&in)
	}
	if err != nil {
		return mcp.NewToolResultError(err.Error()), nil
	}
	return structured(out)
}

func (src Source) inject(in *injection) ([]chaos.Active, error) {
	switch {
	case in.Scenario == "":
		a, err := src.Chaos.Inject(in.Spec)
		return []chaos.Active{a}, err
	case !in.plain():
		return nil, errScenario
	}
	return src.Chaos.Scenario(in.Scenario, in.Target, time.Duration(in.TTL), in.Seed)
}

func (src Source) wouldInject(in *injection) (specs []chaos.Spec, targets []string, err error) {
	switch {
	case in.Scenario != "" && !in.plain():
		return nil, nil, errScenario
	case in.Scenario != "":
		return src.Chaos.PreviewScenario(in.Scenario, in.Target, time.Duration(in.TTL), in.Seed)
	}
	if err := in.Validate(src.Chaos.MaxTTL()); err != nil {
		return nil, nil, err
	}
	targets, err = src.Chaos.Preview(in.Target)
	return []chaos.Spec{in.Spec}, targets, err
}

var errScenario = errors.New("a scenario takes target, ttl and seed only")

// plain tells whether the arguments fit a scenario.
func (in *injection) plain() bool {
	return in.Spec == chaos.Spec{Target: in.Target, TTL: in.TTL, Seed: in.Seed}
}

// strictly reads arguments; its errors tell an agent what to do.
func strictly(raw json.RawMessage, into any, names ...string) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var given map[string]json.RawMessage
	_ = json.Unmarshal(raw, &given) // what is wrong with it is found below
	for name, value := range given {
		if string(value) == "null" { // perhaps a number that a client could not read
			return fmt.Errorf("%s is null: give it a value, or leave it out", short(name))
		}
	}
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrong.Field == "" {
			return errors.New("the arguments must be an object")
		}
		what := inWords(wrong.Type)
		if wrong.Type == reflect.TypeFor[chaos.Duration]() {
			what = `a duration such as "30s"`
		}
		return fmt.Errorf("%s must be %s", strings.TrimPrefix(wrong.Field, "Spec."), what)
	}
	if name, ok := strings.CutPrefix(fmt.Sprint(err), "json: unknown field "); ok {
		return fmt.Errorf("there is no argument %s: use %s", short(name), strings.Join(names, ", "))
	}
	return err
}

// argument is one property of the schema of chaos.inject.
type argument struct {
	name, kind, about string
	more              map[string]any
}

// injectTable is every argument of chaos.inject; those of single faults name them.
func injectTable(scenarios []string, maxTTL time.Duration) []argument {
	const duration = "string"
	var faults []string
	for _, k := range chaos.Kinds {
		faults = append(faults, fmt.Sprintf("%s (%s)", k, k.About()))
	}
	return []argument{
		{"fault", "string", "What happens: " + strings.Join(faults, "; "), map[string]any{"enum": chaos.Kinds}},
		{"scenario", "string", "Instead of fault: several at once, ready-made; target and ttl apply to them. Without a target provider_outage and slow_provider hit the first model, the others all that they can", map[string]any{"enum": scenarios}},
		{"target", "string", "Whom it hits: llm/NAME (a model), mcp/NAME (a server: all its requests) or mcp/NAME/TOOL (calls of that tool), with * and ? in each part", nil},
		{"ttl", duration, fmt.Sprintf("When it ends by itself, such as 30s or 5m; at most %v", maxTTL), nil},
		{"probability", "number", "Share of the calls to hit; all of them if left out", map[string]any{"minimum": 0, "maximum": 1}},
		{"count", "integer", "Hits at most; no limit if left out. With kill: 1 is a single crash", map[string]any{"minimum": 0}},
		{"after", "integer", "Calls that pass before the first hit", map[string]any{"minimum": 0}},
		{"seed", "integer", "The same seed and the same calls have the same hits; one is chosen, and told, if left out", nil},
		{"status", "integer", "error: the HTTP status, 503 if left out", map[string]any{"minimum": 400, "maximum": 599}},
		{"retry_after", duration, "error, rate_limit: what the answer says in Retry-After", nil},
		{"delay", duration, "latency: how long requests wait, such as 200ms", nil},
		{"jitter", duration, "latency: by how much delays differ", nil},
		{"distribution", "string", "latency: fixed; uniform (delay ± jitter); normal (jitter is the standard deviation); pareto (at least delay, some very long)", map[string]any{"enum": chaos.Distributions}},
		{"shape", "number", "latency, pareto: the less, the more long delays; 2 if left out", map[string]any{"exclusiveMinimum": 0}},
		{"limit", "integer", "rate_limit: requests that pass in each period; none if left out", map[string]any{"minimum": 0}},
		{"per", duration, "rate_limit: the period, 1m if left out", nil},
		{"up", duration, "flap: how long it is well, 10s if left out", nil},
		{"down", duration, "flap: how long it is down, 5s if left out", nil},
		{"message", "string", "tool_error: what the tool says", map[string]any{"maxLength": chaos.MaxMessage}},
		{"dry_run", "boolean", "true: only tell which targets would be hit", nil},
	}
}

func injectArguments() (names []string) {
	for _, a := range injectTable(nil, 0) {
		names = append(names, a.name)
	}
	return names
}

// injectInput is the schema of the arguments.
func injectInput(i *chaos.Injector) json.RawMessage {
	properties := map[string]any{}
	scenarios, maxTTL := []string{}, time.Duration(0)
	if i.Enabled() {
		scenarios, maxTTL = i.Scenarios(), i.MaxTTL()
	}
	for _, a := range injectTable(scenarios, maxTTL) {
		p := map[string]any{"type": a.kind, "description": a.about}
		maps.Copy(p, a.more)
		properties[a.name] = p
	}
	raw, _ := json.Marshal(map[string]any{ // strings and numbers always encode
		"type": "object", "additionalProperties": false, "properties": properties, "required": []string{"ttl"},
	})
	return raw
}
