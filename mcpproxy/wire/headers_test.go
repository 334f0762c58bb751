package wire

import (
	"testing"
	"unicode/utf8"
)

// The examples of the specification's table, and what its rules add.
func TestHeaderValues(t *testing.T) {
	for _, c := range []struct{ plain, header string }{
		{"us-west1", "us-west1"},
		{"", ""},
		{"a b\tc", "a b\tc"},
		{"Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="},
		{" padded ", "=?base64?IHBhZGRlZCA=?="},
		{"\tx", "=?base64?CXg=?="},
		{"line1\nline2", "=?base64?bGluZTEKbGluZTI=?="},
		{"=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="},
		{"=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="},
		{"=?BASE64?x?=", "=?BASE64?x?="},
		{"\x7f", "=?base64?fw==?="},
	} {
		if got := EncodeHeaderValue(c.plain); got != c.header {
			t.Errorf("EncodeHeaderValue(%q) = %q, want %q", c.plain, got, c.header)
		}
		if got, err := DecodeHeaderValue(c.header); err != nil || got != c.plain {
			t.Errorf("DecodeHeaderValue(%q) = %q, %v, want %q", c.header, got, err, c.plain)
		}
	}
	for _, bad := range []string{"é", " x", "x ", "a\x00b", "=?base64?!?=", "=?base64?abc?=", "=?base64?YQ==\n?="} {
		if got, err := DecodeHeaderValue(bad); err == nil {
			t.Errorf("DecodeHeaderValue(%q) = %q, want an error", bad, got)
		}
	}
}

func FuzzHeaderValue(f *testing.F) {
	for _, s := range []string{"x", " x", "=?base64?=", "=?base64?x?=", "ü"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		enc := EncodeHeaderValue(s)
		if !plainHeaderValue(enc) || !utf8.ValidString(enc) {
			t.Fatalf("EncodeHeaderValue(%q) = %q is no header value", s, enc)
		}
		if got, err := DecodeHeaderValue(enc); err != nil || got != s {
			t.Fatalf("round trip of %q: %q, %v", s, got, err)
		}
		DecodeHeaderValue(s)
	})
}
