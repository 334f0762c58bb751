package telemetry

import (
	"encoding/binary"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// The numbers are those of the fields in opentelemetry/proto/trace/v1/trace.proto
// and its companions.

// appendTraces appends an ExportTraceServiceRequest. All spans have one resource
// and one scope: they come from one Tracer.
func appendTraces(b []byte, spans []sdk.ReadOnlySpan) []byte {
	if len(spans) == 0 {
		return b
	}
	return appendMessage(b, 1, func(b []byte) []byte { // resource_spans
		b = appendMessage(b, 1, func(b []byte) []byte { // resource
			return appendAttributes(b, 1, spans[0].Resource().Attributes())
		})
		return appendMessage(b, 2, func(b []byte) []byte { // scope_spans
			b = appendMessage(b, 1, func(b []byte) []byte { // scope
				scope := spans[0].InstrumentationScope()
				return appendBytes(appendBytes(b, 1, scope.Name), 2, scope.Version)
			})
			for _, s := range spans {
				b = appendMessage(b, 2, func(b []byte) []byte { return appendSpan(b, s) })
			}
			return b
		})
	})
}

func appendSpan(b []byte, s sdk.ReadOnlySpan) []byte {
	is, parent := s.SpanContext(), s.Parent()
	id, span, above := is.TraceID(), is.SpanID(), parent.SpanID()
	b = appendBytes(b, 1, id[:])
	b = appendBytes(b, 2, span[:])
	b = appendBytes(b, 3, is.TraceState().String())
	if above.IsValid() {
		b = appendBytes(b, 4, above[:])
	}
	b = appendBytes(b, 5, s.Name())
	b = appendInt(b, 6, uint64(s.SpanKind())) // the numbers are OTLP's own
	b = appendTime(b, 7, s.StartTime())
	b = appendTime(b, 8, s.EndTime())
	b = appendAttributes(b, 9, s.Attributes())
	b = appendInt(b, 10, uint64(s.DroppedAttributes()))
	b = appendMessage(b, 15, func(b []byte) []byte {
		status := s.Status()
		b = appendBytes(b, 2, status.Description)
		if status.Code == codes.Error {
			b = appendInt(b, 3, 2)
		}
		return b
	})
	return binary.LittleEndian.AppendUint32(appendTag(b, 16, kind32), flags(s))
}

// flags are the trace flags in the lower byte, and whether the parent is another
// process's.
func flags(s sdk.ReadOnlySpan) uint32 {
	const known, remote = 0x100, 0x200
	f := uint32(s.SpanContext().TraceFlags()) | known
	if s.Parent().IsRemote() {
		f |= remote
	}
	return f
}

func appendAttributes(b []byte, field uint64, attrs []attribute.KeyValue) []byte {
	for _, a := range attrs {
		b = appendMessage(b, field, func(b []byte) []byte {
			b = appendBytes(b, 1, string(a.Key))
			return appendMessage(b, 2, func(b []byte) []byte {
				if a.Value.Type() == attribute.INT64 {
					return appendInt(b, 3, uint64(a.Value.AsInt64()))
				}
				return appendBytes(b, 1, a.Value.String())
			})
		})
	}
	return b
}

// A field is a tag, made of its number and the kind of the value, and the value.
const (
	kindVarint = 0
	kind64     = 1
	kindBytes  = 2
	kind32     = 5
)

func appendTag(b []byte, field, kind uint64) []byte {
	return binary.AppendUvarint(b, field<<3|kind)
}

// appendMessage appends a message whose fields are what fill appends. Like all
// here it leaves out what is empty: to proto3 that is the same.
func appendMessage(b []byte, field uint64, fill func([]byte) []byte) []byte {
	return appendBytes(b, field, fill(nil))
}

func appendBytes[T []byte | string](b []byte, field uint64, v T) []byte {
	if len(v) == 0 {
		return b
	}
	b = binary.AppendUvarint(appendTag(b, field, kindBytes), uint64(len(v)))
	return append(b, v...)
}

func appendInt(b []byte, field, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(appendTag(b, field, kindVarint), v)
}

func appendTime(b []byte, field uint64, t time.Time) []byte {
	return binary.LittleEndian.AppendUint64(appendTag(b, field, kind64), uint64(t.UnixNano()))
}
