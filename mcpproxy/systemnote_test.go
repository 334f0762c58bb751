package mcpproxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/llm"
)

const noteEnd = ". Do not promise what needs them; say that they are unavailable."

// Models hear of servers that are down, before what the caller tells them and
// never as the user, and of nothing while all work.
func TestModelsHearWhatIsDown(t *testing.T) {
	gemini := llm.NewFake("gemini")
	models(t, quick, []*llm.Fake{gemini}, func(t *testing.T, r *rig) {
		c := r.client(`{}`)
		ask := func(args string) []llm.Message {
			c.send(complete("1", args, "")).text()
			all := gemini.Requests()
			return all[len(all)-1].Messages
		}
		if diff := cmp.Diff([]llm.Message{llm.User("p")}, ask(`{"prompt":"p"}`)); diff != "" {
			t.Errorf("all is well: %s", diff)
		}
		r.p.upstream("fake").shared.live().peer.(*tracedPeer).s.broken()
		note := r.p.SystemNote()
		if note != "Tools that do not work now: all of server fake (down since 2000-01-01T00:00:00Z)"+noteEnd {
			t.Error(note)
		}
		if diff := cmp.Diff([]llm.Message{llm.System(note), llm.User("p")}, ask(`{"prompt":"p"}`)); diff != "" {
			t.Error(diff)
		}
		got := ask(`{"prompt":"p","system":"Be brief"}`)
		if len(got) != 2 || got[0].Text() != "Be brief\n\n"+note || got[1].Text() != "p" {
			t.Errorf("%+v", got)
		}
	})
}

func TestNoteTellsOfTools(t *testing.T) {
	guarded(t, noRetry, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		s.does("plain", broken)
		for range 3 {
			c.call("plain").text()
		}
		want := "Tools that do not work now: fake__plain (since 2000-01-01T00:00:00Z)" + noteEnd
		if got := r.p.SystemNote(); got != want {
			t.Error(got)
		}
		settle(36 * time.Second) // a trial that fails is the same outage
		c.call("plain").text()
		settle(time.Second)
		if got := r.p.SystemNote(); got != want {
			t.Error(got)
		}
		settle(2 * time.Minute)
		s.does("plain", good)
		for range 3 {
			c.call("plain").text()
		}
		if got := r.p.SystemNote(); got != "" {
			t.Errorf("it works again: %s", got)
		}
	})
}

// However much is down, the note stays short and says that there is more.
func TestNoteIsShort(t *testing.T) {
	var ups []UpstreamConfig
	servers := map[string]*fakeServer{}
	for i := range 30 {
		name := fmt.Sprintf("server-%02d", i)
		srv := newLegacyServer()
		srv.onDial = func(int, string) error { return fmt.Errorf("refused") }
		servers[name] = srv
		ups = append(ups, UpstreamConfig{Name: name, Command: "x"})
	}
	ups = append(ups, UpstreamConfig{Name: "off", Command: "x", Disabled: true})
	bubbles(t, Config{Upstreams: ups}, servers, func(t *testing.T, r *rig) {
		note := r.p.SystemNote()
		if len(note) > maxNote || len(note) < maxNote-100 {
			t.Errorf("%d bytes", len(note))
		}
		told := strings.Count(note, "of server")
		wantPart(t, note, "all of server server-00 (", fmt.Sprintf("; and %d more. Do not promise", 30-told))
		if strings.Contains(note, "off") || strings.Contains(note, "refused") {
			t.Error(note)
		}
	})
}

// Attempts to start belong to the outage they follow, and a first start is none.
func TestNoteTellsWhenAnOutageBegan(t *testing.T) {
	guarded(t, func(u *UpstreamConfig) { u.URL, u.Command = "", "fake" }, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		settle(time.Minute)
		began := time.Now().UTC().Format(time.RFC3339)
		s.onDial = func(int, string) error { return errGone }
		s.peer().exit("it crashed")
		for range 5 {
			settle(time.Minute)
			if got := r.p.SystemNote(); !strings.Contains(got, "fake (down since "+began+")") {
				t.Errorf("want %s in %s", began, got)
			}
		}
	})
	guarded(t, nil, func(t *testing.T, r *rig, s *scripted, c *testClient) {
		late := newScripted()
		late.silent("initialize")
		cfg := Config{Upstreams: []UpstreamConfig{{Name: "late", Command: "fake", Protocol: "legacy"}}}
		slow := newRig(t, cfg, map[string]*fakeServer{"late": late.fakeServer})
		defer slow.end()
		if got := slow.p.SystemNote(); got != "" {
			t.Errorf("of one that starts: %s", got)
		}
	})
}
