package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// What the test's client answers to each question of a server.
var clientAnswers = map[string]string{
	"sampling/createMessage": `{"role":"assistant","content":{"type":"text","text":"héllo"},"model":"m","n":9007199254740993}`,
	"elicitation/create":     `{"action":"accept","content":{"name":"Ann","x":1.0}}`,
	"roots/list":             `{"roots":[{"uri":"file:///r"}]}`,
}

const allCapabilities = `{"sampling":{},"elicitation":{"form":{},"url":{}},"roots":{}}`

// callAnswering calls a tool that asks the client: with requests of the
// server's, or with an input_required result that is retried.
func (c *rawClient) callAnswering(tool string) (answer rpcMessage, asked []string) {
	c.t.Helper()
	id := c.start("tools/call", toolCall(tool, `{}`))
	for {
		m := c.wait("answer or question", func(m *rpcMessage) bool {
			return m.Method == "" && string(m.ID) == id || clientAnswers[m.Method] != ""
		})
		if m.Method != "" {
			asked = append(asked, m.Method)
			c.send(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + clientAnswers[m.Method] + `}`)
			continue
		}
		var result struct {
			ResultType    string
			InputRequests map[string]struct{ Method string }
			RequestState  string
		}
		if json.Unmarshal(m.Result, &result) != nil || result.ResultType != "input_required" {
			return m, asked
		}
		var responses []string
		for _, key := range slices.Sorted(maps.Keys(result.InputRequests)) {
			method := result.InputRequests[key].Method
			asked = append(asked, method)
			responses = append(responses, quoted(key)+":"+clientAnswers[method])
		}
		id = c.start("tools/call", fmt.Sprintf(`{"name":%s,"arguments":{},"inputResponses":{%s},"requestState":%s}`,
			quoted(tool), strings.Join(responses, ","), quoted(result.RequestState)))
	}
}

// Servers of each generation ask clients of each generation, over both
// transports, and get the answers' bytes.
func TestServersAskClientsOfAnyGeneration(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"stdio", "http"} {
		for _, client := range []string{"", "2026-07-28"} {
			t.Run(transport+" client "+client, func(t *testing.T) {
				t.Parallel()
				args := []string{"--transport", transport}
				if transport == "http" {
					args = append(args, "--listen", "127.0.0.1:0")
				}
				e := startServe(t, configFile(t, "", up("old", ", protocol: legacy"), up("new", ", protocol: 2026-07-28")), args...)
				e.version, e.caps = client, allCapabilities
				if client == "" {
					e.initialize(allCapabilities)
				}
				e.awaitTools("old__elicit", "new__elicit")
				for _, server := range []string{"old", "new"} {
					for tool, methods := range map[string][]string{
						"sample":  {"sampling/createMessage"},
						"elicit":  {"elicitation/create"},
						"roots":   {"roots/list"},
						"ask_all": {"sampling/createMessage", "elicitation/create", "roots/list"},
					} {
						m, asked := e.callAnswering(server + "__" + tool)
						var want []string
						for _, method := range methods {
							want = append(want, clientAnswers[method])
						}
						e.wantText(m, strings.Join(want, "\n"))
						slices.Sort(asked)
						slices.Sort(methods)
						if !slices.Equal(asked, methods) {
							t.Errorf("%s__%s asked %v", server, tool, asked)
						}
					}
				}
			})
		}
	}
}

// A client without the capability is not asked, whatever it is in front of.
func TestClientsThatCannotAnswerAreNotAsked(t *testing.T) {
	t.Parallel()
	e := serveWeb(t, configFile(t, "", up("old", ", protocol: legacy"), up("new", ", protocol: 2026-07-28")))
	e.awaitTools("old__sample", "new__sample")
	modern := newHTTPClient(t, e.url)
	modern.version = "2026-07-28"
	for _, c := range []*rawClient{e.rawClient, modern} {
		for _, tool := range []string{"old__sample", "new__sample"} {
			m := c.call(tool, `{}`)
			if m.Error == nil && strings.Contains(string(m.Result), "input_required") {
				t.Errorf("%s asked: %s", tool, m.Result)
			}
			if n := c.seen("sampling/createMessage"); n > 0 {
				t.Errorf("%s asked %d times", tool, n)
			}
		}
	}
}

// Subscriptions reach clients of each generation from servers of each.
func TestSubscriptionsOfAnyGeneration(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"legacy", "2026-07-28"} {
		for _, client := range []string{"", "2026-07-28"} {
			t.Run(server+" server, client "+client, func(t *testing.T) {
				t.Parallel()
				e := serveWeb(t, configFile(t, "", up("a", ", protocol: "+server)))
				e.awaitTools("a__touch")
				c := e.rawClient
				const uri = `"mem://hello"`
				if client == "" {
					c.rpc("resources/subscribe", `{"uri":`+uri+`}`)
				} else {
					c = newHTTPClient(t, e.url)
					c.version = client
					c.start("subscriptions/listen", `{"notifications":{"toolsListChanged":true,"resourceSubscriptions":[`+uri+`]}}`)
					c.notification("notifications/subscriptions/acknowledged")
				}
				// The server learns of the subscription a moment later.
				eventually(t, "an update", func() bool {
					e.call("a__touch", `{"uri":`+uri+`}`)
					return c.seen("notifications/resources/updated") > 0
				})
				m := c.notification("notifications/resources/updated")
				if !strings.Contains(string(m.Params), `"uri":`+uri) || strings.Contains(string(m.Params), "subscriptionId") != (client != "") {
					t.Errorf("params %s", m.Params)
				}
				e.call("a__touch", `{"uri":"mem://blob"}`)
				e.call("a__add_tool", `{"name":"fresh"}`)
				c.notification("notifications/tools/list_changed")
				for c.seen("notifications/resources/updated") > 0 {
					if m := c.notification("notifications/resources/updated"); !strings.Contains(string(m.Params), uri) {
						t.Errorf("told of what nobody subscribed to: %s", m.Params)
					}
				}
			})
		}
	}
}
