package llm

import (
	"context"
	"net/http"
	"testing"
	"time"
)

// struckModel fails as long as it is struck by a fault of that id, else by itself.
type struckModel struct{ fault string }

func (m *struckModel) Info() Info { return Info{Name: "struck", API: "fake", Model: "m"} }

func (m *struckModel) Generate(ctx context.Context, _ *Request, _ func(string)) (*Response, error) {
	if m.fault != "" {
		MarkInjected(ctx, m.fault)
	}
	return nil, HTTPError(503, http.Header{"Retry-After": {"60"}}, nil)
}

// What follows from a fault is marked as its work, what a failure of the model's own
// leads to is not.
func TestMarksFollowTheCause(t *testing.T) {
	for _, fault := range []string{"", "f9"} {
		var events []Event
		m := &struckModel{fault}
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
