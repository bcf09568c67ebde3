package etcdlog_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/wire"
)

// TestRestore checks that a backup of several parts becomes a store below another root, that Restore
// changes nothing where there is a store, and that it refuses what is no backup. What a backup has is
// shown by TestScenarios.
func TestRestore(t *testing.T) {
	t.Parallel()
	c, o := newMemEtcd().Client(direct{}), &etcdlog.Options{Root: newRoot(), MaxValueBytes: 1000}
	first := standing(t, c, o)()
	value := bytes.Repeat([]byte("value"), 5_000)
	require.NoError(t, first.Set(bounded(t), "key", value, nil))
	file := filepath.Join(t.TempDir(), "backup")
	f, err := os.Create(file)
	require.NoError(t, err)
	_, err = first.Backup(bounded(t), f)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	to := &etcdlog.Options{Root: newRoot(), MaxValueBytes: 1000}
	require.NoError(t, etcdlog.Restore(bounded(t), c, file, to))
	require.Greater(t, len(keysBelow(t, c, to.Root)), 10, "of several parts")
	has(t, standing(t, c, to)().Store, "key", value)

	before := keysBelow(t, c, o.Root)
	err = etcdlog.Restore(bounded(t), c, file, o)
	require.ErrorIs(t, err, etcdlog.ErrExists)
	e, ok := errors.AsType[*store.Error](err)
	require.True(t, ok)
	require.Equal(t, wire.CodeConflict, e.Code)
	require.Equal(t, before, keysBelow(t, c, o.Root))

	require.NoError(t, os.WriteFile(file, []byte("no backup"), 0o600))
	require.ErrorIs(t, etcdlog.Restore(bounded(t), c, file, &etcdlog.Options{Root: newRoot()}), store.ErrInvalid)
}
