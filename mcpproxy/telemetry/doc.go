// Package telemetry is what AgentArmor tells monitoring systems: metrics for
// Prometheus to fetch, and traces sent to an OpenTelemetry collector.
//
// # Use
//
// The proxy keeps one [Metrics] and, when the environment asks for traces, one
// [Tracer]:
//
//	m := telemetry.NewMetrics(snapshot)         // m.Handler() serves /metrics
//	tool := m.Call("github", "create_issue")    // once per tool
//	tool.Observe("ok", false, took)             // once per call, at its end
//
//	t, err := telemetry.NewTracer(ctx, version, log)
//	span := t.Start(traceparent, tracestate, "tools/call", "github", "create_issue")
//	attempt := span.Attempt(1)                  // what the upstream gets: attempt.Context()
//	attempt.End("ok", "yes", "")
//	span.End("ok", "yes", "")
//	t.Shutdown(ctx)                             // sends what is left
//
// A nil *Metrics, *CallMetrics, *Tracer or *Span does nothing, and that costs
// nothing: what is switched off is nil.
//
// # Promises
//
// A call of a client counts once, with the outcome that its client was told and the
// time from its arrival on; attempts after the first count as retries beside it.
// Counts are taken when something happens; whatever has a present state (states,
// breakers, queues, restarts) is read from the proxy's snapshot at the scrape.
// Labels are bounded: upstreams and providers come from the configuration, tools beyond the
// first 2,000 are counted together as "other". An observation allocates nothing
// once its tool and outcome were seen. What a fault that was injected on purpose had a
// part in has the label injected="true", and its span the attribute agentarmor.injected.
//
// Traces are OpenTelemetry's SDK and its exporter for OTLP over HTTP, set up by
// their standard variables; what would be left out in silence (another protocol, an
// address or headers that cannot be read) is an error at the start instead. Spans
// carry names, outcomes and AgentArmor's own error texts, never arguments or
// results. A collector that is slow or gone costs a bounded queue of spans and,
// after the first few, a log line a minute, never a call. The values of headers that
// the environment gives for the collector, and a password or query in its address,
// turn up in no log line and no error.
//
// Everything is safe for concurrent use. The goroutines are the SDK's, from
// [NewTracer] to [Tracer.Shutdown].
package telemetry
