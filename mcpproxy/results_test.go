package mcpproxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestResultsByAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, key := newResults(10, 1<<20), keyFor("s", "t", nil)
		if _, _, ok := r.get(key, time.Hour); ok {
			t.Error("something out of nothing")
		}
		own := []byte("old")
		r.put(key, own)
		own[0] = 'X' // put has copied it
		time.Sleep(time.Minute)
		if got, age, ok := r.get(key, time.Minute); !ok || string(got) != "old" || age != time.Minute {
			t.Errorf("%q %v %v", got, age, ok)
		}
		if _, _, ok := r.get(key, time.Minute-1); ok {
			t.Error("too old")
		}
		if _, _, ok := r.get(key, time.Hour); !ok {
			t.Error("one reader's age took it from the others")
		}
		r.put(key, []byte("new"))
		if got, age, ok := r.get(key, 0); !ok || string(got) != "new" || age != 0 {
			t.Errorf("%q %v %v", got, age, ok)
		}
	})
}

func TestResultsAreBounded(t *testing.T) {
	key := func(n int) resultKey { return keyFor("s", "t", fmt.Appendf(nil, `{"n":%d}`, n)) }
	kept := func(r *results, n int) bool {
		_, _, ok := r.get(key(n), time.Hour)
		return ok
	}
	t.Run("number", func(t *testing.T) {
		r := newResults(2, 1<<20)
		r.put(key(1), []byte("1"))
		r.put(key(2), []byte("2"))
		kept(r, 1) // used: 2 is the one to go
		r.put(key(3), []byte("3"))
		if !kept(r, 1) || kept(r, 2) || !kept(r, 3) {
			t.Error(kept(r, 1), kept(r, 2), kept(r, 3))
		}
	})
	t.Run("bytes", func(t *testing.T) {
		r := newResults(100, 10_000)
		for n := range 20 {
			r.put(key(n), make([]byte, 3000))
			if r.bytes > 10_000 {
				t.Fatalf("%d bytes", r.bytes)
			}
		}
		if !kept(r, 19) || kept(r, 16) || r.used.Len() != len(r.known) {
			t.Error(kept(r, 19), kept(r, 16), r.used.Len(), len(r.known))
		}
		r.put(key(19), []byte("small"))
		for r.used.Len() > 0 {
			r.dropLocked(r.used.Front())
		}
		if r.bytes != 0 || len(r.known) != 0 {
			t.Errorf("%d bytes, %d keys of nothing", r.bytes, len(r.known))
		}
	})
	t.Run("one result", func(t *testing.T) {
		r := newResults(100, 10<<20)
		r.put(key(1), make([]byte, maxKeptResult))
		if !kept(r, 1) {
			t.Error("of the largest size")
		}
		r.put(key(1), make([]byte, maxKeptResult+1))
		if kept(r, 1) {
			t.Error("neither the new nor the outdated one is to be kept")
		}
	})
}

func TestResultsConcurrently(t *testing.T) {
	r := newResults(5, 1<<20)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for n := range 200 {
				key := keyFor("s", fmt.Sprint(n%10), nil)
				r.put(key, fmt.Append(nil, n%10))
				if got, _, ok := r.get(key, time.Hour); ok && string(got) != fmt.Sprint(n%10) {
					t.Errorf("%s of %d", got, n%10)
				}
			}
		})
	}
	wg.Wait()
}

func TestKeyFor(t *testing.T) {
	const args = `{"b":[1,{"x":"é","a":null}],"a":1.0}`
	base := keyFor("s", "t", []byte(args))
	for _, same := range []string{
		`{"a":1.0,"b":[1,{"a":null,"x":"é"}]}`,
		` { "a" : 1.0 , "\u0062" : [ 1 , { "a":null, "x":"é" } ] } `,
	} {
		if keyFor("s", "t", bytes.TrimSpace([]byte(same))) != base {
			t.Errorf("%s differs", same)
		}
	}
	for _, other := range []resultKey{
		keyFor("s2", "t", []byte(args)),
		keyFor("s", "t2", []byte(args)),
		keyFor("s", "t", nil),
		keyFor("s", "t", []byte(`{"b":[{"x":"é","a":null},1],"a":1.0}`)), // the order of an array counts
		keyFor("s", "t", []byte(`{"b":[1,{"x":"é","a":null}],"a":1}`)),   // and how a number is spelled
	} {
		if other == base {
			t.Error("the same key for another call")
		}
	}
	if keyFor("s", "t", nil) != keyFor("s", "t", []byte(`{ }`)) {
		t.Error("no arguments are the empty ones")
	}
}

// What reads the same only after decoding, or by which of two equal keys counts,
// must not share a result.
func TestKeyForIsNeverTooGenerous(t *testing.T) {
	large := func(a, b string) string {
		return fmt.Sprintf(`{%q:1,%q:"%s"}`, a, b, strings.Repeat("x", maxSortedArgs))
	}
	for _, pair := range [][2]string{
		{`{"\ud83d":1}`, `{"\ud83e":1}`},
		{`{"\ud83d":1}`, `{"�":1}`},
		{`{"a":{"\ud83d":1}}`, `{"a":{"\ud83e":1}}`},
		{`[{"\ud83d":1}]`, `[{"\ud83e":1}]`},
		{`{"a":"\ud83d"}`, `{"a":"\ud83e"}`},
		{`{"a":1,"a":2}`, `{"a":2,"a":1}`},
		{`{"a":12}`, `{"a":[1,2]}`},
		{large("a", "b"), large("a", "c")},
	} {
		if keyFor("s", "t", []byte(pair[0])) == keyFor("s", "t", []byte(pair[1])) {
			t.Errorf("the same key for %.80s and %.80s", pair[0], pair[1])
		}
	}
}

func FuzzKeyFor(f *testing.F) {
	f.Add([]byte(`{"b":[1,{"x":"é"}],"a":{},"a":1.0}`), []byte(`{"\ud83d":null}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if !json.Valid(a) || !json.Valid(b) {
			t.Skip()
		}
		a, b = bytes.TrimSpace(a), bytes.TrimSpace(b)
		var indented bytes.Buffer
		_ = json.Indent(&indented, a, "\t", "  ") // it is valid
		if keyFor("s", "t", a) != keyFor("s", "t", indented.Bytes()) {
			t.Errorf("white space makes a difference in %s", a)
		}
		var one, two any
		if keyFor("s", "t", a) == keyFor("s", "t", b) && json.Unmarshal(a, &one) == nil && json.Unmarshal(b, &two) == nil &&
			fmt.Sprint(one) != fmt.Sprint(two) {
			t.Errorf("the same key for %s and %s", a, b)
		}
	})
}
