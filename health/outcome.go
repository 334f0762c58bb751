package health

import "fmt"

// Class is how one call ended.
type Class int

const (
	OK            Class = iota
	ToolError           // the tool itself said isError
	Rejected            // refused before it was executed
	UpstreamError       // any other JSON-RPC error
	SessionLost         // the server forgot the session
	Auth                // HTTP 401, 403
	RateLimited         // HTTP 429; the state is called Throttled
	Overloaded          // HTTP 5xx, 408, 498
	Timeout             // the budget is spent
	Lost                // the stream or process died after the send
	NotSent             // nothing has left
	Malformed           // what came back is no JSON-RPC answer
	Open                // not tried: breaker open, isolated, draining
	Cancelled           // the client left
)

// classes says what each class is called and whether such a call was executed.
var classes = [...]struct{ name, executed string }{
	OK:            {"ok", "yes"},
	ToolError:     {"tool_error", "yes"},
	Rejected:      {"rejected", "no"},
	UpstreamError: {"upstream_error", "maybe"},
	SessionLost:   {"session_lost", "no"},
	Auth:          {"auth", "no"},
	RateLimited:   {"throttled", "no"},
	Overloaded:    {"overloaded", "maybe"},
	Timeout:       {"timeout", "maybe"},
	Lost:          {"lost", "maybe"},
	NotSent:       {"not_sent", "no"},
	Malformed:     {"malformed", "maybe"},
	Open:          {"open", "no"},
	Cancelled:     {"cancelled", "maybe"},
}

// String is the name used in events, the status and _meta.
func (c Class) String() string {
	if c < 0 || int(c) >= len(classes) {
		return fmt.Sprintf("class(%d)", int(c))
	}
	return classes[c].name
}

// Executed tells whether the call has had its effect: "yes", "no" or "maybe".
func (c Class) Executed() string {
	if c < 0 || int(c) >= len(classes) {
		return "maybe"
	}
	return classes[c].executed
}

// Failure is why a call has no answer.
type Failure int

const (
	Answered        Failure = iota // it has one
	FailLost                       // the stream or process died after the send
	FailNotSent                    // nothing has left
	FailSessionLost                // the transport found the session forgotten
	FailHTTPStatus                 // Evidence.Status instead of an answer
	FailMalformed                  // no JSON-RPC message, or one over the limit
	FailTimeout                    // the budget is spent
	FailCancelled                  // the client left
	FailOpen                       // not tried
)

// failures is the class of each failure that needs no second look.
var failures = map[Failure]Class{
	FailLost:        Lost,
	FailNotSent:     NotSent,
	FailSessionLost: SessionLost,
	FailMalformed:   Malformed,
	FailTimeout:     Timeout,
	FailCancelled:   Cancelled,
	FailOpen:        Open,
}

// Evidence is what is known about a finished call. The zero value is a call
// that was answered with a result.
type Evidence struct {
	Kind        Failure
	HasRPCError bool // the answer is a JSON-RPC error
	RPCCode     int  // its code
	IsToolError bool // the answer is a result with isError
	Status      int  // HTTP status, with FailHTTPStatus
}

// Classify returns the class of a call.
func Classify(e Evidence) Class {
	switch {
	case e.Kind == FailHTTPStatus:
		return classifyStatus(e.Status)
	case e.Kind != Answered:
		if c, ok := failures[e.Kind]; ok {
			return c
		}
		return Lost
	case e.HasRPCError:
		return classifyCode(e.RPCCode)
	case e.IsToolError:
		return ToolError
	}
	return OK
}

func classifyStatus(status int) Class {
	switch {
	case status == 401, status == 403:
		return Auth
	case status == 429:
		return RateLimited
	case status >= 500, status == 408, status == 498:
		return Overloaded
	case status >= 400:
		return Rejected
	}
	return Malformed // a success or redirect without a message
}

func classifyCode(code int) Class {
	switch code {
	case -32600, -32601, -32602, // invalid request, unknown method, invalid params
		-32002,                 // resource not found, up to 2025-11-25
		-32042,                 // URL elicitation required, up to 2025-11-25
		-32020, -32021, -32022: // header mismatch, missing capability, unsupported version
		return Rejected
	}
	return UpstreamError
}
