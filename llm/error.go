package llm

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"
)

// Error is why one attempt, or a whole call, has no answer.
type Error struct {
	Class    Class
	Provider string // name of the entry; "" if it is not one entry's failure
	Status   int    // HTTP status; 0: there was no HTTP answer
	Code     string // the API's own machine-readable code, as its documentation lists them
	Message  string // at most 300 bytes, without secrets

	// RetryAfter is how long the provider asked to be left alone; negative if it
	// did not say. At most [MaxRetryAfter], or one hour for [ClassQuota].
	RetryAfter time.Duration

	Header  http.Header // of the HTTP answer
	Body    []byte      // of the HTTP answer, raw, at most 64 KiB
	Partial string      // what a stream had delivered before it failed
	Trace   *Trace      // of a whole call
	Err     error       // the cause, if it was one of Go's
}

const (
	maxMessage = 300
	maxBody    = 64 << 10
)

// Error names the entry, the class and what the provider said.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("llm: ")
	if e.Provider != "" {
		b.WriteString(e.Provider + ": ")
	}
	b.WriteString(string(e.Class))
	if e.Status != 0 {
		fmt.Fprintf(&b, " (HTTP %d)", e.Status)
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	return b.String()
}

// unsent tells whether a provider refused the request without asking anybody.
func (e *Error) unsent() bool { return e.Class == ClassRejected && e.Status == 0 }

// Unwrap returns the cause: of a call that was cancelled, the context's.
func (e *Error) Unwrap() error { return e.Err }

// Redact replaces every occurrence of the secrets in what the error carries
// and drops its cause if that mentions one. It returns e.
func (e *Error) Redact(secrets ...string) *Error {
	for _, s := range secrets {
		if s == "" {
			continue
		}
		e.Code = strings.ReplaceAll(e.Code, s, "[redacted]")
		e.Message = strings.ReplaceAll(e.Message, s, "[redacted]")
		e.Partial = strings.ReplaceAll(e.Partial, s, "[redacted]")
		e.Body = []byte(strings.ReplaceAll(string(e.Body), s, "[redacted]"))
		e.Header = redactHeader(e.Header, s)
		if e.Err != nil && strings.Contains(e.Err.Error(), s) {
			e.Err = nil
		}
	}
	return e
}

func redactHeader(h http.Header, secret string) http.Header {
	for k, vs := range h {
		for i, v := range vs {
			if secret != "" && strings.Contains(v, secret) {
				h = h.Clone()
				h[k][i] = "[redacted]"
			}
		}
	}
	return h
}

// TransportError returns the error of a request that got no HTTP answer, or
// whose answer broke off. Nothing had been sent if the connection could not be
// made. The chain turns the errors of an ended context into [ClassCancelled]
// and [ClassTimeout].
func TransportError(err error) *Error {
	e := &Error{Class: ClassLost, RetryAfter: -1, Message: shorten(err.Error()), Err: err}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		e.Class = ClassNotSent
	} else if _, ok := errors.AsType[*net.DNSError](err); ok {
		e.Class = ClassNotSent
	}
	return e
}

// newError returns an error that no HTTP answer or cause stands behind.
func newError(c Class, format string, args ...any) *Error {
	return &Error{Class: c, RetryAfter: -1, Message: shorten(fmt.Sprintf(format, args...))}
}

// shorten makes one line of a text, at most maxMessage bytes long.
func shorten(s string) string {
	if len(s) > 4*maxMessage {
		s = s[:4*maxMessage]
	}
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "")), " ")
	if len(s) <= maxMessage {
		return s
	}
	s = s[:maxMessage-len("…")]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}
