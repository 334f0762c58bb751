package mcpproxy

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// What an upstream repeats of the secrets it was given stays out of the status
// and the log; the name of the value takes its place.
func TestSecretsAreMasked(t *testing.T) {
	s := secretsOf(&UpstreamConfig{
		Env:     map[string]string{"TOKEN": "tok-12345678", "LONGER": "tok-12345678-9", "DEBUG": "1"},
		Headers: map[string]string{"Authorization": "Bearer abcdefgh"},
		URL:     "https://me:hunter2hunter2@mcp.example/mcp?key=q-87654321",
	})
	lines := []string{
		"login with tok-12345678 and tok-12345678-9 failed 1 time",
		"Bearer abcdefgh, then abcdefgh",
		"hunter2hunter2 bWU6aHVudGVyMmh1bnRlcjI= q-87654321",
		"cut: tok-1234",
		"nothing secret, Bearer of news",
	}
	want := []string{
		"login with [env TOKEN] and [env LONGER] failed 1 time",
		"[header Authorization], then [header Authorization]",
		"[url password] [url password] [url key]",
		"cut: [env LONGER]",
		"nothing secret, Bearer of news",
	}
	if diff := cmp.Diff(want, s.lines(lines)); diff != "" {
		t.Error(diff)
	}
	if got := secretsOf(&UpstreamConfig{}).mask("plain"); got != "plain" {
		t.Errorf("without secrets: %q", got)
	}
}

// Where an upstream is talked about: its stderr, its state and its last error.
func TestStatusTellsNoSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newLegacyServer()
		srv.onDial = func(n int, _ string) error {
			if n > 1 {
				return errors.New("refused: tok-12345678")
			}
			return nil
		}
		h := supervise(t, srv, UpstreamConfig{Protocol: "legacy", Env: map[string]string{"TOKEN": "tok-12345678", "LAST": "last words"}})
		if _, err := h.await(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := h.status().Stderr; !slices.Equal(got, []string{"[env LAST]"}) {
			t.Errorf("stderr %q", got)
		}
		h.srv.peer().exit("it printed tok-12345678")
		time.Sleep(time.Minute)
		synctest.Wait()
		s := h.status()
		const want = "refused: [env TOKEN]"
		if s.Reason != want || s.LastError != want {
			t.Errorf("reason %q, last error %q, want %q", s.Reason, s.LastError, want)
		}
		h.end()
	})
}

// Who of ours waits for a client's answer is told when the call ends first.
func TestEndedCallAnswersItsQuestions(t *testing.T) {
	c := &client{s: &wire.Session{}}
	k := &call{r: &request{c: c}}
	refused := make(chan wire.Message, 1)
	c.asks = map[string]*ask{"s1": {id: "s1", call: k, result: func(m wire.Message) { refused <- m }}}
	(&Proxy{}).dropAsks(k)
	select {
	case m := <-refused:
		if m.Error == nil {
			t.Errorf("answered with %s", m.Result)
		}
	default:
		t.Error("still waiting")
	}
}
