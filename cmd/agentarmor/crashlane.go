package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// stepKind is what a step does.
type stepKind int

const (
	readStep   stepKind = iota
	putStep             // writes what may be written again
	appendStep          // writes what must not be written twice
	modelStep           // asks a model
	lookStep            // reads whether an appendStep was executed; stands in no plan
)

// crashPlan is what an agent does, over and over: of ten steps six read, two
// ask a model, one writes idempotently and one does not.
var crashPlan = []stepKind{readStep, readStep, modelStep, readStep, putStep, readStep, modelStep, readStep, readStep, appendStep}

func (k stepKind) tool() string {
	return [...]string{"echo", "append_idempotent", "append", "llm.complete", "appended"}[k]
}

// lane is one way of getting through the steps.
type lane interface {
	// do makes one step and tells how it went.
	do(ctx context.Context, kind stepKind, step string) outcome
	// breakers are the transitions that were seen.
	breakers() []breakerMark
	close()
}

// outcome is how one step went.
type outcome struct {
	ok       bool
	retries  int  // by AgentArmor
	repeats  int  // by the agent
	lookups  int  // by the agent, whether what may have been executed was
	failover bool // another model than the first one has answered
}

// unaided tells whether it went well without the agent's help.
func (o outcome) unaided() bool { return o.ok && o.repeats+o.lookups == 0 }

// breakerMark is a transition of a breaker, since the lane began.
type breakerMark struct {
	Name  string  `json:"name"`
	State string  `json:"state"`
	AtMS  float64 `json:"at_ms"`
}

// naive makes one attempt at everything.
type naive struct {
	w      *crashWorld
	client *client.Client
	model  *crashModel
}

func newNaive(ctx context.Context, w *crashWorld) (lane, error) {
	c, err := connect(ctx, w.url(), "", "crashtest")
	if err != nil {
		return nil, err
	}
	return &naive{w, c, &crashModel{w, crashModels[0]}}, nil
}

func (n *naive) close()                  { n.client.Close() }
func (n *naive) breakers() []breakerMark { return nil }

func (n *naive) do(ctx context.Context, kind stepKind, step string) outcome {
	ctx, cancel := context.WithTimeout(ctx, n.w.pace.upstream.CallTimeout)
	defer cancel()
	if kind == modelStep {
		r, err := n.model.Generate(ctx, llm.Prompt(step), nil)
		return outcome{ok: err == nil && r.Text == step}
	}
	r, err := callStep(ctx, n.client, n.w, kind, kind.tool(), step)
	return outcome{ok: err == nil && good(r, kind, step)}
}

// callStep calls a tool on behalf of a step.
func callStep(ctx context.Context, c *client.Client, w *crashWorld, kind stepKind, name, step string) (*mcp.CallToolResult, error) {
	args := map[string]any{"text": step}
	switch kind {
	case putStep, appendStep:
		args["file"] = w.file(kind.tool())
	case lookStep:
		args["file"] = w.file(appendStep.tool())
	case modelStep:
		args = map[string]any{"prompt": step}
	}
	return c.CallTool(ctx, mcp.CallToolRequest{Params: mcp.CallToolParams{Name: name, Arguments: args}})
}

// good tells whether the answer is the right one.
func good(r *mcp.CallToolResult, kind stepKind, step string) bool {
	if r.IsError || len(r.Content) == 0 {
		return false
	}
	switch kind {
	case putStep, appendStep:
		return textOf(r) == "appended"
	case lookStep:
		return textOf(r) == executed || textOf(r) == "no"
	}
	return textOf(r) == step
}

// executed is the answer of a lookStep.
const executed = "yes"

// textOf is the text that a result begins with.
func textOf(r *mcp.CallToolResult) string {
	text, _ := r.Content[0].(mcp.TextContent)
	return text.Text
}

// runLane has every run made in a lane; done is called after each.
func runLane(ctx context.Context, l lane, p *pace, steps, runs int, done func()) *laneResult {
	res := &laneResult{lengths: make([]int, runs), unaided: make([]int, runs)}
	next, began := make(chan int), time.Now()
	var wg sync.WaitGroup
	for range p.workers {
		wg.Go(func() {
			defer wire.OnPanic()
			for run := range next {
				res.lengths[run], res.unaided[run] = oneRun(ctx, l, p, steps, run, res)
				done()
			}
		})
	}
	for run := range runs {
		begin := began.Add(p.spread * time.Duration(run) / time.Duration(runs))
		select {
		case <-time.After(time.Until(begin)):
			next <- run
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	return res
}

// oneRun makes the steps of a run up to the first that fails, and returns how
// many have succeeded, and how many of them before the agent had to help.
func oneRun(ctx context.Context, l lane, p *pace, steps, run int, res *laneResult) (length, unaided int) {
	for i := range steps {
		kind := crashPlan[i%len(crashPlan)]
		time.Sleep(p.thinking())
		began := time.Now()
		o := l.do(ctx, kind, fmt.Sprintf("run %d step %d", run, i))
		res.add(o, time.Since(began))
		if !o.ok {
			break
		}
		if length++; unaided == i && o.unaided() {
			unaided++
		}
	}
	return length, unaided
}

// laneResult is what has happened in a lane.
type laneResult struct {
	lengths []int // of the runs: steps that succeeded
	unaided []int // of them before the agent had to help

	mu                                   sync.Mutex
	took                                 []time.Duration // of the steps
	retries, repeats, lookups, failovers int
}

func (r *laneResult) add(o outcome, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took = append(r.took, took)
	r.retries += o.retries
	r.repeats += o.repeats
	r.lookups += o.lookups
	if o.failover {
		r.failovers++
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
