package etcdlog_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

// deaf is a watcher that reports no change.
type deaf struct{ clientv3.Watcher }

func (deaf) Watch(ctx context.Context, _ string, _ ...clientv3.OpOption) clientv3.WatchChan {
	c := make(chan clientv3.WatchResponse)
	context.AfterFunc(ctx, func() { close(c) })
	return c
}

// TestReplicationStatus checks that the leader returns its term and the standbys with their lags,
// that a standby that has ended is removed, and that a standby gets its own lag.
func TestReplicationStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, o := newMemEtcd(), &etcdlog.Options{Root: newRoot()}
		c, hearsNothing := etcd.Client(direct{}), etcd.Client(direct{})
		hearsNothing.Watcher = deaf{}
		replication := func(s *term, after time.Duration) *store.ReplicationStatus {
			time.Sleep(after)
			all, err := s.Status(t.Context(), "")
			require.NoError(t, err)
			return all.Replication
		}
		const reported, expired = 3 * time.Second, 7 * time.Second
		first := standing(t, c, o)()
		require.Equal(t, &store.ReplicationStatus{Leading: true, Leader: "127.0.0.1:1", Term: 1, LeadingFor: time.Second}, replication(first, time.Second))

		var own atomic.Pointer[store.ReplicationStatus]
		behind := *o
		behind.OnStatus = own.Store
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := etcdlog.Lead(ctx, hearsNothing, "127.0.0.1:2", &behind)
			assert.ErrorIs(t, err, context.Canceled)
		}()
		synctest.Wait()
		require.Equal(t, &store.ReplicationStatus{Leader: "127.0.0.1:1", Term: 1, LeadingFor: time.Second, Standbys: []store.StandbyStatus{{Addr: "127.0.0.1:2"}}}, own.Load())
		for range 5 {
			require.NoError(t, first.Set(t.Context(), "key", nil, nil))
		}
		r := replication(first, reported)
		require.Len(t, r.Standbys, 1)
		require.Equal(t, "127.0.0.1:2", r.Standbys[0].Addr)
		require.GreaterOrEqual(t, r.Standbys[0].Lag, uint64(5))
		require.Equal(t, r.Standbys[0].Lag, own.Load().Standbys[0].Lag)

		second := standing(t, c, o)
		r = replication(first, reported)
		require.Len(t, r.Standbys, 2)
		require.Zero(t, min(r.Standbys[0].Lag, r.Standbys[1].Lag), "another one is not behind")
		cancel()
		r = replication(first, expired)
		require.Len(t, r.Standbys, 1)
		require.Zero(t, r.Standbys[0].Lag)

		first.end(t)
		r = replication(second(), expired)
		require.True(t, r.Leading)
		require.EqualValues(t, 2, r.Term)
		require.Empty(t, r.Standbys)
		require.Empty(t, keysBelow(t, c, o.Root+"standby/"))
	})
}
