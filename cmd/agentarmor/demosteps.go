package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentarmor/agentarmor/health"
)

// demonstration is the client that lives through the story, and tells of it.
type demonstration struct {
	demoClient
	app    *app
	paint  func(colour, text string) string
	step   int
	failed bool

	asked int             // questions of the talk
	fault injectedFault   // the latest
	pid   int             // of files, before it is killed
	late  chan lateAnswer // to the call in which it dies
	calls sync.WaitGroup  // that one
}

// run tells the whole story.
func (d *demonstration) run(ctx context.Context) {
	d.chapter("All is well")
	d.try(ctx, "the tools of both servers are listed", d.list)
	d.try(ctx, "a call reaches each of them", d.reach)
	d.try(ctx, "the status", d.well)

	d.chapter("A model dies in mid-conversation")
	d.try(ctx, "Gemini answers the first question", func(ctx context.Context) (string, error) {
		text, _, err := d.ask(ctx, "gemini")
		return text, err
	})
	d.try(ctx, "chaos.inject breaks Gemini", func(ctx context.Context) (string, error) {
		return d.inject(ctx, map[string]any{"target": "llm/gemini", "fault": "error", "status": 503, "ttl": "30s"})
	})
	d.try(ctx, "Groq answers the next one, and knows the conversation", func(ctx context.Context) (string, error) {
		return d.failover(ctx, health.BreakerClosed)
	})
	d.try(ctx, "and the next, while Gemini's breaker opens", func(ctx context.Context) (string, error) {
		return d.failover(ctx, health.BreakerOpen)
	})
	d.try(ctx, "chaos.list tells what is broken", d.broken)
	d.try(ctx, "chaos.clear mends it", func(ctx context.Context) (string, error) { return d.clear(ctx, "error on llm/gemini", 2) })
	d.try(ctx, "Gemini answers again", d.returned)

	d.chapter("A server dies in mid-call")
	d.try(ctx, "chaos.inject lies in wait for a call of files", func(ctx context.Context) (string, error) {
		return d.inject(ctx, map[string]any{"target": "mcp/files/pid", "fault": "kill", "count": 1, "ttl": "30s"})
	})
	d.try(ctx, "files__pid is called, and the process dies", d.kill)
	d.try(ctx, "meanwhile search answers, and the tools of files stay listed", d.meanwhile)
	d.try(ctx, "the call is answered all the same, by a new process", d.survive)
	d.try(ctx, "chaos.clear", func(ctx context.Context) (string, error) { return d.clear(ctx, "kill on mcp/files/pid", 1) })
	d.try(ctx, "the status", d.recovered)

	d.chapter("What it buys")
	d.try(ctx, "the crash test: the same faults without and with AgentArmor", d.crashtest)
}

// list waits for both servers and counts their tools.
func (d *demonstration) list(ctx context.Context) (string, error) {
	err := d.until(ctx, func(doc *statusDocument) bool {
		return doc.Summary.Ready == 2 && doc.Upstreams["files"].Tools > 0 && doc.Upstreams["search"].Tools > 0
	})
	if err != nil {
		return "", err
	}
	names, err := d.listed(ctx)
	if err != nil {
		return "", err
	}
	from := map[string]int{}
	var own []string
	for _, name := range names {
		if server, _, ok := strings.Cut(name, "__"); ok {
			from[server]++
		} else {
			own = append(own, name)
		}
	}
	text := fmt.Sprintf("%s: %d of files, %d of search, and %s", count(len(names), "tool"), from["files"], from["search"], strings.Join(own, ", "))
	if from["files"] == 0 || from["search"] == 0 || !slices.Contains(own, "llm.complete") || !slices.Contains(own, "chaos.inject") {
		return text, errors.New("that is not all")
	}
	return text, nil
}

// reach calls both servers.
func (d *demonstration) reach(ctx context.Context) (string, error) {
	var lines []string
	for _, tool := range []string{"files__echo", "search__echo"} {
		r, err := d.tool(ctx, tool, map[string]any{"text": "hello from " + tool}, nil)
		if err != nil {
			return "", err
		}
		if r.text != "hello from "+tool {
			return "", fmt.Errorf("%s answers %q", tool, r.text)
		}
		lines = append(lines, r.text)
	}
	return strings.Join(lines, "\n"), nil
}

// table reads the status and shows it as agentarmor status does.
func (d *demonstration) table(ctx context.Context) (*statusDocument, string, error) {
	doc, err := d.status(ctx)
	if err != nil {
		return nil, "", err
	}
	v := statusView{now: time.Now(), paint: d.paint}
	return doc, v.render(doc), nil
}

// well wants everything to be ready.
func (d *demonstration) well(ctx context.Context) (string, error) {
	doc, text, err := d.table(ctx)
	if err != nil {
		return "", err
	}
	if doc.Summary.Ready != 2 || doc.LLM == nil || doc.LLM.Healthy != 2 || !doc.Chaos.Enabled {
		return text, errors.New("not everything is ready")
	}
	return text, nil
}

// recovered waits for all to be as before, with a trace of what has happened.
func (d *demonstration) recovered(ctx context.Context) (string, error) {
	err := d.until(ctx, func(doc *statusDocument) bool { return doc.Summary.Ready == 2 }) // calls are served a little earlier
	if err != nil {
		return "", err
	}
	doc, text, err := d.table(ctx)
	switch {
	case err != nil:
		return "", err
	case doc.LLM.Healthy != 2 || doc.LLM.Providers["gemini"].State != string(health.Ready):
		return text, errors.New("the models have not recovered")
	case doc.Upstreams["files"].Restarts != 1 || doc.Upstreams["search"].Restarts != 0 || doc.LLM.FailoversLastHour != 2:
		return text, errors.New("it does not tell what has happened")
	}
	return text, nil
}

// demoCrash is a crash test of a second or two.
var demoCrash = crashFlags{steps: 20, runs: 60, rate: 0.02, seed: 1}

// crashtest wants AgentArmor to be of use and to execute nothing twice.
func (d *demonstration) crashtest(ctx context.Context) (string, error) {
	c, err := d.app.crash(ctx, demoCrash)
	if err != nil {
		return "", err
	}
	switch text := c.table(d.paint); {
	case c.Armored.Duplicates > 0:
		return text, errors.New("something was executed twice that must not be")
	case c.Armored.Succeeded <= c.Naive.Succeeded:
		return text, errors.New("it has not helped")
	default:
		return text, nil
	}
}
