package trace_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/muster-pg/muster/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// event returns the event of an operation that took d.
func event(op string, d time.Duration) trace.Event {
	return trace.Event{Op: op, Last: -1, Bytes: 8, Start: start, End: start.Add(d), Waited: d / 2}
}

// events is a sink that keeps what it gets.
type events struct {
	all  []trace.Event
	ctxs []context.Context
}

func (s *events) Record(ctx context.Context, e trace.Event) {
	s.all, s.ctxs = append(s.all, e), append(s.ctxs, ctx)
}

func TestMulti(t *testing.T) {
	require.Nil(t, trace.Multi())
	require.Nil(t, trace.Multi(nil, nil))
	var a, b events
	require.Same(t, &a, trace.Multi(nil, &a))
	sinks := []trace.Sink{&a, nil, &b}
	both := trace.Multi(sinks...)
	require.Nil(t, sinks[1], "what was passed stays as it was")
	require.Same(t, &b, sinks[2])
	both.Record(t.Context(), event("barrier", time.Second))
	require.Len(t, a.all, 1)
	require.Len(t, b.all, 1)
}

func TestRecord(t *testing.T) {
	trace.Record(t.Context(), nil, event("barrier", 0)) // without a sink
	require.Zero(t, trace.Now(nil))

	var seen events
	before := time.Now()
	began := trace.Now(&seen)
	require.False(t, began.Before(before))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	trace.Record(ctx, &seen, trace.Event{Op: "barrier", Start: began})
	trace.Record(ctx, &seen, event("barrier", time.Second))
	require.False(t, seen.all[0].End.Before(began), "it ends now")
	require.Equal(t, time.Second, seen.all[1].Duration(), "it ended when it says")
	require.Equal(t, []context.Context{ctx, ctx}, seen.ctxs, "the verb's context, though it has ended")
}

func TestRecordWithoutASink(t *testing.T) {
	require.Zero(t, testing.AllocsPerRun(100, func() {
		trace.Record(t.Context(), nil, trace.Event{Op: "barrier", Start: trace.Now(nil)})
	}))
}
