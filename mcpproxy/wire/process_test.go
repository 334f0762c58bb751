//go:build unix

package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// childEnv makes the test binary a server: its value names the behaviour.
const childEnv = "WIRE_TEST_CHILD"

func init() {
	if how := os.Getenv(childEnv); how != "" {
		child(how)
		os.Exit(0)
	}
}

// child serves stdin as behave does, after what its name asks for.
func child(how string) {
	switch how {
	case "stderr":
		line := strings.Repeat("e", 1023) + "\n"
		for i := range 1024 {
			fmt.Fprintf(os.Stderr, "%d %s", i, line)
		}
		fmt.Fprint(os.Stderr, "no line break")
	case "banner":
		fmt.Print("Welcome!\n\x1b[32mready\x1b[0m\n\n\r\n\ufeff\n{\"jsonrpc\":\"2.0\",\n[1,2]\n42\n{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\ufeff")
	case "deaf": // reads nothing
		time.Sleep(time.Minute)
	case "grandchild": // which holds the pipes open
		if err := (&exec.Cmd{Path: "/bin/sleep", Args: []string{"sleep", "300"}, Stdout: os.Stdout, Stderr: os.Stderr}).Start(); err != nil {
			panic(err)
		}
	case "cat":
		_, _ = io.Copy(os.Stdout, os.Stdin)
		return
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		m, err := Parse(bytes.Clone(in.Bytes()))
		if err != nil {
			panic(err)
		}
		if m.IsRequest() && !childAnswers(m) {
			os.Exit(3)
		}
	}
	if how == "stubborn" {
		time.Sleep(time.Minute)
	}
}

// childAnswers answers one request; false ends the process.
func childAnswers(m Message) bool {
	say := func(s string) { fmt.Println(s) }
	switch m.Method {
	case "close":
		os.Stdout.Close()
		time.Sleep(time.Minute)
	case "answer and die":
		say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":1}`, m.ID))
		return false
	case "badutf8":
		say(fmt.Sprintf("{\"jsonrpc\":\"2.0\",\"result\":\"\xff\",\"id\":%s}", m.ID))
	case "utf8":
		say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":"héllo 你好 😀 %s \ud83d"}`, m.ID, "\u2028"))
	case "big":
		n, _ := strconv.Atoi(string(Get(m.Params, "n")))
		say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":"%s"}`, m.ID, strings.Repeat("x", n)))
	case "late id":
		say(fmt.Sprintf(`{"jsonrpc":"2.0","result":"%s","id":%s}`, strings.Repeat("x", 2<<20), m.ID))
	case "env":
		say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, AppendString(nil, strings.Join(os.Environ(), " "))))
	case "silent":
	default:
		return behave(context.Background(), m, say)
	}
	return true
}

// childEnviron is a child's whole environment; under the race detector it
// would sleep for a second before it exits.
func childEnviron(how string) []string {
	return []string{childEnv + "=" + how, "GORACE=atexit_sleep_ms=0"}
}

// startChild starts the test binary as a server.
func startChild(t testing.TB, how string, l Limits, ev Events) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := StartProcess(ProcessSpec{Command: self, Env: childEnviron(how), Grace: 5 * time.Second}, l, ev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	return p.(*process)
}

func TestProcessPeer(t *testing.T) {
	testPeer(t, func(t *testing.T, l Limits, ev Events) Peer { return startChild(t, "plain", l, ev) })
}

// closedWith waits for the end and returns its reason.
func closedWith(t *testing.T, o *owner) string {
	t.Helper()
	o.until(t, "the end", func() bool { return len(o.closed) == 1 })
	return o.closed[0].Error()
}

