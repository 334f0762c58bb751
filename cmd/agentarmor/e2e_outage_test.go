package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
)

// One server of ten answers nothing at all: whatever waits for it, calls of the
// nine others are answered first. By order, not by the clock.
func TestOneBrokenServerAmongTen(t *testing.T) {
	t.Parallel()
	ups := []string{up("bad", ", concurrency: 4, queue: 100", "-fault", `{"kind":"freeze","method":"tools/call"}`)}
	var tools []string
	for i := range 9 {
		ups = append(ups, up(fmt.Sprintf("good%d", i), ""))
		tools = append(tools, fmt.Sprintf("good%d__echo", i))
	}
	e := serveStdio(t, configFile(t, "", ups...))
	e.awaitTools(append(tools, "bad__echo")...)
	var pending []string
	for range 50 {
		pending = append(pending, e.start("tools/call", toolCall("bad__echo", `{"text":"x"}`)))
	}
	for range 3 {
		for _, tool := range tools {
			e.wantServed(e.call(tool, `{"text":"x"}`), "x", 1, "")
		}
	}
	if m, answered, _ := e.take(func(m *rpcMessage) bool { return slices.Contains(pending, string(m.ID)) }); answered {
		t.Errorf("the frozen server answered: the test shows nothing: %s", m.raw)
	}
	for i := range 9 {
		e.wantHealthy(fmt.Sprintf("good%d", i))
	}
	for _, id := range pending {
		e.cancel(id)
	}
}

// A process that answers nothing any more, not even a ping, is replaced.
func TestFrozenProcessIsReplaced(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "spawns")
	e := serveStdio(t, configFile(t, "", up("a", ", probe: {every: 300ms, every_down: 300ms, misses: 3}, call_timeout: 500ms"+noRetry,
		"-fault", `{"kind":"freeze","method":"tools/call","skip":2}`, "-spawn-log", log)))
	e.awaitTools("a__log")
	for range 2 {
		e.wantServed(e.call("a__log", `{}`), "logged", 1, "")
	}
	e.wantUnserved(e.call("a__log", `{}`), "timeout", "maybe")
	eventually(t, "a new process works", func() bool { return !e.result(e.call("a__log", `{}`)).IsError })
	if n := len(fileLines(log)); n != 2 {
		t.Errorf("%d starts", n)
	}
	if s := e.status("a"); s.Restarts != 1 {
		t.Errorf("the status: %+v", s)
	}
}

// A single call that takes too long costs the server nothing: it still answers.
func TestSlowCallIsNoOutage(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", ", call_timeout: 200ms"+noRetry)))
	e.awaitTools("a__hang")
	beside := e.start("tools/call", toolCall("a__sleep", `{"ms":100}`))
	for range 5 {
		e.unserved(e.call("a__hang", `{}`))
	}
	e.wantServed(e.answer(beside), "slept", 1, "")
	s := e.status("a")
	if s.State != "degraded" || s.Breaker.State != "closed" || s.Restarts != 0 {
		t.Errorf("the status: %+v", s)
	}
	e.wantServed(e.call("a__echo", `{"text":"x"}`), "x", 1, "")
}

// However the outage shows, the first good call follows its end within one
// probe interval and a second; the rest of the bound is the machine's.
func TestRecoveryFollowsTheEndOfAnOutage(t *testing.T) {
	t.Parallel()
	const every, bound = time.Second, time.Second + 6*time.Second
	for _, kind := range []string{"status", "hang", "drop", "refused"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			bad := startRestartable(t)
			e := serveStdio(t, configFile(t, "", remote("a", bad.url, ", probe: {every: 1s, every_down: 1s, timeout: 1s}, call_timeout: 500ms"+noRetry)))
			e.awaitTools("a__log")
			if kind == "refused" {
				bad.stop()
			} else {
				bad.Fault(badserver.Fault{Kind: kind, Status: 503})
			}
			began := time.Now()
			eventually(t, "it is down", func() bool {
				e.unserved(e.call("a__log", `{}`))
				return e.status("a").State == "down"
			})
			for time.Since(began) < 8*time.Second { // a backoff would have grown meanwhile
				e.unserved(e.call("a__log", `{}`))
				time.Sleep(200 * time.Millisecond)
			}
			if kind == "refused" {
				bad.start()
			} else {
				bad.Heal("")
			}
			ended := time.Now()
			eventually(t, "a good call", func() bool { return !e.result(e.call("a__log", `{}`)).IsError })
			if d := time.Since(ended); d > every+bound {
				t.Errorf("the first good call came %v after the end of the outage", d)
			}
			eventually(t, "the status knows", func() bool { s := e.status("a"); return s.Breaker.State == "closed" && s.State == "ready" })
		})
	}
}

