package etcdlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

// term is a store that this process leads, until end.
type term struct {
	*store.Store
	memory *store.Memory
	lead   *etcdlog.Leadership
}

func (x *term) end(t testing.TB) {
	t.Helper()
	assert.NoError(t, errors.Join(x.memory.Close(), x.lead.Close()))
}

// standing runs a standby. next returns its term once it leads.
func standing(t testing.TB, c *clientv3.Client, o *etcdlog.Options) (next func() *term) {
	t.Helper()
	led := make(chan *etcdlog.Leadership, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(led)
		l, err := etcdlog.Lead(ctx, c, "127.0.0.1:1", o)
		if err == nil {
			led <- l
		} else if ctx.Err() == nil {
			t.Errorf("standby: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		if l := <-led; l != nil {
			_ = l.Close()
		}
	})
	return func() *term {
		t.Helper()
		select {
		case l := <-led:
			require.NotNil(t, l)
			x := &term{memory: &store.Memory{Replica: l}, lead: l}
			require.NoError(t, x.memory.Open())
			x.Store = store.New(x.memory)
			t.Cleanup(func() { _, _ = x.memory.Close(), l.Close() })
			return x
		case <-time.After(testTimeout):
			t.Fatalf("the standby does not lead within %v", testTimeout)
		}
		return nil
	}
}

func has(t testing.TB, s *store.Store, key string, want []byte) {
	t.Helper()
	v, err := s.Get(bounded(t), key)
	require.NoError(t, err, key)
	require.True(t, bytes.Equal(want, v), "%s has %d bytes", key, len(v))
}

