package wire

import (
	"bytes"
	"iter"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// The helpers of this file work on JSON that Parse has accepted. They trust
// it, and may panic on anything else.

// Compact returns b without the white space between its tokens; nothing else
// changes. b itself stays as it is.
func Compact(b []byte) []byte {
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); {
		start := i
		for i < len(b) && b[i] > ' ' {
			if b[i] == '"' {
				i = stringEnd(b, i+1)
			} else {
				i++
			}
		}
		out = append(out, b[start:i]...)
		for i < len(b) && b[i] <= ' ' {
			i++
		}
	}
	return out
}

// stringEnd returns the index behind the quote that closes the string whose
// text starts at i.
func stringEnd(b []byte, i int) int {
	for start := i; ; i++ {
		i += bytes.IndexByte(b[i:], '"')
		k := i
		for k > start && b[k-1] == '\\' {
			k--
		}
		if (i-k)&1 == 0 {
			return i + 1
		}
	}
}

// skipSpace returns the index of the next byte of b that is no white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' {
		i++
	}
	return i
}

// valueEnd returns the index behind the value that starts at i.
func valueEnd(b []byte, i int) int {
	switch b[i] {
	case '"':
		return stringEnd(b, i+1)
	case '{', '[':
	default:
		for i < len(b) && b[i] > ' ' && b[i] != ',' && b[i] != '}' && b[i] != ']' {
			i++
		}
		return i
	}
	for depth := 0; ; i++ {
		switch b[i] {
		case '"':
			i = stringEnd(b, i+1) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
}

// span is one member of an object: the indices of its key, its value and the
// value's end.
type span struct{ key, keyEnd, value, end int }

// nextMember returns the member of obj that follows index i, where i is that
// of the opening brace or behind the previous member.
func nextMember(obj []byte, i int) (m span, ok bool) {
	i = skipSpace(obj, i)
	if obj[i] == '}' {
		return m, false
	}
	if m.key = skipSpace(obj, i+1); obj[m.key] == '}' {
		return m, false
	}
	m.keyEnd = stringEnd(obj, m.key+1)
	m.value = skipSpace(obj, skipSpace(obj, m.keyEnd)+1)
	m.end = valueEnd(obj, m.value)
	return m, true
}

// isObject tells whether raw is an object.
func isObject(raw []byte) bool { return len(raw) > 0 && raw[0] == '{' }

// names tells whether the raw string key spells name.
func names(key []byte, name string) bool {
	key = key[1 : len(key)-1]
	if bytes.IndexByte(key, '\\') < 0 {
		return string(key) == name
	}
	return string(appendUnquoted(nil, key)) == name
}

// Members ranges over an object: each key, decoded, and its raw value. It
// yields nothing if obj is no object.
func Members(obj []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		if !isObject(obj) {
			return
		}
		for m, ok := nextMember(obj, 0); ok; m, ok = nextMember(obj, m.end) {
			key, _ := String(obj[m.key:m.keyEnd])
			if !yield(key, obj[m.value:m.end:m.end]) {
				return
			}
		}
	}
}

// Elements ranges over the raw values of an array; over nothing if arr is none.
func Elements(arr []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if len(arr) == 0 || arr[0] != '[' {
			return
		}
		for i := skipSpace(arr, 1); arr[i] != ']'; i = skipSpace(arr, i+1) {
			end := valueEnd(arr, i)
			if !yield(arr[i:end:end]) {
				return
			}
			if i = skipSpace(arr, end); arr[i] == ']' {
				return
			}
		}
	}
}

// Get returns the raw value of a member of obj, the first if the key stands
// twice; nil if there is none or obj is no object.
func Get(obj []byte, key string) []byte {
	if !isObject(obj) {
		return nil
	}
	for m, ok := nextMember(obj, 0); ok; m, ok = nextMember(obj, m.end) {
		if names(obj[m.key:m.keyEnd], key) {
			return obj[m.value:m.end:m.end]
		}
	}
	return nil
}

// String decodes a JSON string; ok is false if raw is none. A lone surrogate
// becomes U+FFFD.
func String(raw []byte) (s string, ok bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	raw = raw[1 : len(raw)-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw), true
	}
	return string(appendUnquoted(make([]byte, 0, len(raw)), raw)), true
}

