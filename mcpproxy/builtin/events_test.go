package builtin

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// asked is a server whose events are the queries it was asked for.
func asked(t *testing.T, method, params string) (answer string) {
	t.Helper()
	s := New("9.9", Source{
		Status:     func() any { return "status" },
		Upstream:   func(name string) (any, bool) { return "status of " + name, name == "github" },
		Events:     func(q EventQuery) any { return map[string]any{"events": []any{q}} },
		EventKinds: []string{"breaker", "upstream.state"},
	})
	b, err := json.Marshal(s.HandleMessage(context.Background(), []byte(`{"jsonrpc":"2.0","id":"1","method":"`+method+`","params":`+params+`}`)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestStatusArguments(t *testing.T) {
	for args, want := range map[string]string{
		`null`: `\"status\"`,
		`{"section":null,"upstream":"","kind":"","tool":"","trace":"","limit":null}`: `\"status\"`,
		`{"section":"events"}`: `{"Upstream":"","Tool":"","Kind":"","Since":0,"Limit":20}`,
		`{"section":"events","upstream":"github","tool":"t","kind":"breaker","since_seq":7.0,"limit":3}`: `{"Upstream":"github","Tool":"t","Kind":"breaker","Since":7,"Limit":3}`,
		`{"upstream":"github"}`:                       `status of github`,
		`{"section":"upstreams","upstream":"github"}`: `status of github`,
		`{"section":"traces","limit":1000}`:           `"traces":[]`,
	} {
		if got := asked(t, "tools/call", `{"name":"armor.status","arguments":`+args+`}`); !strings.Contains(got, want) || strings.Contains(got, "isError") {
			t.Errorf("%s: no %s in %s", args, want, got)
		}
	}
}

func TestWrongStatusArguments(t *testing.T) {
	const limits, since = "limit must be a whole number from 1 to 1000", "since_seq must be a whole number, 0 or more: last_seq of an earlier answer"
	for args, want := range map[string]string{
		`{"section":7}`:                            "section must be a string",
		`{"section":"nonsense"}`:                   "no section `nonsense`: use one of summary, upstreams, events, llm, traces, alerts",
		`{"upstream":["github"]}`:                  "upstream must be a string",
		`{"upstream":"xx"}`:                        "no upstream `xx`; armor.status without arguments lists them",
		`{"section":"upstreams","upstream":"xx"}`:  "no upstream `xx`; armor.status without arguments lists them",
		`{"section":"events","upstream":"xx"}`:     "no upstream `xx`; armor.status without arguments lists them",
		`{"section":"llm","upstream":"github"}`:    "upstream has no meaning in section llm: leave it out, or ask for section summary or upstreams or events",
		`{"section":"events","kind":"nonsense"}`:   "no kind `nonsense`: use one of breaker, upstream.state",
		`{"kind":"breaker"}`:                       "kind has no meaning in section summary: leave it out, or ask for section events",
		`{"section":"upstreams","tool":"t"}`:       "tool has no meaning in section upstreams: leave it out, or ask for section events",
		`{"section":"traces","since_seq":1}`:       "since_seq has no meaning in section traces: leave it out, or ask for section events",
		`{"limit":20}`:                             "limit has no meaning in section summary: leave it out, or ask for section events or traces",
		`{"section":"events","trace":"x"}`:         "trace has no meaning in section events: leave it out, or ask for section traces",
		`{"section":"alerts","upstream":"github"}`: "upstream has no meaning in section alerts: leave it out, or ask for section summary or upstreams or events",
		`{"section":"events","limit":0}`:           limits,
		`{"section":"traces","limit":1001}`:        limits,
		`{"section":"events","limit":2.5}`:         limits,
		`{"section":"events","limit":"20"}`:        "limit must be a whole number",
		`{"section":"events","since_seq":-1}`:      since,
		`{"section":"events","since_seq":1e300}`:   since,
		`{"section":"events","since_seq":true}`:    "since_seq must be a whole number",
		`{"server":"github"}`:                      "there is no argument `server`: use section, upstream, kind, tool, limit, since_seq, trace",
	} {
		got := asked(t, "tools/call", `{"name":"armor.status","arguments":`+args+`}`)
		want = `[{"type":"text","text":"` + strings.ReplaceAll(want, "`", `\"`) + `"}],"isError":true`
		if !strings.Contains(got, want) {
			t.Errorf("%s: no %s in %s", args, want, got)
		}
	}
}

func TestEventsResource(t *testing.T) {
	if got, want := asked(t, "resources/read", `{"uri":"agentarmor://events"}`), `\"Limit\": 100`; !strings.Contains(got, want) {
		t.Errorf("no %s in %s", want, got)
	}
	if got := asked(t, "resources/list", `{}`); !strings.Contains(got, `"uri":"agentarmor://events"`) {
		t.Errorf("not listed: %s", got)
	}
}

// Every argument is flat and says what it is for.
func TestStatusSchema(t *testing.T) {
	var answer struct {
		Result struct {
			Tools []struct {
				Name        string
				InputSchema struct {
					Properties map[string]struct {
						Type, Description string
						Enum              []string
					}
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(asked(t, "tools/list", `{}`)), &answer); err != nil {
		t.Fatal(err)
	}
	types := map[string]string{}
	for name, p := range answer.Result.Tools[0].InputSchema.Properties {
		types[name] = p.Type
		if p.Description == "" {
			t.Errorf("%s is not described", name)
		}
	}
	want := map[string]string{"section": "string", "upstream": "string", "tool": "string", "kind": "string", "limit": "integer", "since_seq": "integer", "trace": "string"}
	if diff := cmp.Diff(want, types); diff != "" {
		t.Error(diff)
	}
}
