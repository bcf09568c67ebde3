package store_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/storetest"
)

func onDisk(t *testing.T) store.Engine { return &store.Memory{Dir: t.TempDir()} }

func TestDurable(t *testing.T) {
	storetest.Run(t, func(t *testing.T) func() store.Engine {
		m := onDisk(t)
		t.Cleanup(func() { _ = m.Close() })
		return func() store.Engine { return m }
	}, &storetest.Options{Without: []storetest.Feature{storetest.Sessions}})
}

func TestClientServerDurable(t *testing.T) {
	storetest.Run(t, served(onDisk, tcp, soonLost), &storetest.Options{Cut: cut})
}

func TestDurableComesBack(t *testing.T) {
	dir, ctx := t.TempDir(), bounded(t)
	for life := range 5 {
		m := &store.Memory{Dir: dir}
		s := store.New(m)
		n, err := s.Add(ctx, "lives", 1)
		require.NoError(t, err)
		require.EqualValues(t, life+1, n)
		require.NoError(t, s.Set(ctx, fmt.Sprint("key ", life), bytes.Repeat([]byte("v"), life), nil))
		for i := range life {
			v, err := s.Get(ctx, fmt.Sprint("key ", i))
			require.NoError(t, err)
			require.Len(t, v, i)
		}
		require.NoError(t, s.Close())
	}
}

func TestDurableTimeToLiveIsRunningTime(t *testing.T) {
	dir, ctx := t.TempDir(), bounded(t)
	s := store.New(&store.Memory{Dir: dir})
	require.NoError(t, s.Set(ctx, "k", []byte("v"), &store.SetOptions{TTL: time.Hour}))
	require.NoError(t, s.Close())
	s = store.New(&store.Memory{Dir: dir})
	defer func() { _ = s.Close() }()
	for e, err := range s.List(ctx, "") {
		require.NoError(t, err)
		require.Equal(t, "k", e.Key)
		require.InDelta(t, time.Hour, e.TTL, float64(time.Minute))
	}
}

func TestBackupAndRestore(t *testing.T) {
	ctx := bounded(t)
	s := store.New(&store.Memory{Dir: t.TempDir()})
	defer func() { _ = s.Close() }()
	for i := range 3000 {
		require.NoError(t, s.Set(ctx, fmt.Sprint("key ", i), bytes.Repeat([]byte("v"), i), nil))
	}
	file := filepath.Join(t.TempDir(), "backup")
	f, err := os.Create(file)
	require.NoError(t, err)
	_, err = s.Backup(ctx, f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, s.Set(ctx, "later", nil, nil))

	dir := filepath.Join(t.TempDir(), "restored")
	require.NoError(t, store.Restore(file, dir))
	require.ErrorIs(t, store.Restore(file, dir), os.ErrExist)
	back := store.New(&store.Memory{Dir: dir})
	defer func() { _ = back.Close() }()
	n := 0
	for e, err := range back.List(ctx, "") {
		require.NoError(t, err)
		require.NotEqual(t, "later", e.Key)
		n++
	}
	require.Equal(t, 3000, n)
}

func TestDurableRefuses(t *testing.T) {
	inUse := t.TempDir()
	first := &store.Memory{Dir: inUse}
	require.NoError(t, first.Open())
	defer func() { _ = first.Close() }()
	foreign := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "thesis.tex"), []byte("do not touch"), 0o600))
	garbage := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(garbage, "checkpoint.db"), bytes.Repeat([]byte("garbage"), 10000), 0o600))
	beheaded := t.TempDir()
	m := &store.Memory{Dir: beheaded}
	require.NoError(t, m.Open())
	require.NoError(t, m.Close())
	require.NoError(t, os.Remove(filepath.Join(beheaded, "checkpoint.db")))
	for name, c := range map[string]struct{ dir, says string }{
		"in use":        {inUse, "another process has it"},
		"foreign":       {foreign, "thesis.tex"},
		"garbage":       {garbage, "checkpoint.db"},
		"no checkpoint": {beheaded, "restore a backup"},
		"a file":        {filepath.Join(foreign, "thesis.tex"), "not a directory"},
	} {
		before := snapshotOf(t, c.dir)
		err := (&store.Memory{Dir: c.dir}).Open()
		require.ErrorIs(t, err, store.ErrUnavailable, name)
		require.ErrorContains(t, err, c.says, name)
		require.ErrorContains(t, err, c.dir, name)
		require.Equal(t, before, snapshotOf(t, c.dir), name)
	}
}

// snapshotOf is what is in a directory, but for the lock.
func snapshotOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, _ := os.ReadDir(dir)
	all := map[string]string{}
	for _, f := range files {
		if f.Name() == "lock" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		all[f.Name()] = string(b)
	}
	return all
}

var (
	_ = context.Background
	_ = testcluster.Eventually
)
