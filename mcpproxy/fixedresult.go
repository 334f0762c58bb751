package mcpproxy

import (
	"encoding/json"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// fixedResult is the tools/call result that a configured result stands for: a
// string is its text, an object with content is the result itself, anything else is
// its text as JSON, an object structuredContent too. raw must be JSON.
func fixedResult(raw json.RawMessage) []byte {
	raw = wire.Compact(raw) // a result on a line of stdio has no line breaks
	text, ok := wire.String(raw)
	if !ok {
		text = string(raw)
	}
	if wire.Get(raw, "content") != nil {
		return raw
	}
	b := append([]byte(`{"content":[{"type":"text","text":`), wire.AppendString(nil, text)...)
	b = append(b, "}]"...)
	if raw[0] == '{' {
		b = append(append(b, `,"structuredContent":`...), raw...)
	}
	return append(b, '}')
}
