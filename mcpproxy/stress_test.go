package mcpproxy

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

var (
	stressFor  = flag.Duration("stress", 2*time.Second, "how long the stress test lasts")
	stressSeed = flag.Uint64("stress-seed", 1, "of the stress test")
)

// badEnv makes the test binary a badserver on stdio.
const badEnv = "AGENTARMOR_TEST_BADSERVER"

func init() {
	if os.Getenv(badEnv) != "" {
		os.Exit(badserver.Main(nil, os.Stdin, os.Stdout, os.Stderr))
	}
}

// Whatever a server does to 50 clients at once, each request has one outcome,
// each outage costs one reconnect, and the server beside it notices nothing.
func TestStress(t *testing.T) {
	for _, protocol := range []string{"legacy", wire.Modern} {
		t.Run("http "+protocol, func(t *testing.T) {
			srv := &flakyHTTP{Server: badserver.New(badserver.Options{})}
			stress(t, UpstreamConfig{URL: srv.listen(t), Protocol: protocol}, []string{"echo", "echo", "echo", "sleep", "cut"}, srv.fault, srv.close)
			// A modern server is asked to discover after a lost call too.
			if n := srv.Count("initialize"); n > 1+srv.outages {
				t.Errorf("%d handshakes, want one per outage: %d", n, 1+srv.outages)
			}
		})
	}
	t.Run("stdio", func(t *testing.T) {
		cfg := UpstreamConfig{Command: os.Args[0], Env: map[string]string{badEnv: "1"}}
		in := stress(t, cfg, []string{"echo", "echo", "sleep"}, killChild, nil)
		if in.status().Restarts == 0 {
			t.Error("the process was never killed")
		}
	})
}

// stress lets 50 clients call tools of one upstream while fault spoils it.
func stress(t *testing.T, cfg UpstreamConfig, toolNames []string, fault func(*rand.Rand, *instance), done func()) *instance {
	leaks := goleak.IgnoreCurrent()
	bad := stressed(t, "bad", cfg)
	good := stressed(t, "good", UpstreamConfig{Command: os.Args[0], Env: map[string]string{badEnv: "1"}})
	ctx, cancel := context.WithTimeout(t.Context(), *stressFor)
	defer cancel()
	var clients sync.WaitGroup
	var all outcomes
	var ok, failed, wrong atomic.Int64
	for n := range 50 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(*stressSeed, uint64(n)))
			for ctx.Err() == nil {
				if all.call(ctx, t, bad, rng, toolNames) {
					ok.Add(1)
				} else {
					failed.Add(1)
					sleep(ctx, upTo(rng, 20*time.Millisecond))
				}
			}
		})
	}
	for n := range 4 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(*stressSeed, uint64(100+n)))
			for ctx.Err() == nil {
				if !all.call(context.WithoutCancel(ctx), t, good, rng, []string{"echo"}) {
					wrong.Add(1)
				}
				sleep(ctx, time.Millisecond)
			}
		})
	}
	rng := rand.New(rand.NewPCG(*stressSeed, 1000))
	for ctx.Err() == nil {
		sleep(ctx, 150*time.Millisecond+upTo(rng, 300*time.Millisecond))
		fault(rng, bad)
	}
	clients.Wait()
	if s := good.status(); wrong.Load() != 0 || s.State != health.Ready || s.Restarts != 0 {
		t.Errorf("the other upstream failed %d calls: %+v", wrong.Load(), s)
	}
	t.Logf("%d calls were answered, %d were not; %d restarts", ok.Load(), failed.Load(), bad.status().Restarts)
	if ok.Load() == 0 || failed.Load() == 0 {
		t.Error("nothing was put to the test")
	}
	bad.stop(context.Background())
	good.stop(context.Background())
	if done != nil {
		done()
	}
	for _, w := range all.all {
		if n := w.n.Load(); n != 1 {
			t.Errorf("a call has %d outcomes", n)
		}
	}
	if err := goleak.Find(leaks); err != nil {
		t.Error(err)
	}
	return bad
}

func upTo(rng *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(d)))
}

// stressed starts an instance that comes back fast.
func stressed(t *testing.T, name string, cfg UpstreamConfig) *instance {
	t.Helper()
	cfg.Name = name
	in := newInstance(instanceOptions{cfg: &cfg, lists: true})
	in.backoff = backoff{base: 20 * time.Millisecond, max: 200 * time.Millisecond}
	in.start(t.Context())
	if _, err := in.await(t.Context()); err != nil {
		t.Fatal(err)
	}
	return in
}

