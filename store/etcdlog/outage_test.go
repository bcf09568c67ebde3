package etcdlog_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// nothing asserts that no call is answered, neither of an existing client nor of a new one.
func (r *replicas) nothing(t *testing.T, s *store.Store) {
	t.Helper()
	testcluster.AtOnce(t, maps.All(map[string]func(ctx context.Context) error{
		"get":    func(ctx context.Context) error { _, err := s.Get(ctx, "key"); return err },
		"set":    func(ctx context.Context) error { return s.Set(ctx, "outage", []byte("x"), nil) },
		"status": func(ctx context.Context) error { _, err := s.Status(ctx, ""); return err },
		"dial": func(ctx context.Context) error {
			s, err := store.Dial(ctx, r.addrs(), &store.DialOptions{Wait: true})
			if err == nil {
				_ = s.Close()
			}
			return err
		},
	}), func(t *testing.T, call func(ctx context.Context) error) {
		began := time.Now()
		require.ErrorIs(t, call(within(t, 300*time.Millisecond)), context.DeadlineExceeded)
		require.Less(t, time.Since(began), 5*time.Second)
	})
}

// TestEtcdAway checks that no call is answered while etcd is unavailable, even after the leader has
// given up, and that all calls succeed afterwards. Compacting the history of an etcd without space does
// no harm.
func TestEtcdAway(t *testing.T) {
	t.Parallel()
	r, members := threeReplicas(t, "--quota-backend-bytes", "60000000")
	r.leader(t)
	l := newLoad(t, 3, r.ways(t, members))
	s, c, m := r.dial(t), client(t, members), members[0]
	l.more(20)
	for _, x := range []struct {
		name       string
		begin, end func()
		lasts      time.Duration
	}{
		{"it ends, for a moment", func() { testcluster.Kill(t, m.Process) }, func() { m.start(t) }, r.options.OutageTimeout / 2},
		{"it ends", func() { testcluster.Kill(t, m.Process) }, func() { m.start(t) }, 3 * r.options.OutageTimeout},
		{"it is stopped", func() { testcluster.Freeze(t, m.Process) }, func() { testcluster.Thaw(t, m.Process) }, 3 * r.options.OutageTimeout},
		{"it has no space", func() { fill(t, c) }, func() { clean(t, c, m) }, 3 * r.options.OutageTimeout},
	} {
		t.Log(x.name)
		x.begin()
		<-time.After(x.lasts)
		r.nothing(t, s)
		x.end()
		l.more(20)
	}
	l.end()
}

// fill puts keys until etcd has no space.
func fill(t *testing.T, c *clientv3.Client) {
	t.Helper()
	var err error
	for i := 0; err == nil; i++ {
		_, err = c.Put(bounded(t), fmt.Sprint("filling/", i), strings.Repeat("x", 1_000_000))
	}
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
}

// clean undoes fill.
func clean(t *testing.T, c *clientv3.Client, m *member) {
	t.Helper()
	resp, err := c.Delete(bounded(t), "filling/", clientv3.WithPrefix())
	require.NoError(t, err)
	_, err = c.Compact(bounded(t), resp.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	_, err = c.Defragment(bounded(t), m.client)
	require.NoError(t, err)
	_, err = c.AlarmDisarm(bounded(t), &clientv3.AlarmMember{})
	require.NoError(t, err)
}