// appendUnquoted appends the text of a JSON string, given without its quotes.
func appendUnquoted(dst, text []byte) []byte {
	for {
		i := bytes.IndexByte(text, '\\')
		if i < 0 {
			return append(dst, text...)
		}
		dst = append(dst, text[:i]...)
		c := text[i+1]
		text = text[i+2:]
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r := hex4(text)
			text = text[4:]
			if utf16.IsSurrogate(r) {
				pair := rune(utf8.RuneError)
				if len(text) >= 6 && text[0] == '\\' && text[1] == 'u' {
					pair = utf16.DecodeRune(r, hex4(text[2:]))
				}
				if r = pair; pair != utf8.RuneError {
					text = text[6:]
				}
			}
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
}

func hex4(b []byte) rune {
	return unhex(b[0])<<12 | unhex(b[1])<<8 | unhex(b[2])<<4 | unhex(b[3])
}

// AppendString appends s as a JSON string. Bytes that are no UTF-8 become
// U+FFFD; nothing is escaped that need not be.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				dst = append(append(dst, s[start:i]...), "\ufffd"...)
				start = i + 1
			}
			i += n
			continue
		}
		i++
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i-1]...)
		start = i
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(dst, s[start:]...), '"')
}

// Edit is one change to an object: Key gets the raw Value; nil removes it.
type Edit struct {
	Key   string
	Value []byte
}

// Rewrite appends obj, changed by at most 64 edits of different keys, to dst.
// Values are replaced in place, members that obj lacks come last, in the order
// of edits, and everything else stays byte for byte. Where obj has an edited
// key twice, only the first is kept. nil stands for an empty object; what is
// no object stays as it is.
func Rewrite(dst, obj []byte, edits ...Edit) []byte {
	if len(obj) == 0 {
		obj = []byte("{}")
	}
	if !isObject(obj) {
		return append(dst, obj...)
	}
	var done uint64 // edits that met their member
	from, last := 0, 1
	kept := false // a member stands before the present one
	for m, ok := nextMember(obj, 0); ok; m, ok = nextMember(obj, m.end) {
		k := findEdit(edits, obj[m.key:m.keyEnd])
		switch {
		case k < 0:
			kept = true
		case edits[k].Value != nil && done&(1<<k) == 0:
			dst = append(append(dst, obj[from:m.value]...), edits[k].Value...)
			from, kept = m.end, true
		case kept: // goes with the comma before it
			dst = append(dst, obj[from:last]...)
			from = m.end
		default: // goes with the comma behind it
			dst = append(dst, obj[from:m.key]...)
			if from = m.end; obj[skipSpace(obj, from)] == ',' {
				from = skipSpace(obj, skipSpace(obj, from)+1)
			}
		}
		if k >= 0 {
			done |= 1 << k
		}
		last = m.end
	}
	// A removed member at the end has moved from behind last.
	last = max(last, from)
	dst = append(dst, obj[from:last]...)
	for k, e := range edits {
		if e.Value == nil || done&(1<<k) != 0 {
			continue
		}
		if kept {
			dst = append(dst, ',')
		}
		dst = append(append(AppendString(dst, e.Key), ':'), e.Value...)
		kept = true
	}
	return append(dst, obj[last:]...)
}

// findEdit returns the index of the edit of a raw key, -1 if there is none.
func findEdit(edits []Edit, key []byte) int {
	for k := range edits {
		if names(key, edits[k].Key) {
			return k
		}
	}
	return -1
}

// AppendID appends our id of request n to a server: "a17".
func AppendID(dst []byte, n uint64) []byte { return appendMark(dst, 'a', n) }

// ParseID reads an id that AppendID has written; ok is false for any other.
func ParseID(raw []byte) (n uint64, ok bool) { return parseMark(raw, 'a') }

// AppendToken appends our progress token of request n to a server: "p17".
func AppendToken(dst []byte, n uint64) []byte { return appendMark(dst, 'p', n) }

// ParseToken reads a token that AppendToken has written; ok is false for any other.
func ParseToken(raw []byte) (n uint64, ok bool) { return parseMark(raw, 'p') }

func appendMark(dst []byte, mark byte, n uint64) []byte {
	return append(strconv.AppendUint(append(dst, '"', mark), n, 10), '"')
}

func parseMark(raw []byte, mark byte) (uint64, bool) {
	if len(raw) < 4 || len(raw) > 23 || raw[0] != '"' || raw[1] != mark || raw[len(raw)-1] != '"' {
		return 0, false
	}
	digits := raw[2 : len(raw)-1]
	if digits[0] < '0' || digits[0] > '9' || digits[0] == '0' && len(digits) > 1 {
		return 0, false // another spelling of a number is not ours
	}
	n, err := strconv.ParseUint(string(digits), 10, 64)
	return n, err == nil
}
