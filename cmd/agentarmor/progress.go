package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

// progress is a bar on a terminal, and nothing elsewhere.
type progress struct {
	out   io.Writer // nil: no terminal
	total int

	mu    sync.Mutex
	name  string
	done  int
	shown int // of a hundred
}

const progressWidth = 40

func newProgress(out io.Writer, total int) *progress {
	p := &progress{total: total, shown: -1}
	if terminal(out) {
		p.out = out
	}
	return p
}

// stage names what is under way.
func (p *progress) stage(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name, p.shown = name, -1
	p.showLocked()
}

// step counts one more that is done.
func (p *progress) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	p.showLocked()
}

func (p *progress) showLocked() {
	percent := 100 * p.done / max(p.total, 1)
	if p.out == nil || percent == p.shown {
		return
	}
	p.shown = percent
	full := progressWidth * percent / 100
	fmt.Fprintf(p.out, "\r\x1b[K%-8s %s%s %3d %%", p.name, strings.Repeat("█", full), strings.Repeat("░", progressWidth-full), percent)
}

// end takes the bar away.
func (p *progress) end() {
	if p.out != nil {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
