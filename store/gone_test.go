package store_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

// goneWays are the ways in which a store can lose its directory while it is open.
var goneWays = map[string]func(dir string) error{
	"directory removed": os.RemoveAll,
	"directory renamed": func(dir string) error { return os.Rename(dir, dir+"-elsewhere") },
	"directory replaced": func(dir string) error {
		other := &store.Memory{Dir: dir}
		return errors.Join(os.Rename(dir, dir+"-elsewhere"), other.Open(), other.Close())
	},
	"lock removed":       func(dir string) error { return os.Remove(filepath.Join(dir, "lock")) },
	"checkpoint removed": func(dir string) error { return os.Remove(filepath.Join(dir, "checkpoint.db")) },
	"log removed":        func(dir string) error { return os.Remove(filepath.Join(dir, "log-0000000000000001")) },
}

// TestDirectoryIsGone checks that a store ends soon after its directory, or a file that it needs,
// is removed or replaced, even if nothing is written.
func TestDirectoryIsGone(t *testing.T) {
	t.Parallel()
	for name, take := range goneWays {
		t.Run(name, func(t *testing.T) {
			dir, ctx := filepath.Join(t.TempDir(), "data"), bounded(t)
			m := &store.Memory{Dir: dir}
			s := store.New(m)
			defer func() { _ = s.Close() }()
			require.NoError(t, s.Set(ctx, "k", nil, nil))
			require.NoError(t, take(dir))
			began := time.Now()
			select {
			case <-m.Failed():
			case <-ctx.Done():
				t.Fatal("it goes on")
			}
			t.Logf("noticed after %v", time.Since(began))
			require.ErrorContains(t, m.Err(), dir)
			require.ErrorContains(t, m.Err(), "removed or replaced while the store was open")
			require.ErrorIs(t, s.Set(ctx, "k", nil, nil), store.ErrUnavailable)
		})
	}
}

// TestNothingIsAcknowledgedIntoARemovedDirectory checks that a write to a log that has been removed
// is never acknowledged.
func TestNothingIsAcknowledgedIntoARemovedDirectory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: there it is noticed within a second only")
	}
	for round := range 5 {
		dir, ctx := filepath.Join(t.TempDir(), "data"), bounded(t)
		m := &store.Memory{Dir: dir}
		require.NoError(t, m.Open())
		s := store.New(m)
		for n := range round {
			require.NoError(t, s.Set(ctx, fmt.Sprint(n), nil, nil))
		}
		require.NoError(t, os.RemoveAll(dir))
		require.ErrorIs(t, s.Set(ctx, "after", nil, nil), store.ErrUnavailable)
		_ = s.Close()
	}
}

// TestLockFileIsRemoved checks that a second store cannot open a directory whose lock file was
// removed.
func TestLockFileIsRemoved(t *testing.T) {
	dir := t.TempDir()
	first := &store.Memory{Dir: dir}
	require.NoError(t, first.Open())
	defer func() { _ = first.Close() }()
	require.NoError(t, os.Remove(filepath.Join(dir, "lock")))
	require.ErrorContains(t, (&store.Memory{Dir: dir}).Open(), "in use by another process")
	require.NoFileExists(t, filepath.Join(dir, "lock"))
}
