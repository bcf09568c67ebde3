package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// onDisk returns a durable store. Its directory may be in memory: a test that is about the disk makes
// its own store.
func onDisk(t *testing.T) store.Backend { return &store.Memory{Dir: testcluster.Scratch(t)} }

// TestDurableUnderOtherLimits checks that, after a restart with other limits, refused changes stay
// refused and acknowledged changes stay in effect.
func TestDurableUnderOtherLimits(t *testing.T) {
	dir, ctx := t.TempDir(), bounded(t)
	life := func(most int64) *store.Store {
		return store.New(&store.Memory{Dir: dir, Limits: store.Limits{Bytes: most}})
	}
	value := make([]byte, 60)
	s := life(100)
	require.NoError(t, s.Set(ctx, "a", value, nil))
	require.ErrorIs(t, s.Set(ctx, "b", value, nil), store.ErrFull)
	require.NoError(t, s.Close())
	for _, most := range []int64{1000, 10, 1000} {
		s = life(most)
		_, err := s.Get(ctx, "a")
		require.NoError(t, err, most)
		_, err = s.Get(ctx, "b")
		require.ErrorIs(t, err, store.ErrNotFound, most)
		require.NoError(t, s.Close())
	}
}

// TestDurableExpiryThatWasSeen checks that an entry that a client has found expired does not exist
// again after a crash.
func TestDurableExpiryThatWasSeen(t *testing.T) {
	t.Parallel()
	dir, ctx := testcluster.Scratch(t), bounded(t)
	m := &store.Memory{Dir: dir}
	s := store.New(m)
	defer func() { _ = s.Close() }()
	for i := range 10 {
		key := fmt.Sprint("key ", i)
		require.NoError(t, s.Set(ctx, key, nil, &store.SetOptions{TTL: time.Millisecond}))
		for {
			if _, err := s.Get(ctx, key); err != nil {
				require.ErrorIs(t, err, store.ErrNotFound)
				break
			}
		}
		copied := testcluster.Scratch(t)
		for name, b := range snapshotOf(t, dir) {
			require.NoError(t, os.WriteFile(filepath.Join(copied, name), []byte(b), 0o600))
		}
		after := store.New(&store.Memory{Dir: copied})
		_, err := after.Get(ctx, key)
		require.ErrorIs(t, err, store.ErrNotFound, key)
		require.NoError(t, after.Close())
	}
}

// TestLockEndsWithTheStore checks that a closed store can be opened again while a child of this process
// has copies of its files, as between fork and exec.
func TestLockEndsWithTheStore(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("SKIPPED: open files are listed on Linux only")
	}
	dir := t.TempDir()
	m := &store.Memory{Dir: dir}
	require.NoError(t, m.Open())
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	copies := 0
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		require.NoError(t, err)
		if file, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(file, dir) {
			dup, err := syscall.Dup(fd)
			require.NoError(t, err)
			defer syscall.Close(dup)
			copies++
		}
	}
	require.Positive(t, copies)
	require.NoError(t, m.Close())
	m = &store.Memory{Dir: dir}
	require.NoError(t, m.Open())
	require.NoError(t, m.Close())
}

func TestDurableRefuses(t *testing.T) {
	inUse := t.TempDir()
	first := &store.Memory{Dir: inUse}
	require.NoError(t, first.Open())
	defer func() { _ = first.Close() }()
	unlocked := t.TempDir()
	second := &store.Memory{Dir: unlocked}
	require.NoError(t, second.Open())
	defer func() { _ = second.Close() }()
	require.NoError(t, os.Remove(filepath.Join(unlocked, "lock")))
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
		"in use":        {inUse, "in use by another process"},
		"no lock file":  {unlocked, "in use by another process"},
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
	require.NoFileExists(t, filepath.Join(unlocked, "lock"))
}

// snapshotOf returns the contents of a directory, except for the lock file.
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

// goneWays are the ways in which a store can lose its directory while it is open.
var goneWays = map[string]func(dir string) error{
	"directory removed": os.RemoveAll,
	"directory renamed": func(dir string) error { return os.Rename(dir, dir+"-elsewhere") },
	"directory replaced": func(dir string) error {
		other := &store.Memory{Dir: dir}
		return errors.Join(os.Rename(dir, dir+"-elsewhere"), other.Open(), other.Close())
	},
	"lock removed":                      func(dir string) error { return os.Remove(filepath.Join(dir, "lock")) },
	"checkpoint removed":                func(dir string) error { return os.Remove(filepath.Join(dir, "checkpoint.db")) },
	"log removed":                       func(dir string) error { return os.Remove(filepath.Join(dir, "log-0000000000000001")) },
	"directory removed while it writes": os.RemoveAll,
}

// TestDirectoryIsGone checks that a store ends soon after its directory, or a file that it needs,
// is removed or replaced, even if nothing is written; and that, on Linux, no write to a log that has been
// removed is acknowledged before that.
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
			if strings.HasSuffix(name, "while it writes") && runtime.GOOS == "linux" {
				require.ErrorIs(t, s.Set(ctx, "k", nil, nil), store.ErrUnavailable)
			}
			began := time.Now()
			select {
			case <-m.Failed():
			case <-ctx.Done():
				t.Fatal("it goes on")
			}
			t.Logf("noticed after %v", time.Since(began))
			require.ErrorContains(t, m.Err(), dir)
			require.ErrorContains(t, m.Err(), "removed")
			require.ErrorIs(t, s.Set(ctx, "k", nil, nil), store.ErrUnavailable)
		})
	}
}

// TestKillNine kills a durable server again and again while a group works. No call of a rank fails, each
// change is made exactly once, and a lease lives.
func TestKillNine(t *testing.T) {
	t.Parallel()
	const kills, ranks = 6, 8
	p := newProcess(t, "server", t.TempDir())
	ctx := bounded(t)
	var stores []*store.Store
	for range ranks {
		stores = append(stores, dial(t, p.addr))
	}
	g := teamOf(t, stores...)
	holder, watcher := dial(t, p.addr), dial(t, p.addr)
	lease, err := holder.Lease(ctx, 10*time.Second)
	require.NoError(t, err)
	require.NoError(t, holder.Set(ctx, "held", []byte("by lease"), &store.SetOptions{Lease: lease}))
	sum := func() int64 {
		n, err := watcher.Add(ctx, "sum", 0)
		assert.NoError(t, err)
		return n
	}
	g.rounds(func() {
		for range kills {
			before := sum()
			for ctx.Err() == nil && sum() < before+10*ranks { // some work between two kills
			}
			p.kill(t)
			p.start(t)
		}
	})
	holds(t, holder, "held", "by lease")
	require.NoError(t, lease.Err())
	require.NoError(t, lease.Close(ctx))
	absent(t, holder, "held")
}
