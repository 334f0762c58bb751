package mcpproxy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
)

const (
	// maxName is the longest name that every client takes, together with
	// the characters of legalName.
	maxName = 64
	// nameSeparator stands between an upstream's prefix and its names.
	nameSeparator = "__"
	// hashDigits is how many hex digits a suffix has at first.
	hashDigits = 8
)

// names leads from what clients say to entries of one kind.
type names struct {
	exposed map[string]*entry   // own tools in both spellings
	spelled map[string][]*entry // original spellings: tool, upstream.tool, prefix__tool
}

func newNames() names {
	return names{exposed: map[string]*entry{}, spelled: map[string][]*entry{}}
}

// find returns the entry that name means: as it is listed, else in an
// original spelling that only one entry has.
func (n *names) find(kind listKind, name string) (*entry, error) {
	if e := n.exposed[name]; e != nil {
		return e, nil
	}
	switch found := n.spelled[name]; len(found) {
	case 0:
		return nil, unknown(kind, name)
	case 1:
		return found[0], nil
	default:
		exposed := make([]string, len(found))
		for i, e := range found {
			exposed[i] = e.exposed
		}
		return nil, ambiguous(kind, name, exposed)
	}
}

// takeOwn reserves both spellings of an own tool.
func (n *names) takeOwn(e *entry) {
	n.exposed[e.exposed] = e
	n.exposed[safeSpelling(e.exposed)] = e
}

// take gives each entry of one upstream its exposed name. Names that need no
// change choose first, then the others in the order of their bytes, so the
// outcome does not depend on the order of the upstream's list.
func (n *names) take(prefix string, entries []*entry) {
	sorted := slices.SortedFunc(slices.Values(entries), func(a, b *entry) int {
		return cmp.Compare(a.original, b.original)
	})
	for _, lossy := range []bool{false, true} {
		for _, e := range sorted {
			if changed(prefix, e.original) != lossy {
				continue
			}
			e.exposed = n.free(prefix, e)
			n.exposed[e.exposed] = e
			for _, s := range spellings(prefix, e) {
				n.spelled[s] = append(n.spelled[s], e)
			}
		}
	}
}

// free returns the first name for e that nobody has: its plain name, unless
// cleaning lost something, then with ever longer hash suffixes.
func (n *names) free(prefix string, e *entry) string {
	plain := joinName(prefix, e.original)
	if !changed(prefix, e.original) && n.exposed[plain] == nil {
		return plain
	}
	for digits := hashDigits; ; digits += hashDigits {
		name := suffixed(plain, e.upstream, e.original, digits)
		if n.exposed[name] == nil || digits+hashDigits >= maxName {
			return name
		}
	}
}

// joinName puts a prefix before a name, both cleaned.
func joinName(prefix, original string) string {
	if prefix == "" {
		return clean(original)
	}
	return clean(prefix) + nameSeparator + clean(original)
}

// changed tells whether the exposed name of original says less than original:
// then it always gets the suffix, so that it stays the same when another
// tool with a like name comes or goes. The prefix is the user's own
// choice and does not count.
func changed(prefix, original string) bool {
	n := len(joinName(prefix, original))
	return n == 0 || n > maxName || clean(original) != original
}

// suffixed cuts a clean name and appends digits of a hash over what it stands for.
func suffixed(name, upstream, original string, digits int) string {
	sum := sha256.Sum256([]byte(upstream + "\x00" + original))
	name = name[:min(len(name), maxName-1-digits)]
	return name + "_" + hex.EncodeToString(sum[:])[:digits]
}

// clean puts an underscore in place of each character that some client refuses.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if legalName(r) {
			return r
		}
		return '_'
	}, s)
}

func legalName(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-'
}

// spellings are the names, beside the exposed one, under which a call may
// mean e.
func spellings(prefix string, e *entry) []string {
	all := []string{e.original, e.upstream + "." + e.original}
	if prefix != "" {
		all = append(all, prefix+nameSeparator+e.original)
	}
	return slices.Compact(slices.Sorted(slices.Values(all)))
}

// safeSpelling is how an own tool is called where dots are refused.
func safeSpelling(name string) string { return strings.ReplaceAll(name, ".", "_") }

// allowed tells whether a tool passes the filters of its upstream.
func (s *source) allowed(tool string) bool {
	matches := func(pattern string) bool { return matchName(pattern, tool) }
	return (len(s.allow) == 0 || slices.ContainsFunc(s.allow, matches)) && !slices.ContainsFunc(s.deny, matches)
}

// matchName is path.Match for names, in which a slash is nothing special. A
// broken pattern matches only itself.
func matchName(pattern, name string) bool {
	flat := func(s string) string { return strings.ReplaceAll(s, "/", "\x00") }
	ok, err := path.Match(flat(pattern), flat(name))
	if err != nil {
		return pattern == name
	}
	return ok
}

func unknown(kind listKind, name string) error {
	return &nameError{msg: fmt.Sprintf("unknown %s: %s", kind, cut(name, maxQuoted))}
}

func ambiguous(kind listKind, name string, candidates []string) error {
	slices.Sort(candidates)
	return &nameError{
		msg:       fmt.Sprintf("ambiguous %s: %s is one of %s", kind, cut(name, maxQuoted), strings.Join(candidates, ", ")),
		ambiguous: true,
	}
}
