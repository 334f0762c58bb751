package main

import (
	"strings"
	"testing"
	"time"
)

// Calls over the rate wait for their turn while their budget allows it, and
// are told when to come back where it does not.
func TestRateLimit(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, ", rate_limit: 3/m, call_timeout: 1s", up("b", ""), up("c", ", rate_limit: 10/s"))
	e.awaitTools("b__echo", "c__echo")
	served := 0
	for range 10 {
		m := e.call("a__echo", `{"text":"x"}`)
		if !e.result(m).IsError {
			served++
			continue
		}
		said := e.wantUnserved(m, "open", "no")
		if in := time.Until(said.RetryAt); in < time.Second || in > 10*time.Minute || !strings.Contains(said.Reason, "rate limit") {
			t.Errorf("%+v", said)
		}
	}
	if n := bad.Count("tools/call echo"); served < 1 || served > 4 || n != served {
		t.Errorf("%d of 10 calls were served, %d sent", served, n)
	}
	e.wantServed(e.call("b__echo", `{"text":"x"}`), "x", 1, "")

	var ids []string
	began := time.Now()
	for range 15 {
		ids = append(ids, e.start("tools/call", toolCall("c__echo", `{"text":"x"}`)))
	}
	for _, id := range ids {
		e.wantServed(e.answer(id), "x", 1, "")
	}
	if d := time.Since(began); d < 400*time.Millisecond {
		t.Errorf("15 calls at 10/s took %v", d)
	}
	if s := e.status("a"); s.State != "ready" || s.Breaker.State != "closed" {
		t.Errorf("a limit of ours is no fault of the server: %+v", s)
	}
}

// Over concurrency and queue a call is told at once that the server is busy;
// the queue moves on when a call ends, and other servers have their own.
func TestBusyServer(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, ", concurrency: 2, queue: 1", up("b", ""))
	e.awaitTools("b__echo")
	first := e.start("tools/call", toolCall("a__hang", `{}`))
	second := e.start("tools/call", toolCall("a__hang", `{}`))
	eventually(t, "two are under way", func() bool { return bad.Count("tools/call hang") == 2 })
	queued := e.start("tools/call", toolCall("a__echo", `{"text":"queued"}`))
	said := e.wantUnserved(e.call("a__echo", `{"text":"x"}`), "open", "no")
	if !strings.Contains(said.Reason, "busy") || said.RetryAt.IsZero() {
		t.Errorf("%+v", said)
	}
	e.wantServed(e.call("b__echo", `{"text":"x"}`), "x", 1, "")
	if n := bad.Count("tools/call echo"); n != 0 {
		t.Errorf("%d calls got past the two", n)
	}
	e.cancel(first)
	e.wantServed(e.answer(queued), "queued", 1, "")
	e.cancel(second)
	if s := e.status("a"); s.State != "ready" || s.Breaker.State != "closed" {
		t.Errorf("that it is busy was held against it: %+v", s)
	}
}

func TestNoQueue(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, ", concurrency: 1, queue: 0")
	slow := e.start("tools/call", toolCall("a__sleep", `{"ms":1000}`))
	eventually(t, "one is under way", func() bool { return bad.Count("tools/call sleep") == 1 })
	e.wantUnserved(e.call("a__echo", `{"text":"x"}`), "open", "no")
	e.wantServed(e.answer(slow), "slept", 1, "")
	e.wantServed(e.call("a__echo", `{"text":"x"}`), "x", 1, "")
}

// A queued call is bounded by its budget like any other.
func TestQueuedCallTimesOut(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, ", concurrency: 1, tools: {settings: {echo: {call_timeout: 300ms}}}")
	first := e.start("tools/call", toolCall("a__hang", `{}`))
	eventually(t, "one is under way", func() bool { return bad.Count("tools/call hang") == 1 })
	if said := e.unserved(e.call("a__echo", `{"text":"x"}`)); said.Executed != "no" {
		t.Errorf("%+v", said)
	}
	if n := bad.Count("tools/call echo"); n != 0 {
		t.Error("it was sent after all")
	}
	e.cancel(first)
}
