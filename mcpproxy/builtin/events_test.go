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

func TestEventArguments(t *testing.T) {
	for args, want := range map[string]string{
		`{"section":"events"}`: `{"Upstream":"","Tool":"","Kind":"","Since":0,"Limit":20}`,
		`{"section":"events","upstream":"gone","tool":"t","kind":"breaker","since_seq":7,"limit":3}`: `{"Upstream":"gone","Tool":"t","Kind":"breaker","Since":7,"Limit":3}`,
		`{"section":"events","since_seq":-1}`:                                                        `"Since":0`,
		`{"section":"events","kind":"nonsense"}`:                                                     `no kind \"nonsense\": use one of breaker, upstream.state`,
		`{"section":"events","limit":0}`:                                                             `limit must be 1 to 1000`,
		`{"section":"events","limit":1001}`:                                                          `limit must be 1 to 1000`,
		`{"upstream":"github","kind":"breaker"}`:                                                     `status of github`,
		`{"section":"summary","kind":"breaker"}`:                                                     `\"status\"`,
		`{"section":"nonsense"}`:                                                                     `use one of summary, upstreams, events, llm, traces`,
		`{"section":"upstreams","upstream":"xx"}`:                                                    `no upstream \"xx\"`,
	} {
		if got := asked(t, "tools/call", `{"name":"armor.status","arguments":`+args+`}`); !strings.Contains(got, want) {
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
