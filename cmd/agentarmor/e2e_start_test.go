package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// tenUpstreams is a config of ten servers, half of which never get anywhere.
func tenUpstreams(t *testing.T) string {
	var all []string
	for i := range 5 {
		all = append(all, up(fmt.Sprintf("good%d", i), ""))
	}
	return configFile(t, "", append(all,
		up("silent", "", "-init-delay", "1h"),
		up("half_silent", "", "-list-delay", "1h"),
		up("crashing", "", "-exit-after", "1ms"),
		"  missing: {command: /nonexistent}\n",
		remote("refused", "http://127.0.0.1:1/mcp", ""))...)
}

// firstAnswer is the time from the start of the process to the answer to its
// first request.
func firstAnswer(t *testing.T, config, request string) (d time.Duration) {
	t.Run("", func(t *testing.T) { // ends the endpoint
		began := time.Now()
		e := startServe(t, config)
		e.send(request)
		e.answer("0")
		d = time.Since(began)
	})
	return d
}

// Whatever the upstreams do, the first request is answered as if there were
// none. What a start takes differs from machine to machine: the best of a few,
// taken in turns, are compared.
func TestFirstAnswerWaitsForNoUpstream(t *testing.T) {
	ten, none := tenUpstreams(t), configFile(t, "")
	for method, request := range map[string]string{
		"initialize":      `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}}`,
		"server/discover": `{"jsonrpc":"2.0","id":0,"method":"server/discover","params":` + (&rawClient{version: "2026-07-28"}).withMeta("{}") + `}`,
	} {
		t.Run(method, func(t *testing.T) {
			with, without := patience, patience
			for range 4 {
				with = min(with, firstAnswer(t, ten, request))
				without = min(without, firstAnswer(t, none, request))
			}
			if with > 3*without {
				t.Errorf("answered %v after the start with ten upstreams, %v with none", with, without)
			}
			t.Logf("%v with ten upstreams, %v with none", with, without)
		})
	}
}

// The tools remembered from the last run are all in the first list, also those
// of a server that answers nothing this time.
func TestFirstListIsTheRememberedOne(t *testing.T) {
	t.Parallel()
	mood := filepath.Join(t.TempDir(), "mood")
	write(t, mood, "")
	config := configFile(t, "",
		up("a", ""), up("b", "", "-filler", "20"),
		shell("moody", "", fmt.Sprintf("exec badserver $$(cat %s)", mood)))
	var want []string
	t.Run("first run", func(t *testing.T) {
		e := serveStdio(t, config)
		e.awaitTools("a__echo", "b__echo", "moody__echo")
		want, _ = e.tools()
	})
	for _, now := range []string{"-init-delay 1h", "-ready-delay 1h", "-exit-after 1ms"} {
		write(t, mood, now)
		t.Run(now, func(t *testing.T) {
			e := serveStdio(t, config)
			if got, _ := e.tools(); !slices.Equal(got, want) {
				t.Errorf("first list: %s\nwant %s", strings.Join(got, " "), strings.Join(want, " "))
			}
			if s := e.status("moody"); s.State == "ready" {
				t.Errorf("the server that does not answer: %+v", s)
			}
			e.wantText(e.call("a__echo", `{"text":"x"}`), "x")
		})
	}
}
