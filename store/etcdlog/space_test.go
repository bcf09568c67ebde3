package etcdlog_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/wire"
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

// TestSpace checks the space in etcd after many operations of all kinds, and after the end of all
// groups and leases. The data below the root is bounded by one checkpoint and the log up to the
// next one, etcd has no lease, and its history is compacted. A standby follows through all
// checkpoints. With MUSTER_SOAK=1 the test makes a million operations with checkpoints of the
// default size.
func TestSpace(t *testing.T) {
	operations, fold, part := int64(20_000), int64(200_000), 10_000
	if os.Getenv("MUSTER_SOAK") != "" {
		operations, fold, part = 1_000_000, 16<<20, 1<<20
	}
	members := etcd(t)
	c, o := client(t, members), &etcdlog.Options{Root: newRoot(), MaxValueBytes: part, CompactHistory: true}
	first, err := c.Put(t.Context(), "other", "key")
	require.NoError(t, err)
	l, err := etcdlog.Lead(t.Context(), c, "127.0.0.1:1", o)
	require.NoError(t, err)
	defer l.Close()
	m := &store.Memory{Replica: folding{l, fold}}
	defer m.Close()
	require.NoError(t, m.Open())
	follower := standing(t, client(t, members), o)
	const writers = 50
	var left, grown atomic.Int64
	left.Store(operations)
	clients, s := servedBy(t, m, writers), store.New(m)
	var writing sync.WaitGroup
	for pair := range writers / 2 {
		writing.Go(func() {
			for turn := 0; left.Load() > 0; turn++ {
				n, err := work(t.Context(), clients[2*pair:][:2], pair, turn)
				left.Add(-n)
				if !assert.NoError(t, err) {
					return
				}
				if pair == 0 && turn%100 == 0 {
					_, log, _ := below(t, c, o.Root)
					grown.Store(max(grown.Load(), log))
				}
			}
		})
	}
	writing.Wait()
	for _, s := range clients {
		require.NoError(t, s.Close())
	}
	var keys, log, checkpoint int64
	testcluster.Eventually(t, testTimeout, func() bool {
		require.NoError(t, s.Set(bounded(t), "one more", nil, nil))
		keys, log, checkpoint = below(t, c, o.Root)
		due := max(fold, checkpoint)
		return keys < due/1024+checkpoint/int64(part)+10 && log < due+100_000 && checkpoint < 4_000_000
	}, "a checkpoint takes the place of the log")
	st, err := s.Status(bounded(t), "")
	require.NoError(t, err)
	require.Empty(t, st.Groups)
	leases, err := c.Leases(bounded(t))
	require.NoError(t, err)
	require.Empty(t, leases.Leases)
	_, err = c.Get(bounded(t), "other", clientv3.WithRev(first.Header.Revision))
	require.ErrorIs(t, err, rpctypes.ErrCompacted)
	size, err := c.Status(bounded(t), members[0].client)
	require.NoError(t, err)
	t.Logf("%d operations leave %d keys, %d bytes of log (at most %d on the way), a checkpoint of %d, no lease; etcd uses %d of %d bytes",
		operations-left.Load(), keys, log, grown.Load(), checkpoint, size.DbSizeInUse, size.DbSize)
	require.NoError(t, m.Close())
	next := follower()
	has(t, next.Store, "one more", []byte{})
}

// below returns the number of keys below a root, and the sizes in bytes of the log and of the
// checkpoints.
func below(t testing.TB, c *clientv3.Client, root string) (keys, log, checkpoint int64) {
	all, err := c.Get(t.Context(), root, clientv3.WithPrefix(), clientv3.WithCountOnly())
	assert.NoError(t, err)
	for prefix, sum := range map[string]*int64{root + "log/": &log, root + "checkpoint/": &checkpoint} {
		for from := prefix; ; {
			resp, err := c.Get(t.Context(), from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(500))
			if !assert.NoError(t, err) {
				return 0, 0, 0
			}
			for _, kv := range resp.Kvs {
				*sum += int64(len(kv.Value))
				from = string(kv.Key) + "\x00"
			}
			if !resp.More {
				break
			}
		}
	}
	return all.Count, log, checkpoint
}

// work runs one turn of two clients, and returns the number of operations.
func work(ctx context.Context, s []*store.Store, pair, turn int) (n int64, err error) {
	key := func(what string) string { return fmt.Sprint(what, " ", pair, " ", turn%20) }
	value := bytes.Repeat([]byte("v"), 100)
	switch turn % 10 {
	case 0:
		return 3, leased(ctx, s[0], key("leased"))
	case 1:
		if err := s[0].Push(ctx, key("queue"), value); err != nil {
			return 1, err
		}
		_, err := s[1].Pop(ctx, key("queue"))
		return 2, err
	case 2:
		if _, err := s[0].Append(ctx, key("appended"), value); err != nil {
			return 1, err
		}
		_, err := s[1].Delete(ctx, key("appended"))
		return 2, err
	case 3:
		return 1, s[0].Set(ctx, key("short"), value, &store.SetOptions{TTL: 10 * time.Millisecond})
	case 4:
		if turn%50 == 4 {
			return 8, grouped(ctx, s, fmt.Sprint("group ", pair, " ", turn))
		}
	}
	if err := s[0].Set(ctx, key("key"), value, nil); err != nil {
		return 1, err
	}
	_, err = s[1].Get(ctx, key("key"))
	return 2, err
}

// leased holds a key on a lease for a moment.
func leased(ctx context.Context, s *store.Store, key string) error {
	l, err := s.Lease(ctx, time.Minute)
	if err != nil {
		return err
	}
	if err := s.Set(ctx, key, nil, &store.SetOptions{Lease: l}); err != nil {
		return err
	}
	return l.Close(ctx)
}

// grouped runs a group of two ranks from its join to its end.
func grouped(ctx context.Context, s []*store.Store, name string) error {
	errs := make(chan error, len(s))
	for rank, s := range s {
		go func() {
			membership, err := s.Join(ctx, wire.Contribution{Group: name, Rank: rank, Size: 2}, nil)
			c := wire.Contribution{Generation: membership.Generation, Rank: rank, Root: -1, Verb: "gather", Want: wire.WantAll}
			for c.Seq = 1; c.Seq <= 2 && err == nil; c.Seq++ {
				_, err = s.Collect(ctx, c, []byte("payload"))
			}
			if err == nil {
				err = s.Leave(ctx, wire.Contribution{Generation: membership.Generation, Rank: rank})
			}
			errs <- err
		}()
	}
	err := <-errs
	if second := <-errs; err == nil {
		err = second
	}
	return err
}

// TestCompact checks that checkpoints compact etcd's history, which is shared with other users of
// etcd, only if Options request it.
func TestCompact(t *testing.T) {
	t.Parallel()
	for _, compact := range []bool{false, true} {
		members := etcd(t)
		c := client(t, members)
		first, err := c.Put(bounded(t), "other", "old")
		require.NoError(t, err)
		_, err = c.Put(bounded(t), "other", "new")
		require.NoError(t, err)
		s := store.New(lead(t, c, &etcdlog.Options{Root: newRoot(), CompactHistory: compact}))
		for range 2 {
			_, err := s.Backup(bounded(t), io.Discard) // it makes a checkpoint
			require.NoError(t, err)
		}
		old, err := c.Get(bounded(t), "other", clientv3.WithRev(first.Header.Revision))
		if compact {
			require.ErrorIs(t, err, rpctypes.ErrCompacted)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, "old", string(old.Kvs[0].Value))
	}
}
