package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
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
	if again, err := (proto.MarshalOptions{Deterministic: true}).Marshal(&data); err != nil || !bytes.Equal(again, b) {
		c.t.Errorf("not as protobuf writes it (%v):\n%x\n%x", err, b, again)
	}
	c.mu.Lock()
	c.requests = append(c.requests, r)
	c.batches = append(c.batches, data.ResourceSpans...)
	c.mu.Unlock()
	if c.answer != nil {
		c.answer(w, r)
	}
}

// env returns the variables that lead to the collector, and more, in pairs.
func (c *collector) env(more ...string) func(string) (string, bool) {
	return lookup(append([]string{"OTEL_EXPORTER_OTLP_ENDPOINT", c.server.URL}, more...)...)
}

// lookup is an environment of pairs.
func lookup(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// tracer starts a tracer that logs to log.
func tracer(t *testing.T, getenv func(string) (string, bool), log *slog.Logger) *Tracer {
	t.Helper()
	tracer, err := NewTracer(t.Context(), "1.2.3", getenv, log)
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
