package wire

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// outcome is how one request ended for its owner.
type outcome struct {
	msg  Message
	fail *Error
}

// owner is the other side of a Peer: it keeps what Events tell it.
type owner struct {
	mu       sync.Mutex
	change   chan struct{} // closed and replaced at every event
	outcomes map[uint64][]outcome
	messages []string // "<via> <method>", in order
	closed   []error
	troubles []error
	over     bool // Close has returned
	late     int  // events after that
}

func newOwner() *owner {
	return &owner{change: make(chan struct{}), outcomes: map[uint64][]outcome{}}
}

func (o *owner) note(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
	if o.over {
		o.late++
	}
	close(o.change)
	o.change = make(chan struct{})
}

func (o *owner) events() Events {
	return Events{
		Answer: func(id uint64, m Message) {
			o.note(func() { o.outcomes[id] = append(o.outcomes[id], outcome{msg: m}) })
		},
		Failed: func(id uint64, e *Error) {
			o.note(func() { o.outcomes[id] = append(o.outcomes[id], outcome{fail: e}) })
		},
		Message: func(m Message, via uint64) {
			o.note(func() { o.messages = append(o.messages, fmt.Sprint(via, " ", m.Method)) })
		},
		Closed:  func(err error) { o.note(func() { o.closed = append(o.closed, err) }) },
		Trouble: func(e *Error) { o.note(func() { o.troubles = append(o.troubles, e) }) },
	}
}

// until waits for cond, which runs under the lock.
func (o *owner) until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		o.mu.Lock()
		ok, change := cond(), o.change
		o.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-change:
		case <-deadline:
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

// end waits for the outcome of request id.
func (o *owner) end(t *testing.T, id uint64) outcome {
	t.Helper()
	o.until(t, fmt.Sprint("the outcome of request ", id), func() bool { return len(o.outcomes[id]) > 0 })
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.outcomes[id][0]
}

// answered and failed are end for tests that know which it must be.
func (o *owner) answered(t *testing.T, id uint64) Message {
	t.Helper()
	e := o.end(t, id)
	if e.fail != nil {
		t.Fatalf("request %d failed: kind %d, %v", id, e.fail.Kind, e.fail)
	}
	return e.msg
}

func (o *owner) failed(t *testing.T, id uint64, kind ErrorKind) *Error {
	t.Helper()
	e := o.end(t, id)
	if e.fail == nil {
		t.Fatalf("request %d was answered: %s%s", id, e.msg.Result, e.msg.Error)
	}
	if e.fail.Kind != kind {
		t.Fatalf("request %d failed with kind %d, want %d: %v", id, e.fail.Kind, kind, e.fail)
	}
	return e.fail
}

// sent returns request id.
func sent(id uint64, method string) Outgoing {
	return Outgoing{ID: id, Method: method, Body: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"a%d","method":%q}`, id, method)}
}

func notice(method string) Outgoing {
	return Outgoing{Method: method, Body: fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q}`, method)}
}

func send(t *testing.T, p Peer, all ...Outgoing) {
	t.Helper()
	for _, o := range all {
		if err := p.Send(o); err != nil {
			t.Fatalf("Send(%s): %v", o.Method, err)
		}
	}
}

// noLeaks fails the test if it leaves goroutines behind.
func noLeaks(t *testing.T) {
	old := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, old) })
}

// serve starts an HTTP server for one test.
func serve(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL
}

// behave is the server that testPeer expects behind a peer: say writes one
// message to the client. It returns false to break the connection.
func behave(ctx context.Context, m Message, say func(string)) bool {
	answer := func() { say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"method":%q}}`, m.ID, m.Method)) }
	switch m.Method {
	case "chatty":
		for i := range 3 {
			say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"note/%d"}`, i))
		}
		say(`{"jsonrpc":"2.0","id":"a1","method":"question"}`) // an id of the server's own
		answer()
	case "silent":
		<-ctx.Done()
	case "die":
		return false
	default:
		if m.ID != nil && m.Method != "" {
			answer()
		}
	}
	return true
}

// testPeer holds for every Peer whose server is behave.
func testPeer(t *testing.T, dial func(t *testing.T, l Limits, ev Events) Peer) {
	run := func(name string, f func(t *testing.T, p Peer, o *owner)) {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			o := newOwner()
			p := dial(t, Limits{}, o.events())
			f(t, p, o)
			p.Close(t.Context())
			o.mu.Lock()
			o.over = true
			o.mu.Unlock()
			p.Close(t.Context())
			if err := p.Send(sent(999, "x")); err == nil {
				t.Error("Send after Close: no error")
			}
			for _, id := range slices.Sorted(maps.Keys(o.outcomes)) {
				if n := len(o.outcomes[id]); n != 1 {
					t.Errorf("request %d ended %d times", id, n)
				}
			}
			if o.late != 0 || o.outcomes[999] != nil {
				t.Errorf("%d events after Close", o.late)
			}
		})
	}
	run("parallel", func(t *testing.T, p Peer, o *owner) {
		for id := uint64(1); id <= 100; id++ {
			send(t, p, sent(id, fmt.Sprint("m", id)))
		}
		for id := uint64(1); id <= 100; id++ {
			if got, want := string(o.answered(t, id).Result), fmt.Sprintf(`{"method":"m%d"}`, id); got != want {
				t.Errorf("answer of %d: %s", id, got)
			}
		}
	})
	run("messages before the answer", func(t *testing.T, p Peer, o *owner) {
		send(t, p, sent(7, "chatty"))
		o.answered(t, 7)
		var got []string
		for _, m := range o.messages {
			got = append(got, m[strings.IndexByte(m, ' ')+1:])
		}
		if want := []string{"note/0", "note/1", "note/2", "question"}; !slices.Equal(got, want) {
			t.Errorf("messages %q, want %q", got, want)
		}
	})
	run("cancel", func(t *testing.T, p Peer, o *owner) {
		send(t, p, sent(1, "silent"))
		p.Cancel(1)
		p.Cancel(1)
		p.Cancel(77)
		send(t, p, sent(2, "echo"))
		o.answered(t, 2)
		if o.outcomes[1] != nil {
			t.Error("the cancelled request has an outcome")
		}
	})
	run("close ends what is under way", func(t *testing.T, p Peer, o *owner) {
		send(t, p, sent(1, "silent"), sent(2, "echo"))
		o.answered(t, 2)
		p.Close(t.Context())
		if e := o.end(t, 1).fail; e == nil || e.Kind != Lost && e.Kind != NotSent {
			t.Errorf("request 1 ended with %v", e)
		}
		if len(o.closed) != 0 {
			t.Error("Close called Events.Closed")
		}
	})
	run("the server dies", func(t *testing.T, p Peer, o *owner) {
		send(t, p, sent(1, "die"))
		o.failed(t, 1, Lost)
	})
	run("an id twice", func(t *testing.T, p Peer, o *owner) {
		send(t, p, sent(1, "silent"))
		if err := p.Send(sent(1, "echo")); err == nil {
			t.Error("no error for the second request with the id")
		}
	})
	run("the handshake's notification is not overtaken", func(t *testing.T, p Peer, o *owner) {
		send(t, p, notice("notifications/initialized"), sent(1, "after initialized"), notice("notifications/x"))
		o.answered(t, 1)
	})
}