// A server that is up and down by turns works in each turn that it is up, and
// no answer says anything wrong about what was executed.
func TestFlappingServer(t *testing.T) {
	t.Parallel()
	e, bad := badHTTP(t, ", probe: {every: 300ms, every_down: 300ms}", up("b", ""))
	e.awaitTools("b__echo")
	bad.Fault(badserver.Fault{Kind: "status", Status: 503, FlapMS: 2000})
	l := newLedger(t)
	turns := 0
	for began, up := time.Now(), false; time.Since(began) < 10*time.Second; time.Sleep(50 * time.Millisecond) {
		now := l.call(e, "a__append", "")
		if now && !up {
			turns++
		}
		up = now
		e.wantServed(e.call("b__echo", `{"text":"x"}`), "x", 1, "")
	}
	if turns < 3 {
		t.Errorf("it worked in %d of 3 turns", turns)
	}
	l.check()
}

// The same with a process that ends every two seconds.
func TestFlappingProcess(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", soon+atOnce, "-exit-after", "2s"), up("b", "")))
	e.awaitTools("a__append", "b__echo")
	l := newLedger(t)
	for began := time.Now(); time.Since(began) < 8*time.Second; time.Sleep(20 * time.Millisecond) {
		l.call(e, "a__append", `,"ms":30`)
		e.wantServed(e.call("b__echo", `{"text":"x"}`), "x", 1, "")
	}
	if s := e.status("a"); s.Restarts < 1 {
		t.Errorf("the status: %+v", s)
	}
	l.check()
}

// ledger compares what answers say with what was executed.
type ledger struct {
	t         *testing.T
	file      string
	calls     int
	executed  map[string]string // yes, no or maybe, by the text of the call
	succeeded int
}

func newLedger(t *testing.T) *ledger {
	return &ledger{t: t, file: filepath.Join(t.TempDir(), "lines"), executed: map[string]string{}}
}

// call calls a tool that appends and tells whether it succeeded.
func (l *ledger) call(e *endpoint, tool, more string) bool {
	l.t.Helper()
	l.calls++
	text := fmt.Sprint("call ", l.calls)
	m := e.call(tool, fmt.Sprintf(`{"file":%q,"text":%q%s}`, l.file, text, more))
	if r := e.result(m); !r.IsError {
		l.executed[text] = "yes"
		l.succeeded++
		return true
	}
	l.executed[text] = cmp.Or(e.unserved(m).Executed, "nothing")
	return false
}

func (l *ledger) check() {
	l.t.Helper()
	lines := map[string]int{}
	for _, line := range fileLines(l.file) {
		lines[line]++
	}
	for text, said := range l.executed {
		n := lines[text]
		if ok := map[string]bool{"yes": n == 1, "no": n == 0, "maybe": n <= 1}[said]; !ok {
			l.t.Errorf("%s: executed %d times, the answer said %s", text, n, said)
		}
	}
	if l.succeeded == 0 || l.succeeded == l.calls {
		l.t.Errorf("%d of %d calls succeeded: nothing was shown", l.succeeded, l.calls)
	}
}

// A process that ends right after each start is told as that, and when it is
// tried again.
func TestCallsDuringACrashLoop(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a crash loop")
	}
	t.Parallel()
	mood := filepath.Join(t.TempDir(), "mood")
	write(t, mood, "")
	config := configFile(t, "", shell("a", atOnce, fmt.Sprintf("exec badserver $$(cat %s)", mood)))
	t.Run("well once", func(t *testing.T) { serveStdio(t, config).awaitTools("a__log") })
	write(t, mood, "-init-delay 1h -exit-after 1ms")
	e := serveStdio(t, config)
	eventually(t, "it is a crash loop", func() bool {
		said := e.unserved(e.call("a__log", `{}`))
		if said.Executed != "no" || said.Outcome != "not_sent" && said.Outcome != "open" {
			t.Errorf("%+v", said)
		}
		time.Sleep(100 * time.Millisecond)
		return e.status("a").State == "crash_loop"
	})
	said := e.unserved(e.call("a__log", `{}`))
	if in := time.Until(said.RetryAt); in < time.Second && !strings.Contains(said.Reason, "crash_loop") {
		t.Errorf("in the crash loop: %+v", said)
	}
}

// A call of a tool that is known from the last run waits for a slow start, as
// long as its own budget allows, and is sent once.
func TestCallDuringASlowStart(t *testing.T) {
	t.Parallel()
	mood := filepath.Join(t.TempDir(), "mood")
	write(t, mood, "")
	config := configFile(t, "", shell("a", ", tools: {settings: {echo: {call_timeout: 300ms}}}", fmt.Sprintf("exec badserver $$(cat %s)", mood)))
	t.Run("fast", func(t *testing.T) { serveStdio(t, config).awaitTools("a__append") })
	write(t, mood, "-init-delay 3s")
	e := serveStdio(t, config)
	if said := e.unserved(e.call("a__echo", `{"text":"x"}`)); said.Executed != "no" || said.Upstream != "a" {
		t.Errorf("%+v", said)
	}
	m, lines := e.appends("a__append", "")
	e.wantServed(m, "appended", 1, "")
	e.wantLines(1, lines, "a call during the start")
}
