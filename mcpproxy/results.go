package mcpproxy

import (
	"container/list"
	"crypto/sha256"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// results keeps the last good result of calls, the newest used ones, within
// bounds of number and size. It is safe for concurrent use.
type results struct {
	maxEntries, maxBytes int

	mu    sync.Mutex
	known map[resultKey]*list.Element // of *keptResult
	used  list.List                   // the latest first
	bytes int
}

// resultKey names a call: who made it, of which tool, with what arguments.
type resultKey struct {
	scope, tool string
	args        [sha256.Size]byte
}

type keptResult struct {
	key    resultKey
	result []byte
	at     time.Time
}

const (
	maxKeptResult = 1 << 20   // bytes; a larger result is not kept
	maxSortedArgs = 128 << 10 // bytes; larger arguments are compared as they are spelled
)

func newResults(maxEntries, maxBytes int) *results {
	return &results{maxEntries: maxEntries, maxBytes: maxBytes, known: map[resultKey]*list.Element{}}
}

// put keeps a copy of result in place of what key had.
func (r *results) put(key resultKey, result []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.known[key]; e != nil {
		r.dropLocked(e)
	}
	if len(result) > maxKeptResult {
		return
	}
	kept := &keptResult{key: key, result: slices.Clone(result), at: time.Now()}
	r.known[key] = r.used.PushFront(kept)
	r.bytes += kept.size()
	for r.used.Len() > r.maxEntries || r.bytes > r.maxBytes {
		r.dropLocked(r.used.Back())
	}
}

// get returns the result of key if it is at most maxAge old. The result must
// not be written to.
func (r *results) get(key resultKey, maxAge time.Duration) (result []byte, age time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.known[key]
	if e == nil {
		return nil, 0, false
	}
	kept := e.Value.(*keptResult)
	if age = time.Since(kept.at); age > maxAge {
		return nil, 0, false // a fallback may take an older one
	}
	r.used.MoveToFront(e)
	return kept.result, age, true
}

func (r *results) dropLocked(e *list.Element) {
	kept := r.used.Remove(e).(*keptResult)
	delete(r.known, kept.key)
	r.bytes -= kept.size()
}

// size is what an entry costs, with an estimate of what surrounds it.
func (k *keptResult) size() int {
	return len(k.result) + len(k.key.scope) + len(k.key.tool) + 256
}

// keyFor is the key of a call with args, the raw JSON that came, or nil. Neither the
// order of keys nor white space makes a difference; the spelling of numbers and
// strings does. Of calls with different scopes none sees another's result.
func keyFor(scope, tool string, args []byte) resultKey {
	if args == nil {
		args = []byte(`{}`)
	}
	canonical := args
	if len(args) <= maxSortedArgs {
		var exact bool
		if canonical, exact = appendSorted(nil, args); !exact {
			canonical = wire.Compact(args)
		}
	}
	return resultKey{scope: strings.Clone(scope), tool: strings.Clone(tool), args: sha256.Sum256(canonical)}
}

// appendSorted appends v with the keys of its objects in order and without white
// space. exact is false if a key may have lost a character in decoding, so that
// two keys could look the same.
func appendSorted(dst, v []byte) (out []byte, exact bool) {
	exact = true
	switch v[0] {
	case '{':
		type member struct {
			key   string
			value []byte
		}
		var members []member
		for key, value := range wire.Members(v) {
			exact = exact && !strings.ContainsRune(key, '\ufffd')
			members = append(members, member{key, value})
		}
		// Stable: of a key that stands twice, the order decides.
		slices.SortStableFunc(members, func(a, b member) int { return strings.Compare(a.key, b.key) })
		dst = append(dst, '{')
		for _, m := range members {
			var ok bool
			dst = append(wire.AppendString(dst, m.key), ':')
			dst, ok = appendSorted(dst, m.value)
			dst, exact = append(dst, ','), exact && ok
		}
		return append(dst, '}'), exact
	case '[':
		dst = append(dst, '[')
		for value := range wire.Elements(v) {
			var ok bool
			dst, ok = appendSorted(dst, value)
			dst, exact = append(dst, ','), exact && ok
		}
		return append(dst, ']'), exact
	}
	return append(dst, v...), true
}
