//go:build linux

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/fixtures/badserver"
	"github.com/agentarmor/agentarmor/fixtures/fakellm"
)

var soakFor = flag.Duration("soak", 10*time.Second, "how long everything breaks in TestSoak, 3 s with -short unless it is given")

const (
	soakClients   = 32
	soakProcesses = 5
	soakTTL       = 20 * time.Second // the longest the endpoint takes
	soakRenewal   = 15 * time.Second // of the faults, and of a server's sessions
)

// soak is the real endpoint as a process, in front of servers and models that
// break while clients call.
type soak struct {
	*tally
	e          *endpoint
	control    *soakClient
	servers    []string
	web        []*httptest.Server
	legacy     *badserver.Server // whose sessions are forgotten now and then
	spawns     string            // file with a line per start of a process
	hits       map[string]int
	executions map[string]int
}

// Everything breaks for as long as -soak says. Each request gets one answer,
// what must not be executed twice is not, what is said of the execution is
// true; then all recovers, and no memory, goroutine or process is left.
func TestSoak(t *testing.T) {
	length := *soakFor
	if testing.Short() && length == 10*time.Second {
		length = 3 * time.Second
	}
	s := startSoak(t)
	s.control.open()
	uris := s.awaitAll()
	s.control.close(true)
	before := s.atRest()

	over := make(chan struct{})
	var clients sync.WaitGroup
	for n := range soakClients {
		version := ""
		if n%2 == 1 {
			version = "2026-07-28"
		}
		c := newSoakClient(s.tally, s.e.url, n, version, n%8 > 5)
		clients.Go(func() { c.work(over, s.servers, uris) })
	}
	leave := sync.OnceFunc(func() { close(over); clients.Wait() })
	defer leave()
	s.control.open()
	warm := s.breakEverything(length)
	leave()
	var after footprint
	var restarts int
	defer func() { s.report(length, before, warm, after, restarts) }()
	restarts = s.recovers()
	s.control.close(true)
	eventually(t, "the goroutines for the clients end", func() bool {
		after = s.atRest()
		return after.goroutines <= before.goroutines+2
	})
	s.checkExecutions()
	answered := 0
	for _, n := range s.outcomes {
		answered += n
	}
	if s.answers != answered || s.requests != s.answers+s.left {
		t.Errorf("%d requests, %d answers, %d of them understood", s.requests, s.answers, answered)
	}
	if s.outcomes["ok"] == 0 || s.hits["mcp kill"] == 0 || s.deaths() == 0 {
		t.Error("nothing was shown")
	}
	if length >= time.Minute { // in less, chance may spare one
		s.allHaveHit()
	}
	if after.rss > 2*warm.rss {
		t.Errorf("memory grows: %d MB after the warm-up, %d MB at the end", warm.rss>>20, after.rss>>20)
	}
	s.endsClean()
}

// startSoak starts five servers as processes, two over streamable HTTP, one over
// HTTP+SSE, two models, and the endpoint.
func startSoak(t *testing.T) *soak {
	t.Helper()
	dir := t.TempDir()
	s := &soak{
		tally:  &tally{t: t, dir: dir, outcomes: map[string]int{}, said: map[string]string{}},
		spawns: filepath.Join(dir, "spawns"), hits: map[string]int{}, executions: map[string]int{},
	}
	// Times of seconds, so that a minute sees every state.
	const keys = ", call_timeout: 3s, breaker: {open_for: 1s, max_open_for: 4s}, probe: {every: 2s, every_down: 1s}"
	var ups []string
	add := func(name, entry string) { s.servers, ups = append(s.servers, name), append(ups, entry) }
	for n, era := range []string{"legacy", "legacy", "modern", "both", "both"} {
		name := fmt.Sprint("p", n)
		add(name, up(name, keys, "-era", era, "-spawn-log", s.spawns))
	}
	web := func(h http.Handler) string {
		ts := httptest.NewServer(h)
		s.web = append(s.web, ts)
		t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
		return ts.URL
	}
	bad := func(o badserver.Options) *badserver.Server {
		b := badserver.New(o)
		t.Cleanup(b.Close)
		return b
	}
	s.legacy = bad(badserver.Options{Era: "legacy"})
	add("h0", remote("h0", web(s.legacy)+"/mcp", keys))
	add("h1", remote("h1", web(bad(badserver.Options{Era: "modern"}))+"/mcp", keys))
	add("s0", remote("s0", web(bad(badserver.Options{}))+"/sse", keys))
	top := fmt.Sprintf(`limits: {session_idle: 5s}
chaos: {seed: 1, max_ttl: %v}
llm:
  timeout: 5s
  backoff: {base: 50ms, max: 500ms}
  breaker: {open_for: 1s, max_open_for: 4s}
  queue: {wait: 2s}
  chain:
    - {name: gemini, provider: gemini, model: gemini-2.5-flash, api_key: k, base_url: %q}
    - {name: groq, provider: openai, model: llama-3.1-8b-instant, api_key: k, base_url: %q}
`, soakTTL, web(fakellm.NewGemini(fakellm.Options{})), web(fakellm.NewOpenAI(fakellm.Options{}))+"/v1")
	s.e = startServe(t, configFile(t, top, ups...), "--transport", "http", "--listen", "127.0.0.1:0", "--chaos")
	s.control = newSoakClient(s.tally, s.e.url, soakClients, "", false)
	return s
}

