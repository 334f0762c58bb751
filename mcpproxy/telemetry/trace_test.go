package telemetry

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/sdk"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

const (
	callerTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	callerSpan   = "00f067aa0ba902b7"
	callerParent = "00-" + callerTrace + "-" + callerSpan + "-01"
)

func TestSpansArriveAsATree(t *testing.T) {
	c := newCollector(t)
	tr := c.tracer("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=other", "OTEL_SERVICE_NAME", "mine")
	root := tr.Start(callerParent, "vendor=a,other=b", "tools/call", "github", "create_issue")
	first := root.Attempt(1)
	parent1, state1 := first.Context()
	first.End("lost", "maybe", "the stream ended")
	second := root.Attempt(2)
	parent2, _ := second.Context()
	second.End("ok", "yes", "")
	root.End("ok", "yes", "")
	root.End("lost", "no", "only the first End counts")
	flush(t, tr)

	got := c.spans()
	ids := map[string]string{}
	for key, s := range got {
		ids[key] = s.ID
	}
	common := func(more ...string) map[string]string {
		m := map[string]string{"mcp.method.name": "tools/call", "gen_ai.tool.name": "create_issue", "gen_ai.operation.name": "execute_tool",
			"agentarmor.upstream": "github"}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	const name, self, remote = "tools/call create_issue", 0x101, 0x301
	want := map[string]seen{
		" " + name: {ID: ids[" "+name], Parent: callerSpan, Trace: callerTrace, State: "vendor=a,other=b", Flags: remote, Name: name,
			Kind: tracepb.Span_SPAN_KIND_SERVER, Attrs: common("agentarmor.outcome", "ok", "agentarmor.executed", "yes")},
		"1 " + name: {ID: ids["1 "+name], Parent: ids[" "+name], Trace: callerTrace, State: "vendor=a,other=b", Flags: self, Name: name,
			Kind: tracepb.Span_SPAN_KIND_CLIENT, Status: tracepb.Status_STATUS_CODE_ERROR, Text: "the stream ended",
			Attrs: common("agentarmor.outcome", "lost", "agentarmor.executed", "maybe", "error.type", "lost", "agentarmor.attempt", "1")},
		"2 " + name: {ID: ids["2 "+name], Parent: ids[" "+name], Trace: callerTrace, State: "vendor=a,other=b", Flags: self, Name: name,
			Kind: tracepb.Span_SPAN_KIND_CLIENT, Attrs: common("agentarmor.outcome", "ok", "agentarmor.executed", "yes", "agentarmor.attempt", "2")},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if want := "00-" + callerTrace + "-" + ids["1 "+name] + "-01"; parent1 != want || state1 != "vendor=a,other=b" {
		t.Errorf("the first attempt passes on %q %q, want %q", parent1, state1, want)
	}
	if want := "00-" + callerTrace + "-" + ids["2 "+name] + "-01"; parent2 != want {
		t.Errorf("the second attempt passes on %q, want %q", parent2, want)
	}
	resource := map[string]string{"service.name": "mine", "service.version": "1.2.3", "deployment.environment.name": "test",
		"telemetry.sdk.name": "opentelemetry", "telemetry.sdk.language": "go", "telemetry.sdk.version": sdk.Version()}
	if d := cmp.Diff(resource, attributes(c.batches[0].Resource.Attributes)); d != "" {
		t.Error(d)
	}
	if scope := c.batches[0].ScopeSpans[0].Scope; scope.Name != "agentarmor" || scope.Version != "1.2.3" {
		t.Errorf("scope %v", scope)
	}
}

// Names say what a method addresses, where the conventions have a name for it:
// a URI is no part of a name.
func TestSpanNames(t *testing.T) {
	c := newCollector(t)
	tr := c.tracer()
	tr.Start("", "", "prompts/get", "a", "greet\xff").End("ok", "yes", "")
	tr.Start("", "", "resources/read", "a", "file:///private").End("cancelled", "maybe", "the client left")
	tr.Start("", "", "tools/list", "", "").End("upstream_error", "maybe", strings.Repeat("x", 2*maxError))
	flush(t, tr)
	for name, want := range map[string]seen{
		" prompts/get greet": {Attrs: map[string]string{"mcp.method.name": "prompts/get", "gen_ai.prompt.name": "greet", "agentarmor.upstream": "a",
			"agentarmor.outcome": "ok", "agentarmor.executed": "yes"}},
		" resources/read": {Attrs: map[string]string{"mcp.method.name": "resources/read", "agentarmor.upstream": "a",
			"agentarmor.outcome": "cancelled", "agentarmor.executed": "maybe"}},
		" tools/list": {Status: tracepb.Status_STATUS_CODE_ERROR, Text: strings.Repeat("x", maxError), Attrs: map[string]string{
			"mcp.method.name": "tools/list", "agentarmor.outcome": "upstream_error", "agentarmor.executed": "maybe", "error.type": "upstream_error"}},
	} {
		got := c.spans()[name]
		if d := cmp.Diff(want, seen{Status: got.Status, Text: got.Text, Attrs: got.Attrs}); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// What a fault was injected into is marked, and nothing else.
func TestInjectedSpans(t *testing.T) {
	c := newCollector(t)
	tr := c.tracer()
	for name, fault := range map[string]string{"broken": "f1", "whole": ""} {
		s := tr.Start("", "", "prompts/get", "a", name)
		if fault != "" {
			s.Injected(fault)
		}
		s.End("lost", "maybe", "")
	}
	flush(t, tr)
	for name, want := range map[string]string{" prompts/get broken": "f1", " prompts/get whole": ""} {
		if got := c.spans()[name].Attrs["agentarmor.injected"]; got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestInvalidContextIsIgnored(t *testing.T) {
	c := newCollector(t)
	tr := c.tracer()
	zero := strings.Repeat("0", 32)
	for _, parent := range []string{"", "x", "00-" + callerTrace, "00-" + zero + "-" + callerSpan + "-01", "00-" + callerTrace + "-0000000000000000-01",
		"ff-" + callerTrace + "-" + callerSpan + "-01", "00-" + strings.ToUpper(callerTrace) + "-" + callerSpan + "-01", callerParent + "-more", callerParent + "\n"} {
		s := tr.Start(parent, "vendor=a", "tools/call", "a", "b")
		got, state := s.Context()
		if len(got) != len(callerParent) || strings.Contains(got, callerTrace) || state != "" {
			t.Errorf("after %q goes on %q %q", parent, got, state)
		}
	}
	s := tr.Start(callerParent, "no list", "tools/call", "a", "b")
	if got, state := s.Context(); !strings.HasPrefix(got, "00-"+callerTrace) || state != "" {
		t.Errorf("an invalid tracestate: %q %q", got, state)
	}
}

// What the caller does not sample is not sent, and the next hop learns it.
func TestCallerDecidesAboutSampling(t *testing.T) {
	c := newCollector(t)
	tr := c.tracer()
	root := tr.Start(strings.TrimSuffix(callerParent, "1")+"0", "", "tools/call", "a", "b")
	attempt := root.Attempt(1)
	got, _ := attempt.Context()
	if !strings.HasPrefix(got, "00-"+callerTrace+"-") || !strings.HasSuffix(got, "-00") {
		t.Errorf("the next hop gets %q", got)
	}
	attempt.End("ok", "yes", "")
	root.End("ok", "yes", "")
	flush(t, tr)
	if got := c.spans(); len(got) > 0 {
		t.Errorf("sent %v", got)
	}
}

func TestOffCostsNothing(t *testing.T) {
	environ(t)
	tr, err := NewTracer(t.Context(), "1", silent)
	if tr != nil || err != nil {
		t.Fatalf("tracer %v, error %v", tr, err)
	}
	n := testing.AllocsPerRun(100, func() {
		s := tr.Start(callerParent, "a=b", "tools/call", "a", "b")
		a := s.Attempt(1)
		if parent, state := a.Context(); parent != "" || state != "" {
			t.Error("a context from nowhere")
		}
		a.End("ok", "yes", "")
		s.End("ok", "yes", "")
	})
	if n > 0 {
		t.Errorf("%v allocations", n)
	}
	if err := tr.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSpanAfterShutdownIsHarmless(t *testing.T) {
	c := newCollector(t)
	tr := c.tracer()
	open := tr.Start("", "", "tools/list", "a", "")
	flush(t, tr)
	open.End("ok", "yes", "")
	late := tr.Start(callerParent, "", "tools/list", "a", "")
	late.Attempt(1).End("ok", "yes", "")
	late.End("ok", "yes", "")
	if err := tr.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}
