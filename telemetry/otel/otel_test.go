package otel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/telemetry/otel"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provider returns a provider that keeps its spans in memory.
func provider(t *testing.T, o ...sdk.TracerProviderOption) (*sdk.TracerProvider, *tracetest.InMemoryExporter) {
	t.Helper()
	kept := tracetest.NewInMemoryExporter()
	p := sdk.NewTracerProvider(append(o, sdk.WithSyncer(kept))...)
	t.Cleanup(func() { require.NoError(t, p.Shutdown(context.Background())) })
	return p, kept
}

func TestSpan(t *testing.T) {
	p, kept := provider(t)
	ctx, parent := p.Tracer("the caller").Start(t.Context(), "step")
	began := time.Now().Add(-time.Second)
	otel.New(p).Record(ctx, trace.Event{
		Op: "pgroup.barrier", Group: "world", Channel: "ch", Generation: 7, ID: 1, Seq: 42, Rank: 1, Size: 4, Last: 3, Bytes: 8,
		Start: began, End: began.Add(250 * time.Millisecond), Waited: 125 * time.Millisecond,
	})
	spans := kept.GetSpans()
	require.Len(t, spans, 1)
	s := spans[0]
	require.Equal(t, "pgroup.barrier", s.Name)
	require.Equal(t, parent.SpanContext().SpanID(), s.Parent.SpanID())
	require.Equal(t, parent.SpanContext().TraceID(), s.SpanContext.TraceID())
	require.Equal(t, oteltrace.SpanKindInternal, s.SpanKind)
	require.Equal(t, "github.com/muster-pg/muster", s.InstrumentationScope.Name)
	require.True(t, began.Equal(s.StartTime))
	require.Equal(t, 250*time.Millisecond, s.EndTime.Sub(s.StartTime))
	require.Equal(t, sdk.Status{}, s.Status)
	require.Equal(t, []attribute.KeyValue{
		attribute.String("muster.group", "world"), attribute.String("muster.channel", "ch"), attribute.Int64("muster.generation", 7),
		attribute.Int64("muster.seq", 42), attribute.Int("muster.rank", 1), attribute.Int("muster.size", 4), attribute.Int("muster.last", 3),
		attribute.Float64("muster.waited", 0.125), attribute.Int64("muster.bytes", 8),
	}, s.Attributes)
	parent.End()
}

func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"a failure": {&pgroup.RankError{Op: "barrier", Size: 2, Failure: &wire.Failure{Code: wire.CodeLost, Lost: []int{1}}, Err: store.ErrLost}, wire.CodeLost.String()},
		"a store's": {fmt.Errorf("all of it: %w", &store.Error{Op: "get", Code: wire.CodeNotFound, Err: store.ErrNotFound}), wire.CodeNotFound.String()},
		"another":   {errors.New("no more"), "*errors.errorString"},
	} {
		t.Run(name, func(t *testing.T) {
			p, kept := provider(t)
			otel.New(p).Record(t.Context(), trace.Event{Op: "store.get", Rank: -1, Last: -1, Start: time.Now(), End: time.Now(), Err: c.err})
			s := kept.GetSpans()[0]
			require.Equal(t, oteltrace.SpanKindClient, s.SpanKind)
			require.Equal(t, sdk.Status{Code: codes.Error, Description: c.err.Error()}, s.Status)
			require.Equal(t, []attribute.KeyValue{attribute.String("error.type", c.want)}, s.Attributes)
		})
	}
}

func TestNotSampled(t *testing.T) {
	p, kept := provider(t, sdk.WithSampler(sdk.NeverSample()))
	otel.New(p).Record(t.Context(), trace.Event{Op: "pgroup.barrier", Start: time.Now(), End: time.Now()})
	require.Empty(t, kept.GetSpans())
}

// TestGroup checks that the verbs of a real group are children of the spans of their callers.
func TestGroup(t *testing.T) {
	p, kept := provider(t)
	g, err := pgroup.Create(t.Context(), pgroup.Config{Size: 1, Trace: otel.New(p)})
	require.NoError(t, err)
	ctx, parent := p.Tracer("the caller").Start(t.Context(), "step")
	require.NoError(t, g.Barrier(ctx))
	parent.End()
	require.NoError(t, g.Close())
	names := map[string]oteltrace.SpanID{}
	for _, s := range kept.GetSpans() {
		names[s.Name] = s.Parent.SpanID()
	}
	require.Len(t, names, 4) // create, barrier, step, close
	require.Equal(t, parent.SpanContext().SpanID(), names["pgroup.barrier"])
	require.False(t, names["pgroup.create"].IsValid())
}

func ExampleNew() {
	kept := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(kept)) // or of a collector: otlptracegrpc
	ctx := context.Background()
	g, err := pgroup.Create(ctx, pgroup.Config{Size: 1, Trace: otel.New(provider)})
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = g.Barrier(ctx)
	fmt.Println(kept.GetSpans()[1].Name)
	_ = errors.Join(g.Close(), provider.Shutdown(ctx))
	// Output: pgroup.barrier
}
