package etcdlog_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/wire"
)

// TestReplacedLeader checks that a leader that another process has replaced acknowledges nothing,
// and answers no read, even if only the request itself makes it contact etcd. Later, each operation
// fails.
func TestReplacedLeader(t *testing.T) {
	c, o := client(t, etcd(t)), &etcdlog.Options{Root: newRoot(), FailureTimeout: time.Hour}
	before := lead(t, c, o)
	s := store.New(before)
	require.NoError(t, s.Set(t.Context(), "key", []byte("old"), nil))
	_, err := c.Delete(t.Context(), o.Root+"leader")
	require.NoError(t, err)
	after := lead(t, c, o)
	require.NoError(t, store.New(after).Set(t.Context(), "key", []byte("new"), nil))
	_, err = s.Get(t.Context(), "key")
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, etcdlog.ErrReplaced.Error())
	<-before.Failed()
	for op := wire.OpHello; op <= wire.OpStacks; op++ {
		req := &wire.Request{
			Op: op, ID: 1, Key: "key", Keys: []string{"key"}, Value: []byte("v"), TTL: time.Second, Timeout: time.Minute,
			Group: wire.Contribution{Group: "g", Run: "r", Size: 2, Generation: 1, Seq: 1, Verb: "v"},
		}
		require.ErrorIs(t, s.Do(bounded(t), req, new(wire.Reply)), store.ErrUnavailable, op)
	}
	v, err := store.New(after).Get(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, "new", string(v))
}
