package health_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/agentarmor/agentarmor/health"
)

func TestClassify(t *testing.T) {
	status := func(n int) health.Evidence {
		return health.Evidence{Kind: health.FailHTTPStatus, Status: n}
	}
	code := func(n int) health.Evidence { return health.Evidence{HasRPCError: true, RPCCode: n} }
	kind := func(k health.Kind) health.Evidence { return health.Evidence{Kind: k} }
	for _, tt := range []struct {
		name     string
		of       []health.Evidence
		want     health.Class
		executed string
	}{
		{"ok", []health.Evidence{{}}, health.OK, "yes"},
		{"tool_error", []health.Evidence{{IsToolError: true}}, health.ToolError, "yes"},
		{"rejected", []health.Evidence{
			code(-32600), code(-32601), code(-32602), code(-32002), code(-32042), code(-32020), code(-32021), code(-32022),
			status(400), status(404), status(405), status(422),
		}, health.Rejected, "no"},
		{"upstream_error", []health.Evidence{code(-32603), code(-32000), code(0), code(-32700)}, health.UpstreamError, "maybe"},
		{"session_lost", []health.Evidence{{Kind: health.FailSessionLost, Status: 404}}, health.SessionLost, "no"},
		{"auth", []health.Evidence{status(401), status(403)}, health.Auth, "no"},
		{"throttled", []health.Evidence{status(429)}, health.RateLimited, "no"},
		{"overloaded", []health.Evidence{status(500), status(503), status(408), status(498)}, health.Overloaded, "maybe"},
		{"timeout", []health.Evidence{kind(health.FailTimeout)}, health.Timeout, "maybe"},
		{"lost", []health.Evidence{kind(health.FailLost), kind(health.Kind(99))}, health.Lost, "maybe"},
		{"not_sent", []health.Evidence{kind(health.FailNotSent)}, health.NotSent, "no"},
		{"malformed", []health.Evidence{kind(health.FailMalformed), status(202), status(302)}, health.Malformed, "maybe"},
		{"too_large", []health.Evidence{kind(health.FailTooLarge)}, health.TooLarge, "maybe"},
		{"open", []health.Evidence{kind(health.FailOpen)}, health.Open, "no"},
		{"cancelled", []health.Evidence{kind(health.FailCancelled)}, health.Cancelled, "maybe"},
	} {
		for _, e := range tt.of {
			got := health.Classify(e)
			if got != tt.want || got.String() != tt.name || got.Executed() != tt.executed {
				t.Errorf("Classify(%+v) = %v (executed %s), want %s (%s)", e, got, got.Executed(), tt.name, tt.executed)
			}
		}
	}
}

func TestUnknownClass(t *testing.T) {
	if c := health.Class(99); c.String() != "class(99)" || c.Executed() != "maybe" {
		t.Errorf("class 99 = %s, executed %s", c, c.Executed())
	}
}

// TestTable is the table of outcomes: what a class says to whom.
func TestTable(t *testing.T) {
	const internal = -32603
	for _, row := range []struct {
		class                  health.Class
		executed               string
		server, tool, internal health.Verdict // internal: the tool's with -32603
		retry                  health.Retry
	}{
		{health.OK, "yes", health.Success, health.Success, health.Success, health.Never},
		{health.ToolError, "yes", health.Success, health.Success, health.Success, health.Never},
		{health.Rejected, "no", health.Success, health.Neutral, health.Neutral, health.Never},
		{health.UpstreamError, "maybe", health.Success, health.Neutral, health.Failure, health.Never},
		{health.SessionLost, "no", health.Failure, health.Neutral, health.Neutral, health.IfIdempotent},
		{health.Auth, "no", health.Neutral, health.Neutral, health.Neutral, health.Never},
		{health.RateLimited, "no", health.Neutral, health.Neutral, health.Neutral, health.Later},
		{health.Overloaded, "maybe", health.Failure, health.Failure, health.Failure, health.IfIdempotent},
		{health.Timeout, "maybe", health.Ask, health.Failure, health.Failure, health.IfIdempotent},
		{health.Lost, "maybe", health.Failure, health.Failure, health.Failure, health.IfIdempotent},
		{health.NotSent, "no", health.Failure, health.Failure, health.Failure, health.Always},
		{health.Malformed, "maybe", health.Failure, health.Failure, health.Failure, health.IfIdempotent},
		{health.TooLarge, "maybe", health.Success, health.Neutral, health.Neutral, health.Never},
		{health.Open, "no", health.Neutral, health.Neutral, health.Neutral, health.Later},
		{health.Cancelled, "maybe", health.Neutral, health.Neutral, health.Neutral, health.Never},
		{health.Class(-1), "maybe", health.Neutral, health.Neutral, health.Neutral, health.Never},
		{health.Cancelled + 1, "maybe", health.Neutral, health.Neutral, health.Neutral, health.Never},
	} {
		c := row.class
		if c.Executed() != row.executed || c.Server() != row.server || c.Retry() != row.retry {
			t.Errorf("%v: executed %s, server %v, retry %v; want %s, %v, %v",
				c, c.Executed(), c.Server(), c.Retry(), row.executed, row.server, row.retry)
		}
		if c.Tool(0) != row.tool || c.Tool(-32602) != row.tool || c.Tool(internal) != row.internal {
			t.Errorf("%v: tool %v, with -32603 %v; want %v, %v", c, c.Tool(0), c.Tool(internal), row.tool, row.internal)
		}
	}
}

// refused is the evidence that a call was not executed.
func refused(e health.Evidence) bool {
	switch e.Kind {
	case health.Answered:
		return e.HasRPCError && slices.Contains(
			[]int{-32600, -32601, -32602, -32002, -32042, -32020, -32021, -32022}, e.RPCCode)
	case health.FailHTTPStatus:
		return e.Status >= 400 && e.Status <= 499 && e.Status != 408 && e.Status != 498
	}
	return e.Kind == health.FailNotSent || e.Kind == health.FailOpen || e.Kind == health.FailSessionLost
}

func FuzzClassify(f *testing.F) {
	for kind := -1; kind <= int(health.FailOpen)+1; kind++ {
		for _, n := range []int{-32603, -32600, 0, 200, 399, 400, 401, 408, 429, 498, 499, 500, 1 << 40} {
			f.Add(kind, true, n, false, n)
			f.Add(kind, false, n, true, n)
		}
	}
	f.Fuzz(func(t *testing.T, kind int, hasError bool, code int, isToolError bool, status int) {
		e := health.Evidence{Kind: health.Kind(kind), HasRPCError: hasError, RPCCode: code, IsToolError: isToolError, Status: status}
		c := health.Classify(e)
		answered := e.Kind == health.Answered
		switch {
		case strings.HasPrefix(c.String(), "class("):
			t.Errorf("%+v is of an unknown class", e)
		case (c.Executed() == "no") != refused(e):
			t.Errorf("%+v is %v: executed %s, refused %v", e, c, c.Executed(), refused(e))
		case (c.Executed() == "yes") != (answered && !hasError):
			t.Errorf("%+v is %v: executed %s", e, c, c.Executed())
		case c.Retry() == health.Always && c.Executed() != "no":
			t.Errorf("%+v is %v: executed %s, and always made again", e, c, c.Executed())
		case answered && c.Server() != health.Success:
			t.Errorf("%+v is %v: an answer, but server %v", e, c, c.Server())
		case e.Kind == health.FailHTTPStatus && status >= 500 && c != health.Overloaded:
			t.Errorf("%+v is %v", e, c)
		}
	})
}
