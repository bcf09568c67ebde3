package etcdlog_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

// folding is a Replica that makes a checkpoint after a given number of bytes of log.
type folding struct {
	store.Replica
	after int64
}

// Open implements store.Replica.
func (f folding) Open(limits store.Limits, o *durable.Options) (*durable.Disk, *core.Machine, error) {
	o.CheckpointBytes = f.after
	return f.Replica.Open(limits, o)
}

// TestSpace checks the space in etcd after many changes: the data below the root is bounded by one
// checkpoint and the log up to the next one. A standby follows through all checkpoints. With
// MUSTER_SOAK=1 the test makes a million changes with checkpoints of the default size.
func TestSpace(t *testing.T) {
	const writers = 50
	changes, fold, part := testcluster.Form(20_000, 1_000_000), testcluster.Form[int64](200_000, 16<<20), testcluster.Form(10_000, 1<<20)
	c, o := client(t, etcd(t)), &etcdlog.Options{Root: newRoot(), MaxValueBytes: part}
	l, err := etcdlog.Lead(t.Context(), c, "127.0.0.1:1", o)
	require.NoError(t, err)
	m := &store.Memory{Replica: folding{l, fold}}
	require.NoError(t, m.Open())
	defer m.Close()
	follower, s := standing(t, c, o), store.New(m)
	each(writers, func(writer int) {
		for turn := range changes / writers {
			assert.NoError(t, s.Set(t.Context(), fmt.Sprint("key ", writer, " ", turn%20), make([]byte, 100), nil))
		}
	})
	var keys, log, checkpoint int64
	testcluster.Eventually(t, testTimeout, func() bool {
		require.NoError(t, s.Set(bounded(t), "one more", nil, nil))
		keys, log, checkpoint = below(t, c, o.Root)
		due := max(fold, checkpoint)
		return keys < due/1024+checkpoint/int64(part)+10 && log < due+100_000 && checkpoint < 4_000_000
	}, "a checkpoint takes the place of the log")
	t.Logf("%d changes leave %d keys, %d bytes of log, a checkpoint of %d", changes, keys, log, checkpoint)
	require.NoError(t, m.Close())
	has(t, follower().Store, "one more", nil)
}

// below returns the number of keys below a root, and the sizes in bytes of the log and of the
// checkpoints.
func below(t testing.TB, c *clientv3.Client, root string) (keys, log, checkpoint int64) {
	t.Helper()
	all, err := c.Get(t.Context(), root, clientv3.WithPrefix())
	require.NoError(t, err)
	for _, kv := range all.Kvs {
		switch kind, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), root), "/"); kind {
		case "log":
			log += int64(len(kv.Value))
		case "checkpoint":
			checkpoint += int64(len(kv.Value))
		}
	}
	return all.Count, log, checkpoint
}
