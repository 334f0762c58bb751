package telemetry

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// collector is an OpenTelemetry collector that keeps what it gets.
type collector struct {
	t      *testing.T
	server *httptest.Server
	answer func(http.ResponseWriter, *http.Request) // after the request was read; nil: 200

	mu       sync.Mutex
	requests []*http.Request
	batches  []*tracepb.ResourceSpans
}

func newCollector(t *testing.T) *collector {
	c := &collector{t: t}
	c.server = httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(c.server.Close)
	return c
}

func (c *collector) serve(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			c.t.Error(err)
			return
		}
		body = unzipped
	}
	b, err := io.ReadAll(body)
	if err != nil {
		c.t.Error(err)
	}
	// An ExportTraceServiceRequest is a TracesData on the wire.
	var data tracepb.TracesData
	if err := proto.Unmarshal(b, &data); err != nil {
		c.t.Error(err)
	}
	c.mu.Lock()
	c.requests = append(c.requests, r)
	c.batches = append(c.batches, data.ResourceSpans...)
	c.mu.Unlock()
	if c.answer != nil {
		c.answer(w, r)
	}
}

// environ makes the pairs, and no others, OpenTelemetry's variables for one test.
func environ(t *testing.T, pairs ...string) {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	for i := 0; i < len(pairs); i += 2 {
		t.Setenv(pairs[i], pairs[i+1])
	}
}

// tracer starts a tracer that sends to the collector; more are variables in pairs.
func (c *collector) tracer(more ...string) *Tracer {
	c.t.Helper()
	environ(c.t, append([]string{"OTEL_EXPORTER_OTLP_ENDPOINT", c.server.URL}, more...)...)
	return tracer(c.t, silent)
}

var silent = slog.New(slog.DiscardHandler)

// tracer starts a tracer that the environment asks for.
func tracer(t *testing.T, log *slog.Logger) *Tracer {
	t.Helper()
	tracer, err := NewTracer(t.Context(), "1.2.3", log)
	if err != nil || tracer == nil {
		t.Fatalf("tracer %v, error %v", tracer, err)
	}
	t.Cleanup(func() { // again does nothing
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = tracer.Shutdown(ctx)
	})
	return tracer
}

// flush shuts the tracer down.
func flush(t *testing.T, tracer *Tracer) {
	t.Helper()
	if err := tracer.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// seen is a span as it arrived.
type seen struct {
	ID, Parent, Trace, State string
	Flags                    uint32
	Name                     string
	Kind                     tracepb.Span_SpanKind
	Status                   tracepb.Status_StatusCode
	Text                     string
	Attrs                    map[string]string
}

// spans returns the spans that arrived, by name of the span and its kind.
func (c *collector) spans() map[string]seen {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]seen{}
	for _, batch := range c.batches {
		for _, scope := range batch.ScopeSpans {
			for _, s := range scope.Spans {
				took := time.Duration(s.EndTimeUnixNano - s.StartTimeUnixNano)
				if took < 0 || took > time.Hour || time.Since(time.Unix(0, int64(s.StartTimeUnixNano))) > time.Hour {
					c.t.Errorf("%s from %d to %d", s.Name, s.StartTimeUnixNano, s.EndTimeUnixNano)
				}
				attrs := attributes(s.Attributes)
				all[attrs["agentarmor.attempt"]+" "+s.Name] = seen{
					ID: hex.EncodeToString(s.SpanId), Parent: hex.EncodeToString(s.ParentSpanId), Trace: hex.EncodeToString(s.TraceId),
					State: s.TraceState, Flags: s.Flags, Name: s.Name, Kind: s.Kind,
					Status: s.Status.GetCode(), Text: s.Status.GetMessage(), Attrs: attrs,
				}
			}
		}
	}
	return all
}

func attributes(list []*commonpb.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range list {
		switch v := kv.Value.Value.(type) {
		case *commonpb.AnyValue_IntValue:
			m[kv.Key] = strconv.FormatInt(v.IntValue, 10)
		default:
			m[kv.Key] = kv.Value.GetStringValue()
		}
	}
	return m
}
