package etcdlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

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

// TestMalformed checks that malformed content in etcd is reported as damage, and that no process
// leads or waits because of it.
func TestMalformed(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	c := client(t, members)
	for name, x := range map[string]struct {
		key  func(root string, log []string) string
		put  string // "": the key is deleted
		want string
	}{
		"a key that is no part": {func(root string, _ []string) string { return root + "log/x" }, "v", "log/x"},
		"a part that is empty":  {func(_ string, log []string) string { return log[len(log)-1] }, "\x01\x00", "malformed"},
		"a part that is gone":   {func(_ string, log []string) string { return log[1] }, "", "damaged"},
		"a state":               {func(root string, _ []string) string { return root + "state" }, "{", "state"},
		"a state that is gone":  {func(root string, _ []string) string { return root + "state" }, "", "damaged"},
		"a leader":              {func(root string, _ []string) string { return root + "leader" }, "missing", "leader"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &etcdlog.Options{Root: newRoot(), FailureTimeout: 300 * time.Millisecond}
			m := lead(t, c, o)
			for i := range 10 {
				require.NoError(t, store.New(m).Set(bounded(t), fmt.Sprint(i), nil, nil))
				if i == 4 {
					_, err := store.New(m).Backup(bounded(t), io.Discard)
					require.NoError(t, err)
				}
			}
			require.NoError(t, m.Close())
			key := x.key(o.Root, keysBelow(t, c, o.Root+"log/"))
			var err error
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

// TestLeadershipWithoutMemory checks that a Leadership without a Memory hands over at once, and that
// a leader has no file on this machine between two checkpoints: it may be killed.
func TestLeadershipWithoutMemory(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	members := etcd(t)
	c, o := client(t, members), &etcdlog.Options{Root: newRoot(), FailureTimeout: time.Minute}
	l, err := etcdlog.Lead(bounded(t), c, "127.0.0.1:1", o)
	require.NoError(t, err)
	errs := make(chan error, 3)
	for range cap(errs) {
		go func() { errs <- l.Close() }()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	_, _, err = l.Open(store.Limits{}, nil)
	require.Error(t, err)
	m := lead(t, c, o)
	_, err = store.New(m).Backup(bounded(t), io.Discard)
	require.NoError(t, err)
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "*"))
	require.NoError(t, err)
	require.Empty(t, left)
}