func big(id uint64, n int) Outgoing {
	return Outgoing{ID: id, Method: "big", Body: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"a%d","method":"big","params":{"n":%d}}`, id, n)}
}

func TestProcessStderrIsDrained(t *testing.T) {
	noLeaks(t)
	o := newOwner()
	p := startChild(t, "stderr", Limits{}, o.events())
	send(t, p, sent(1, "echo"))
	o.answered(t, 1)
	p.Close(t.Context())
	lines := p.Stats().Stderr
	if len(lines) != tailLines || lines[tailLines-1] != "no line break" {
		t.Fatalf("%d lines, last %.30q", len(lines), lines[len(lines)-1])
	}
	if l := lines[tailLines-2]; !strings.HasPrefix(l, "1023 eee") || len(l) != tailWidth {
		t.Errorf("%d bytes: %.30q", len(l), l)
	}
}

func TestProcessNoiseOnStdout(t *testing.T) {
	o := newOwner()
	p := startChild(t, "banner", Limits{}, o.events())
	send(t, p, sent(1, "echo"))
	o.answered(t, 1)
	if n := p.Stats().Skipped; n != 7 {
		t.Errorf("%d lines skipped", n)
	}
	if len(o.messages) != 0 {
		t.Errorf("got messages %q", o.messages)
	}
}

func TestProcessExit(t *testing.T) {
	noLeaks(t)
	for _, tt := range []struct {
		how, method, reason string
		signal              bool
	}{
		{"plain", "die", "exit status 3", false},
		{"grandchild", "die", "exit status 3", false},
		{"plain", "close", "closed its stdout", false},
		{"plain", "silent", "signal: killed", true},
		{"grandchild", "silent", "signal: killed", true},
	} {
		t.Run(tt.how+" "+tt.method, func(t *testing.T) {
			o := newOwner()
			p := startChild(t, tt.how, Limits{}, o.events())
			pid := p.Stats().Pid
			send(t, p, sent(1, "echo"))
			o.answered(t, 1)
			start := time.Now()
			send(t, p, sent(2, "silent"), sent(3, tt.method))
			if tt.signal {
				_ = p.cmd.Process.Kill()
			}
			o.failed(t, 2, Lost)
			o.failed(t, 3, Lost)
			if d := time.Since(start); d > 3*time.Second {
				t.Errorf("it took %v", d)
			}
			if reason := closedWith(t, o); reason != tt.reason {
				t.Errorf("reason %q, want %q", reason, tt.reason)
			}
			err := p.Send(sent(4, "echo"))
			if e, ok := errors.AsType[*Error](err); !ok || e.Kind != NotSent {
				t.Errorf("Send to a dead process: %v", err)
			}
			waitGone(t, pid)
			if p.Stats().Pid != 0 {
				t.Error("a dead process has a pid")
			}
		})
	}
}

func waitGone(t *testing.T, pgid int) {
	t.Helper()
	for range 500 {
		if !alive(pgid) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("group %d still has members", pgid)
}

// What stands in the pipe when the process dies is still delivered.
func TestProcessAnswerBeforeExit(t *testing.T) {
	for range 5 {
		o := newOwner()
		p := startChild(t, "plain", Limits{}, o.events())
		send(t, p, sent(1, "silent"), sent(2, "answer and die"))
		o.answered(t, 2)
		o.failed(t, 1, Lost)
		p.Close(t.Context())
	}
}

func TestProcessUTF8(t *testing.T) {
	o := newOwner()
	p := startChild(t, "plain", Limits{}, o.events())
	send(t, p, sent(1, "utf8"), sent(2, "badutf8"), sent(3, "echo"))
	if got, want := string(o.answered(t, 1).Result), "\"héllo 你好 😀 \u2028 \\ud83d\""; got != want {
		t.Errorf("got %q", got)
	}
	o.failed(t, 2, Malformed)
	o.answered(t, 3)
}

func TestProcessLongLines(t *testing.T) {
	o := newOwner()
	p := startChild(t, "plain", Limits{}, o.events())
	send(t, p, big(1, 20<<20))
	if n := len(o.answered(t, 1).Result); n != 20<<20+2 {
		t.Errorf("got %d bytes", n)
	}
	p.Close(t.Context())

	o = newOwner()
	p = startChild(t, "plain", Limits{Message: 1 << 20}, o.events())
	send(t, p, big(1, 3<<20), sent(2, "late id"), sent(3, "echo"))
	o.failed(t, 1, TooLarge)
	o.answered(t, 3)
	if o.outcomes[2] != nil || p.Stats().Skipped != 2 {
		t.Errorf("outcome %v, %d skipped", o.outcomes[2], p.Stats().Skipped)
	}
}

func TestProcessStdinFull(t *testing.T) {
	noLeaks(t)
	o := newOwner()
	p := startChild(t, "deaf", Limits{Message: 1 << 20}, o.events())
	var err error
	id := uint64(0)
	for err == nil && id < 100 {
		id++
		err = p.Send(Outgoing{ID: id, Body: bytes.Repeat([]byte(" "), 1<<20)})
	}
	if e, ok := errors.AsType[*Error](err); !ok || e.Kind != NotSent {
		t.Fatalf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	p.Close(ctx)
	for i := range id - 1 {
		o.failed(t, i+1, Lost)
	}
}

func TestProcessCloseIsPatient(t *testing.T) {
	o := newOwner()
	p := startChild(t, "stubborn", Limits{}, o.events())
	pid := p.Stats().Pid
	send(t, p, sent(1, "echo"))
	o.answered(t, 1)
	p.grace = 50 * time.Millisecond
	p.Close(t.Context())
	if s := p.cmd.ProcessState.String(); s != "signal: terminated" {
		t.Errorf("ended with %s", s)
	}
	waitGone(t, pid)
}

func TestProcessCloseEndsTheGroup(t *testing.T) {
	noLeaks(t)
	self, _ := os.Executable()
	p, err := StartProcess(ProcessSpec{Command: "sh", Args: []string{"-c", `sleep 300 & exec "$0"`, self},
		Env: append(childEnviron("plain"), "PATH="+os.Getenv("PATH"))}, Limits{}, newOwner().events())
	if err != nil {
		t.Fatal(err)
	}
	pid := p.Stats().Pid
	p.Close(t.Context())
	waitGone(t, pid)
}

func TestKillAll(t *testing.T) {
	noLeaks(t)
	a, b := newOwner(), newOwner()
	pids := []int{startChild(t, "grandchild", Limits{}, a.events()).Stats().Pid, startChild(t, "plain", Limits{}, b.events()).Stats().Pid}
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("recovered %v", r)
			}
		}()
		defer OnPanic()
		panic("boom")
	}()
	for i, o := range []*owner{a, b} {
		if reason := closedWith(t, o); reason != "signal: killed" {
			t.Errorf("reason %q", reason)
		}
		waitGone(t, pids[i])
	}
}

func TestProcessEnvironmentAndErrors(t *testing.T) {
	noLeaks(t)
	o := newOwner()
	t.Setenv("SECRET", "x")
	p := startChild(t, "plain", Limits{}, o.events())
	send(t, p, sent(1, "env"))
	if got := string(o.answered(t, 1).Result); got != `"`+strings.Join(childEnviron("plain"), " ")+`"` {
		t.Errorf("environment %s", got)
	}
	dir := t.TempDir()
	_ = os.WriteFile(filepath.Join(dir, "tool"), []byte("text"), 0o644)
	for _, spec := range []ProcessSpec{
		{Command: "/nonexistent"}, {Command: "nonexistent"}, {Command: "tool", Env: []string{"PATH=" + dir}},
		{Command: "sh", Env: []string{"PATH="}}, {Command: "/bin/sh", Dir: "/nonexistent"},
	} {
		_, err := StartProcess(spec, Limits{}, o.events())
		if e, ok := errors.AsType[*Error](err); !ok || e.Kind != NotSent {
			t.Errorf("%v: got %v", spec, err)
		}
	}
}

func BenchmarkProcess(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		raw := sample(n)
		raw = AppendRequest(nil, []byte(`"a1"`), "x", Get(raw, "params"))
		b.Run(fmt.Sprint("peer/", n), func(b *testing.B) {
			got := make(chan Message, 1)
			p := startChild(b, "cat", Limits{}, Events{Message: func(m Message, _ uint64) { got <- m }})
			b.SetBytes(int64(n))
			for b.Loop() {
				if err := p.Send(Outgoing{Body: slices.Clone(raw)}); err != nil {
					b.Fatal(err)
				}
				<-got
			}
		})
		b.Run(fmt.Sprint("bytes/", n), func(b *testing.B) {
			self, _ := os.Executable()
			cmd := exec.Command(self)
			cmd.Env = []string{childEnv + "=cat"}
			w, _ := cmd.StdinPipe()
			r, _ := cmd.StdoutPipe()
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			defer cmd.Wait()
			defer w.Close()
			buf := make([]byte, len(raw))
			b.SetBytes(int64(n))
			for b.Loop() {
				if _, err := w.Write(raw); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(r, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
