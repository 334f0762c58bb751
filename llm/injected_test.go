package llm

import (
	"context"
	"net/http"
	"testing"
	"time"
)

// struckModel fails as long as it is struck by a fault of that id, else by itself.
type struckModel struct {
	fault  string
	status int
	asked  int
}

func (m *struckModel) Info() Info { return Info{Name: "struck", API: "fake", Model: "m"} }

func (m *struckModel) Generate(ctx context.Context, _ *Request, _ func(string)) (*Response, error) {
	if m.fault != "" {
		MarkInjected(ctx, m.fault)
	}
	m.asked++
	return nil, HTTPError(m.status, http.Header{"Retry-After": {"60"}}, nil)
}

// What follows from a fault is marked as its work, what a failure of the model's own
// leads to is not.
func TestMarksFollowTheCause(t *testing.T) {
	for _, fault := range []string{"", "f9"} {
		var events []Event
		m := &struckModel{fault: fault, status: 503}
		c, err := New([]Entry{{Provider: m}}, Options{Attempts: 1, Timeout: time.Second, OnEvent: func(e Event) { events = append(events, e) }})
		if err != nil {
			t.Fatal(err)
		}
		for n := range 3 { // the later ones do not ask it any more
			resp, err := c.Complete(t.Context(), Prompt("x"))
			if err != nil {
				t.Fatal(err)
			}
			if resp.Trace.Injected() != fault || (resp.Trace.Attempts[0].Skipped != "") != (n > 0) {
				t.Errorf("%q: %+v", fault, resp.Trace)
			}
		}
		kinds := map[EventKind]bool{}
		for _, e := range events {
			kinds[e.Kind] = true
			if e.Injected != fault {
				t.Errorf("%q: %+v", fault, e)
			}
		}
		if !kinds[EventOutage] || !kinds[EventRest] {
			t.Errorf("%+v", events)
		}
	}
}

// An entry is left alone for what it was made to say until the fault is over.
func TestForgive(t *testing.T) {
	m := &struckModel{fault: "f9", status: 503}
	c, err := New([]Entry{{Provider: m}}, Options{Attempts: 1, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for n, fault := range []string{"", "f8", "f9", ""} {
		c.Forgive(fault)
		if _, err := c.Complete(t.Context(), Prompt("x")); err != nil {
			t.Fatal(err)
		}
		if want := 1 + n/2; m.asked != want {
			t.Errorf("call %d: asked %d times, want %d", n, m.asked, want)
		}
	}
}

// What an entry has asked for itself outlives a fault, and what a fault has asked
// for ends with it, whatever has failed since.
func TestForgiveWhatTheFaultAskedFor(t *testing.T) {
	m := &struckModel{status: 503}
	c, err := New([]Entry{{Provider: m}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	e, now := c.entries[0], time.Now()
	for _, first := range []string{"", "f1"} {
		e.until = time.Time{}
		e.failed(now, &Error{Class: ClassThrottled, RetryAfter: time.Hour}, first, 0)
		e.failed(now, &Error{Class: ClassOverloaded}, map[string]string{"": "f1", "f1": ""}[first], 0)
		c.Forgive("f1")
		if why, _ := e.blocked(now, need{}); (why == "") != (first == "f1") {
			t.Errorf("asked for by %q: %q", first, why)
		}
	}
}
