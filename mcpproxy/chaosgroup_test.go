//go:build unix

package mcpproxy

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// What ends a process ends all that it has started, although a child of its own
// holds its pipes open, and another process with a child of its own serves soon.
func TestKillTakesTheGroup(t *testing.T) {
	for _, fault := range []chaos.Kind{chaos.Kill, chaos.Drop, chaos.Flap} {
		t.Run(string(fault), func(t *testing.T) {
			fifo := filepath.Join(t.TempDir(), "held")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			inj := chaos.New(chaos.Options{Enabled: true})
			p, err := New(Config{Chaos: inj, Upstreams: []UpstreamConfig{{
				Name: "proc", Command: "/bin/sh", Args: []string{"-c", `sleep 100 3>"$HELD" & exec "$SELF"`},
				Env: map[string]string{badEnv: "1", "SELF": os.Args[0], "HELD": fifo},
			}}})
			if err != nil {
				t.Fatal(err)
			}
			p.Start(t.Context())
			defer p.Close(context.Background())
			defer inj.Close()
			held, err := os.Open(fifo) // when the grandchild has opened it, too
			if err != nil {
				t.Fatal(err)
			}
			defer held.Close()
			in := p.upstream("proc").shared
			first, err := in.await(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := ends(held, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("the grandchild is not there: %v", err)
			}
			inj.Watch(chaos.Watcher{Targets: func() []string { return []string{"mcp/proc/echo"} }})
			inject(t, inj, chaos.Spec{Target: "mcp/proc/echo", Fault: fault, Count: 1})
			_, err = first.call(t.Context(), "tools/call", []byte(`{"name":"echo","arguments":{}}`))
			if e, ok := errors.AsType[*wire.Error](err); !ok || e.Kind != wire.Lost {
				t.Fatalf("%v", err)
			}
			if err := ends(held, 30*time.Second); !errors.Is(err, io.EOF) {
				t.Errorf("the grandchild is still there: %v", err)
			}
			again, err := os.Open(fifo) // the one of the next process
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for {
				c, err := in.await(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if c == first { // its end has not been seen to yet
					time.Sleep(10 * time.Millisecond)
					continue
				}
				if _, err := c.call(ctx, "tools/call", []byte(`{"name":"echo","arguments":{}}`)); err != nil {
					t.Error(err)
				}
				return
			}
		})
	}
}

// ends waits until nobody holds the other end of a pipe any more: io.EOF. That is
// the end of a process even before it is reaped.
func ends(f *os.File, within time.Duration) error {
	if err := f.SetReadDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	_, err := f.Read(make([]byte, 1))
	return err
}
