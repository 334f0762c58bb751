package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files of the conformance runs")

// checkResults is one run of the official conformance suite: the statuses of
// each check, by "scenario check".
type checkResults map[string][]string

func (r checkResults) count(status string) int {
	n := 0
	for _, all := range r {
		for _, s := range all {
			if s == status {
				n++
			}
		}
	}
	return n
}

// imperfect lists the checks that neither passed nor only inform.
func (r checkResults) imperfect() []string {
	var list []string
	for _, check := range slices.Sorted(maps.Keys(r)) {
		for _, s := range r[check] {
			if s != "SUCCESS" && s != "INFO" {
				list = append(list, check+" "+s)
			}
		}
	}
	return slices.Compact(list)
}

var resultDir = regexp.MustCompile(`^server-(.+)-\d{4}-\d\d-\d\dT`)

// conformance runs a revision's suite against a URL. The tasks scenarios are
// left out: they test an extension that is not offered.
func conformance(t *testing.T, url, revision string) checkResults {
	t.Helper()
	out := t.TempDir()
	// The exit status counts the tasks scenarios; the results tell more.
	_, _ = runNode(t, module(t, "conformance/dist/index.js"), "server", "--url", url, "--requirements", revision, "-o", out)
	dirs, err := os.ReadDir(out)
	if err != nil || len(dirs) == 0 {
		t.Fatalf("the suite wrote no results: %v", err)
	}
	results := checkResults{}
	for _, d := range dirs {
		m := resultDir.FindStringSubmatch(d.Name())
		if m == nil {
			t.Fatalf("unexpected result %s", d.Name())
		}
		if strings.HasPrefix(m[1], "tasks-") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(out, d.Name(), "checks.json"))
		if err != nil {
			t.Fatal(err)
		}
		var checks []struct{ ID, Status, ErrorMessage string }
		if err := json.Unmarshal(b, &checks); err != nil {
			t.Fatal(err)
		}
		for _, c := range checks {
			key := m[1] + " " + c.ID
			results[key] = append(results[key], c.Status)
			if c.Status != "SUCCESS" && c.Status != "INFO" {
				t.Logf("%s %s: %s", key, c.Status, c.ErrorMessage)
			}
		}
	}
	return results
}

// through starts AgentArmor in front of the reference server and runs a suite.
func through(t *testing.T, upstream, revision string) checkResults {
	t.Helper()
	e := serveWeb(t, configFile(t, "", "  reference: "+upstream+"\n"))
	e.awaitTools("test_simple_text")
	return conformance(t, e.url, revision)
}

// saidAloud is a check that exists only where a lost answer is reported: the
// reference server closes the stream of this call without an event id to
// resume from (SEP-1699), so its answer is lost. Directly, the client waits in
// vain; AgentArmor says that the call was lost.
const saidAloud = "server-sse-polling incoming-sse-event FAILURE"

func TestConformance(t *testing.T) {
	npm(t)
	bin := everything(t)
	const legacy, modern = "2025-11-25", "2026-07-28"
	for _, c := range []struct {
		name, revision string
		upstream       func(t *testing.T) string
		stateless      bool
		atLeast        int // checks that pass directly
	}{
		{"legacy", legacy, func(t *testing.T) string {
			return fmt.Sprintf("{url: %q, prefix: '', protocol: legacy}", startEverything(t, false))
		}, false, 82},
		{"legacy over stdio", legacy, func(*testing.T) string {
			return fmt.Sprintf("{command: %q, prefix: '', protocol: legacy}", bin)
		}, false, 82},
		{"modern", modern, func(t *testing.T) string {
			return fmt.Sprintf("{url: %q, prefix: '', protocol: %s}", startEverything(t, true), modern)
		}, true, 153},
	} {
		t.Run(c.name, func(t *testing.T) {
			direct := conformance(t, startEverything(t, c.stateless), c.revision)
			if n := direct.count("SUCCESS"); n != c.atLeast {
				t.Fatalf("%d checks pass directly, expected %d", n, c.atLeast)
			}
			got := through(t, c.upstream(t), c.revision)
			if n := got.count("SUCCESS"); n < c.atLeast {
				t.Errorf("%d checks pass, directly %d", n, c.atLeast)
			}
			known := append(direct.imperfect(), saidAloud)
			for _, check := range got.imperfect() {
				if !slices.Contains(known, check) {
					t.Errorf("not so directly: %s", check)
				}
			}
		})
	}
}

// A suite of one generation in front of a server of the other: what cannot
// pass stands in a golden file, each check with the reason.
func TestConformanceMixed(t *testing.T) {
	npm(t)
	everything(t)
	for _, c := range []struct {
		suite, upstream string
		stateless       bool
	}{
		{"2025-11-25", "2026-07-28", true},
		{"2026-07-28", "legacy", false},
	} {
		t.Run(c.suite+" on "+c.upstream, func(t *testing.T) {
			upstream := fmt.Sprintf("{url: %q, prefix: '', protocol: %s}", startEverything(t, c.stateless), c.upstream)
			got := through(t, upstream, c.suite)
			golden := filepath.Join("testdata", "conformance", c.suite+"-on-"+c.upstream+".golden")
			reasons := readGolden(t, golden)
			if *update {
				writeGolden(t, golden, got.imperfect(), reasons)
				return
			}
			want := slices.Sorted(maps.Keys(reasons))
			if diff := cmp.Diff(want, got.imperfect()); diff != "" {
				t.Errorf("checks that do not pass (-golden +now):\n%s", diff)
			}
			for check, reason := range reasons {
				if reason == "" {
					t.Errorf("%s: %s has no reason", golden, check)
				}
			}
		})
	}
}

// readGolden reads lines "scenario check STATUS: reason".
func readGolden(t *testing.T, file string) map[string]string {
	t.Helper()
	reasons := map[string]string{}
	for _, line := range fileLines(file) {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		check, reason, _ := strings.Cut(line, ": ")
		reasons[strings.TrimSuffix(check, ":")] = reason
	}
	return reasons
}

func writeGolden(t *testing.T, file string, checks []string, reasons map[string]string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("# Checks that do not pass, each with the reason. go test -run ConformanceMixed -update rewrites it and keeps the reasons.\n")
	for _, check := range checks {
		fmt.Fprintf(&b, "%s: %s\n", check, reasons[check])
	}
	write(t, file, b.String())
}
