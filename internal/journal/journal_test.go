package journal_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/muster-pg/muster/internal/journal"
	"github.com/muster-pg/muster/internal/journal/disk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	dir = "/log"
	id  = 0xabcdef
)

func newDisk() *disk.Disk { return disk.New(rand.New(rand.NewPCG(1, 2))) }

func options(d *disk.Disk) *journal.Options { return &journal.Options{FS: d, Preallocate: 256} }

// open opens the log on d, and returns its entries.
func open(d *disk.Disk, from uint64) (j *journal.Journal, entries []string, err error) {
	return openWith(from, options(d))
}

func openWith(from uint64, o *journal.Options) (j *journal.Journal, entries []string, err error) {
	j, err = journal.Open(dir, id, from, func(r []byte) error {
		entries = append(entries, string(r))
		return nil
	}, o)
	return j, entries, err
}

// mustOpen opens the log on d, which it creates if there is none.
func mustOpen(t testing.TB, d *disk.Disk, from uint64) (*journal.Journal, []string) {
	t.Helper()
	if len(d.Files()) == 0 {
		require.NoError(t, journal.Create(dir, id, from, options(d)))
	}
	j, entries, err := open(d, from)
	require.NoError(t, err)
	return j, entries
}

func add(j *journal.Journal, entry string) (pos uint64) {
	return j.Append(func(b []byte) []byte { return append(b, entry...) })
}

// written returns a disk with a log: each argument is a segment, and each string a batch, whose
// entries are separated by spaces.
func written(t testing.TB, segments ...[]string) *disk.Disk {
	t.Helper()
	d := newDisk()
	j, _ := mustOpen(t, d, 1)
	for _, batches := range segments {
		j.Rotate()
		for _, b := range batches {
			for entry := range strings.SplitSeq(b, " ") {
				add(j, entry)
			}
			require.NoError(t, j.Sync(math.MaxUint64))
		}
	}
	require.NoError(t, j.Close())
	return d
}

func TestFormat(t *testing.T) {
	d := written(t, []string{"one two", "3"})
	got := d.Files()[dir+"/log-0000000000000001"]
	require.Len(t, got, 2048, "with zeros ahead")
	require.Equal(t, ""+
		"6d75737465724a4c"+"02000000"+"efcdab0000000000"+"0100000000000000"+"0100000000000000"+"d3607478"+
		"cad6725e"+"cd0e1ab3"+"0e000000"+"0100000000000000"+"02000000"+"03000000"+"6f6e65"+"03000000"+"74776f"+
		"5d9a3d7d"+"551fa2b1"+"05000000"+"0300000000000000"+"01000000"+"01000000"+"33"+
		"8b3b2951"+"00000000"+"00000000"+"04",
		hex.EncodeToString(bytes.TrimRight(got, "\x00")))
}

func TestRotateAndRemove(t *testing.T) {
	d := newDisk()
	j, _ := mustOpen(t, d, 1)
	empty := j.Size() // the size of the header
	require.EqualValues(t, 1, j.Rotate(), "nothing is in segment 1")
	add(j, "a")
	require.EqualValues(t, 2, j.Rotate())
	require.EqualValues(t, 2, j.Rotate())
	add(j, "b")
	require.EqualValues(t, 3, j.Rotate())
	require.Len(t, d.Files(), 1, "no I/O before Sync")
	require.NoError(t, j.Remove(2), "syncs all first")
	require.EqualValues(t, 2, j.Durable())
	require.Greater(t, j.Size(), empty)
	require.NoError(t, j.Remove(99), "no more than what Rotate has said")
	require.Equal(t, empty, j.Size())
	add(j, "c")
	require.NoError(t, j.Sync(math.MaxUint64))
	require.Greater(t, j.Size(), empty)
	d.Crash()
	require.Len(t, d.Files(), 1)
	_, entries := mustOpen(t, d, 3)
	require.Equal(t, []string{"c"}, entries)
}

// TestAFinishedSegmentHasNoZeros checks that a finished segment takes no more space than its data,
// since segments stay while checkpoints fail.
func TestAFinishedSegmentHasNoZeros(t *testing.T) {
	d := written(t, []string{"a"}, []string{"b"}, []string{"c"})
	require.Less(t, len(d.Files()[first]), 200)
	require.Less(t, len(d.Files()[second]), 200)
	require.Len(t, d.Files()[third], 2048)
	_, entries := mustOpen(t, d, 1)
	require.Equal(t, []string{"a", "b", "c"}, entries)
}

