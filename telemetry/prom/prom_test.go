package prom_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/muster-pg/muster/telemetry/prom"
	"github.com/muster-pg/muster/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// event returns the event of an operation that took d, half of it waiting.
func event(op string, d time.Duration) trace.Event {
	start := time.Unix(1000, 0)
	return trace.Event{Op: op, Bytes: 100, Start: start, End: start.Add(d), Waited: d / 2}
}

const want = `
# HELP muster_bytes_total Bytes that operations moved.
# TYPE muster_bytes_total counter
muster_bytes_total{job="train",op="collective.allreduce"} 300
# HELP muster_operation_seconds How long operations took.
# TYPE muster_operation_seconds histogram
muster_operation_seconds_bucket{job="train",op="collective.allreduce",le="1"} 2
muster_operation_seconds_bucket{job="train",op="collective.allreduce",le="10"} 3
muster_operation_seconds_bucket{job="train",op="collective.allreduce",le="+Inf"} 3
muster_operation_seconds_sum{job="train",op="collective.allreduce"} 4
muster_operation_seconds_count{job="train",op="collective.allreduce"} 3
muster_operation_seconds_bucket{job="train",op="pgroup.barrier",le="1"} 1
muster_operation_seconds_bucket{job="train",op="pgroup.barrier",le="10"} 1
muster_operation_seconds_bucket{job="train",op="pgroup.barrier",le="+Inf"} 1
muster_operation_seconds_sum{job="train",op="pgroup.barrier"} 0
muster_operation_seconds_count{job="train",op="pgroup.barrier"} 1
# HELP muster_operations_total Operations that have ended, by op, and by code: ok, or error.
# TYPE muster_operations_total counter
muster_operations_total{code="error",job="train",op="collective.allreduce"} 1
muster_operations_total{code="ok",job="train",op="collective.allreduce"} 2
muster_operations_total{code="ok",job="train",op="pgroup.barrier"} 1
# HELP muster_waited_seconds_total How long operations waited for other ranks.
# TYPE muster_waited_seconds_total counter
muster_waited_seconds_total{job="train",op="collective.allreduce"} 2
`

func TestSink(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	s, err := prom.New(r, &prom.Options{Buckets: []float64{1, 10}, Labels: prometheus.Labels{"job": "train"}})
	require.NoError(t, err)
	s.Record(t.Context(), event("collective.allreduce", 500*time.Millisecond))
	s.Record(t.Context(), event("collective.allreduce", 500*time.Millisecond))
	failed := event("collective.allreduce", 3*time.Second)
	failed.Err = errors.New("lost rank 2")
	s.Record(t.Context(), failed)
	s.Record(t.Context(), trace.Event{Op: "pgroup.barrier"})
	require.NoError(t, testutil.GatherAndCompare(r, strings.NewReader(want)))
	require.NoError(t, testutil.CollectAndCompare(s, strings.NewReader(want)), "a collector too")
	lint, err := testutil.GatherAndLint(r)
	require.NoError(t, err)
	require.Empty(t, lint)
}

func TestSinksShareWhatIsRegistered(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	var wg sync.WaitGroup
	for range 8 {
		s, err := prom.New(r, nil)
		require.NoError(t, err)
		wg.Go(func() {
			for range 100 {
				s.Record(t.Context(), event("barrier", time.Millisecond))
			}
		})
	}
	wg.Wait()
	require.NoError(t, testutil.GatherAndCompare(r, strings.NewReader(`
# HELP muster_operations_total Operations that have ended, by op, and by code: ok, or error.
# TYPE muster_operations_total counter
muster_operations_total{code="ok",op="barrier"} 800
`), "muster_operations_total"))
}

func TestNewRefuses(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(prometheus.NewGauge(prometheus.GaugeOpts{Name: "muster_bytes_total", Help: "Another."})))
	_, err := prom.New(r, nil)
	require.ErrorContains(t, err, "prom: ")

	_, err = prom.New(prometheus.NewPedanticRegistry(), &prom.Options{Labels: prometheus.Labels{"op": "clashes"}})
	require.Error(t, err)

	s, err := prom.New(nil, nil)
	require.NoError(t, err)
	s.Record(t.Context(), event("barrier", time.Second))
	require.NoError(t, prometheus.NewPedanticRegistry().Register(s))
}

func Example() {
	r := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	sink, err := prom.New(r, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	trace.Record(context.Background(), sink, trace.Event{Op: "pgroup.barrier", Start: trace.Now(sink)})
	n, _ := testutil.GatherAndCount(r)
	fmt.Println(n, "metrics")
	// Output: 2 metrics
}

func ExampleNew() {
	sink, err := prom.New(prometheus.NewRegistry(), &prom.Options{Labels: prometheus.Labels{"job": "train"}, Buckets: []float64{.001, .01, .1, 1}})
	fmt.Println(sink != nil, err)
	// Output: true <nil>
}
