package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"
	"go.uber.org/goleak"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/llm"
)

func TestWilson(t *testing.T) {
	// The values of R's prop.test(k, n, correct = FALSE).
	for _, c := range []struct {
		k, n         int
		p, low, high float64
	}{
		{10, 20, 0.5, 0.2993, 0.7007}, {0, 10, 0, 0, 0.2775}, {10, 10, 1, 0.7225, 1}, {334, 500, 0.668, 0.6256, 0.7079}, {0, 0, 0, 0, 1},
	} {
		got := wilson(c.k, c.n)
		for i, d := range []float64{got.Share - c.p, got.Low - c.low, got.High - c.high} {
			if math.Abs(d) > 0.00006 {
				t.Errorf("%d of %d: %+v (%d)", c.k, c.n, got, i)
			}
		}
	}
}

// The faults follow from seed, step and attempt alone, at the rate that was asked for.
func TestEvenFaults(t *testing.T) {
	kinds := map[chaos.Action]int{}
	f, other := evenFaults{0.1, 7}, evenFaults{0.1, 8}
	differ := 0
	for i := range 20_000 {
		c := crashCall{target: "mcp/tools", op: chaos.ToolCall, tool: "echo", step: string(rune('a'+i%7)) + strings.Repeat("x", i%91), attempt: i}
		d := f.decide(c)
		if again := f.decide(c); again.Action != d.Action {
			t.Fatal("not the same again")
		}
		if other.decide(c).Action != d.Action {
			differ++
		}
		kinds[d.Action]++
	}
	if n := 20_000 - kinds[chaos.Pass]; n < 1850 || n > 2150 {
		t.Errorf("%d of 20000 at a rate of 0.1", n)
	}
	for _, a := range []chaos.Action{chaos.Answer, chaos.Die, chaos.Break, chaos.Garble} {
		if kinds[a] < 400 {
			t.Errorf("action %d: %d times", a, kinds[a])
		}
	}
	if differ < 1000 {
		t.Errorf("another seed differs in %d", differ)
	}
	if d := (evenFaults{0, 1}).decide(crashCall{step: "x"}); d.Cause != nil {
		t.Error("a fault at rate 0")
	}
	if d := (evenFaults{1, 1}).decide(crashCall{target: "mcp/tools"}); d.Cause != nil {
		t.Error("a probe meets a fault")
	}
}