func TestSyncIsShared(t *testing.T) {
	d := newDisk()
	j, _ := mustOpen(t, d, 1)
	before := d.Syncs()
	var positions []uint64
	for range 100 {
		positions = append(positions, add(j, "x"))
	}
	var wg sync.WaitGroup
	for _, pos := range positions {
		wg.Go(func() {
			if err := j.Sync(pos); err != nil || j.Durable() < pos {
				t.Error(err, j.Durable())
			}
		})
	}
	wg.Wait()
	require.Equal(t, before+1, d.Syncs())
}

func TestFailureIsForEver(t *testing.T) {
	for name, tc := range map[string]struct {
		fail   func(*disk.Disk)
		rotate bool
		want   error
		text   string
	}{
		"write":        {func(d *disk.Disk) { d.FailWrite(0) }, false, syscall.ENOSPC, "write " + first + ": no space left on device"},
		"sync":         {func(d *disk.Disk) { d.FailSync(0) }, false, syscall.EIO, "sync " + first + ": input/output error"},
		"header":       {func(d *disk.Disk) { d.FailWrite(0) }, true, syscall.ENOSPC, "write " + second},
		"zeros":        {func(d *disk.Disk) { d.FailWrite(1) }, true, syscall.ENOSPC, "write " + second},
		"file's sync":  {func(d *disk.Disk) { d.FailSync(0) }, true, syscall.EIO, "sync " + second},
		"it is there":  {func(d *disk.Disk) { d.Put(second, nil) }, true, syscall.EEXIST, "create " + second},
		"power, write": {func(d *disk.Disk) { d.CutPower(0) }, false, disk.ErrPower, "write " + first},
		"power, dir":   {func(d *disk.Disk) { d.CutPower(6) }, true, disk.ErrPower, "sync /log:"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk()
			j, _ := mustOpen(t, d, 1)
			require.NoError(t, j.Sync(add(j, "a")))
			if tc.rotate {
				j.Rotate()
			}
			tc.fail(d)
			pos := add(j, "b")
			err := j.Sync(pos)
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, "journal: "+tc.text)
			require.EqualValues(t, 3, add(j, "c"))
			for pos := range uint64(4) {
				require.Equal(t, err, j.Sync(pos))
			}
			require.Equal(t, err, j.Remove(j.Rotate()))
			require.EqualValues(t, 1, j.Durable())
			require.Equal(t, err, j.Close())
		})
	}
}

func TestApplyMayRefuse(t *testing.T) {
	d := written(t, []string{"a", "b"})
	before := d.Files()
	refused := errors.New("refused")
	_, err := journal.Open(dir, id, 1, func(r []byte) error {
		if string(r) == "b" {
			return refused
		}
		return nil
	}, options(d))
	require.ErrorIs(t, err, refused)
	require.ErrorContains(t, err, "journal: /log/log-0000000000000001: entry 2: refused")
	require.Equal(t, before, d.Files())
}

func TestTornTailIsReported(t *testing.T) {
	d := written(t, []string{"a", strings.Repeat("b", 1000)})
	zero(first, 1024, 1200)(d)
	var out bytes.Buffer
	_, entries, err := openWith(1, &journal.Options{FS: d, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, entries)
	require.Contains(t, out.String(), "file=/log/log-0000000000000001 offset=69 bytes=955", "up to the last that is not zero")
}

func TestOnTheDisk(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, journal.Create(dir, id, 0, nil))
	require.ErrorIs(t, journal.Create(dir, id, 1, nil), journal.ErrExists)
	require.NoError(t, journal.Create(dir, id, 0, nil), "there is no entry in it")
	for n := range 4 {
		var entries []string
		j, err := journal.Open(dir, id, uint64(n), func(r []byte) error {
			entries = append(entries, string(r))
			return nil
		}, nil)
		require.NoError(t, err)
		if n > 0 {
			require.Equal(t, []string{fmt.Sprint("new", n)}, entries)
		}
		add(j, fmt.Sprint("old", n))
		j.Rotate()
		add(j, fmt.Sprint("new", n+1))
		require.NoError(t, j.Close())
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, files, 2)
	}
	require.ErrorIs(t, journal.Create(dir, id, 3, nil), journal.ErrExists)
	_, err := journal.Open(dir+"/absent", id, 1, nil, nil)
	require.ErrorIs(t, err, os.ErrNotExist)
}
