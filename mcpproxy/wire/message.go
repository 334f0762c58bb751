// Package wire moves JSON-RPC messages over MCP's transports: lines on pipes,
// streamable HTTP and HTTP+SSE, each with a server and a client half. It
// knows framing and the envelope, nothing of upstreams or tools.
package wire

import (
	"bytes"
	"errors"
	"fmt"
)

// Message is one JSON-RPC message: its members as raw JSON, exactly as they
// came. The slices alias the buffer it was read into, which nobody reuses: keep them as
// long as you like, and never write to them. No raw line break stands in them.
type Message struct {
	ID     []byte // string, number or null as raw JSON; nil when absent
	Method string
	Params []byte // object (or array) as raw JSON; nil when absent
	Result []byte
	Error  []byte // object as raw JSON
	More   bool   // another whole message already waits behind this one
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

// ParseError says why bytes are no message.
type ParseError struct {
	Code int    // CodeParse: no JSON; CodeInvalidRequest: JSON, but no JSON-RPC 2.0
	ID   []byte // raw string or number, if it was read before the fault; else nil
	Msg  string // never quotes the input
	// Quiet: what is broken is a response or a notification, to which
	// JSON-RPC allows no reply.
	Quiet bool

	request bool // a method was seen
}

func (e *ParseError) Error() string { return e.Msg }

// Parse reads one JSON-RPC 2.0 message in one pass over b, which must be JSON
// as a whole (RFC 8259, valid UTF-8, some 1000 levels deep at most; a byte order
// mark before it is skipped). The message aliases b, or a compacted copy when
// line breaks stand between tokens. Where other peers write null for "absent"
// (params, or the other of result and error) it is taken as that.
// Every error is a *ParseError.
func Parse(b []byte) (Message, error) {
	e := envelope{scanner: scanner{b: b}}
	i := e.document()
	if i < 0 || e.badUTF8 > 0 {
		return Message{}, e.notJSON()
	}
	if err := e.check(); err != nil {
		return Message{}, err
	}
	if e.breaks {
		return Parse(Compact(b))
	}
	return e.m, nil
}

// Members of the envelope, as bits.
const (
	mVersion = 1 << iota
	mID
	mMethod
	mParams
	mResult
	mError
)

// envelope collects the members of the outermost object while it is scanned.
type envelope struct {
	scanner
	m     Message
	seen  int    // members whose key was read
	fault string // the first thing that makes this JSON no JSON-RPC
}

// document scans the whole input and returns its end, or -1.
func (e *envelope) document() int {
	i := 0
	if bytes.HasPrefix(e.b, []byte("\ufeff")) {
		i = 3
	}
	i = e.space(i)
	switch e.at(i) {
	case '{':
		i = e.object(i)
	case '[':
		e.fault, i = "batches are not supported", e.value(i)
	default:
		e.fault, i = "a message must be an object", e.value(i)
	}
	if i < 0 {
		return -1
	}
	if i = e.space(i); i < len(e.b) {
		return e.fail(i, "data after the message")
	}
	return i
}

// object scans the outermost object, which opens at i.
func (e *envelope) object(i int) int {
	i = e.space(i + 1)
	if e.at(i) == '}' {
		return i + 1
	}
	for {
		k := i
		v := e.key(i)
		if v < 0 {
			return -1
		}
		bit := member(e.b[k:v])
		if bit != 0 && e.seen&bit != 0 {
			e.refuse("a member of the envelope stands twice")
		}
		dup := e.seen&bit != 0
		e.seen |= bit
		end := e.value(v)
		if end < 0 {
			return -1
		}
		i = e.space(end)
		c := e.at(i)
		if c != ',' && c != '}' {
			return e.fail(i, "expected , or }")
		}
		if dup && bit == mID {
			e.m.ID = nil
		} else if bit != 0 && !dup {
			e.set(bit, e.b[v:end:end])
		}
		if c == '}' {
			return i + 1
		}
		i = e.space(i + 1)
	}
}

// member tells which member a scanned key, with what follows it up to its
// value, names; 0 for none of the envelope's.
func member(key []byte) int {
	key = key[1:]
	n := bytes.IndexByte(key, '"')
	name := key[:n]
	if bytes.IndexByte(name, '\\') >= 0 {
		name = appendUnquoted(nil, key[:stringEnd(key, 0)-1])
	}
	switch string(name) {
	case "jsonrpc":
		return mVersion
	case "id":
		return mID
	case "method":
		return mMethod
	case "params":
		return mParams
	case "result":
		return mResult
	case "error":
		return mError
	}
	return 0
}

// set stores the value of a member if it has the right type.
func (e *envelope) set(bit int, raw []byte) {
	c := raw[0]
	switch bit {
	case mVersion:
		if string(raw) == `"2.0"` {
			return
		}
		if v, _ := String(raw); v != "2.0" {
			e.refuse(`jsonrpc must be "2.0"`)
		}
	case mID:
		if c == '{' || c == '[' || c == 't' || c == 'f' {
			e.refuse("id must be a string or a number")
			return
		}
		e.m.ID = raw
	case mMethod:
		if e.m.Method = methodName(raw); e.m.Method == "" {
			e.refuse("method must be a string and not empty")
		}
	case mParams:
		if c == '{' || c == '[' {
			e.m.Params = raw
		} else if c != 'n' {
			e.refuse("params must be an object")
		}
	case mResult:
		e.m.Result = raw
	case mError:
		if c == '{' {
			e.m.Error = raw
		} else if c != 'n' {
			e.refuse("error must be an object")
		}
	}
}

func (e *envelope) refuse(why string) {
	if e.fault == "" {
		e.fault = why
	}
}

// check applies the rules that concern several members.
func (e *envelope) check() *ParseError {
	m := &e.m
	if string(m.Result) == "null" && (m.Error != nil || e.seen&mMethod != 0) {
		m.Result = nil
	}
	answered := m.Result != nil || m.Error != nil
	nullID := m.ID != nil && m.ID[0] == 'n'
	switch {
	case e.fault != "":
	case e.seen&mVersion == 0:
		e.fault = `jsonrpc must be "2.0"`
	case m.Method != "" && answered, m.Result != nil && m.Error != nil:
		e.fault = "a message has one of method, result and error"
	case m.Method == "" && !answered:
		e.fault = "neither method nor result nor error"
	case nullID && m.Method != "":
		e.fault = "the id of a request must not be null"
	case m.Result != nil && (m.ID == nil || nullID):
		e.fault = "a result without an id"
	default:
		return nil
	}
	return e.err(CodeInvalidRequest, "Invalid Request: "+e.fault)
}

// notJSON is the error for input that is no JSON.
func (e *envelope) notJSON() *ParseError {
	if e.why == "" {
		return e.err(CodeParse, fmt.Sprintf("Parse error: invalid UTF-8 at byte %d", e.badUTF8-1))
	}
	return e.err(CodeParse, fmt.Sprintf("Parse error: %s at byte %d", e.why, e.where))
}

func (e *envelope) err(code int, msg string) *ParseError {
	id := e.m.ID
	if id != nil && id[0] == 'n' {
		id = nil
	}
	request := e.seen&mMethod != 0
	quiet := !request && e.seen&(mResult|mError) != 0 ||
		code == CodeInvalidRequest && request && e.seen&mID == 0
	return &ParseError{Code: code, ID: id, Msg: msg, Quiet: quiet, request: request}
}

// methodName decodes raw; the names of MCP come without an allocation.
func methodName(raw []byte) string {
	if s, ok := methods[string(raw)]; ok {
		return s
	}
	s, _ := String(raw)
	return s
}

// methods maps the raw spelling of the usual methods to one shared string.
var methods = func() map[string]string {
	m := map[string]string{}
	for _, s := range []string{
		"initialize", "ping", "server/discover", "tools/list", "tools/call",
		"prompts/list", "prompts/get", "resources/list", "resources/read",
		"resources/templates/list", "resources/subscribe", "resources/unsubscribe",
		"subscriptions/listen", "completion/complete", "logging/setLevel",
		"sampling/createMessage", "elicitation/create", "roots/list",
		"notifications/initialized", "notifications/cancelled", "notifications/progress",
		"notifications/message", "notifications/tools/list_changed",
		"notifications/prompts/list_changed", "notifications/resources/list_changed",
		"notifications/resources/updated", "notifications/roots/list_changed",
		"notifications/elicitation/complete", "notifications/subscriptions/acknowledged",
	} {
		m[`"`+s+`"`] = s
	}
	return m
}()
