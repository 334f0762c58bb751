package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// decoder reads a tree into a file and collects every problem on the way.
type decoder struct {
	env      lookup
	issues   []issue
	warnings []issue
	ignored  map[string]bool // foreign keys already warned about
}

// setter reads the value of one key.
type setter func(n *node)

// fields are the keys of a mapping.
type fields map[string]setter

func (d *decoder) fail(n *node, format string, args ...any) {
	d.issues = append(d.issues, n.issue(format, args...))
}

func (d *decoder) warn(n *node, format string, args ...any) {
	d.warnings = append(d.warnings, n.issue(format, args...))
}

// object reads a mapping: every key must be one of f or, with a warning, one
// of foreign. A key without a value counts as left out.
func (d *decoder) object(n *node, f fields, foreign ...string) {
	if !d.want(n, kindMapping) {
		return
	}
	for _, m := range n.members {
		set, ok := f[m.key]
		switch {
		case !ok && slices.Contains(foreign, m.key):
			d.ignore(m)
		case !ok:
			d.unknown(m, f)
		case m.val.kind != kindNull:
			set(m.val)
		}
	}
}

// each reads a mapping whose keys are names.
func (d *decoder) each(n *node, read func(name string, at, val *node)) {
	if !d.want(n, kindMapping) {
		return
	}
	for _, m := range n.members {
		if strings.TrimSpace(m.key) == "" {
			d.fail(m.at, "an empty name")
			continue
		}
		read(m.key, m.at, m.val)
	}
}

// items reads a list.
func (d *decoder) items(n *node, read func(item *node)) {
	if !d.want(n, kindSequence) {
		return
	}
	for _, item := range n.items {
		read(item)
	}
}

func (d *decoder) want(n *node, k kind) bool {
	if n.kind != k {
		d.fail(n, "must be %v, not %v", k, n.kind)
	}
	return n.kind == k
}

func (d *decoder) unknown(m member, f fields) {
	msg := "unknown key"
	if s := meant(m.key, f); s != "" {
		msg = fmt.Sprintf("unknown key, did you mean %q?", s)
	}
	d.fail(m.at, "%s", msg)
}

// meant returns the key of f that was probably meant, or "".
func meant(key string, f fields) string {
	if s := otherSpelling[key]; s != "" {
		return s
	}
	return suggest(key, slices.Sorted(maps.Keys(f)))
}

// ignore warns once per foreign key, however many entries have it.
func (d *decoder) ignore(m member) {
	if d.ignored[m.key] {
		return
	}
	if d.ignored == nil {
		d.ignored = map[string]bool{}
	}
	d.ignored[m.key] = true
	if why := ignoredBecause[m.key]; why != "" {
		d.warn(m.at, "ignored: %s", why)
		return
	}
	d.warn(m.at, "ignored: a key of another client")
}
