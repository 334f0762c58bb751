// Package wire moves JSON-RPC messages over MCP's transports: lines on pipes,
// streamable HTTP and HTTP+SSE, each with a server and a client half. It
// knows framing and the envelope, nothing of upstreams or tools.
package wire

import "errors"

// Message is one JSON-RPC message: its members as raw JSON, exactly as they
// came. The slices alias the buffer it was read into, which nobody reuses: keep them as
// long as you like, and never write to them. No raw line break stands in them.
type Message struct {
	ID     []byte // string, number or null as raw JSON; nil when absent
	Method string
	Params []byte // object as raw JSON; nil when absent
	Result []byte
	Error  []byte
	More   bool // another whole message already waits behind this one
}

// Errors of the server halves.
var (
	ErrGone = errors.New("the client is gone")
	ErrFull = errors.New("the client does not read: its queue is full")
)

// IsRequest tells a request from the other kinds.
func (m *Message) IsRequest() bool { return m.Method != "" && m.ID != nil }

// IsNotification tells a notification from the other kinds.
func (m *Message) IsNotification() bool { return m.Method != "" && m.ID == nil }

// IsResponse tells a result or an error from the other kinds.
func (m *Message) IsResponse() bool { return m.Method == "" }
