package wire

import (
	"encoding/base64"
	"errors"
	"strings"
)

// The sentinel that marks a Base64 value in Mcp-Name and Mcp-Param-* headers
// (2026-07-28, streamable HTTP, Value Encoding).
const (
	sentinelPrefix = "=?base64?"
	sentinelSuffix = "?="
)

var errHeaderValue = errors.New("not a valid Mcp header value")

// EncodeHeaderValue returns s as it stands in an Mcp-Name or Mcp-Param-*
// header: unchanged where it is plain ASCII, else in the Base64 sentinel.
func EncodeHeaderValue(s string) string {
	if plainHeaderValue(s) && !(strings.HasPrefix(s, sentinelPrefix) && strings.HasSuffix(s, sentinelSuffix)) {
		return s
	}
	return sentinelPrefix + base64.StdEncoding.EncodeToString([]byte(s)) + sentinelSuffix
}

// DecodeHeaderValue undoes EncodeHeaderValue. A value with characters that no
// header may hold, or with broken Base64 in its sentinel, is an error.
func DecodeHeaderValue(s string) (string, error) {
	if !plainHeaderValue(s) {
		return "", errHeaderValue
	}
	inner, ok := strings.CutPrefix(s, sentinelPrefix)
	if !ok {
		return s, nil
	}
	if inner, ok = strings.CutSuffix(inner, sentinelSuffix); !ok {
		return s, nil
	}
	b, err := base64.StdEncoding.DecodeString(inner)
	if err != nil {
		return "", errHeaderValue
	}
	return string(b), nil
}

// plainHeaderValue tells whether s survives as a field value: visible ASCII,
// inner spaces and tabs (RFC 9110, section 5.5).
func plainHeaderValue(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c == ' ' || c == '\t' {
			if i == 0 || i == len(s)-1 {
				return false
			}
			continue
		}
		if c < 0x21 || c > 0x7e {
			return false
		}
	}
	return true
}
