package wire

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// maxDepth bounds the nesting of arrays and objects.
const maxDepth = 1000

// scanner validates JSON. Its methods take the index where something starts
// and return where it ends, or -1 after fail.
type scanner struct {
	b       []byte
	breaks  bool   // a line break stood between tokens
	badUTF8 int    // 1 + index of the first byte that is no UTF-8; 0 if none
	why     string // what fail was told
	where   int
}

func (s *scanner) fail(i int, why string) int {
	s.why, s.where = why, min(i, len(s.b))
	return -1
}

// at returns the byte at i, 0 past the end.
func (s *scanner) at(i int) byte {
	if uint(i) < uint(len(s.b)) {
		return s.b[i]
	}
	return 0
}

// space skips white space.
func (s *scanner) space(i int) int {
	b := s.b
	for uint(i) < uint(len(b)) && b[i] <= ' ' {
		switch b[i] {
		case ' ', '\t':
		case '\n', '\r':
			s.breaks = true
		default:
			return i
		}
		i++
	}
	return i
}

// key scans an object key and its colon up to the value.
func (s *scanner) key(i int) int {
	if s.at(i) != '"' {
		return s.fail(i, "expected a key")
	}
	if i = s.str(i + 1); i < 0 {
		return -1
	}
	if i = s.space(i); s.at(i) != ':' {
		return s.fail(i, "expected :")
	}
	return s.space(i + 1)
}

// value scans one value. Open arrays and objects are kept as bits on a
// stack of fixed size, so that depth costs no recursion.
func (s *scanner) value(i int) int {
	var objects [maxDepth/64 + 1]uint64
	depth := 0
	for {
		c := s.at(i)
		switch c {
		case '"':
			i = s.str(i + 1)
		case '{', '[':
			open := c
			if i = s.space(i + 1); s.at(i) == open+2 { // } follows { by two, ] follows [
				i++
				break
			}
			if depth == maxDepth {
				return s.fail(i, "nested too deeply")
			}
			depth++
			if open == '[' {
				objects[depth>>6] &^= 1 << (depth & 63)
				continue
			}
			objects[depth>>6] |= 1 << (depth & 63)
			if i = s.key(i); i < 0 {
				return -1
			}
			continue
		case 't':
			i = s.literal(i, "true")
		case 'f':
			i = s.literal(i, "false")
		case 'n':
			i = s.literal(i, "null")
		default:
			i = s.number(i)
		}
		if i < 0 {
			return -1
		}
		// After a value: what it closes, then a comma or the end.
		for {
			if depth == 0 {
				return i
			}
			inObject := objects[depth>>6]>>(depth&63)&1 != 0
			i = s.space(i)
			c := s.at(i)
			if c == ',' {
				if i = s.space(i + 1); inObject {
					i = s.key(i)
				}
				if i < 0 {
					return -1
				}
				break
			}
			if inObject && c != '}' || !inObject && c != ']' {
				return s.fail(i, "expected a comma or the end of an array or object")
			}
			depth--
			i++
		}
	}
}

func (s *scanner) literal(i int, word string) int {
	if len(s.b)-i < len(word) || string(s.b[i:i+len(word)]) != word {
		return s.fail(i, "expected a value")
	}
	return i + len(word)
}

// number scans -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
func (s *scanner) number(i int) int {
	if s.at(i) == '-' {
		i++
	}
	start := i
	i = s.digits(i)
	if i == start {
		return s.fail(i, "expected a value")
	}
	if s.b[start] == '0' && i > start+1 {
		return s.fail(start, "a number with a leading zero")
	}
	if s.at(i) == '.' {
		start = i + 1
		if i = s.digits(start); i == start {
			return s.fail(i, "expected a digit")
		}
	}
	if c := s.at(i); c == 'e' || c == 'E' {
		i++
		if c := s.at(i); c == '+' || c == '-' {
			i++
		}
		start = i
		if i = s.digits(start); i == start {
			return s.fail(i, "expected a digit")
		}
	}
	return i
}

func (s *scanner) digits(i int) int {
	for c := s.at(i); '0' <= c && c <= '9'; c = s.at(i) {
		i++
	}
	return i
}

const (
	low  = 0x0101010101010101
	high = 0x8080808080808080
)

// special marks the bytes of w that end a plain run inside a string: quote,
// backslash, control characters and non-ASCII. Only the lowest mark is exact,
// since borrows travel upwards from it.
func special(w uint64) uint64 {
	return w | (w - low*' ') | ((w ^ low*'"') - low) | ((w ^ low*'\\') - low)
}

// str scans a string from behind its opening quote to behind the closing one.
func (s *scanner) str(i int) int {
	b := s.b
	for {
		i = plain(b, i)
		for i < len(b) && b[i] >= ' ' && b[i] < utf8.RuneSelf && b[i] != '"' && b[i] != '\\' {
			i++
		}
		if i >= len(b) {
			return s.fail(i, "unfinished string")
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			if i = s.escape(i + 1); i < 0 {
				return -1
			}
		case c < ' ':
			return s.fail(i, "control character in a string")
		default:
			i = s.runes(i)
		}
	}
}

// short tells the characters that make an escape of two bytes.
var short = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// plain skips plain characters and short escapes, eight bytes at a time, and 32 once
// the run proves longer; it may stop before the last seven of b.
func plain(b []byte, i int) int {
	for i+8 <= len(b) {
		if m := special(binary.LittleEndian.Uint64(b[i:])) & high; m != 0 {
			i += bits.TrailingZeros64(m) >> 3
			if b[i] == '\\' && i+1 < len(b) && short[b[i+1]] {
				i += 2
				continue
			}
			return i
		}
		for i += 8; i+32 <= len(b); i += 32 {
			w := b[i : i+32 : i+32]
			m := special(binary.LittleEndian.Uint64(w)) | special(binary.LittleEndian.Uint64(w[8:])) |
				special(binary.LittleEndian.Uint64(w[16:])) | special(binary.LittleEndian.Uint64(w[24:]))
			if m&high != 0 {
				break
			}
		}
	}
	return i
}

// runes skips a run of non-ASCII characters and notes the first bad byte.
func (s *scanner) runes(i int) int {
	for b := s.b; i < len(b) && b[i] >= utf8.RuneSelf; {
		if c := b[i]; 0xe1 <= c && c <= 0xec && i+2 < len(b) && b[i+1]&0xc0 == 0x80 && b[i+2]&0xc0 == 0x80 {
			i += 3 // most of the living scripts beyond two bytes
			continue
		}
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 && s.badUTF8 == 0 {
			s.badUTF8 = i + 1
		}
		i += n
	}
	return i
}

// escape scans what follows a backslash.
func (s *scanner) escape(i int) int {
	switch c := s.at(i); {
	case short[c]:
		return i + 1
	case c == 'u':
		for k := 1; k <= 4; k++ {
			if unhex(s.at(i+k)) < 0 {
				return s.fail(i+k, "expected a hex digit")
			}
		}
		return i + 5
	}
	return s.fail(i, "unknown escape")
}

// unhex returns the value of a hex digit, -1 if c is none.
func unhex(c byte) rune {
	switch {
	case '0' <= c && c <= '9':
		return rune(c - '0')
	case 'a' <= c && c <= 'f':
		return rune(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return rune(c-'A') + 10
	}
	return -1
}
