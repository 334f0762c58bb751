package mcpproxy

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/fixtures/badserver"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// behindChaos starts a real upstream with faults, and returns its first connection; stop ends both.
func behindChaos(t *testing.T, inj *chaos.Injector, u UpstreamConfig) (in *instance, first *conn, stop func()) {
	t.Helper()
	p, err := New(Config{Chaos: inj, Upstreams: []UpstreamConfig{u}})
	if err != nil {
		t.Fatal(err)
	}
	p.Start(t.Context())
	stop = func() {
		inj.Close()
		p.Close(context.Background())
	}
	in = p.upstream(u.Name).shared
	if first, err = in.await(t.Context()); err != nil {
		stop()
		t.Fatal(err)
	}
	return in, first, stop
}

// A process really dies, is reaped, and another one serves soon.
func TestKillIsReal(t *testing.T) {
	inj := chaos.New(chaos.Options{Enabled: true})
	in, first, stop := behindChaos(t, inj, UpstreamConfig{Name: "proc", Command: os.Args[0], Env: map[string]string{badEnv: "1"}})
	defer stop()
	pid := first.peer.Stats().Pid
	inj.Watch(chaos.Watcher{Targets: func() []string { return []string{"mcp/proc/echo"} }})
	inject(t, inj, chaos.Spec{Target: "mcp/proc/echo", Fault: chaos.Kill, Count: 1})
	_, err := first.call(t.Context(), "tools/call", []byte(`{"name":"echo","arguments":{}}`))
	e, ok := errors.AsType[*wire.Error](err)
	if by, marked := errors.AsType[*chaos.Injected](err); !ok || e.Kind != wire.Lost || !marked || by.Fault != chaos.Kill {
		t.Fatalf("%v", err)
	}
	<-first.done
	if process, err := os.FindProcess(pid); err == nil && process.Signal(syscall.Signal(0)) == nil {
		t.Error("the process is still there")
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if c := in.live(); c != nil && c != first {
			if _, err := c.call(t.Context(), "tools/call", []byte(`{"name":"echo","arguments":{}}`)); err != nil {
				t.Error(err)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatal("nothing has come after it")
		}
	}
}

// The same over real HTTP, where the server is not ours.
func TestFaultsOverHTTP(t *testing.T) {
	for _, kind := range []string{"http", "sse"} {
		for fault, want := range map[chaos.Kind]wire.ErrorKind{chaos.Kill: wire.Lost, chaos.Drop: wire.Lost, chaos.Error: wire.HTTPStatus, chaos.Corrupt: wire.Malformed} {
			t.Run(fmt.Sprint(kind, " ", fault), func(t *testing.T) {
				defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
				web := httptest.NewServer(badserver.New(badserver.Options{}))
				defer web.Close()
				inj := chaos.New(chaos.Options{Enabled: true})
				path := map[string]string{"http": "/mcp", "sse": "/sse"}[kind]
				in, first, stop := behindChaos(t, inj, UpstreamConfig{Name: "web", URL: web.URL + path, Protocol: "legacy"})
				defer stop()
				inj.Watch(chaos.Watcher{Targets: func() []string { return []string{"mcp/web/echo"} }})
				inject(t, inj, chaos.Spec{Target: "mcp/web/echo", Fault: fault, Count: 1})
				echo := []byte(`{"name":"echo","arguments":{}}`)
				if fault == chaos.Corrupt { // the real one
					_, err := first.call(t.Context(), "tools/call", []byte(`{"name":"badjson","arguments":{}}`))
					if e, ok := errors.AsType[*wire.Error](err); !ok || e.Kind != want {
						t.Fatalf("%v", err)
					}
				}
				_, err := first.call(t.Context(), "tools/call", echo)
				e, ok := errors.AsType[*wire.Error](err)
				if by, marked := errors.AsType[*chaos.Injected](err); !ok || e.Kind != want || !marked || by.Fault != fault {
					t.Fatalf("%v", err)
				}
				for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
					if c := in.live(); c != nil {
						if m, err := c.call(t.Context(), "tools/call", echo); err == nil && m.Result != nil {
							return
						}
					}
				}
				t.Error("it has not recovered")
			})
		}
	}
}

// Over real stdio what is garbage or cut fails its call at once and as the same
// failure as a server's own, and the process serves on.
func TestSpoiltAnswersOverStdio(t *testing.T) {
	for _, protocol := range []string{"legacy", wire.Modern} {
		for _, fault := range []chaos.Kind{chaos.Corrupt, chaos.Truncate} {
			t.Run(fmt.Sprint(protocol, " ", fault), func(t *testing.T) {
				defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
				// Both answer every call at once, and no timeout is this long.
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				inj := chaos.New(chaos.Options{Enabled: true})
				p, err := New(Config{Chaos: inj, Upstreams: []UpstreamConfig{
					{Name: "proc", Command: os.Args[0], Env: map[string]string{badEnv: "1"}, Protocol: protocol},
					{Name: "cut", Command: os.Args[0], Env: map[string]string{echoEnv: "cut"}, Protocol: "legacy"},
				}})
				if err != nil {
					t.Fatal(err)
				}
				p.Start(t.Context())
				defer p.Close(context.Background())
				defer inj.Close()
				connected := func(name string) *conn {
					c, err := p.upstream(name).shared.await(ctx)
					if err != nil {
						t.Fatal(err)
					}
					return c
				}
				call := func(c *conn, tool, arguments string) error {
					_, err := c.call(ctx, "tools/call", fmt.Appendf(nil, `{"name":%q,"arguments":%s}`, tool, arguments))
					return err
				}
				proc := connected("proc")
				pid := proc.peer.Stats().Pid
				var real error
				if fault == chaos.Truncate {
					real = call(connected("cut"), "echo", `{"text":"long enough to be cut"}`)
				} else {
					if err := call(proc, "fault", `{"kind":"garbage","tool":"echo","count":1}`); err != nil {
						t.Fatal(err)
					}
					real = call(proc, "echo", `{}`)
				}
				inj.Watch(chaos.Watcher{Targets: func() []string { return []string{"mcp/proc/echo"} }})
				inject(t, inj, chaos.Spec{Target: "mcp/proc/echo", Fault: fault, Count: 1})
				injected := call(proc, "echo", `{}`)
				want, ok1 := errors.AsType[*wire.Error](real)
				got, ok2 := errors.AsType[*wire.Error](injected)
				if !ok1 || !ok2 || want.Kind != wire.Malformed || got.Kind != want.Kind || got.Status != want.Status {
					t.Fatalf("real %v, injected %v", real, injected)
				}
				if injectedByChaos(real) != "" || injectedByChaos(injected) != string(fault) {
					t.Errorf("marked: real %q, injected %q", injectedByChaos(real), injectedByChaos(injected))
				}
				if err := call(proc, "echo", `{}`); err != nil || connected("proc") != proc || proc.peer.Stats().Pid != pid {
					t.Errorf("the process does not serve on: %v", err)
				}
			})
		}
	}
}

// injectedByChaos is the kind of the fault that made an error, "" if none did.
func injectedByChaos(err error) string {
	if by, ok := errors.AsType[*chaos.Injected](err); ok {
		return string(by.Fault)
	}
	return ""
}
