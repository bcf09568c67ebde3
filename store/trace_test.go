package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

func TestTraceOfAClient(t *testing.T) {
	srv := serve(t, new(store.Server), tcp)
	sink := new(testcluster.Events)
	s := srv.as(t, &store.DialOptions{Dial: srv.dial, Trace: sink})
	ctx := t.Context()
	require.NoError(t, s.Set(ctx, "k", []byte("12345"), nil))
	_, err := s.Wait(ctx, "k")
	require.NoError(t, err)
	absent(t, s, "none")
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err = s.Wait(short, "none")
	require.ErrorIs(t, err, store.ErrTimeout)

	events := sink.All()
	require.Len(t, events, 4, "a wait is one round trip")
	for i, want := range []struct {
		op    string
		bytes int64
		waits bool
		err   error
	}{
		{"store.set", 5, false, nil}, {"store.wait", 5, true, nil}, {"store.get", 0, false, store.ErrNotFound}, {"store.wait", 0, true, store.ErrTimeout},
	} {
		e := events[i]
		require.Equal(t, []any{want.op, want.bytes, -1, -1}, []any{e.Op, e.Bytes, e.Rank, e.Last})
		require.ErrorIs(t, e.Err, want.err)
		require.Positive(t, e.Duration())
		require.Equal(t, want.waits, e.Waited == e.Duration())
	}
}
