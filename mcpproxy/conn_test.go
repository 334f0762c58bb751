package mcpproxy

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// counted is a waiter that counts.
type counted struct {
	mu    sync.Mutex
	calls int
	err   *wire.Error
}

func (w *counted) answered(wire.Message) { w.add(nil) }
func (w *counted) failed(err *wire.Error) {
	w.add(err)
}

func (w *counted) add(err *wire.Error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	w.err = err
}

// nullPeer takes everything and says nothing.
type nullPeer struct{ fakePeer }

func (*nullPeer) Send(wire.Outgoing) error { return nil }

func testConn(p wire.Peer) *conn {
	c := newConn(newInstance(instanceOptions{cfg: &UpstreamConfig{Name: "u", Command: "x"}}), "stdio")
	c.attach(p)
	c.open()
	return c
}

func TestEachWaiterIsToldOnce(t *testing.T) {
	c := testConn(&nullPeer{})
	answered, forgotten, dead := &counted{}, &counted{}, &counted{}
	a, f, d := c.begin(answered), c.begin(forgotten), c.begin(dead)
	if a == f || c.pending() != 3 {
		t.Fatalf("ids %d %d, pending %d", a, f, c.pending())
	}
	c.answer(a, wire.Message{})
	c.answer(a, wire.Message{})
	if !c.forget(f) || c.forget(f) || c.forget(a) {
		t.Error("forget does not tell who was pending")
	}
	c.answer(f, wire.Message{})
	c.died(errors.New("exit status 1"))
	c.failed(d, &wire.Error{})
	if answered.calls != 1 || forgotten.calls != 0 || dead.calls != 1 || dead.err == nil {
		t.Errorf("told %d, %d, %d times", answered.calls, forgotten.calls, dead.calls)
	}
}

func TestSendOnAGoneConn(t *testing.T) {
	c := testConn(&nullPeer{})
	early := &counted{}
	before := c.begin(early)
	c.died(errors.New("exit status 1"))
	// It began before the end and was told: send must not tell it again.
	if err := c.send(wire.Outgoing{ID: before}); err != nil || early.calls != 1 {
		t.Errorf("send: %v, told %d times", err, early.calls)
	}
	w := &counted{}
	err := c.send(wire.Outgoing{ID: c.begin(w)})
	if err == nil || err.Kind != wire.NotSent || w.calls != 0 || c.pending() != 0 {
		t.Errorf("send: %v, told %d times, pending %d", err, w.calls, c.pending())
	}
}

// errPeer refuses every message.
type errPeer struct {
	fakePeer
	err error
}

func (p *errPeer) Send(wire.Outgoing) error { return p.err }

func TestSendErrorIsTheAnswer(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want wire.ErrorKind
	}{
		{errors.New("queue full"), wire.NotSent},
		{&wire.Error{Kind: wire.TooLarge}, wire.TooLarge},
	} {
		c := testConn(&errPeer{err: tt.err})
		w := &counted{}
		if err := c.send(wire.Outgoing{ID: c.begin(w)}); err == nil || err.Kind != tt.want || w.calls != 0 || c.pending() != 0 {
			t.Errorf("send: %+v, told %d times", err, w.calls)
		}
	}
}

func TestCancelSpeaksTheTransport(t *testing.T) {
	for _, tt := range []struct {
		transport string
		modern    bool
		want      int // notifications/cancelled
	}{{"stdio", false, 1}, {"stdio", true, 1}, {"http", false, 1}, {"http", true, 0}, {"sse", false, 1}} {
		srv := newLegacyServer()
		p, _ := srv.dial(t.Context(), tt.transport, wire.Events{})
		c := testConn(p)
		c.transport, c.modern = tt.transport, tt.modern
		c.cancel(c.begin(&counted{}), `say "why"`)
		got := srv.peer().sent("notifications/cancelled")
		if len(got) != tt.want || len(srv.peer().cancelled) != 1 || c.pending() != 0 {
			t.Errorf("%s, modern %v: %s, %v", tt.transport, tt.modern, got, srv.peer().cancelled)
		}
		if len(got) == 1 && got[0] != `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a1","reason":"say \"why\""}}` {
			t.Error(got[0])
		}
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.silent("tools/call")
		p, _ := srv.dial(t.Context(), "stdio", wire.Events{})
		c := testConn(p)
		why := errors.New("budget")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
		defer cancel()
		_, err := c.call(ctx, "tools/call", nil)
		if !errors.Is(err, why) || c.pending() != 0 || len(srv.peer().sent("notifications/cancelled")) != 1 {
			t.Errorf("call: %v, pending %d", err, c.pending())
		}
	})
}

func TestDrain(t *testing.T) {
	c := testConn(&nullPeer{})
	<-c.drain()
	id := c.begin(&counted{})
	drained := c.drain()
	select {
	case <-drained:
		t.Fatal("drained with a request under way")
	default:
	}
	c.forget(id)
	<-drained
}

func BenchmarkConn(b *testing.B) {
	c := testConn(&nullPeer{})
	w := &counted{}
	m := wire.Message{Result: []byte(`{}`)}
	b.ReportAllocs()
	for b.Loop() {
		id := c.begin(w)
		if err := c.send(wire.Outgoing{ID: id}); err != nil {
			b.Fatal(err)
		}
		c.answer(id, m)
	}
}
