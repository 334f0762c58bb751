package mcpproxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// pinned are the members of a tool that decide what an agent makes of it.
var pinned = []string{"description", "title", "inputSchema", "outputSchema", "annotations"}

const (
	maxDiffLines = 8
	maxDiffText  = 1000 // bytes
	maxDiffValue = 100  // bytes of one value
)

// definitionDiff is what differs between two definitions of one tool. White
// space, the order of members and how a string is escaped are no difference.
type definitionDiff struct {
	mask    func(string) string
	members []string // of pinned
	lines   []string // one per place
}

// diffDefinitions compares two definitions; mask goes over what it repeats of
// them, before anything is cut.
func diffDefinitions(old, now json.RawMessage, mask func(string) string) definitionDiff {
	d := definitionDiff{mask: mask}
	if bytes.Equal(old, now) {
		return d
	}
	a, b := definitionOf(old), definitionOf(now)
	for _, member := range pinned {
		before := len(d.lines)
		d.compare(member, a[member], b[member])
		if len(d.lines) > before {
			d.members = append(d.members, member)
		}
	}
	return d
}

func sameDefinition(a, b json.RawMessage) bool {
	d := diffDefinitions(a, b, func(s string) string { return s })
	return len(d.lines) == 0
}

// definitionOf decodes a definition; numbers stay as they are spelled.
func definitionOf(raw json.RawMessage) (members map[string]any) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	_ = dec.Decode(&members) // it is an object that has been parsed before
	return members
}

// compare adds a line for each place under path where a and b differ; nil is
// missing, as null is.
func (d *definitionDiff) compare(path string, a, b any) {
	objA, isA := a.(map[string]any)
	objB, isB := b.(map[string]any)
	switch {
	case isA && isB:
		keys := map[string]bool{}
		for key := range objA {
			keys[key] = true
		}
		for key := range objB {
			keys[key] = true
		}
		for _, key := range sortedKeys(keys) {
			d.compare(path+"."+key, objA[key], objB[key])
		}
	case reflect.DeepEqual(a, b):
	case a == nil:
		d.add(path, "added: "+cut(d.spelled(b), maxDiffValue))
	case b == nil:
		d.add(path, "removed: "+cut(d.spelled(a), maxDiffValue))
	default:
		from, to := fromFirstDifference(d.spelled(a), d.spelled(b))
		d.add(path, cut(from, maxDiffValue)+" → "+cut(to, maxDiffValue))
	}
}

func (d *definitionDiff) add(path, what string) {
	d.lines = append(d.lines, cut(d.mask(path), maxDiffValue)+" "+what)
}

// spelled is a value as JSON.
func (d *definitionDiff) spelled(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // it was decoded from JSON
	return d.mask(strings.TrimSpace(b.String()))
}

// fromFirstDifference cuts what two texts begin with, but for a few words.
func fromFirstDifference(a, b string) (string, string) {
	const context = 24 // bytes
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	if n -= context; n <= 0 {
		return a, b
	}
	for !utf8.RuneStart(a[n]) {
		n--
	}
	return "…" + a[n:], "…" + b[n:]
}

// text is the difference in a line that a person reads at a glance.
func (d *definitionDiff) text() string {
	lines := d.lines
	if more := len(lines) - maxDiffLines; more > 0 {
		lines = append(lines[:maxDiffLines:maxDiffLines], fmt.Sprintf("%d more", more))
	}
	return cut(strings.Join(lines, "; "), maxDiffText)
}

// fields names the members that differ, in a few words.
func (d *definitionDiff) fields() string {
	const named = 2
	if more := len(d.members) - named; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(d.members[:named], ", "), more)
	}
	return strings.Join(d.members, ", ")
}
