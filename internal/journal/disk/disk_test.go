package disk_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/journal"
	"github.com/muster-pg/muster/internal/journal/disk"
)

// begin returns a disk with a file of 2000 bytes a, durable, and the file.
func begin(t *testing.T, seed uint64) (*disk.Disk, journal.File) {
	t.Helper()
	d := disk.New(rand.New(rand.NewPCG(seed, 0)))
	f, err := d.Create("/d/f")
	require.NoError(t, err)
	write(t, f, "a", 2000, 0)
	require.NoError(t, f.Sync())
	require.NoError(t, d.SyncDir("/d"))
	return d, f
}

func write(t *testing.T, f journal.File, s string, n int, off int64) {
	t.Helper()
	_, err := f.WriteAt(bytes.Repeat([]byte(s), n), off)
	require.NoError(t, err)
}

// outcomes returns what may be in the file after f and a crash.
func outcomes(t *testing.T, f func(*disk.Disk, journal.File)) map[string]int {
	seen := map[string]int{}
	for seed := range uint64(300) {
		d, file := begin(t, seed)
		f(d, file)
		d.Crash()
		seen[string(d.Files()["/d/f"])]++
		_, err := file.WriteAt(nil, 0)
		require.Error(t, err, "closed by the crash")
	}
	return seen
}

func times(s string, n int) string { return string(bytes.Repeat([]byte(s), n)) }

func TestSyncedSurvives(t *testing.T) {
	seen := outcomes(t, func(_ *disk.Disk, f journal.File) {
		require.NoError(t, f.Truncate(1000))
		write(t, f, "b", 500, 1000)
		require.NoError(t, f.Sync())
	})
	require.Equal(t, map[string]int{times("a", 1000) + times("b", 500): 300}, seen)
}

func TestSectorsSurviveInAnyOrder(t *testing.T) {
	seen := outcomes(t, func(_ *disk.Disk, f journal.File) {
		write(t, f, "b", 512, 0)
		write(t, f, "c", 512, 0)
		write(t, f, "c", 512, 512)
	})
	require.Len(t, seen, 6, "the first sector is a, b or c, the second a or c")
}

func TestSizes(t *testing.T) {
	longer := outcomes(t, func(_ *disk.Disk, f journal.File) { write(t, f, "b", 100, 2000) })
	shorter := outcomes(t, func(_ *disk.Disk, f journal.File) { require.NoError(t, f.Truncate(10)) })
	require.Contains(t, longer, times("a", 2000))
	require.Contains(t, longer, times("a", 2000)+times("b", 100))
	require.Contains(t, longer, times("a", 2000)+times("\x00", 100))
	require.Contains(t, shorter, times("a", 10))
	require.Contains(t, shorter, times("a", 2000))
}

func TestAFailedSyncForgets(t *testing.T) {
	seen := outcomes(t, func(d *disk.Disk, f journal.File) {
		write(t, f, "b", 512, 0)
		d.FailSync(0)
		require.ErrorIs(t, f.Sync(), syscall.EIO)
		require.NoError(t, f.Sync())
		require.Equal(t, times("b", 512)+times("a", 1488), string(d.Files()["/d/f"]))
	})
	require.Len(t, seen, 2)
}

func TestEntries(t *testing.T) {
	seen := map[[2]bool]int{}
	for seed := range uint64(100) {
		d, _ := begin(t, seed)
		g, err := d.Create("/d/g")
		require.NoError(t, err)
		require.NoError(t, g.Sync())
		require.NoError(t, d.Remove("/d/f"))
		d.Crash()
		files := d.Files()
		_, hasF := files["/d/f"]
		_, hasG := files["/d/g"]
		seen[[2]bool{hasF, hasG}]++
	}
	require.Len(t, seen, 4)
}

// TestAnEarlierEntry checks that a crash may keep what a name was between two syncs of its directory.
func TestAnEarlierEntry(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(100) {
		d, _ := begin(t, seed)
		for _, content := range []string{"b", "c"} {
			n, err := d.Create("/d/new")
			require.NoError(t, err)
			write(t, n, content, 1, 0)
			require.NoError(t, n.Sync())
			require.NoError(t, d.Rename("/d/new", "/d/f"))
		}
		require.NoError(t, d.Remove("/d/f"))
		d.Crash()
		seen[fmt.Sprintf("%.1s", d.Files()["/d/f"])]++
	}
	require.Len(t, seen, 4, "the first file, b, c, or none: %v", seen)
}

func TestPower(t *testing.T) {
	d, f := begin(t, 1)
	d.CutPower(1)
	write(t, f, "b", 1, 0)
	_, err := f.WriteAt([]byte("c"), 0)
	require.ErrorIs(t, err, disk.ErrPower)
	require.ErrorIs(t, f.Sync(), disk.ErrPower)
	_, err = d.Open("/d/f")
	require.ErrorIs(t, err, disk.ErrPower)
	d.Crash()
	f, err = d.Open("/d/f")
	require.NoError(t, err)
	d.FailWrite(0)
	n, err := f.WriteAt(make([]byte, 2000), 0)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Equal(t, 512, n, "whole sectors")
	require.NoError(t, f.Close())
	require.Error(t, f.Sync())
}
