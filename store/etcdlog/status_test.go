package etcdlog_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/internal/testcluster"
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

// replication waits until holds returns true for the replication status of a store.
func replication(t *testing.T, s *store.Store, what string, holds func(r *store.ReplicationStatus) bool) {
	t.Helper()
	var last *store.ReplicationStatus
	testcluster.Eventually(t, testTimeout, func() bool {
		all, err := s.Status(bounded(t), "")
		require.NoError(t, err)
		last = all.Replication
		return holds(last)
	}, what)
	t.Logf("%s: %+v", what, last)
}

// TestReplicationStatus checks that the leader returns its term and the standbys with their lags,
// and that a standby that has ended is removed.
func TestReplicationStatus(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	find := client(t, members)
	// The long failure timeout prevents a takeover on a busy machine.
	o := (&etcdlog.Options{Root: newRoot(), FailureTimeout: 2 * time.Second}).ReportEvery(200 * time.Millisecond)
	first := standing(t, find, o)()
	replication(t, first.Store, "it is alone", func(r *store.ReplicationStatus) bool {
		return r.Leading && r.Leader == "127.0.0.1:1" && r.Term == 1 && r.LeadingFor > 0 && len(r.Standbys) == 0
	})

	behind := *o
	received := make(chan *store.ReplicationStatus, 1)
	behind.OnStatus = func(r *store.ReplicationStatus) {
		select {
		case received <- r:
		default:
		}
	}
	c := client(t, members)
	c.Watcher = deaf{c.Watcher}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := etcdlog.Lead(ctx, c, "127.0.0.1:2", &behind)
		ended <- err
	}()
	r := <-received
	require.Equal(t, []store.StandbyStatus{{Addr: "127.0.0.1:2"}}, r.Standbys)
	require.Equal(t, []any{false, "127.0.0.1:1", uint64(1)}, []any{r.Leading, r.Leader, r.Term})
	require.Less(t, r.LeadingFor, time.Hour)
	for range 5 {
		require.NoError(t, first.Set(bounded(t), "key", nil, nil))
	}
	replication(t, first.Store, "a standby is behind", func(r *store.ReplicationStatus) bool {
		return len(r.Standbys) == 1 && r.Standbys[0].Addr == "127.0.0.1:2" && r.Standbys[0].Lag >= 5
	})
	second := standing(t, client(t, members), o)
	replication(t, first.Store, "another one is not", func(r *store.ReplicationStatus) bool {
		return len(r.Standbys) == 2 && min(r.Standbys[0].Lag, r.Standbys[1].Lag) == 0
	})
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	replication(t, first.Store, "one has ended", func(r *store.ReplicationStatus) bool {
		return len(r.Standbys) == 1 && r.Standbys[0].Lag == 0
	})

	first.end(t)
	x := second()
	replication(t, x.Store, "it has taken over", func(r *store.ReplicationStatus) bool {
		return r.Leading && r.Term == 2 && len(r.Standbys) == 0
	})
	testcluster.Eventually(t, testTimeout, func() bool {
		resp, err := find.Get(bounded(t), o.Root+"standby/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		require.NoError(t, err)
		return resp.Count == 0
	}, "no key of a standby is left")
}
