package wire

import "sync/atomic"

// Session is one client of the endpoint: the stdio pipe, an HTTP or SSE
// session, or the single stateless request of a modern HTTP client.
type Session struct {
	ID        string // "" for stdio and stateless requests
	Transport string // "stdio", "http" or "sse"
	Principal string // digest of the bearer token, "" without one
	Stateless bool   // a modern HTTP request: lives as long as its stream

	// State is the Handler's own data on this session, set at its first message.
	State atomic.Value

	send func(raw []byte, more bool) error
}

// NewSession returns a session whose own stream is send, which follows the
// contract of [Stream.Send]. Tests use it to talk to a Handler in memory.
func NewSession(transport string, send func(raw []byte, more bool) error) *Session {
	return &Session{Transport: transport, send: send}
}

// Send queues a message on the session's own stream, for what belongs to no
// request: stdio's stdout, the GET stream of an HTTP or SSE session. A
// stateless session has none. Contract as for [Stream.Send].
func (s *Session) Send(raw []byte, more bool) error {
	if s.send == nil {
		return ErrGone
	}
	return s.send(raw, more)
}
