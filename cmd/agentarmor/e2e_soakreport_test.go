//go:build linux

package main

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// footprint is what the process of the endpoint uses.
type footprint struct {
	goroutines, rss, heap, threads int
}

func (s *soak) scrape() (u footprint) {
	s.t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get(strings.TrimSuffix(s.e.url, "mcp") + "metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body := string(must(io.ReadAll(resp.Body)))
	for name, into := range map[string]*int{
		"go_goroutines": &u.goroutines, "process_resident_memory_bytes": &u.rss,
		"go_memstats_heap_alloc_bytes": &u.heap, "go_threads": &u.threads,
	} {
		_, rest, found := strings.Cut(body, "\n"+name+" ")
		line, _, _ := strings.Cut(rest, "\n")
		v, err := strconv.ParseFloat(line, 64)
		if err != nil || !found {
			s.t.Fatalf("no %s in the metrics", name)
		}
		*into = int(v)
	}
	return u
}

// atRest is what the endpoint uses beside connections that it keeps for the
// next request.
func (s *soak) atRest() footprint {
	s.t.Helper()
	for _, ts := range s.web {
		ts.Config.SetKeepAlivesEnabled(false) // which ends those that wait
		ts.Config.SetKeepAlivesEnabled(true)
	}
	return s.scrape()
}

// checkExecutions compares what clients heard with the lines that executions left.
func (s *soak) checkExecutions() {
	times := map[string]int{}
	for _, how := range []string{"once", "often"} {
		duplicates, executed := 0, 0
		for _, server := range s.servers {
			for _, text := range fileLines(filepath.Join(s.dir, server+"."+how)) {
				times[text]++
				executed++
				if times[text] > 1 {
					duplicates++
				}
			}
		}
		s.executions[how] = executed
		s.executions["duplicates of "+how] = duplicates
		if how == "once" && duplicates > 0 {
			s.t.Errorf("%d duplicates", duplicates)
		}
	}
	for text, said := range s.said {
		if n := times[text]; said == "no" && n > 0 || said == "yes" && n == 0 {
			s.t.Errorf("%s: executed %q, and there are %d lines", text, said, n)
		}
	}
}

// report prints the numbers.
func (s *soak) report(length time.Duration, before, warm, after footprint, restarts int) {
	var b strings.Builder
	table := func(title string, rows map[string]int) {
		fmt.Fprintf(&b, "%s:\n", title)
		for _, name := range slices.Sorted(maps.Keys(rows)) {
			fmt.Fprintf(&b, "  %8d  %s\n", rows[name], name)
		}
	}
	fmt.Fprintf(&b, "%v: %d requests of %d clients, %d answers, %d left by their clients\n", length, s.requests, soakClients, s.answers, s.left)
	table("answers", s.outcomes)
	table("executions", s.executions)
	table("faults", s.hits)
	slices.Sort(s.took)
	if n := len(s.took); n > 0 {
		fmt.Fprintf(&b, "good calls: p50 %v, p99 %v\n", s.took[n/2].Round(time.Microsecond), s.took[n*99/100].Round(time.Microsecond))
	}
	fmt.Fprintf(&b, "processes that died: %d; restarts and reconnects: %d\n", s.deaths(), restarts)
	fmt.Fprintf(&b, "before the clients: %v\nafter the warm-up:  %v\nafter the clients:  %v", before, warm, after)
	s.t.Log(b.String())
}

func (f footprint) String() string {
	const mb = 1 << 20
	return fmt.Sprintf("%d goroutines, %d threads, %.1f MB resident, %.1f MB heap", f.goroutines, f.threads, float64(f.rss)/mb, float64(f.heap)/mb)
}

// endsClean ends the endpoint, and nothing is left of it.
func (s *soak) endsClean() {
	s.t.Helper()
	all := descendants(s.e.cmd.Process.Pid)
	if len(all) != soakProcesses {
		s.t.Errorf("%d processes for %d servers: %v", len(all), soakProcesses, all)
	}
	if n := zombies(s.e.cmd.Process.Pid); n > 0 {
		s.t.Errorf("%d processes wait to be reaped", n)
	}
	s.e.endBy("SIGTERM")
	<-s.e.over
	for _, p := range all {
		eventually(s.t, p.String()+" is gone", func() bool { return !p.running() })
	}
	s.t.Logf("after SIGTERM: exit status %d, none of %d processes is left", s.e.cmd.ProcessState.ExitCode(), len(all))
}

// zombies counts the children of pid that have ended and were not waited for.
func zombies(pid int) (n int) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		if s, ok := readStat(must(strconv.Atoi(filepath.Base(dir)))); ok && s.parent == pid && s.state == "Z" {
			n++
		}
	}
	return n
}
