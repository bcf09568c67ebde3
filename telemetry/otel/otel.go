// Package otel makes OpenTelemetry spans of the events of package trace.
//
//	cfg.Trace = otel.New(provider) // of the SDK, or otel.GetTracerProvider()
//
// A span is created when its operation has ended, with the times of its start and end. Its parent
// is the span in the context of the caller. Its name is that of the operation, such as
// "pgroup.barrier". Its kind is client for calls of a store, and internal otherwise. An operation
// that failed has the status error, with the attribute error.type. Attributes without a semantic
// convention in OpenTelemetry begin with "muster.":
//
//	muster.group, muster.channel, muster.generation, muster.seq, muster.rank, muster.size
//	muster.last             the rank that arrived last, if known
//	muster.waited           seconds of the operation spent waiting for other ranks
//	muster.bytes
package otel

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
)

// scope is the instrumentation scope of the spans.
const scope = "github.com/muster-pg/muster"

// Sink is a trace.Sink. It is safe for concurrent use.
type Sink struct{ tracer oteltrace.Tracer }

var _ trace.Sink = (*Sink)(nil)

// New returns a Sink that creates spans with p, which decides about sampling and export.
func New(p oteltrace.TracerProvider) *Sink { return &Sink{p.Tracer(scope)} }

// Record implements trace.Sink.
func (s *Sink) Record(ctx context.Context, e trace.Event) {
	kind := oteltrace.SpanKindInternal
	if strings.HasPrefix(e.Op, "store.") {
		kind = oteltrace.SpanKindClient
	}
	_, span := s.tracer.Start(ctx, e.Op, oteltrace.WithTimestamp(e.Start), oteltrace.WithSpanKind(kind))
	if span.IsRecording() {
		span.SetAttributes(attributes(&e)...)
		if e.Err != nil {
			span.SetAttributes(attribute.String("error.type", errorType(e.Err)))
			span.SetStatus(codes.Error, e.Err.Error())
		}
	}
	span.End(oteltrace.WithTimestamp(e.End))
}

func attributes(e *trace.Event) []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, 12)
	if e.Group != "" {
		all = append(all, attribute.String("muster.group", e.Group))
	}
	if e.Channel != "" {
		all = append(all, attribute.String("muster.channel", e.Channel))
	}
	if e.Generation != 0 {
		all = append(all, attribute.Int64("muster.generation", int64(e.Generation)))
	}
	if e.Seq != 0 {
		all = append(all, attribute.Int64("muster.seq", int64(e.Seq)))
	}
	if e.Size > 0 {
		all = append(all, attribute.Int("muster.rank", e.Rank), attribute.Int("muster.size", e.Size))
	}
	if e.Last >= 0 {
		all = append(all, attribute.Int("muster.last", e.Last))
	}
	if e.Waited > 0 {
		all = append(all, attribute.Float64("muster.waited", e.Waited.Seconds()))
	}
	if e.Bytes != 0 {
		all = append(all, attribute.Int64("muster.bytes", e.Bytes))
	}
	return all
}

// errorType returns the value of error.type, which has few distinct values: the code of the
// operation's failure or of the store's answer, or else the Go type of the error.
func errorType(err error) string {
	if re, ok := errors.AsType[*pgroup.RankError](err); ok && re.Failure != nil {
		return re.Code.String()
	}
	if se, ok := errors.AsType[*store.Error](err); ok {
		return se.Code.String()
	}
	return fmt.Sprintf("%T", err)
}
