package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

const minute = Duration(time.Minute)

// on is an injector that is switched on, with a fault.
func on(t *testing.T, specs ...Spec) *Injector {
	t.Helper()
	i := New(Options{Enabled: true, Seed: 1})
	t.Cleanup(i.Close)
	for _, s := range specs {
		if s.TTL == 0 {
			s.TTL = minute
		}
		if _, err := i.Inject(s); err != nil {
			t.Fatal(err)
		}
	}
	return i
}

func toolCall(tool string) Call { return Call{Target: Server("up"), Op: ToolCall, Tool: tool} }

// actions are what becomes of n calls.
func actions(i *Injector, c Call, n int) (out []Action) {
	for range n {
		out = append(out, i.Decide(c).Action)
	}
	return out
}

func hits(list []Action) (n int) {
	for _, a := range list {
		if a != Pass {
			n++
		}
	}
	return n
}

func TestOffInjectsNothing(t *testing.T) {
	for name, i := range map[string]*Injector{"nil": nil, "off": New(Options{})} {
		if _, err := i.Inject(Spec{Target: "llm/x", Fault: Error, TTL: minute}); !errors.Is(err, ErrOff) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := i.Scenario("everything", "", time.Minute, 0); !errors.Is(err, ErrOff) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := i.Clear("all"); !errors.Is(err, ErrOff) {
			t.Errorf("%s: %v", name, err)
		}
		base := http.NewFileTransport(http.Dir("."))
		if got := i.Transport("llm/x", base); got != base {
			t.Errorf("%s: another transport", name)
		}
		if d := i.Decide(Call{Target: "llm/x"}); d.Cause != nil || len(i.List()) != 0 {
			t.Errorf("%s: %+v", name, d)
		}
		i.Close()
	}
}

// Each knob that all faults have turns something.
func TestProbabilityCountAfter(t *testing.T) {
	all := actions(on(t, Spec{Target: "mcp/up", Fault: Error}), toolCall("t"), 10)
	if n := hits(all); n != 10 {
		t.Errorf("%d of 10", n)
	}
	half := actions(on(t, Spec{Target: "mcp/up", Fault: Error, Probability: new(0.5)}), toolCall("t"), 1000)
	if n := hits(half); n < 450 || n > 550 {
		t.Errorf("%d of 1000 at a probability of a half", n)
	}
	if n := hits(actions(on(t, Spec{Target: "mcp/up", Fault: Error, Probability: new(0.0)}), toolCall("t"), 100)); n != 0 {
		t.Errorf("%d at a probability of 0", n)
	}
	want := []Action{Pass, Pass, Answer, Answer, Answer, Pass, Pass}
	i := on(t, Spec{Target: "mcp/up", Fault: Error, After: 2, Count: 3})
	if got := actions(i, toolCall("t"), 7); !slices.Equal(got, want) {
		t.Error(got)
	}
	if a := i.List()[0]; a.Calls != 7 || a.Hits != 3 {
		t.Errorf("%+v", a)
	}
}

// The same seed and the same calls meet the same faults, whatever other
// targets do meanwhile; another seed meets others.
func TestSameSeedSameFaults(t *testing.T) {
	run := func(injector, spec int64, noise bool) (out []string) {
		i := New(Options{Enabled: true, Seed: injector})
		defer i.Close()
		for _, s := range []Spec{
			{Target: "mcp/*", Fault: Latency, Delay: minute, Jitter: minute / 2, Probability: new(0.5), Seed: spec, TTL: minute},
			{Target: "mcp/*/*", Fault: Error, Probability: new(0.3), Seed: spec, TTL: minute},
			{Target: "mcp/*/*", Fault: Truncate, Probability: new(0.3), Seed: spec, TTL: minute},
		} {
			if _, err := i.Inject(s); err != nil {
				t.Fatal(err)
			}
		}
		for range 200 {
			if noise {
				i.Decide(toolCall("other"))
			}
			d := i.Decide(toolCall("t"))
			var line strings.Builder
			line.WriteString(fmt.Sprint(d.Action, d.delays != nil))
			for _, wait := range d.delays {
				line.WriteString(wait.wait.String())
			}
			if d.Change != nil {
				line.WriteString(string(d.Change([]byte(strings.Repeat("abcdefghij", 10)))))
			}
			out = append(out, line.String())
		}
		return out
	}
	first := run(7, 0, false)
	if diff := cmp.Diff(first, run(7, 0, false)); diff != "" {
		t.Errorf("the injector's seed: %s", diff)
	}
	if diff := cmp.Diff(first, run(7, 0, true)); diff != "" {
		t.Errorf("another target matters: %s", diff)
	}
	if slices.Equal(first, run(8, 0, false)) {
		t.Error("the injector's seed turns nothing")
	}
	if !slices.Equal(run(7, 5, false), run(8, 5, false)) || slices.Equal(run(7, 5, false), run(7, 6, false)) {
		t.Error("a fault's own seed turns nothing")
	}
}

// Targets under one fault do not fail in step.
func TestTargetsFailIndependently(t *testing.T) {
	i := on(t, Spec{Target: "mcp/up", Fault: Error, Probability: new(0.5)})
	if slices.Equal(actions(i, toolCall("t"), 100), actions(i, toolCall("u"), 100)) {
		t.Error("two tools meet the same faults")
	}
}

