package mcpproxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A server that hangs, is full or has an open breaker costs the calls of
// another no time at all: in a bubble, where only waiting takes time.
func TestOneUpstreamNeverWaitsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, good := newScripted(), newScripted()
		r := newRig(t, Config{Upstreams: []UpstreamConfig{
			{Name: "bad", Command: "fake", Protocol: "legacy", Queue: new(4)},
			{Name: "good", Command: "fake", Protocol: "legacy"},
		}}, map[string]*fakeServer{"bad": bad.fakeServer, "good": good.fakeServer})
		defer r.end()
		c := r.client(`{}`)
		call := func(name string) *testStream {
			return c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{}}}`, lastCallID.Add(1), name))
		}
		answered := func(while string) {
			t.Helper()
			began := time.Now()
			for range 50 {
				wantPart(t, call("good__plain").text(), `"fine"`)
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("while %s: 50 calls took %v", while, took)
			}
		}
		bad.does("plain", hangs)
		bad.silent("ping")
		bad.silent("tools/list")
		for range 30 {
			call("bad__plain")
		}
		answered("calls hang and the queue is full")
		settle(61 * time.Second)
		answered("its tool's breaker is open")
		settle(16 * time.Second)
		answered("it is down")
		for range 5 {
			bad.peer().exit("crashed")
			answered("it crashes")
			settle(3 * time.Second)
		}
	})
}

// BenchmarkIsolation reports the latency of calls to a healthy server: alone,
// beside one that answers nothing although 16 calls to it are under way and 64
// wait, and beside one whose breaker is open and is called all the time.
func BenchmarkIsolation(b *testing.B) {
	for _, beside := range []string{"alone", "hanging", "open"} {
		b.Run(beside, func(b *testing.B) {
			p, err := New(Config{OneClient: true, Upstreams: []UpstreamConfig{
				{Name: "bad", Command: os.Args[0], Env: map[string]string{echoEnv: "hang"}, Protocol: "legacy"},
				{Name: "up", Command: os.Args[0], Env: map[string]string{echoEnv: "1"}, Protocol: "legacy"},
			}})
			if err != nil {
				b.Fatal(err)
			}
			p.Start(b.Context())
			defer p.Close(context.Background())
			inR, inW, _ := os.Pipe()
			outR, outW, _ := os.Pipe()
			served := make(chan error, 1)
			ctx, leave := context.WithCancel(context.Background())
			go func() { served <- p.ServeStdio(ctx, inR, outW) }()
			defer func() { leave(); <-served }()
			took := newTimes(b, inW, outR)
			took.call("up__echo")
			p.upstream("bad").shared.await(b.Context())
			switch beside {
			case "hanging":
				for range 80 {
					took.start("bad__echo")
				}
			case "open":
				p.upstream("bad").guard.tool("echo").breaker.Trip()
			}
			for b.Loop() {
				if beside == "open" {
					took.call("bad__echo")
				}
				took.add(took.call("up__echo"))
			}
			took.report()
		})
	}
}

// times are the latencies of calls over a pair of pipes.
type times struct {
	b    *testing.B
	w    io.Writer
	in   *bufio.Reader
	id   int
	took []time.Duration
}

func newTimes(b *testing.B, w io.Writer, r io.Reader) *times {
	t := &times{b: b, w: w, in: bufio.NewReaderSize(r, 256<<10)}
	t.write(`{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
	t.answer(`"hello"`)
	t.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return t
}

func (t *times) write(line string) {
	if _, err := io.WriteString(t.w, line+"\n"); err != nil {
		t.b.Fatal(err)
	}
}

func (t *times) start(tool string) string {
	t.id++
	t.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{"text":"x"}}}`, t.id, tool))
	return fmt.Sprint(t.id)
}

// answer reads up to the answer to a request.
func (t *times) answer(id string) {
	for {
		line, err := t.in.ReadString('\n')
		if err != nil {
			t.b.Fatal(err)
		}
		if strings.Contains(line, `"id":`+id+`,`) {
			return
		}
	}
}

func (t *times) call(tool string) time.Duration {
	began := time.Now()
	t.answer(t.start(tool))
	return time.Since(began)
}

func (t *times) add(d time.Duration) { t.took = append(t.took, d) }

func (t *times) report() {
	slices.Sort(t.took)
	at := func(q float64) float64 {
		return float64(t.took[int(q*float64(len(t.took)-1))].Microseconds())
	}
	t.b.ReportMetric(at(0.5), "p50-µs")
	t.b.ReportMetric(at(0.99), "p99-µs")
}
