package etcdlog_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/wire"
)

// TestRestore checks that a backup becomes a store below another root, or in a directory. If there
// is a store, or a leader that has none yet, Restore changes nothing.
func TestRestore(t *testing.T) {
	t.Parallel()
	c, o := client(t, etcd(t)), &etcdlog.Options{Root: newRoot(), MaxValueBytes: 10_000}
	first := standing(t, c, o)()
	value := bytes.Repeat([]byte("value"), 5_000)
	for i := range 10 {
		require.NoError(t, first.Set(bounded(t), fmt.Sprint("key ", i), value, nil))
	}
	file := filepath.Join(t.TempDir(), "backup")
	f, err := os.Create(file)
	require.NoError(t, err)
	_, err = first.Backup(bounded(t), f)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	to := &etcdlog.Options{Root: newRoot(), MaxValueBytes: 10_000}
	require.NoError(t, etcdlog.Restore(bounded(t), c, file, to))
	require.Greater(t, len(keysBelow(t, c, to.Root)), 10, "of several parts")
	second := standing(t, c, to)()
	for i := range 10 {
		has(t, second.Store, fmt.Sprint("key ", i), value)
	}
	require.NoError(t, second.Set(bounded(t), "key 0", []byte("new"), nil))
	second.end(t)
	third := standing(t, c, to)()
	has(t, third.Store, "key 0", []byte("new"))
	has(t, third.Store, "key 9", value)
	has(t, first.Store, "key 0", value)

	before := keysBelow(t, c, o.Root)
	err = etcdlog.Restore(bounded(t), c, file, o)
	require.ErrorIs(t, err, etcdlog.ErrExists)
	e, ok := errors.AsType[*store.Error](err)
	require.True(t, ok)
	require.Equal(t, wire.CodeConflict, e.Code)
	require.Equal(t, before, keysBelow(t, c, o.Root))
	third.end(t)
	require.ErrorIs(t, etcdlog.Restore(bounded(t), c, file, to), etcdlog.ErrExists, "no leader, and a store")

	require.NoError(t, os.WriteFile(file, []byte("no backup"), 0o600))
	require.ErrorIs(t, etcdlog.Restore(bounded(t), c, file, &etcdlog.Options{Root: newRoot()}), store.ErrInvalid)
}