// The seed that is told gives the same faults again.
func TestToldSeed(t *testing.T) {
	i := New(Options{Enabled: true})
	defer i.Close()
	spec := Spec{Target: "mcp/up", Fault: Error, Probability: new(0.5), TTL: minute}
	a, _ := i.Inject(spec)
	first := actions(i, toolCall("t"), 100)
	if _, err := i.Clear(a.ID); err != nil {
		t.Fatal(err)
	}
	spec.Seed = a.Seed
	if _, err := i.Inject(spec); err != nil || !slices.Equal(first, actions(i, toolCall("t"), 100)) {
		t.Error("other faults with the seed that was told", err)
	}
}

func TestTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes []string
		i := New(Options{Enabled: true, MaxTTL: time.Hour, Watcher: Watcher{OnChange: func(c Change) {
			changes = append(changes, string(c.Kind)+" "+c.ID+" "+c.Left.String())
		}}})
		if _, err := i.Inject(Spec{Target: "mcp/up", Fault: Error, TTL: 30 * minute}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if a := i.List()[0]; a.Left != 20*minute || !a.Until.Equal(a.Since.Add(30*time.Minute)) {
			t.Errorf("%+v", a)
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if i.Any() || i.Decide(toolCall("t")).Cause != nil || len(i.List()) != 0 {
			t.Error("it goes on")
		}
		if diff := cmp.Diff([]string{"injected f1 30m0s", "expired f1 0s"}, changes); diff != "" {
			t.Error(diff)
		}
	})
}

func TestClear(t *testing.T) {
	fresh := func() *Injector {
		return on(t, Spec{Target: "llm/a", Fault: Error}, Spec{Target: "mcp/up/t", Fault: Error}, Spec{Target: "mcp/up/u", Fault: Hang})
	}
	for which, want := range map[string]string{"f2": "f2", "llm/a": "f1", "mcp/up/*": "f2 f3", "mcp/*/u": "f3", "all": "f1 f2 f3", "*/*": "f1"} {
		i := fresh()
		gone, err := i.Clear(which)
		var ids []string
		for _, a := range gone {
			ids = append(ids, a.ID)
		}
		if got := strings.Join(ids, " "); err != nil || got != want || len(i.List()) != 3-len(gone) {
			t.Errorf("%s: %q %v", which, got, err)
		}
	}
	if _, err := fresh().Clear("f9"); err == nil || !strings.Contains(err.Error(), `no fault "f9": active are f1 (llm/a), f2`) {
		t.Error(err)
	}
	i := on(t)
	if _, err := i.Clear("f9"); err == nil || !strings.Contains(err.Error(), "none is active") {
		t.Error(err)
	}
	if gone, err := i.Clear("all"); err != nil || len(gone) != 0 {
		t.Error(gone, err)
	}
}

func TestCloseEndsAll(t *testing.T) {
	i := on(t, Spec{Target: "llm/a", Fault: Error}, Spec{Target: "llm/b", Fault: Hang})
	i.Close()
	if i.Any() || len(i.List()) != 0 {
		t.Error("faults go on")
	}
	if _, err := i.Inject(Spec{Target: "llm/a", Fault: Error, TTL: minute}); err == nil {
		t.Error("injected after the end")
	}
}

// Latency adds to what else is active, whichever came first; of the others the first acts.
func TestFaultsCompose(t *testing.T) {
	i := on(t, Spec{Target: "mcp/up", Fault: Error, Count: 1}, Spec{Target: "mcp/up", Fault: Kill},
		Spec{Target: "mcp/up", Fault: Latency, Delay: minute}, Spec{Target: "mcp/up", Fault: Latency, Delay: minute})
	for _, want := range []struct {
		action Action
		id     string
	}{{Answer, "f1"}, {Die, "f2"}} {
		if d := i.Decide(toolCall("t")); d.Action != want.action || d.Cause.ID != want.id || len(d.delays) != 2 {
			t.Errorf("%+v", d)
		}
	}
	if a := i.List()[1]; a.Hits != 1 {
		t.Errorf("the fault that did not act has %d hits", a.Hits)
	}
}

// Those who watch hear of each hit, with the context of the call.
func TestHitsAreTold(t *testing.T) {
	type key struct{}
	var told []string
	i := on(t, Spec{Target: "mcp/up/t", Fault: Error})
	i.Watch(Watcher{OnHit: func(h Hit) { told = append(told, fmt.Sprint(h.ID, h.Fault, h.Target, h.Context.Value(key{}))) }})
	c := toolCall("t")
	c.Context = context.WithValue(t.Context(), key{}, "ctx")
	i.Decide(c)
	c.Tool = "u"
	i.Decide(c)
	if diff := cmp.Diff([]string{"f1errormcp/up/tctx"}, told); diff != "" {
		t.Error(diff)
	}
}

// There is a limit, since every request is asked about each fault.
func TestTooManyFaults(t *testing.T) {
	i := New(Options{Enabled: true})
	defer i.Close()
	spec := Spec{Target: "mcp/up", Fault: Hang, TTL: Duration(time.Minute)}
	for n := range MaxActive + 1 {
		if _, err := i.Inject(spec); (err == nil) != (n < MaxActive) {
			t.Errorf("fault %d: %v", n, err)
		}
	}
	if _, err := i.Clear("f7"); err != nil {
		t.Error(err)
	}
	if _, err := i.Inject(spec); err != nil {
		t.Error(err)
	}
}
