package store_test

import (
	"slices"
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
		voting := make(chan []error)
		go func() { voting <- g.without(bounded(t), 7, 1) }()
		require.Eventually(t, func() bool {
			return !slices.ContainsFunc(g.stores[:7], func(s *store.Store) bool { return store.Calls(s.Engine()) == 0 })
		}, 10*time.Second, time.Millisecond)
		require.NoError(t, s.Close())
		for _, err := range <-voting {
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.NotErrorIs(t, err, store.ErrLost)
		}
	}
}
