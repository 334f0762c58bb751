package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// issue is one thing wrong with a config file, or worth a warning.
type issue struct {
	line, col int    // 0 when it has no place in the file
	key       string // "mcpServers.github.args[0]"; "" for the file as a whole
	msg       string // never a value that came from a variable
}

func (i issue) Error() string { return i.in("") }

// in returns the issue as file:line:col: key: message.
func (i issue) in(file string) string {
	var b strings.Builder
	b.WriteString(file)
	if i.line > 0 {
		if file != "" {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%d:%d", i.line, i.col)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if i.key != "" {
		b.WriteString(i.key + ": ")
	}
	b.WriteString(i.msg)
	return b.String()
}

// issue says something about n.
func (n *node) issue(format string, args ...any) issue {
	return issue{n.line, n.col, n.path, fmt.Sprintf(format, args...)}
}

// configError is everything wrong with one config file, in its order.
type configError struct {
	file   string
	issues []issue
}

func newConfigError(file string, issues []issue) *configError {
	return &configError{file, slices.Compact(inOrder(issues))}
}

// inOrder sorts issues as the file has them.
func inOrder(issues []issue) []issue {
	slices.SortStableFunc(issues, func(a, b issue) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.col, b.col))
	})
	return issues
}

func (e *configError) Error() string {
	var out []string
	for _, i := range e.issues {
		out = append(out, i.in(e.file))
	}
	return strings.Join(out, "\n")
}
