package trace_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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

func TestMemoryCounts(t *testing.T) {
	var m trace.Counter
	require.Zero(t, m.Total("allreduce"))
	m.Record(t.Context(), event("allreduce", time.Second))
	failed := event("allreduce", 500*time.Millisecond)
	failed.Err = errors.New("a rank is lost")
	m.Record(t.Context(), failed)
	m.Record(t.Context(), event("barrier", time.Millisecond))

	sum := m.Total("allreduce")
	require.Equal(t, trace.Total{Count: 2, Failed: 1, Time: 1500 * time.Millisecond, Waited: 750 * time.Millisecond, Bytes: 16}, sum)
	require.EqualValues(t, 1, m.Total("barrier").Count)
	require.Empty(t, m.Events(), "none are kept unless asked for")
}

func TestMemoryKeepsTheLast(t *testing.T) {
	m := trace.Counter{Keep: 3}
	for seq := range uint64(8) {
		require.Len(t, m.Events(), min(int(seq), 3))
		m.Record(t.Context(), trace.Event{Op: "barrier", Seq: seq})
		require.Equal(t, seq, m.Events()[min(int(seq), 2)].Seq)
	}
	es := m.Events()
	require.Equal(t, []uint64{5, 6, 7}, []uint64{es[0].Seq, es[1].Seq, es[2].Seq})
	es[0].Seq = 100
	require.EqualValues(t, 5, m.Events()[0].Seq, "the slice is the caller's")
	require.EqualValues(t, 8, m.Total("barrier").Count)
}

func TestMemoryByManyAtOnce(t *testing.T) {
	const goroutines, each = 10, 500
	m := trace.Counter{Keep: 7}
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range each {
				m.Record(t.Context(), event("allreduce", time.Millisecond))
				_ = m.Total("allreduce")
			}
			assert.Len(t, m.Events(), 7)
		})
	}
	wg.Wait()
	require.EqualValues(t, goroutines*each, m.Total("allreduce").Count)
	require.Equal(t, goroutines*each*time.Millisecond, m.Total("allreduce").Time)
}

func TestMulti(t *testing.T) {
	require.Nil(t, trace.Multi())
	require.Nil(t, trace.Multi(nil, nil))
	var a, b trace.Counter
	require.Same(t, &a, trace.Multi(nil, &a))
	sinks := []trace.Sink{&a, nil, &b}
	both := trace.Multi(sinks...)
	require.Nil(t, sinks[1], "what was passed stays as it was")
	require.Same(t, &b, sinks[2])
	both.Record(t.Context(), event("barrier", time.Second))
	require.EqualValues(t, 1, a.Total("barrier").Count)
	require.EqualValues(t, 1, b.Total("barrier").Count)
}

// contexts is a sink that records the contexts of its calls.
type contexts []context.Context

func (c *contexts) Record(ctx context.Context, _ trace.Event) { *c = append(*c, ctx) }

func TestRecord(t *testing.T) {
	trace.Record(t.Context(), nil, event("barrier", 0)) // without a sink
	require.Zero(t, trace.Now(nil))

	m := trace.Counter{Keep: 2}
	before := time.Now()
	began := trace.Now(&m)
	require.False(t, began.Before(before))
	trace.Record(t.Context(), &m, trace.Event{Op: "barrier", Start: began})
	trace.Record(t.Context(), &m, event("barrier", time.Second))
	es := m.Events()
	require.False(t, es[0].End.Before(began), "it ends now")
	require.Equal(t, time.Second, es[1].Duration(), "it ended when it says")

	var seen contexts
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	trace.Record(ctx, trace.Multi(&seen, &m), event("barrier", 0))
	require.Equal(t, contexts{ctx}, seen, "the verb's context, though it has ended")
}

func TestRecordAllocatesNothing(t *testing.T) {
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		trace.Record(ctx, nil, trace.Event{Op: "barrier", Start: trace.Now(nil)})
	}), "without a sink")
	m := trace.Counter{Keep: 10}
	for range m.Keep {
		m.Record(ctx, event("barrier", 0))
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		trace.Record(ctx, &m, trace.Event{Op: "barrier", Start: trace.Now(&m)})
	}), "in steady state")
}