// keysBelow returns the keys of a store.
func keysBelow(t testing.TB, c *clientv3.Client, root string) (keys []string) {
	t.Helper()
	resp, err := c.Get(bounded(t), root, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// TestUnfinishedBatch checks that a leader that fails in the middle of a batch of several parts has
// changed nothing, for standbys that have followed it and for those that start later.
func TestUnfinishedBatch(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	value := bytes.Repeat([]byte("value"), 100)
	for parts := range 7 {
		t.Run(fmt.Sprint(parts, " parts"), func(t *testing.T) {
			t.Parallel()
			o := &etcdlog.Options{Root: newRoot(), MaxValueBytes: 100, OutageTimeout: time.Second, FailureTimeout: 2 * time.Second}
			later := *o // of the leaders after the one that is cut off
			later.OutageTimeout = testTimeout
			c, written := client(t, members), atomic.Int64{}
			written.Store(-1)
			kv := &interposer{KV: c.KV}
			kv.commit = func(changes []clientv3.Op, do func(context.Context) (*clientv3.TxnResponse, error)) (*clientv3.TxnResponse, error) {
				part := strings.Contains(string(changes[0].KeyBytes()), "/log/") && changes[0].IsPut()
				if left := written.Load(); left == 0 && part || left == -2 {
					written.Store(-2) // the leader is cut off from now on
					return nil, errCut
				} else if left > 0 && part {
					written.Add(-1)
				}
				return do(nil)
			}
			c.KV = kv
			before := lead(t, c, o)
			require.NoError(t, store.New(before).Set(bounded(t), "key", []byte("acknowledged"), nil))
			follower := standing(t, client(t, members), &later)
			require.NoError(t, store.New(before).Set(bounded(t), "other", []byte("x"), nil))
			written.Store(int64(parts)) // parts of the batch, which has about 6
			err := store.New(before).Set(bounded(t), "key", value, nil)
			if err == nil {
				require.Greater(t, parts, 4, "acknowledged with so few parts")
				require.NoError(t, before.Close())
			} else {
				require.ErrorIs(t, err, store.ErrUnknown)
				<-before.Failed()
			}
			want := []byte("acknowledged")
			if err == nil {
				want = value
			}
			now := follower()
			has(t, now.Store, "key", want)
			require.NoError(t, now.Set(bounded(t), "later", value, nil))
			now.end(t)
			begun := store.New(lead(t, client(t, members), &later))
			has(t, begun, "key", want)
			has(t, begun, "other", []byte("x"))
			has(t, begun, "later", value)
		})
	}
}

// TestLateAttempts checks that an attempt of the leader without an answer, which is carried out
// long after another attempt succeeded, changes nothing: it neither removes acknowledged log, nor
// brings back an old checkpoint.
func TestLateAttempts(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	for name, checkpoints := range map[string]int{"log": 0, "checkpoint": 2} {
		t.Run(name, func(t *testing.T) {
			var l late
			c, own, o := client(t, members), client(t, members), &etcdlog.Options{Root: newRoot(), MaxValueBytes: 1000, FailureTimeout: 2 * time.Second}
			l.of(own)
			m := lead(t, own, o)
			s := store.New(m)
			follower := standing(t, client(t, members), o)
			require.NoError(t, s.Set(bounded(t), "first", []byte("1"), nil))
			delayed := l.count()
			require.Greater(t, delayed, 1) // of the beginning of the term, and of the log
			for i := range checkpoints {
				_, err := s.Backup(bounded(t), io.Discard)
				require.NoError(t, err)
				if i == 0 {
					delayed = l.count()
				}
			}
			require.NoError(t, s.Set(bounded(t), "second", bytes.Repeat([]byte("2"), 5000), nil))
			l.release(t, delayed)
			require.NoError(t, s.Set(bounded(t), "third", []byte("3"), nil))
			require.NoError(t, m.Close())
			next := follower() // it has followed all changes
			has(t, next.Store, "first", []byte("1"))
			next.end(t)
			begun := store.New(lead(t, c, o)) // it reads the present state
			has(t, begun, "first", []byte("1"))
			has(t, begun, "second", bytes.Repeat([]byte("2"), 5000))
			has(t, begun, "third", []byte("3"))
		})
	}
}

// TestStandbyThatWasAway checks that a standby that was cut off while checkpoints were made, and
// while etcd's history was compacted, loads the store again.
func TestStandbyThatWasAway(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	c, o := client(t, members), &etcdlog.Options{Root: newRoot(), MaxValueBytes: 1000}
	m := lead(t, c, o)
	s := store.New(m)
	require.NoError(t, s.Set(bounded(t), "before", []byte("1"), nil))
	p := testcluster.NewProxy(t, members[0].client)
	follower := standing(t, client(t, []*member{{client: p.Addr()}}), o)
	testcluster.Eventually(t, testTimeout, func() bool { return p.Conns() > 0 }, "the standby connects")
	require.NoError(t, s.Set(bounded(t), "followed", []byte("2"), nil))
	p.Refuse(true)
	p.Cut(testcluster.RST)
	for i := range 20 {
		require.NoError(t, s.Set(bounded(t), fmt.Sprint("away ", i), make([]byte, 5000), nil))
	}
	_, err := s.Backup(bounded(t), io.Discard)
	require.NoError(t, err)
	require.NoError(t, s.Set(bounded(t), "behind the checkpoint", []byte("3"), nil))
	resp, err := c.Get(bounded(t), o.Root+"leader")
	require.NoError(t, err)
	_, err = c.Compact(bounded(t), resp.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	p.Refuse(false)
	require.NoError(t, s.Set(bounded(t), "back", []byte("4"), nil))
	require.NoError(t, m.Close())
	next := follower()
	has(t, next.Store, "before", []byte("1"))
	has(t, next.Store, "away 19", make([]byte, 5000))
	has(t, next.Store, "behind the checkpoint", []byte("3"))
	has(t, next.Store, "back", []byte("4"))
}

// TestMalformed checks that malformed content in etcd is reported as damage, and that no process
// leads or waits because of it.
func TestMalformed(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	c := client(t, members)
	for name, x := range map[string]struct {
		key  func(log []string) string // returns the key, below the root
		put  string                    // "": the key is deleted
		want string
	}{
		"a key that is no part": {func([]string) string { return "log/x" }, "v", "log/x"},
		"a part that is empty":  {func(log []string) string { return log[len(log)-1] }, "\x01\x00", "malformed"},
		"a part that is gone":   {func(log []string) string { return log[1] }, "", "damaged"},
		"a state":               {func([]string) string { return "state" }, "{", "state"},
		"a state that is gone":  {func([]string) string { return "state" }, "", "damaged"},
		"a leader":              {func([]string) string { return "leader" }, "missing", "leader"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &etcdlog.Options{Root: newRoot(), FailureTimeout: 300 * time.Millisecond}
			m := lead(t, c, o)
			for i := range 5 {
				require.NoError(t, store.New(m).Set(bounded(t), fmt.Sprint(i), nil, nil))
			}
			_, err := store.New(m).Backup(bounded(t), io.Discard)
			require.NoError(t, err)
			require.NoError(t, m.Close())
			m = lead(t, c, o)
			for i := range 5 {
				require.NoError(t, store.New(m).Set(bounded(t), fmt.Sprint(i), nil, nil))
			}
			require.NoError(t, m.Close())
			var log []string
			for _, key := range keysBelow(t, c, o.Root+"log/") {
				log = append(log, strings.TrimPrefix(key, o.Root))
			}
			key := o.Root + x.key(log)
			if x.put == "" {
				_, err = c.Delete(bounded(t), key)
			} else {
				_, err = c.Put(bounded(t), key, x.put)
			}
			require.NoError(t, err)
			ctx := within(t, 5*time.Second)
			_, err = etcdlog.Lead(ctx, c, "127.0.0.1:1", o)
			require.ErrorContains(t, err, x.want)
			require.NoError(t, ctx.Err(), "it says so at once: %v", err)
		})
	}
}

// TestLeadershipWithoutMemory checks that a Leadership without a Memory leaves no files on this
// machine, and hands over at once.
func TestLeadershipWithoutMemory(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	members := etcd(t)
	c, o := client(t, members), &etcdlog.Options{Root: newRoot(), FailureTimeout: time.Minute}
	l, err := etcdlog.Lead(bounded(t), c, "127.0.0.1:1", o)
	require.NoError(t, err)
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "muster-replica-*"))
	require.NoError(t, err)
	require.Len(t, left, 1)
	errs := make(chan error, 3)
	for range cap(errs) {
		go func() { errs <- l.Close() }()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	_, _, err = l.Open(store.Limits{}, nil)
	require.Error(t, err)
	left, err = filepath.Glob(filepath.Join(os.TempDir(), "muster-replica-*"))
	require.NoError(t, err)
	require.Empty(t, left)
	m := lead(t, c, o)
	require.NoError(t, store.New(m).Set(bounded(t), "key", nil, nil))

	ctx, cancel := context.WithCancelCause(t.Context()) // a standby ends with its context, too
	cancel(errors.New("enough"))
	_, err = etcdlog.Lead(ctx, c, "127.0.0.1:1", o)
	require.ErrorContains(t, err, "enough")
}
