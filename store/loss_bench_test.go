package store_test

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// BenchmarkLossOfAKilledProcess measures how long a rank waits for another rank that was killed
// (SIGKILL): the reconnect timeout of 500 ms, and the time to detect the loss. The p99 should be at
// most 600 ms on a calm machine.
//
//	go test ./store -run '^$' -bench LossOfAKilledProcess -benchtime 100x
func BenchmarkLossOfAKilledProcess(b *testing.B) {
	addr := testcluster.Serve(b, new(store.Server))
	var took []time.Duration
	for b.Loop() {
		b.StopTimer()
		p := testcluster.Start(b, "rank 1", addr)
		a, err := store.Dial(b.Context(), addr, nil)
		require.NoError(b, err)
		membership, err := a.Join(b.Context(), wire.Contribution{Group: "g", Run: "r", Rank: 0, Size: 2}, nil)
		require.NoError(b, err)
		_, err = a.Collect(b.Context(), barrier(membership.Generation, 0, 1), nil)
		require.NoError(b, err)
		waiting := make(chan error, 1)
		go func() {
			_, err := a.Collect(b.Context(), barrier(membership.Generation, 0, 2), nil)
			waiting <- err
		}()
		b.StartTimer()
		start := time.Now()
		require.NoError(b, p.Signal(syscall.SIGKILL))
		require.ErrorIs(b, <-waiting, store.ErrLost)
		took = append(took, time.Since(start))
		b.StopTimer()
		<-p.Done()
		require.NoError(b, a.Close())
		b.StartTimer()
	}
	slices.Sort(took)
	for name, q := range map[string]float64{"p50-ms": 0.5, "p99-ms": 0.99} {
		b.ReportMetric(float64(took[int(q*float64(len(took)-1))].Microseconds())/1000, name)
	}
}
