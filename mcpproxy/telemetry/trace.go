package telemetry

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Names of attributes as in OpenTelemetry's semantic conventions for MCP.
const (
	methodName = attribute.Key("mcp.method.name")
	toolName   = attribute.Key("gen_ai.tool.name")
	promptName = attribute.Key("gen_ai.prompt.name")
	operation  = attribute.Key("gen_ai.operation.name")
	errorType  = attribute.Key("error.type")
)

// Names of attributes that are AgentArmor's own.
const (
	upstreamName = attribute.Key("agentarmor.upstream")
	outcomeName  = attribute.Key("agentarmor.outcome")
	executedName = attribute.Key("agentarmor.executed")
	injectedName = attribute.Key("agentarmor.injected")
	attemptIndex = attribute.Key("agentarmor.attempt")
)

// maxError is the most bytes of an error text in a span.
const maxError = 500

// Tracer makes spans and sends them to the collector. A nil *Tracer does nothing.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	exporter sdk.SpanExporter
}

// NewTracer returns the tracer that OpenTelemetry's standard variables in the
// process's environment describe, nil when they ask for none: traces are on when
// OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set and
// neither OTEL_SDK_DISABLED nor OTEL_TRACES_EXPORTER says otherwise. Failures to
// send are logged; OpenTelemetry has one place for them in a process, so the newest
// tracer's log gets all. Nothing is connected to before there is a span to send.
func NewTracer(ctx context.Context, version string, log *slog.Logger) (*Tracer, error) {
	if !wanted() {
		return nil, nil
	}
	if err := check(); err != nil {
		return nil, err
	}
	logFailures(log, secrets())
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, err
	}
	from, err := resource.New(ctx, resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "agentarmor"), attribute.String("service.version", version)),
		resource.WithFromEnv()) // the last one wins
	if err != nil {
		otel.Handle(err) // what could be read is good enough
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(from))
	return &Tracer{provider, provider.Tracer("agentarmor", trace.WithInstrumentationVersion(version)), exporter}, nil
}

// Shutdown sends what is left and ends the tracer. It returns when ctx ends at
// the latest; what was not sent by then is lost.
func (t *Tracer) Shutdown(ctx context.Context) error {
	if t == nil {
		return nil
	}
	err := t.provider.Shutdown(ctx)
	_ = t.exporter.Shutdown(ctx) // breaks off a request that ctx did not wait for
	return err
}

// Start begins the span of one request of a client, a child of the context that
// the request carries, if it is valid. tool is the tool or prompt by the name that
// the upstream gave it; other methods have none. The caller ends it.
func (t *Tracer) Start(traceparent, tracestate string, method, upstream, tool string) *Span {
	if t == nil {
		return nil
	}
	ctx := w3c.Extract(context.Background(), &carrier{traceparent, tracestate})
	method = label(method)
	s := &Span{t: t, name: method, attrs: []attribute.KeyValue{methodName.String(method)}}
	if upstream != "" {
		s.attrs = append(s.attrs, upstreamName.String(upstream))
	}
	switch {
	case tool == "":
	case method == "tools/call":
		s.name += " " + label(tool)
		s.attrs = append(s.attrs, toolName.String(label(tool)), operation.String("execute_tool"))
	case method == "prompts/get":
		s.name += " " + label(tool)
		s.attrs = append(s.attrs, promptName.String(label(tool)))
	}
	return s.start(ctx, trace.SpanKindServer)
}

// Span is one request, or one attempt to have it answered. A nil *Span does
// nothing.
type Span struct {
	t     *Tracer
	name  string
	attrs []attribute.KeyValue
	ctx   context.Context // holds span
	span  trace.Span
}

func (s *Span) start(parent context.Context, kind trace.SpanKind, more ...attribute.KeyValue) *Span {
	s.ctx, s.span = s.t.tracer.Start(parent, s.name,
		trace.WithSpanKind(kind), trace.WithAttributes(s.attrs...), trace.WithAttributes(more...))
	return s
}

// Context returns the span as W3C Trace Context: what the next hop gets in place
// of what came in.
func (s *Span) Context() (traceparent, tracestate string) {
	if s == nil {
		return "", ""
	}
	var c carrier
	w3c.Inject(s.ctx, &c)
	return c.parent, c.state
}

// Attempt begins the span of the n-th request to the upstream, from 1 on, a child
// of s. The caller ends it.
func (s *Span) Attempt(n int) *Span {
	if s == nil {
		return nil
	}
	a := &Span{t: s.t, name: s.name, attrs: s.attrs}
	return a.start(s.ctx, trace.SpanKindClient, attemptIndex.Int(n))
}

// Injected notes the id of a fault that was injected on purpose.
func (s *Span) Injected(fault string) {
	if s != nil {
		s.span.SetAttributes(injectedName.String(fault))
	}
}

// End ends the span with the name of a health.Class, whether it was executed
// (yes, no, maybe) and the text of the error, which must hold no secret. Only the
// first End counts.
func (s *Span) End(outcome string, executed string, err string) {
	if s == nil {
		return
	}
	s.span.SetAttributes(outcomeName.String(outcome), executedName.String(executed))
	if outcome != "ok" && outcome != "cancelled" {
		s.span.SetAttributes(errorType.String(outcome))
		s.span.SetStatus(codes.Error, text(err, maxError))
	}
	s.span.End()
}

var w3c propagation.TraceContext

// carrier is the two keys of W3C Trace Context.
type carrier struct{ parent, state string }

var _ propagation.TextMapCarrier = (*carrier)(nil)

func (c *carrier) field(key string) *string {
	if key == "traceparent" {
		return &c.parent
	}
	return &c.state
}

// Get implements [propagation.TextMapCarrier].
func (c *carrier) Get(key string) string { return *c.field(key) }

// Set implements [propagation.TextMapCarrier].
func (c *carrier) Set(key, value string) { *c.field(key) = value }

// Keys implements [propagation.TextMapCarrier].
func (c *carrier) Keys() []string { return []string{"traceparent", "tracestate"} }
