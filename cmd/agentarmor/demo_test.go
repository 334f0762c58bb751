package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/client"
	"go.uber.org/goleak"

	"github.com/agentarmor/agentarmor/fixtures/fakellm"
	"github.com/agentarmor/agentarmor/llm"
)

// Without its servers the first step fails: the story ends there, says why, and
// the exit status tells.
func TestDemoFails(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("time is over"))
	defer cancel()
	var out bytes.Buffer
	a := &app{env: mapEnv(nil), stdout: &out, stderr: io.Discard}
	err := a.demo(ctx, demoFlags{keep: true, listen: "127.0.0.1:0", fixture: filepath.Join(t.TempDir(), "none")})
	if got := report(io.Discard, err); got != 1 {
		t.Errorf("exit status %d: %v", got, err)
	}
	want := regexp.MustCompile(`(?m)^ 1\. the tools of both servers are listed: FAILED \([\d.]+m?s\)\n    .*time is over.*(files|search) is down`)
	if !want.Match(out.Bytes()) || strings.Contains(out.String(), "\n 2. ") || strings.Contains(out.String(), "mid-") || strings.Contains(out.String(), "stays up") {
		t.Errorf("%s", out.String())
	}
}

// serverlessDemo is a client of the demo's endpoint, whose servers do not start.
func serverlessDemo(t *testing.T) *client.Client {
	t.Helper()
	w, err := newDemoWorld(t.Context(), demoFlags{fixture: filepath.Join(t.TempDir(), "none")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	c, err := connect(t.Context(), w.url(), "", "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// A fault that does not show is a step that fails.
func TestDemoNeedsItsFaults(t *testing.T) {
	d := &demonstration{demoClient: demoClient{client: serverlessDemo(t)}, paint: plain}
	if _, _, err := d.ask(t.Context(), "gemini"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		step func(context.Context) (string, error)
		want string
	}{
		{func(ctx context.Context) (string, error) { return d.failover(ctx, "closed") }, "groq was to answer"},
		{d.broken, "it lists []"},
		{func(ctx context.Context) (string, error) { return d.clear(ctx, "error", 2) }, `no fault`},
		{d.kill, "files has no process"},
		{d.well, "not everything is ready"},
	} {
		if text, err := c.step(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	gemini := map[string]any{"target": "llm/gemini", "fault": "error", "status": 500, "ttl": "30s"}
	if _, err := d.inject(t.Context(), gemini); err != nil {
		t.Fatal(err)
	}
	if text, err := d.failover(t.Context(), "closed"); err == nil || !strings.Contains(err.Error(), "not Gemini's, with the injected fault") {
		t.Errorf("%s: %v", text, err)
	}
}

// A failure is told, and ends the story.
func TestDemoTells(t *testing.T) {
	var out bytes.Buffer
	d := &demonstration{app: &app{stdout: &out}, paint: marked}
	step := func(text string, err error) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return text, err }
	}
	d.chapter("One")
	d.try(t.Context(), "first", step("a\n\nb\n", nil))
	d.try(t.Context(), "second", step("seen", errors.New("un\x1bwanted")))
	d.try(t.Context(), "third", step("", nil))
	d.chapter("Two")
	got := regexp.MustCompile(`\([\d.]+\S+\)`).ReplaceAllString(out.String(), "(T)")
	want := "\n<1:One>\n 1. first: <32:ok> <2:(T)>\n    a\n\n    b\n 2. second: <31:FAILED> <2:(T)>\n    seen\n    <31:un wanted>\n"
	if diff := cmp.Diff(want, got); diff != "" || !d.failed {
		t.Error(diff)
	}
}

// What ends a story from outside is told, rather than what that looks like to a client.
func TestDemoTellsWhoEndedIt(t *testing.T) {
	late, stop := context.WithTimeoutCause(t.Context(), 0, errTooLong)
	defer stop()
	gone, leave := context.WithCancel(t.Context())
	leave()
	for want, ctx := range map[string]context.Context{"longer than 30s: lost": late, "    interrupted\n": gone} {
		var out bytes.Buffer
		d := &demonstration{app: &app{stdout: &out}, paint: plain}
		d.try(ctx, "step", func(context.Context) (string, error) { return "", errors.New("lost") })
		if !strings.Contains(out.String(), want) {
			t.Errorf("not %q but %s", want, out.String())
		}
	}
}

func TestDemoAccount(t *testing.T) {
	d := &demonstration{paint: marked}
	got := d.account(&llm.Trace{Attempts: []llm.Attempt{
		{Provider: "a", Skipped: llm.SkipOpen, Next: "asks b"},
		{Provider: "b", Class: llm.ClassOverloaded, Status: 503, Injected: "f1", BreakerBefore: "closed", BreakerAfter: "open", LatencyMS: 1.5, Next: "asks c"},
		{Provider: "c", Class: llm.ClassOK, Status: 200, BreakerBefore: "half_open", LatencyMS: 20, Next: "answered"},
	}})
	want := "" +
		"<2:PROVIDER>  <2:OUTCOME>                                <2:BREAKER>     <2:TOOK>  <2:THEN>\n" +
		"<1:a>         <33:not asked: open>                        <2:->            0ms  asks b\n" +
		"<1:b>         <31:overloaded (HTTP 503), injected by f1>  <31:open>       1.5ms  asks c\n" +
		"<1:c>         <32:ok (HTTP 200)>                          <33:half-open>   20ms  answered\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The fakes know only what they are told.
func TestDemoModelsNeedTheConversation(t *testing.T) {
	for body, want := range map[string]string{
		"Where do I fly?": "You have not told me.",
		"I fly to Lisbon on Friday. Noted: … Where do I fly?":                      "To Lisbon.",
		"I fly to Lisbon on Friday. Noted: … Where do I fly? To Lisbon. And when?": "On Friday.",
	} {
		if got := converse(&fakellm.Request{Body: []byte(body)}).Text; got != want {
			t.Errorf("%s %s", body, got)
		}
	}
}

// What was opened before something failed is closed.
func TestDemoThatDoesNotOpen(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	if _, err := newDemoWorld(t.Context(), demoFlags{listen: "here", fixture: "none"}); err == nil {
		t.Error("it is open")
	}
}

// The address that is printed for clients does not change without need.
func TestDemoListens(t *testing.T) {
	for addr, want := range map[string]string{"here": "--listen: must be host:port", "0.0.0.0:0": "on loopback only"} {
		if _, err := (&demoFlags{listen: addr}).open(); err == nil || !strings.Contains(err.Error(), want) || report(io.Discard, err) != 2 {
			t.Errorf("%s: %v", addr, err)
		}
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if _, err := (&demoFlags{listen: taken.Addr().String()}).open(); err == nil || !strings.Contains(err.Error(), "choose another address with --listen") {
		t.Error(err)
	}
	first, err := (&demoFlags{keep: true}).open()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := (&demoFlags{keep: true}).open()
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if free := first.Addr().String(); free != defaultListen {
		t.Logf("%s is taken, so it is %s", defaultListen, free)
	}
	if second.Addr().String() == defaultListen {
		t.Error("one address for two")
	}
}

// Colours are for terminals only, and not for those who do not want them.
func TestColours(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminal here: ", err)
	}
	defer terminal.Close()
	t.Setenv("NO_COLOR", "")
	if got := colours(terminal)(green, "x"); got != "\x1b[32mx\x1b[0m" {
		t.Errorf("on a terminal: %q", got)
	}
	if got := colours(&bytes.Buffer{})(green, "x"); got != "x" {
		t.Errorf("into a pipe: %q", got)
	}
	t.Setenv("NO_COLOR", "1")
	if got := colours(terminal)(green, "x"); got != "x" {
		t.Errorf("with NO_COLOR: %q", got)
	}
}
