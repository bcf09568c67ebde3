package store_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

func TestLeaseEndsWithItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(new(store.Memory))
		l, err := s.Lease(t.Context(), time.Hour)
		require.NoError(t, err)
		require.NoError(t, l.Err())
		began := time.Now()
		require.NoError(t, s.Close())
		<-l.Done()
		require.ErrorIs(t, l.Err(), store.ErrClosed)
		require.Zero(t, time.Since(began))
	})
}
