package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

// TestAStoppedServerBlamesNoRank closes a server while ranks wait for one of them: they get the end
// of the store. The end of one connection must not be reported as the failure of its rank to those
// that are closed after it.
func TestAStoppedServerBlamesNoRank(t *testing.T) {
	for range 40 {
		s := serve(t, new(store.Server), tcp)
		g := teamOf(t, behind(t, s, "", 0, 8)...)
		errs := make(chan error)
		for rank := range 7 {
			go func() { errs <- g.barrier(bounded(t), rank, 1) }()
		}
		require.Eventually(t, func() bool {
			for rank := range 7 {
				if store.Calls(g.stores[rank].Engine()) == 0 {
					return false
				}
			}
			return true
		}, 10*time.Second, time.Millisecond)
		require.NoError(t, s.Close())
		for range 7 {
			err := <-errs
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.NotErrorIs(t, err, store.ErrLost)
		}
	}
}
