package llm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/llm"
)

func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chain(t, llm.Options{Queue: llm.Queue{Size: -1}},
			llm.NewFake("open", llm.Step{Status: 503}),
			llm.NewFake("throttled", llm.Step{Status: 429, Header: retryAfter("90")}),
			llm.NewFake("auth", llm.Step{Status: 401}),
			llm.NewFake("gone", llm.Step{Status: 404, Body: message("model_not_found")}),
			llm.NewFake("quota", llm.Step{Status: 402}),
			llm.NewFake("well"))
		states := func() map[string]string {
			m := map[string]string{}
			for name, p := range c.Status().Providers {
				m[name] = p.State
			}
			return m
		}
		if s := c.Status(); s.Healthy != 6 || s.FailoversLastHour != 0 {
			t.Errorf("at first %+v", s)
		}
		for range 2 {
			if resp, err := c.Complete(t.Context(), llm.Prompt("hi")); err != nil || resp.Provider != "well" {
				t.Fatal(resp, err)
			}
		}
		want := map[string]string{"open": "down", "throttled": "throttled", "auth": "auth", "gone": "gone", "quota": "quota", "well": "ready"}
		if diff := cmp.Diff(want, states()); diff != "" {
			t.Error(diff)
		}
		s := c.Status()
		if s.Healthy != 1 || s.FailoversLastHour != 2 || s.Providers["open"].Breaker.Until == nil || time.Until(*s.Providers["throttled"].Until) != 90*time.Second {
			t.Errorf("%+v", s)
		}
		if e := s.Providers["open"].LastError; e != "overloaded (HTTP 503): Service Unavailable" {
			t.Errorf("last error %q", e)
		}
		if w := s.Providers["open"].Window; w.Calls != 2 || w.ErrorRate != 1 {
			t.Errorf("window %+v", w)
		}
		time.Sleep(20 * time.Second)
		if s := states(); s["open"] != "degraded" {
			t.Errorf("half-open is %s", states()["open"])
		}
		time.Sleep(25 * time.Hour)
		if s := c.Status(); s.Healthy != 6 || s.FailoversLastHour != 0 {
			t.Errorf("a day later %+v", s)
		}
		if b, err := json.Marshal(c.Status()); err != nil || !strings.Contains(string(b), `"state":"ready"`) {
			t.Errorf("%s, %v", b, err)
		}
	})
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		o := llm.Options{Queue: llm.Queue{Size: -1}, OnEvent: func(e llm.Event) {
			got = append(got, fmt.Sprintf("%s %s %s→%s", e.Kind, e.Provider, e.From, e.To))
		}}
		gemini := llm.NewFake("gemini", llm.Step{Status: 503}, llm.Step{Status: 503}, llm.Step{})
		groq := llm.NewFake("groq", llm.Step{}, llm.Step{Status: 401})
		c := chain(t, o, gemini, groq)
		for _, pause := range []time.Duration{0, 0, 20 * time.Second, 0} {
			time.Sleep(pause)
			if _, err := c.Complete(t.Context(), llm.Prompt("hi")); err != nil {
				t.Fatal(err)
			}
		}
		want := []string{
			"failover groq gemini→groq",
			"breaker gemini closed→open", "rest groq →auth", "outage  →",
			"breaker gemini open→half_open", "breaker gemini half_open→closed",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestFromEnv(t *testing.T) {
	for _, tt := range []struct {
		gemini, google, groq string
		want                 []string
	}{
		{"k1", "", "k3", []string{"gemini gemini-2.5-flash", "gemini-lite gemini-3.5-flash-lite", "groq llama-3.1-8b-instant", "groq-oss openai/gpt-oss-20b"}},
		{"", "k2", "", []string{"gemini gemini-2.5-flash", "gemini-lite gemini-3.5-flash-lite"}},
		{"", "", "k3", []string{"groq llama-3.1-8b-instant", "groq-oss openai/gpt-oss-20b"}},
		{"", "", "", nil},
	} {
		t.Setenv("GEMINI_API_KEY", tt.gemini)
		t.Setenv("GOOGLE_API_KEY", tt.google)
		t.Setenv("GROQ_API_KEY", tt.groq)
		c, err := llm.FromEnv()
		if tt.want == nil {
			if e, ok := errors.AsType[*llm.Error](err); !ok || e.Class != llm.ClassNone || !strings.Contains(err.Error(), "GROQ_API_KEY") {
				t.Errorf("no key: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		s := c.Status()
		for _, name := range s.Chain {
			got = append(got, name+" "+s.Providers[name].Model)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Error(diff)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestKeysFromEnv holds that a broken key is an error that names the variable
// it is in and shows nothing of it.
func TestKeysFromEnv(t *testing.T) {
	for _, name := range []string{"GEMINI_API_KEY", "GOOGLE_API_KEY", "GROQ_API_KEY"} {
		t.Run(name, func(t *testing.T) {
			for _, other := range []string{"GEMINI_API_KEY", "GOOGLE_API_KEY", "GROQ_API_KEY"} {
				t.Setenv(other, "")
			}
			t.Setenv(name, "one\r\ntwo")
			if _, err := llm.FromEnv(); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "one") && strings.Contains(err.Error(), "two") {
				t.Errorf("%v", err)
			}
		})
	}
}
