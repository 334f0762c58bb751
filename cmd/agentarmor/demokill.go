package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// lateAnswer is the answer to a call that takes its time.
type lateAnswer struct {
	toolAnswer
	err error
}

// kill calls files, and wants its process to be gone while the call is under way.
func (d *demonstration) kill(ctx context.Context) (string, error) {
	doc, err := d.status(ctx)
	if err != nil {
		return "", err
	}
	d.pid = doc.Upstreams["files"].Pid
	if d.pid == 0 || gone(d.pid) {
		return "", errors.New("files has no process")
	}
	d.late = make(chan lateAnswer, 1)
	d.calls.Go(func() {
		defer wire.OnPanic()
		r, err := d.tool(ctx, "files__pid", nil, nil)
		d.late <- lateAnswer{r, err}
	})
	var up upstreamStatus
	err = d.until(ctx, func(doc *statusDocument) bool {
		up = doc.Upstreams["files"]
		return up.State != string(health.Ready)
	})
	switch {
	case err != nil:
		return "", err
	case !gone(d.pid):
		return "", fmt.Errorf("process %d is still there", d.pid)
	}
	return fmt.Sprintf("process %d is gone: %s", d.pid, oneLine(up.LastError)), nil
}

// gone tells whether there is no such process.
func gone(pid int) bool {
	p, err := os.FindProcess(pid)
	return err != nil || p.Signal(syscall.Signal(0)) != nil
}

// meanwhile uses both servers while one is away.
func (d *demonstration) meanwhile(ctx context.Context) (string, error) {
	names, err := d.listed(ctx)
	if err != nil {
		return "", err
	}
	if !slices.Contains(names, "files__pid") {
		return "", errors.New("files__pid is not listed")
	}
	r, err := d.tool(ctx, "search__echo", map[string]any{"text": "still here"}, nil)
	if err != nil {
		return "", err
	}
	if len(d.late) > 0 {
		return "", errors.New("files was back before that")
	}
	return "search__echo: " + r.text, nil
}

// survive waits for the call that was under way.
func (d *demonstration) survive(ctx context.Context) (string, error) {
	var r lateAnswer
	select {
	case r = <-d.late:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if r.err != nil {
		return "", r.err
	}
	doc, err := d.status(ctx)
	if err != nil {
		return "", err
	}
	now := doc.Upstreams["files"].Pid
	switch {
	case r.text != strconv.Itoa(now) || now == d.pid:
		return "", fmt.Errorf("process %s has answered, %d was killed, %d runs", r.text, d.pid, now)
	case r.told.Attempts != 2 || r.told.Injected != d.fault.ID:
		return "", fmt.Errorf("the answer says of itself: %+v", r.told)
	}
	return fmt.Sprintf("process %d instead of %d, attempt %d: pid is read-only, so it was called again", now, d.pid, r.told.Attempts), nil
}
