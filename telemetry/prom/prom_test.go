package prom_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
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

// TestSink compares what a sink has counted with testdata/sink.txt.
func TestSink(t *testing.T) {
	want, err := os.ReadFile("testdata/sink.txt")
	require.NoError(t, err)
	r := prometheus.NewPedanticRegistry()
	s, err := prom.New(r, &prom.Options{Buckets: []float64{1, 10}, Labels: prometheus.Labels{"job": "train"}})
	require.NoError(t, err)
	s.Record(t.Context(), event("collective.allreduce", 500*time.Millisecond))
	s.Record(t.Context(), event("collective.allreduce", 500*time.Millisecond))
	failed := event("collective.allreduce", 3*time.Second)
	failed.Err = errors.New("lost rank 2")
	s.Record(t.Context(), failed)
	s.Record(t.Context(), trace.Event{Op: "pgroup.barrier"})
	require.NoError(t, testutil.GatherAndCompare(r, bytes.NewReader(want)))
	require.NoError(t, testutil.CollectAndCompare(s, bytes.NewReader(want)), "a collector too")
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
