package wire

import (
	"context"
	"fmt"
	"time"
)

// Protocol revisions the endpoint speaks, newest first. Modern revisions carry
// everything per request; the others start with an initialize handshake.
const (
	Modern     = "2026-07-28"
	Legacy     = "2025-11-25"
	V20250618  = "2025-06-18"
	V20250326  = "2025-03-26"
	V20241105  = "2024-11-05"
	MetaPrefix = "io.modelcontextprotocol/"
)

// Versions lists the revisions the endpoint speaks, newest first.
var Versions = []string{Modern, Legacy, V20250618, V20250326, V20241105}

// JSON-RPC and MCP error codes the endpoint itself emits.
const (
	CodeParse              = -32700
	CodeInvalidRequest     = -32600
	CodeMethodNotFound     = -32601
	CodeInvalidParams      = -32602
	CodeInternal           = -32603
	CodeHeaderMismatch     = -32020
	CodeMissingCapability  = -32021
	CodeUnsupportedVersion = -32022
)

// Handler is the endpoint behind the server halves of the transports.
//
// Handle and Closed must not block on a peer: the caller may be the only
// reader of its transport. Messages of one stdio or SSE session arrive in
// order from one goroutine; those of an HTTP session may arrive concurrently.
type Handler interface {
	// Handle takes one message of s. A request is answered exactly once
	// through st, later and from any goroutine; a cancelled one is ended with
	// st.Drop instead. For notifications and responses st is nil.
	Handle(s *Session, m Message, st Stream)
	// Closed tells that s has ended: nothing can be sent to it any more.
	// It is called exactly once per session that Handle has seen, also for
	// the ephemeral session of a stateless request.
	Closed(s *Session)
}

// InputEnder is a [Handler] that wants to know that a client's input has ended:
// it still takes what was under way, but will answer and ask nothing more.
type InputEnder interface {
	InputEnded(s *Session)
}

// Stream carries what belongs to one request back to its client: over stdio
// and SSE it is the session's own stream, over HTTP the response of the POST.
// It is safe for concurrent use and keeps the order of its callers.
type Stream interface {
	// Send queues a notification, or a request of ours, and takes ownership
	// of raw, one whole message without line breaks, whose memory may serve a
	// later message (see [Buffer]). more tells that another
	// message follows at once, so that the two may share a write. It never
	// blocks; an error means that the client is gone or does not read.
	Send(raw []byte, more bool) error
	// Answer queues the response and ends the stream: what comes after it
	// is dropped. Ownership and more as for Send.
	Answer(raw []byte, more bool) error
	// Drop ends the stream without an answer (a cancelled request).
	Drop()
	// OnLeave sets what is called, once and without blocking, when the client
	// leaves this request before its answer: never where that cannot be seen
	// (stdio, SSE), and not while it may still resume the stream.
	OnLeave(f func())
}

// Error is how the client half of a transport says why a request got no
// JSON-RPC answer. The zero Kind is Lost.
type Error struct {
	Kind       ErrorKind
	Status     int           // HTTP status, 0 if none
	RetryAfter time.Duration // from the Retry-After header, 0 if none
	Err        error
}

// ErrorKind says how far a request got.
type ErrorKind int

const (
	// Lost: the stream or process died after the send; it may have been executed.
	Lost ErrorKind = iota
	// NotSent: refused, not running, or the write failed before its first byte.
	NotSent
	// SessionLost: the server forgot the session; it was not executed.
	SessionLost
	// HTTPStatus: the server answered with an HTTP status and no JSON-RPC message.
	HTTPStatus
	// Malformed: what came back is no JSON-RPC message.
	Malformed
	// TooLarge: the message is over the limit.
	TooLarge
)

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return fmt.Sprintf("HTTP status %d", e.Status)
}

func (e *Error) Unwrap() error { return e.Err }

// Peer is the client half: one connection to one server. It is safe for
// concurrent use.
type Peer interface {
	// Send queues one message without waiting for the network. Every request
	// (ID not 0) is followed by exactly one Events.Answer or Events.Failed, also
	// when Send itself fails with an error (then Failed is not called: the
	// error is the answer). It takes ownership of Body.
	Send(o Outgoing) error
	// Cancel stops waiting for a request: no Events follow for it. Over HTTP
	// its response stream is closed. The caller sends notifications/cancelled
	// itself where the protocol asks for one.
	Cancel(id uint64)
	// SetVersion tells the revision negotiated, which HTTP sends as a header;
	// with a modern one every request carries the Mcp-* headers and sessions end.
	SetVersion(v string)
	// Ready is called once after the handshake (legacy HTTP opens its GET stream).
	Ready()
	// Close ends the connection and waits until nothing of it is left:
	// stdin is closed, then the process group gets SIGTERM and, when ctx ends or
	// after its grace period, SIGKILL; HTTP sends DELETE for its session.
	Close(ctx context.Context)
	// Stats is a snapshot for the status.
	Stats() PeerStats
}

// PeerStats is what a Peer knows about itself.
type PeerStats struct {
	Pid     int      // of the process, 0 if none
	Stderr  []string // last lines, oldest first
	Skipped int      // lines on stdout that were no JSON-RPC
}

// Outgoing is one message to a server.
type Outgoing struct {
	ID      uint64      // of a request; its id on the wire is "a<ID>". 0: notification or response
	Body    []byte      // the whole message, without line breaks
	Method  string      // for the Mcp-Method header
	Name    string      // for the Mcp-Name header: params.name or params.uri
	Headers [][2]string // Mcp-Param-<name> headers, value not yet encoded
	More    bool        // another message follows at once
}

// Events is what a Peer tells its owner. The calls for one stream come in
// order from one goroutine; those of different HTTP requests may be
// concurrent. None of them may block.
type Events struct {
	// Answer delivers the response to request id.
	Answer func(id uint64, m Message)
	// Message delivers a notification or a request of the server. via is the request
	// on whose response stream it came, 0 where the transport does not tell.
	Message func(m Message, via uint64)
	// Failed tells that request id will get no answer.
	Failed func(id uint64, err *Error)
	// Closed tells, once, that the connection is gone; requests under way have
	// failed before. Not called by Close.
	Closed func(err error)
	// Trouble tells that the connection's own stream failed, which is no
	// request's: legacy HTTP's GET stream. Nil: not wanted.
	Trouble func(err *Error)
}

// Limits bounds what a peer or client may make us hold. The zero value means
// the defaults.
type Limits struct {
	Message     int           // bytes of one line or body, default 64 MiB
	Queue       int           // messages waiting for a slow reader, default 1024
	Sessions    int           // HTTP sessions, default 1000
	SessionIdle time.Duration // after which an HTTP session ends, default 30 min
}

// Filled returns l with defaults in place of zeros.
func (l Limits) Filled() Limits {
	if l.Message == 0 {
		l.Message = 64 << 20
	}
	if l.Queue == 0 {
		l.Queue = 1024
	}
	if l.Sessions == 0 {
		l.Sessions = 1000
	}
	if l.SessionIdle == 0 {
		l.SessionIdle = 30 * time.Minute
	}
	return l
}
