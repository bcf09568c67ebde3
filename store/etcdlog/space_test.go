package etcdlog_test

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
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
	changes, fold, part := int64(20_000), int64(200_000), 10_000
	if os.Getenv("MUSTER_SOAK") != "" {
		changes, fold, part = 1_000_000, 16<<20, 1<<20
	}
	members := etcd(t)
	c, o := client(t, members), &etcdlog.Options{Root: newRoot(), MaxValueBytes: part}
	l, err := etcdlog.Lead(t.Context(), c, "127.0.0.1:1", o)
	require.NoError(t, err)
	defer l.Close()
	m := &store.Memory{Replica: folding{l, fold}}
	defer m.Close()
	require.NoError(t, m.Open())
	follower, s := standing(t, client(t, members), o), store.New(m)
	var left, grown atomic.Int64
	left.Store(changes)
	each(50, func(writer int) {
		for turn := 0; left.Add(-1) >= 0; turn++ {
			key := fmt.Sprint("key ", writer, " ", turn%20)
			if !assert.NoError(t, s.Set(t.Context(), key, make([]byte, 100), nil)) {
				return
			}
			if writer == 0 && turn%100 == 0 {
				_, log, _ := below(t, c, o.Root)
				grown.Store(max(grown.Load(), log))
			}
		}
	})
	var keys, log, checkpoint int64
	testcluster.Eventually(t, testTimeout, func() bool {
		require.NoError(t, s.Set(bounded(t), "one more", nil, nil))
		keys, log, checkpoint = below(t, c, o.Root)
		due := max(fold, checkpoint)
		return keys < due/1024+checkpoint/int64(part)+10 && log < due+100_000 && checkpoint < 4_000_000
	}, "a checkpoint takes the place of the log")
	t.Logf("%d changes leave %d keys, %d bytes of log (at most %d on the way), a checkpoint of %d", changes, keys, log, grown.Load(), checkpoint)
	require.NoError(t, m.Close())
	next := follower()
	has(t, next.Store, "one more", []byte{})
}

// below returns the number of keys below a root, and the sizes in bytes of the log and of the
// checkpoints.
func below(t testing.TB, c *clientv3.Client, root string) (keys, log, checkpoint int64) {
	all, err := c.Get(t.Context(), root, clientv3.WithPrefix())
	if !assert.NoError(t, err) {
		return 0, 0, 0
	}
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
