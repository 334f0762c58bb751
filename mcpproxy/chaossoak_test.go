package mcpproxy

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// ledger counts how often each call was executed.
type ledger struct {
	mu   sync.Mutex
	done map[string]int
}

func (l *ledger) count(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done[key]
}

// server is one whose tools note what they are called with.
func (l *ledger) server() *fakeServer {
	srv := newLegacyServer()
	srv.result("tools/list", `{"tools":[{"name":"write","inputSchema":{"type":"object"}},{"name":"read","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}`)
	srv.set("tools/call", func(p *fakePeer, id uint64, m wire.Message) {
		key, _ := wire.String(wire.Get(wire.Get(m.Params, "arguments"), "key"))
		l.mu.Lock()
		l.done[key]++
		l.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		p.result(id, `{"content":[{"type":"text","text":"`+key+`"}]}`)
	})
	return srv
}

// While everything breaks, each request gets exactly one answer, what must not
// be executed twice is not, what is said of the execution is true, and when it
// is over all recovers and nothing is left.
func TestEverythingBreaks(t *testing.T) {
	const upstreams, clients, virtual = 4, 16, 10 * time.Minute
	l := &ledger{done: map[string]int{}}
	inj := chaos.New(chaos.Options{Enabled: true, Seed: 5, MaxTTL: time.Hour})
	cfg, servers := Config{Chaos: inj}, map[string]*fakeServer{}
	for n := range upstreams {
		u := UpstreamConfig{Name: fmt.Sprint("up", n), Command: "fake", Protocol: "legacy"}
		if n%2 == 1 {
			u.Command, u.URL = "", "http://fake.example/mcp"
		}
		cfg.Upstreams = append(cfg.Upstreams, u)
		servers[u.Name] = l.server()
	}
	outcomes := map[string]int{}
	bubbles(t, cfg, servers, func(t *testing.T, r *rig) {
		defer inj.Close()
		if _, err := inj.Scenario("everything", "", virtual, 0); err != nil {
			t.Fatal(err)
		}
		var all []*testClient
		for range clients {
			all = append(all, r.client(`{}`))
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for n, c := range all {
			wg.Go(func() {
				end := time.Now().Add(virtual)
				for i := 0; time.Now().Before(end); i++ {
					tool, key := "write", fmt.Sprint("c", n, "-", i)
					if i%2 == 1 {
						tool = "read"
					}
					st := c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"up%d__%s","arguments":{"key":%q}}}`, i, (n+i)%upstreams, tool, key))
					answer := awaitAnswer(st)
					outcome := outcomeOf(t, answer)
					times := l.count(key)
					switch {
					case answer == "":
						t.Errorf("%s got no answer", key)
					case tool == "write" && times > 1:
						t.Errorf("%s was executed %d times: %s", key, times, answer)
					case strings.Contains(outcome, " no ") && times > 0:
						t.Errorf("%s was executed: %s", key, answer)
					case outcome == "ok yes false" && times == 0:
						t.Errorf("%s was not executed: %s", key, answer)
					}
					mu.Lock()
					outcomes[outcome]++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		settle(10 * time.Minute)
		for _, up := range r.p.ups() {
			for range 4 { // trials of the tool's breaker
				r.client(`{}`).send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s__write","arguments":{"key":"after"}}}`, up.cfg.Name))
				settle(time.Minute)
			}
			if s := r.p.statusOf(up); s.State != health.Ready || s.Breaker.State != health.BreakerClosed || len(s.Degraded) > 0 {
				t.Errorf("%s has not recovered: %+v", up.cfg.Name, s)
			}
		}
		for _, c := range all {
			c.close()
		}
	})
	t.Logf("%d executions, outcomes %v", len(l.done), outcomes)
	if outcomes["ok yes false"] < 1000 || len(outcomes) < 6 {
		t.Errorf("little has happened: %v", outcomes)
	}
}

// awaitAnswer waits at most five minutes for the answer of a stream.
func awaitAnswer(st *testStream) string {
	for range 5 * 60 * 100 {
		st.mu.Lock()
		answer := st.answer
		late := st.late
		st.mu.Unlock()
		if answer != "" && late == 0 {
			return answer
		}
		time.Sleep(10 * time.Millisecond)
	}
	return ""
}