// quickly is a crash test that takes about a second.
func quickly(t *testing.T, f crashFlags) *crashReport {
	t.Helper()
	a := &app{env: mapEnv(nil), stdout: io.Discard, stderr: io.Discard}
	c, err := a.crash(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// With the armor every run succeeds, nothing is executed twice, and nothing is
// left behind.
func TestCrashLanes(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	f := crashFlags{steps: 20, runs: 40, rate: 0.05, seed: 3}
	c := quickly(t, f)
	if c.Naive.Success.High >= c.Armored.Success.Low || c.Armored.Succeeded != f.runs || c.Armored.Duplicates != 0 || c.Naive.Duplicates != 0 {
		t.Errorf("naive %+v, armored %+v", c.Naive.Success, c.Armored.Success)
	}
	if n := &c.Naive; n.Retries+n.Failovers+n.Repeats+n.Lookups != 0 || n.Unaided != n.Success {
		t.Errorf("naive: %+v", n)
	}
	if a := &c.Armored; a.Retries == 0 || a.Failovers == 0 || a.Lookups == 0 || a.Unaided.Share >= 1 || a.Unaided.Share <= c.Naive.Success.Share || a.UnaidedBySteps[19] != a.Unaided.Share {
		t.Errorf("retries %d, failovers %d, lookups %d, unaided %+v", a.Retries, a.Failovers, a.Lookups, a.Unaided)
	}
	if math.Abs(c.Predicted-math.Pow(0.95, 20)) > 1e-9 || c.Armored.P95MS < c.Armored.P50MS || c.Naive.P50MS <= 0 || len(c.Naive.BySteps) != 20 {
		t.Errorf("%+v", c)
	}
	if again := quickly(t, f); again.Naive.Succeeded != c.Naive.Succeeded || !cmp.Equal(again.Naive.BySteps, c.Naive.BySteps) {
		t.Errorf("the same seed: %d and %d runs succeeded", c.Naive.Succeeded, again.Naive.Succeeded)
	}
}

// Without faults every run succeeds; with nothing but faults none does.
func TestCrashExtremes(t *testing.T) {
	c := quickly(t, crashFlags{steps: 10, runs: 8, rate: 0, seed: 1})
	if c.Naive.Succeeded != 8 || c.Armored.Succeeded != 8 || c.Armored.Retries+c.Armored.Failovers+c.Naive.Faults != 0 {
		t.Errorf("no faults: %+v", c)
	}
	c = quickly(t, crashFlags{steps: 1, runs: 2, rate: 1, seed: 1})
	if c.Naive.Succeeded != 0 || c.Armored.Succeeded != 0 {
		t.Errorf("only faults: %+v", c)
	}
}

// A crash test ends with its context.
func TestCrashEnds(t *testing.T) {
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	a := &app{env: mapEnv(nil), stdout: &out, stderr: io.Discard}
	if err := a.crashtest(ctx, crashFlags{steps: 1000, runs: 10_000, seed: 1}); err == nil || out.Len() > 0 {
		t.Errorf("%v, %s", err, out.String())
	}
}

// crashWorldOf is a world that ends with the test, and in which the faults act.
func crashWorldOf(t *testing.T, faults decider) *crashWorld {
	t.Helper()
	w, err := newCrashWorld(faults, quickPace())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	w.begin()
	return w
}

// faultOf has the first call of each tool for a step meet what the step is named for.
type faultOf struct {
	mu   sync.Mutex
	left map[string]chaos.Decision // by tool and step
}

func (f *faultOf) close() {}

func (f *faultOf) decide(c crashCall) chaos.Decision {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.left[c.tool+" "+c.step]
	delete(f.left, c.tool+" "+c.step)
	return d
}

// What may have been executed is looked up, also when the first lookup fails, and
// made again only if it was not.
func TestLooksUpBeforeItRepeats(t *testing.T) {
	fault := &chaos.Injected{ID: "x"}
	half := func(b []byte) []byte { return b[:len(b)/2] }
	gone := chaos.Decision{Action: chaos.Die, Cause: fault}
	w := crashWorldOf(t, &faultOf{left: map[string]chaos.Decision{
		"append before": gone, "append looked": gone, "appended looked": {Action: chaos.FailTool, Text: "The tool failed.", Cause: fault},
		"append after": {Action: chaos.Break, Cause: fault}, "append cut": {Action: chaos.Garble, Change: half, Cause: fault},
		"append failed": {Action: chaos.FailTool, Text: "The tool failed.", Cause: fault},
		"append told":   {Action: chaos.Answer, Status: 429, RetryAfter: time.Second, Cause: fault},
	}})
	l, err := newArmored(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	var got []string
	for _, step := range []string{"before", "looked", "after", "cut", "failed", "told", "well"} {
		o := l.do(t.Context(), appendStep, step)
		got = append(got, fmt.Sprintf("%s %t: %d lookups, %d repeats", step, o.ok, o.lookups, o.repeats))
	}
	if diff := cmp.Diff([]string{
		"before true: 1 lookups, 1 repeats", "looked true: 1 lookups, 2 repeats", "after true: 1 lookups, 0 repeats", "cut true: 1 lookups, 0 repeats",
		"failed true: 1 lookups, 1 repeats", "told true: 0 lookups, 0 repeats", "well true: 0 lookups, 0 repeats",
	}, got); diff != "" {
		t.Error(diff)
	}
	if lines := string(must(os.ReadFile(w.file("append")))); lines != "before\nlooked\nafter\ncut\nfailed\ntold\nwell\n" {
		t.Errorf("executed: %q", lines)
	}
}

// What AgentArmor says in a result is heeded, of a server and of the models.
func TestAgentReadsWhatItIsTold(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	var o outcome
	call := &mcp.CallToolResult{Result: mcp.Result{Meta: &mcp.Meta{AdditionalFields: map[string]any{
		"agentarmor/call": map[string]any{"executed": "no", "retry_at": at, "attempts": 3},
	}}}}
	if told := o.read(call, appendStep); told != (account{"no", at, 3}) || o.retries != 2 {
		t.Errorf("%+v, %+v", told, o)
	}
	degraded := &mcp.CallToolResult{StructuredContent: map[string]any{"degraded": true, "not_before": at}}
	if told := o.read(degraded, modelStep); told.RetryAt != at || o.failover {
		t.Errorf("%+v, %+v", told, o)
	}
	other := &mcp.CallToolResult{StructuredContent: map[string]any{"provider": "groq"}}
	if o.read(other, modelStep); !o.failover {
		t.Error("another model is none")
	}
}

// A call that hangs is not executed any more once its client has left.
func TestNobodyWorksForWhoHasLeft(t *testing.T) {
	inj := chaos.New(chaos.Options{Enabled: true})
	w := crashWorldOf(t, &scenarioFaults{inj})
	naive, err := newNaive(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inj.Inject(chaos.Spec{Target: "mcp/tools/append", Fault: chaos.Hang, TTL: chaos.Duration(time.Minute)}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if o := naive.do(ctx, appendStep, "x"); o.ok {
		t.Error("it was answered")
	}
	naive.close()
	w.server.Close() // waits for what it serves
	inj.Close()
	if b, err := os.ReadFile(w.file("append")); err == nil {
		t.Errorf("executed: %q", b)
	}
}

func TestDuplicatesAreCounted(t *testing.T) {
	w := crashWorldOf(t, evenFaults{})
	if n := w.duplicates(); n != 0 {
		t.Errorf("%d of nothing", n)
	}
	if err := os.WriteFile(w.file("append"), []byte("a\nb\na\nc\na\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := w.duplicates(); n != 2 {
		t.Errorf("%d duplicates", n)
	}
}

// fixedReport is a report that does not depend on anything.
func fixedReport() *crashReport {
	c := &crashReport{Steps: 4, Runs: 10, FaultRate: 0.1, Seed: 1}
	c.Naive = laneReport{
		Succeeded: 6, Success: wilson(6, 10), Unaided: wilson(6, 10), StepsMade: 31, Faults: 4, P50MS: 2, P95MS: 8,
		BySteps: []float64{0.9, 0.8, 0.7, 0.6}, UnaidedBySteps: []float64{0.9, 0.8, 0.7, 0.6},
		Latency: []histogram{{0.25, 0}, {2, 25}, {8, 6}}, FaultsAtMS: []float64{10, 20, 30, 40}, TookMS: 50,
	}
	c.Armored = laneReport{
		Succeeded: 9, Success: wilson(9, 10), Unaided: wilson(7, 10), StepsMade: 39, Faults: 5, P50MS: 2.5, P95MS: 20, Retries: 3, Failovers: 1, Repeats: 2, Lookups: 1,
		BySteps: []float64{1, 1, 1, 0.9}, UnaidedBySteps: []float64{1, 0.9, 0.8, 0.7}, Latency: []histogram{{0.25, 0}, {2.5, 30}, {30, 9}}, FaultsAtMS: []float64{5, 15}, TookMS: 60,
		Breakers: []breakerMark{{"echo", "open", 15}, {"echo", "half_open", 30}, {"echo", "closed", 40}, {"<gemini>", "open", 50}},
	}
	c.conclude()
	return c
}

func TestCrashTable(t *testing.T) {
	c := fixedReport()
	got := c.table(plain)
	c.Scenario, c.Armored.Duplicates = "everything", 1
	got += "\n" + c.table(marked)
	const file = "testdata/crashtest.want"
	if *update {
		write(t, file, got)
	}
	if diff := cmp.Diff(string(must(os.ReadFile(file))), got); diff != "" {
		t.Error(diff)
	}
}

// The page is one file that needs nothing else, and its drawings are well-formed.
func TestCrashPage(t *testing.T) {
	page := string(must(fixedReport().page()))
	if link := regexp.MustCompile(`(?i)(src|href)=|url\(|@import|https?:`).FindString(page); link != "" {
		t.Errorf("the page refers to something: %s", link)
	}
	svgs := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(page, -1)
	if len(svgs) != 3 {
		t.Fatalf("%d drawings", len(svgs))
	}
	for _, svg := range svgs {
		d := xml.NewDecoder(strings.NewReader(svg))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in %s", err, svg)
			}
		}
		if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
			t.Error(svg)
		}
	}
	if n := strings.Count(svgs[0], "<polyline"); n != 4 {
		t.Errorf("%d curves of success", n)
	}
	for _, want := range []string{"breaker echo", "breaker &lt;gemini&gt;", `class="half"`} {
		if !strings.Contains(svgs[2], want) {
			t.Errorf("no %s in the timeline", want)
		}
	}
	if n := strings.Count(svgs[2], "<rect"); n != 4+2+3 {
		t.Errorf("%d marks in the timeline", n)
	}
	if !strings.Contains(page, "60.0 % of the runs succeed") || !strings.Contains(page, "(70.0 % without any help of the agent)") {
		t.Error("no summary")
	}
	for class := range strings.FieldsSeq("naive armored curve open half grid") {
		if n := strings.Count(page, "."+class+" {") + strings.Count(page, "."+class+", "); n != 2 {
			t.Errorf("class %s has %d colours, not one in light and one in dark", class, n)
		}
	}
}

// An empty report still draws.
func TestCrashPageOfNothing(t *testing.T) {
	c := &crashReport{Steps: 1, Runs: 1, Naive: laneReport{BySteps: []float64{0}}, Armored: laneReport{BySteps: []float64{0}, UnaidedBySteps: []float64{0}}}
	c.conclude()
	if page := string(must(c.page())); strings.Contains(page, "NaN") || strings.Contains(page, "Inf") {
		t.Error(page)
	}
}

func TestScenarioFaults(t *testing.T) {
	if _, err := newScenarioFaults("no_such", chaos.Options{}); err == nil || !strings.Contains(err.Error(), "provider_outage") {
		t.Error(err)
	}
	f, err := newScenarioFaults("provider_outage", chaos.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	first, second := f.decide(crashCall{target: "llm/gemini"}), f.decide(crashCall{target: "llm/groq"})
	if first.Action != chaos.Answer || first.Status != 503 || second.Cause != nil {
		t.Errorf("the first model: %+v, the second: %+v", first, second)
	}
	if d := f.decide(crashCall{target: "mcp/tools", op: chaos.ToolCall, tool: "echo"}); d.Cause != nil {
		t.Errorf("the server: %+v", d)
	}
}

// A server that is not there answers no probe either.
func TestScenarioFaultsOfEveryRequest(t *testing.T) {
	f, err := newScenarioFaults("flapping_server", chaos.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	w, err := newCrashWorld(f, quickPace())
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	naive, err := newNaive(t.Context(), w) // the faults have not begun
	if err != nil {
		t.Fatal(err)
	}
	defer naive.close()
	w.begin()
	if _, err := connect(t.Context(), w.url(), "", "another"); err == nil {
		t.Error("it is there")
	}
}

// Probes go on meeting faults while a lane is summed up.
func TestFaultsAreMetToTheEnd(t *testing.T) {
	w := crashWorldOf(t, evenFaults{1, 1})
	res := &laneResult{lengths: []int{1}, unaided: []int{1}}
	var probes sync.WaitGroup
	probes.Go(func() {
		for range 1000 {
			w.meet(crashCall{target: "mcp/tools", step: "probe"})
		}
	})
	for range 100 {
		if out := res.report(&naive{}, w, 1, time.Second); out.Faults != len(out.FaultsAtMS) {
			t.Fatalf("%d faults, at %d moments", out.Faults, len(out.FaultsAtMS))
		}
	}
	probes.Wait()
	if out := res.report(&naive{}, w, 1, time.Second); out.Faults != 1000 {
		t.Errorf("%d faults", out.Faults)
	}
}

// What would not show is refused, rather than measured as no fault at all.
func TestScenarioOfDrift(t *testing.T) {
	scenario := func(target string) chaos.Options {
		return chaos.Options{Scenarios: map[string][]chaos.Spec{"mine": {{Target: "llm/groq", Fault: chaos.Error}, {Target: target, Fault: chaos.SchemaDrift}}}}
	}
	for _, target := range []string{"mcp/tools", "mcp/*/echo"} {
		_, err := newScenarioFaults("mine", scenario(target))
		if err == nil || report(io.Discard, err) != 2 || !strings.Contains(err.Error(), "--scenario: schema_drift on "+target+" does not show") {
			t.Errorf("%s: %v", target, err)
		}
	}
	f, err := newScenarioFaults("mine", scenario("llm/gemini"))
	if err != nil {
		t.Fatal(err)
	}
	w := crashWorldOf(t, f)
	if r, err := (&crashModel{w, "gemini"}).Generate(t.Context(), llm.Prompt("x"), nil); err == nil {
		t.Errorf("a model whose answers have other names says %q", r.Text)
	}
}

// A scenario of the configuration, which probes meet, too; its report as JSON and as a page.
func TestCrashtestOfAConfiguredScenario(t *testing.T) {
	dir := t.TempDir()
	config, page := filepath.Join(dir, "c.yaml"), filepath.Join(dir, "r.html")
	write(t, config, "chaos: {scenarios: {mine: [{target: mcp/tools, fault: error, status: 503, count: 6}]}}\n")
	var out bytes.Buffer
	a := &app{env: mapEnv(nil), stdout: &out, stderr: io.Discard}
	if err := a.crashtest(t.Context(), crashFlags{steps: 2, runs: 10, seed: 1, scenario: "mine", cfg: config, json: true, html: page}); err != nil {
		t.Fatal(err)
	}
	var c crashReport
	if err := json.Unmarshal(out.Bytes(), &c); err != nil {
		t.Fatal(err)
	}
	if c.Naive.Succeeded != 4 || c.Armored.Succeeded != 10 || c.Armored.Faults != 6 || c.Armored.Retries+c.Armored.Repeats == 0 || c.Scenario != "mine" {
		t.Errorf("%s", out.String())
	}
	if !bytes.HasPrefix(must(os.ReadFile(page)), []byte("<!doctype html>")) {
		t.Error("no page")
	}
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, 1000)
	p.stage("naive")
	p.step()
	p.end()
	if out.Len() > 0 {
		t.Errorf("no terminal, but %q", out.String())
	}
	p.out = &out
	p.stage("naive")
	for range 499 {
		p.step()
	}
	if n := strings.Count(out.String(), "\r"); n != 51 || !strings.HasSuffix(out.String(), "naive    "+strings.Repeat("█", 20)+strings.Repeat("░", 20)+"  50 %") {
		t.Errorf("drawn %d times: %q", n, out.String())
	}
}