// awaitAll waits until every server's tools are listed, and returns their resources.
func (s *soak) awaitAll() (uris []string) {
	var list struct {
		Tools     []struct{ Name string }
		Resources []struct{ URI string }
	}
	eventually(s.t, "every tool is listed", func() bool {
		s.into(&list, "tools/list", `{}`)
		listed := 0
		for _, tool := range list.Tools {
			if strings.HasSuffix(tool.Name, "__append") {
				listed++
			}
		}
		return listed == len(s.servers)
	})
	s.into(&list, "resources/list", `{}`)
	for _, r := range list.Resources {
		if !strings.HasPrefix(r.URI, "agentarmor:") {
			uris = append(uris, r.URI)
		}
	}
	return uris
}

func (s *soak) into(v any, method, params string) {
	s.t.Helper()
	if m := s.control.own(s.t.Context(), method, params); json.Unmarshal(m.Result, v) != nil {
		s.t.Fatalf("%s: %.300s", method, m.raw)
	}
}

// chaosTool calls a tool of chaos, which must succeed.
func (s *soak) chaosTool(v any, tool, args string) {
	s.t.Helper()
	var r toolResult
	s.into(&r, "tools/call", toolCall(tool, args))
	if r.IsError || json.Unmarshal(r.StructuredContent, v) != nil {
		s.t.Fatalf("%s: %s", tool, r.text())
	}
}

// hitKind says what a fault breaks and how.
func hitKind(s chaos.Spec) string {
	what, _, _ := strings.Cut(s.Target, "/")
	return what + " " + string(s.Fault)
}

// allHaveHit fails if a fault of the scenario has had no part in it.
func (s *soak) allHaveHit() {
	s.t.Helper()
	steps, _, err := chaos.New(chaos.Options{Enabled: true}).PreviewScenario("everything", "", soakTTL, 0)
	if err != nil || len(steps) == 0 {
		s.t.Fatal(err)
	}
	for _, step := range steps {
		if s.hits[hitKind(step)] == 0 {
			s.t.Errorf("%s has hit nothing", hitKind(step))
		}
	}
}

// breakEverything injects the faults again and again before they end by
// themselves. It returns what the endpoint used after a quarter of the time.
func (s *soak) breakEverything(length time.Duration) (warm footprint) {
	end := time.Now().Add(length)
	quarter := time.After(length / 4)
	for time.Now().Before(end) {
		var begun struct{ Injected []chaos.Active }
		ttl := fmt.Sprint(soakTTL)
		s.chaosTool(&begun, "chaos.inject", `{"scenario":"everything","ttl":"`+ttl+`"}`)
		// In the shortest soak chance need not kill anybody.
		s.chaosTool(&begun, "chaos.inject", `{"target":"mcp/p0/echo","fault":"kill","count":1,"after":5,"ttl":"`+ttl+`"}`)
		renewal := time.After(min(soakRenewal, time.Until(end)))
		for waiting := true; waiting; {
			select {
			case <-quarter:
				warm = s.scrape()
			case <-renewal:
				waiting = false
			}
		}
		s.clear()
		s.legacy.Forget()
	}
	return warm
}

// clear ends all faults, and adds up their hits as the resource tells them.
func (s *soak) clear() {
	var doc struct{ Contents []struct{ Text string } }
	read := func() (active []chaos.Active) {
		s.into(&doc, "resources/read", `{"uri":"agentarmor://chaos"}`)
		var status struct{ Active json.RawMessage }
		if len(doc.Contents) != 1 || json.Unmarshal([]byte(doc.Contents[0].Text), &status) != nil || json.Unmarshal(status.Active, &active) != nil {
			s.t.Fatalf("agentarmor://chaos: %+v", doc)
		}
		return active
	}
	for _, a := range read() {
		s.hits[hitKind(a.Spec)] += a.Hits
	}
	var cleared struct{ Active int }
	s.chaosTool(&cleared, "chaos.clear", `{"which":"all"}`)
	if left := read(); cleared.Active != 0 || len(left) != 0 {
		s.t.Errorf("%d faults are left: %v", cleared.Active, left)
	}
}

func (s *soak) doc() *statusDocument {
	var r struct{ Contents []struct{ Text string } }
	s.into(&r, "resources/read", `{"uri":"agentarmor://status"}`)
	return must(readDocument([]byte(r.Contents[0].Text)))
}

// deaths counts the processes that had to be started again.
func (s *soak) deaths() int { return len(fileLines(s.spawns)) - soakProcesses }

// recovers calls, since breakers close by good calls, until nothing is held
// against anybody. It returns how often servers were started or connected to again.
func (s *soak) recovers() (restarts int) {
	s.t.Helper()
	n := 0
	var held []string
	defer func() {
		if s.t.Failed() {
			s.t.Logf("not recovered: %v", held)
		}
	}()
	eventually(s.t, "all recover", func() bool {
		for _, server := range s.servers {
			n++
			text := fmt.Sprint("after-", n)
			s.control.call(s.t.Context(), server+"__echo", `{"text":`+quoted(text)+`}`, text)
			s.control.append(s.t.Context(), server, "once", text+"-once")
			s.control.append(s.t.Context(), server, "often", text+"-often")
		}
		s.control.complete(s.t.Context(), "gemini")
		s.control.complete(s.t.Context(), "groq")
		doc := s.doc()
		held, restarts = nil, 0
		for name, u := range doc.Upstreams {
			restarts += u.Restarts
			if u.State != "ready" || u.Breaker.State != "closed" || len(u.DegradedTools) > 0 || u.Window.InFlight+u.Window.Queued > 0 {
				held = append(held, fmt.Sprintf("%s: %+v", name, u))
			}
		}
		for name, m := range doc.LLM.Providers {
			if m.State != "ready" || m.Breaker.State != "closed" {
				held = append(held, fmt.Sprintf("%s: %+v", name, m))
			}
		}
		return len(held) == 0
	})
	return restarts
}
