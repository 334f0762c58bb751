package wire

import (
	"bytes"
	"slices"
	"strings"
	"sync"
)

const (
	tailLines = 20
	tailWidth = 500 // bytes of one line
)

// stderrTail keeps the last lines of a process's stderr.
type stderrTail struct {
	mu   sync.Mutex
	kept []string // finished lines, oldest first
	line []byte   // the unfinished one, cut at tailWidth
}

func (t *stderrTail) add(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		line, rest, ended := bytes.Cut(b, []byte{'\n'})
		t.line = append(t.line, line[:min(len(line), tailWidth-len(t.line))]...)
		if !ended {
			return
		}
		if len(t.kept) == tailLines {
			t.kept = slices.Delete(t.kept, 0, 1)
		}
		t.kept = append(t.kept, t.text())
		t.line, b = t.line[:0], rest
	}
}

func (t *stderrTail) text() string {
	return strings.TrimRight(strings.ToValidUTF8(string(t.line), ""), "\r")
}

// lines returns what is kept, an unfinished line included.
func (t *stderrTail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := slices.Clone(t.kept)
	if len(t.line) > 0 {
		lines = append(lines, t.text())
	}
	return lines[max(0, len(lines)-tailLines):]
}