// outcomes are those of all calls of a test; each must have n 1 in the end.
type outcomes struct {
	mu  sync.Mutex
	all []*once
}

func (o *outcomes) add() *once {
	w := &once{done: make(chan *wire.Error, 1)}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, w)
	return w
}

// once is a waiter that counts its outcomes.
type once struct {
	n    atomic.Int32
	done chan *wire.Error
}

func (o *once) answered(wire.Message) { o.settle(nil) }
func (o *once) failed(e *wire.Error)  { o.settle(e) }

func (o *once) settle(e *wire.Error) {
	if o.n.Add(1) == 1 {
		o.done <- e
	}
}

// call makes one call as the router does, and tells whether it was
// answered, or given up by its client.
func (o *outcomes) call(ctx context.Context, t *testing.T, in *instance, rng *rand.Rand, toolNames []string) bool {
	c, err := in.await(ctx)
	if err != nil {
		return false
	}
	w := o.add()
	id := c.begin(w)
	name := toolNames[rng.IntN(len(toolNames))]
	params := fmt.Appendf(nil, `{"name":%q,"arguments":{"text":"x","ms":5}}`, name)
	out := wire.Outgoing{ID: id, Method: "tools/call", Name: name, Body: c.request(id, "tools/call", params)}
	if e := c.send(out); e != nil {
		in.suspect(c, e)
		w.n.Add(1)
		return false
	}
	var gone <-chan time.Time
	if rng.IntN(20) == 0 {
		gone = time.After(upTo(rng, 2*time.Millisecond))
	}
	var e *wire.Error
	select {
	case e = <-w.done:
	case <-gone:
		if c.forget(id) {
			c.cancel(id, "enough")
			w.n.Add(1) // an outcome from now on is one too many
			return true
		}
		e = <-w.done
	case <-time.After(30 * time.Second):
		t.Errorf("%s over connection %d has no outcome", name, c.gen)
		return false
	}
	switch {
	case e == nil:
	case e.Kind == wire.SessionLost:
		_, _ = in.renew(c) // the next call finds out
	default:
		in.suspect(c, e)
	}
	return e == nil
}

// flakyHTTP is a badserver that stops, forgets, refuses and comes back.
type flakyHTTP struct {
	*badserver.Server
	addr    string
	http    *http.Server
	outages int
}

// listen opens the address, the same each time, and returns the URL.
func (f *flakyHTTP) listen(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = l.Addr().String()
	f.serve(l)
	return "http://" + f.addr + "/mcp"
}

func (f *flakyHTTP) serve(l net.Listener) {
	f.http = &http.Server{Handler: f}
	go func(s *http.Server) { _ = s.Serve(l) }(f.http) // Close ends it
}

func (f *flakyHTTP) close() {
	f.Server.Close()
	_ = f.http.Close()
}

func (f *flakyHTTP) fault(rng *rand.Rand, _ *instance) {
	switch rng.IntN(10) {
	case 0, 1, 2: // a restart
		f.outages++
		_ = f.http.Close()
		f.Forget()
		time.Sleep(upTo(rng, 100*time.Millisecond))
		for range 100 {
			l, err := net.Listen("tcp", f.addr)
			if err == nil {
				f.serve(l)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		panic("the address is taken")
	case 3, 4, 5, 6:
		f.outages++
		f.Forget()
	case 7: // for a second at least
		f.Fail(429, 1)
	default: // for long enough that the exchange after a lost call may meet it
		f.outages++
		f.Fail(503, 3)
	}
}

// A legacy server that forgets or goes away while nobody calls is found out by
// the end of its GET stream.
func TestIdleOutageIsNoticed(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	srv := &flakyHTTP{Server: badserver.New(badserver.Options{Era: "legacy"})}
	in := stressed(t, "idle", UpstreamConfig{URL: srv.listen(t), Protocol: "legacy"})
	until := func(what string, cond func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !cond(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not %s: %+v", what, in.status())
			}
		}
	}
	ready := func() bool { return in.status().State == health.Ready }
	until("ready", ready)
	time.Sleep(50 * time.Millisecond) // the GET stream opens
	srv.Forget()
	until("a new session", func() bool { return srv.Count("initialize") == 2 && ready() })
	time.Sleep(50 * time.Millisecond)
	srv.close()
	until("down", func() bool { return in.status().State == health.Down })
	in.stop(context.Background())
	if err := goleak.Find(leaks); err != nil {
		t.Error(err)
	}
}

// killChild ends the process of an instance, if it has one.
func killChild(_ *rand.Rand, in *instance) {
	if pid := in.status().Pid; pid > 0 {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill() // it may have left
		}
	}
}
