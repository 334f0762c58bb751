package main

import (
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
	"github.com/agentarmor/agentarmor/fixtures/fakellm"
)

// spans is an OpenTelemetry collector that keeps what it is sent.
type spans struct {
	mu  sync.Mutex
	all []*tracepb.Span
}

func (s *spans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(r.Body)
	}
	b, _ := io.ReadAll(body)
	var data tracepb.TracesData // the same on the wire as an ExportTraceServiceRequest
	_ = proto.Unmarshal(b, &data)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range data.ResourceSpans {
		for _, scope := range of.ScopeSpans {
			s.all = append(s.all, scope.Spans...)
		}
	}
}

// named are the spans of one name and kind.
func (s *spans) named(name string, kind tracepb.Span_SpanKind) (found []*tracepb.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, span := range s.all {
		if span.Name == name && span.Kind == kind {
			found = append(found, span)
		}
	}
	return found
}

// A call is a span of its client's trace, each attempt a child of it, and the
// server gets the attempt's context in place of the client's. Off, the client's
// context passes as it came.
func TestTraces(t *testing.T) {
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	call := func(e *endpoint, tool string) string {
		return e.result(e.answer(e.start("tools/call", `{"name":"`+tool+`","arguments":{},"_meta":{"traceparent":"00-`+trace+`-`+parent+`-01","baggage":"k=v"}}`))).text()
	}
	e, _ := badHTTP(t, "")
	if got := call(e, "a__meta"); !strings.Contains(got, "00-"+trace+"-"+parent+"-01") {
		t.Errorf("off: %s", got)
	}

	collected := &spans{}
	collector := httptest.NewServer(collected)
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
	e, bad := badHTTP(t, "")
	bad.Fault(badserver.Fault{Kind: "status", Status: 503, Tool: "meta", Count: 1})
	var meta struct{ Traceparent, Baggage string }
	if err := json.Unmarshal([]byte(call(e, "a__meta")), &meta); err != nil || meta.Baggage != "k=v" {
		t.Fatalf("%v: %+v", err, meta)
	}
	e.start("tools/call", `{"name":"llm.complete","arguments":{"prompt":"x"}}`)

	var server, attempts, asked []*tracepb.Span
	eventually(t, "all spans have come", func() bool {
		server = collected.named("tools/call meta", tracepb.Span_SPAN_KIND_SERVER)
		attempts = collected.named("tools/call meta", tracepb.Span_SPAN_KIND_CLIENT)
		asked = collected.named("tools/call llm.complete", tracepb.Span_SPAN_KIND_SERVER)
		return len(server) == 1 && len(attempts) == 2 && len(asked) == 1
	})
	if s := server[0]; hex.EncodeToString(s.TraceId) != trace || hex.EncodeToString(s.ParentSpanId) != parent {
		t.Errorf("not of the client's trace: %v", s)
	}
	for _, a := range attempts {
		if string(a.ParentSpanId) != string(server[0].SpanId) {
			t.Errorf("no child of the call: %v", a)
		}
	}
	if last := hex.EncodeToString(attempts[1].SpanId); meta.Traceparent != "00-"+trace+"-"+last+"-01" {
		t.Errorf("the server got %s, want span %s", meta.Traceparent, last)
	}
}

// What chaos has a part in says so in its span: a call, the attempt that was
// hit and no other, and a call of llm.complete, whose result says it too.
func TestInjectedSpans(t *testing.T) {
	collected := &spans{}
	collector := httptest.NewServer(collected)
	defer collector.Close()
	model := httptest.NewServer(fakellm.NewOpenAI(fakellm.Options{}))
	defer model.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
	_, url := startBad(t, badserver.Options{})
	e := serveStdio(t, configFile(t, `llm: {chain: [{name: one, provider: openai, model: m, base_url: "`+model.URL+`/v1"}]}`, remote("a", url+"/mcp", "")), "--chaos")
	e.awaitTools("a__echo")
	ask := toolCall("llm.complete", `{"prompt":"x","include_trace":false}`)
	if got := string(e.rpc("tools/call", ask).Result); strings.Contains(got, "injected") {
		t.Errorf("nothing was injected: %s", got)
	}
	for _, spec := range []string{`{"target":"llm/one","fault":"latency","delay":"1ms","ttl":"1m"}`, `{"target":"mcp/a/meta","fault":"error","status":503,"count":1,"ttl":"1m"}`} {
		e.result(e.call("chaos.inject", spec))
	}
	if got := string(e.rpc("tools/call", ask).Result); !strings.Contains(got, `"agentarmor/call":{"injected":"f1"}`) {
		t.Errorf("not marked: %s", got)
	}
	e.result(e.call("a__meta", `{}`))
	marks := func(name string, kind tracepb.Span_SpanKind) (found []string) {
		for _, span := range collected.named(name, kind) {
			mark := "-"
			for _, a := range span.Attributes {
				if a.Key == "agentarmor.injected" {
					mark = a.Value.GetStringValue()
				}
			}
			found = append(found, mark)
		}
		return found
	}
	var got string
	eventually(t, "all spans have come", func() bool {
		asked, call := marks("tools/call llm.complete", tracepb.Span_SPAN_KIND_SERVER), marks("tools/call meta", tracepb.Span_SPAN_KIND_SERVER)
		attempts := marks("tools/call meta", tracepb.Span_SPAN_KIND_CLIENT)
		got = fmt.Sprint(asked, call, attempts)
		return len(asked) == 2 && len(call) == 1 && len(attempts) == 2
	})
	if want := "[- f1] [f2] [f2 -]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
