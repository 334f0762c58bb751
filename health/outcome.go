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
	TooLarge            // what came back is over our limit
	Open                // not tried: breaker open, isolated, draining
	Cancelled           // the client left
)

// Verdict is what an outcome says to a breaker.
type Verdict int

const (
	Neutral Verdict = iota // counts nowhere
	Success
	Failure
	Ask // a probe decides
)

// Retry is whether a call that ended so may be made again.
type Retry int

const (
	Never        Retry = iota
	IfIdempotent       // it may have been executed
	Always             // it was not
	Later              // not before the time the server or its breaker names
)

// classes is the table of everything a class means.
var classes = [...]struct {
	name, executed string
	server, tool   Verdict
	retry          Retry
}{
	OK:            {"ok", "yes", Success, Success, Never},
	ToolError:     {"tool_error", "yes", Success, Success, Never},
	Rejected:      {"rejected", "no", Success, Neutral, Never},
	UpstreamError: {"upstream_error", "maybe", Success, Neutral, Never},   // of the tool: see Tool
	SessionLost:   {"session_lost", "no", Failure, Neutral, IfIdempotent}, // that a new session has not helped
	Auth:          {"auth", "no", Neutral, Neutral, Never},
	RateLimited:   {"throttled", "no", Neutral, Neutral, Later},
	Overloaded:    {"overloaded", "maybe", Failure, Failure, IfIdempotent},
	Timeout:       {"timeout", "maybe", Ask, Failure, IfIdempotent},
	Lost:          {"lost", "maybe", Failure, Failure, IfIdempotent},
	NotSent:       {"not_sent", "no", Failure, Failure, Always},
	Malformed:     {"malformed", "maybe", Failure, Failure, IfIdempotent},
	TooLarge:      {"too_large", "maybe", Success, Neutral, Never},
	Open:          {"open", "no", Neutral, Neutral, Later},
	Cancelled:     {"cancelled", "maybe", Neutral, Neutral, Never},
}

func (c Class) known() bool { return c >= 0 && int(c) < len(classes) }

// Server is what the class says about whether the server can be reached.
func (c Class) Server() Verdict {
	if !c.known() {
		return Neutral
	}
	return classes[c].server
}

// internalError is the JSON-RPC code by which a server says that it failed.
const internalError = -32603

// Tool is what the class says about whether the tool works; code is the
// JSON-RPC code of an UpstreamError.
func (c Class) Tool(code int) Verdict {
	switch {
	case !c.known():
		return Neutral
	case c == UpstreamError && code == internalError:
		return Failure
	}
	return classes[c].tool
}

// Retry is whether a call of this class may be made again.
func (c Class) Retry() Retry {
	if !c.known() {
		return Never
	}
	return classes[c].retry
}

// String is the name used in events, the status and _meta.
func (c Class) String() string {
	if !c.known() {
		return fmt.Sprintf("class(%d)", int(c))
	}
	return classes[c].name
}

// Executed tells whether the call has had its effect: "yes", "no" or "maybe".
func (c Class) Executed() string {
	if !c.known() {
		return "maybe"
	}
	return classes[c].executed
}

// Kind is why a call has no answer.
type Kind int

const (
	Answered        Kind = iota // it has one
	FailLost                    // the stream or process died after the send
	FailNotSent                 // nothing has left
	FailSessionLost             // the transport found the session forgotten
	FailHTTPStatus              // Evidence.Status instead of an answer
	FailMalformed               // no JSON-RPC message
	FailTooLarge                // a message over the limit
	FailTimeout                 // the budget is spent
	FailCancelled               // the client left
	FailOpen                    // not tried
)

// failures is the class of each failure that needs no second look.
var failures = map[Kind]Class{
	FailLost:        Lost,
	FailNotSent:     NotSent,
	FailSessionLost: SessionLost,
	FailMalformed:   Malformed,
	FailTooLarge:    TooLarge,
	FailTimeout:     Timeout,
	FailCancelled:   Cancelled,
	FailOpen:        Open,
}

// Evidence is what is known about a finished call. The zero value is a call
// that was answered with a result.
type Evidence struct {
	Kind        Kind
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
