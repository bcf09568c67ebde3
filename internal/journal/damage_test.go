package journal_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/journal"
	"github.com/muster-pg/muster/internal/journal/disk"
)

const (
	first  = dir + "/log-0000000000000001"
	second = dir + "/log-0000000000000002"
	third  = dir + "/log-0000000000000003"
)

// markLen is the size of a mark in bytes.
const markLen = 24

// end returns the offset after the last batch in a file, where the mark begins. The last byte of
// the mark that is not zero is its 13th.
func end(d *disk.Disk, name string) int { return len(bytes.TrimRight(d.Files()[name], "\x00")) - 13 }

// change replaces the content of a file by f of it.
func change(d *disk.Disk, name string, f func(b []byte) []byte) { d.Put(name, f(d.Files()[name])) }

func flip(d *disk.Disk, name string, i int) {
	change(d, name, func(b []byte) []byte { b[i] ^= 0x40; return b })
}

// refused opens the log, and checks that this fails and changes nothing.
func refused(t *testing.T, d *disk.Disk) error {
	t.Helper()
	before := d.Files()
	_, _, err := open(d, 1)
	require.Error(t, err)
	d.Crash()
	for name, b := range d.Files() {
		require.True(t, bytes.Equal(before[name], b), name)
		delete(before, name)
	}
	require.Empty(t, before)
	return err
}

// TestEachByteCounts changes each byte of a log, one at a time.
func TestEachByteCounts(t *testing.T) {
	segments := [][]string{{"one", "two three"}, {"four", "5 6", "seven"}}
	check := func(name string, i int) {
		d := written(t, segments...)
		zeros := end(d, name) + markLen
		flip(d, name, i)
		if i >= zeros {
			_, entries, err := open(d, 1)
			require.NoError(t, err, "%s %d", name, i)
			require.Equal(t, []string{"one", "two", "three", "four", "5", "6", "seven"}, entries)
			return
		}
		err := refused(t, d)
		var damage *journal.DamageError
		switch {
		case i < 8:
			require.ErrorIs(t, err, journal.ErrForeign)
		case i < 12:
			require.ErrorIs(t, err, journal.ErrNewer)
		default:
			require.ErrorAs(t, err, &damage)
			require.Equal(t, name, damage.File)
			require.LessOrEqual(t, damage.Offset, int64(i))
			require.Contains(t, err.Error(), "restore the directory from a backup")
		}
	}
	for _, name := range []string{first, second} {
		d := written(t, segments...)
		// A finished segment has no zeros after its end.
		for i := range min(end(d, name)+50, len(d.Files()[name])) {
			check(name, i)
		}
	}
}

// TestEachCut truncates a log to each length: it is refused if it has lost anything, and complete
// otherwise.
func TestEachCut(t *testing.T) {
	for _, batches := range [][]string{nil, {"one"}, {"one", "two three", strings.Repeat("x", 4000)}} {
		whole := written(t, batches).Files()[first]
		data := max(40, end(written(t, batches), first)) + markLen
		for n := range whole {
			if n > data+2 && n%100 > 0 {
				continue
			}
			d := written(t, batches)
			change(d, first, func(b []byte) []byte { return b[:n] })
			var damage *journal.DamageError
			if n < data {
				require.ErrorAs(t, refused(t, d), &damage, n)
				require.Equal(t, first, damage.File)
				continue
			}
			j, entries := mustOpen(t, d, 1)
			require.Equal(t, strings.Join(batches, " "), strings.Join(entries, " "), n)
			require.NoError(t, j.Sync(add(j, "more")))
			_, entries = mustOpen(t, d, 1)
			require.Contains(t, entries, "more")
		}
	}
}

func cut(name string, n int) func(*disk.Disk) {
	return func(d *disk.Disk) { change(d, name, func(b []byte) []byte { return b[:n] }) }
}

func zero(name string, from, to int) func(*disk.Disk) {
	return func(d *disk.Disk) { change(d, name, func(b []byte) []byte { clear(b[from:to]); return b }) }
}

func TestRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(d *disk.Disk)
		want  error  // nil: a DamageError
		text  string // contained in the error
	}{
		"foreign": {
			func(d *disk.Disk) { d.Put(second, bytes.Repeat([]byte("text"), 100)) },
			journal.ErrForeign, second + ": not a log of muster",
		},
		"short, foreign": {
			func(d *disk.Disk) { d.Put(third, []byte("text")) },
			journal.ErrForeign, third,
		},
		"newer": {
			func(d *disk.Disk) { change(d, third, func(b []byte) []byte { b[8] = 3; return b }) },
			journal.ErrNewer, third + ": written by a newer muster: use that one (format 3, not 2)",
		},
		"other store": {
			func(d *disk.Disk) {
				other := dir + "/other/log-0000000000000003"
				if err := journal.Create(dir+"/other", 7, 3, options(d)); err != nil {
					panic(err)
				}
				d.Put(third, d.Files()[other])
				d.Delete(other)
			},
			journal.ErrOtherStore, third + ": the log of another store: its id is 0x7, not 0xabcdef",
		},
		"missing": {
			func(d *disk.Disk) { d.Delete(second) },
			journal.ErrMissing, second + ": a segment of the log is missing",
		},
		"first missing": {
			func(d *disk.Disk) { d.Delete(first) },
			journal.ErrMissing, first,
		},
		"last missing": {
			func(d *disk.Disk) { d.Delete(third) },
			journal.ErrMissing, third,
		},
		"all missing": {
			func(d *disk.Disk) { d.Delete(first); d.Delete(second); d.Delete(third) },
			journal.ErrMissing, first,
		},
		"renamed": {
			func(d *disk.Disk) { d.Put(third, d.Files()[second]) },
			nil, "it is segment 2",
		},
		"one too many": {
			func(d *disk.Disk) { d.Put(dir+"/log-0000000000000004", d.Files()[second]) },
			nil, "a segment follows",
		},
		"header cut":    {cut(second, 20), nil, "header is incomplete"},
		"header zeroed": {zero(third, 0, 40), nil, "header is incomplete"},
		"empty":         {cut(third, 0), nil, "header is incomplete"},
		"end cut":       {cut(second, 69), nil, "the file was truncated, to 69 bytes"},
		"end missing":   {zero(second, 98, 98+markLen), nil, "a segment follows"},
		"gap":           {zero(third, 40, 69), nil, "what was durable before byte 69 is not sound"},
		"last batch":    {zero(third, 69, 97), nil, "what was durable before byte 97 is not sound"},
	} {
		t.Run(name, func(t *testing.T) {
			// The file ends with zeros.
			d := written(t, []string{"1", "2"}, []string{"3", "4"}, []string{"5", ""})
			tc.spoil(d)
			err := refused(t, d)
			require.ErrorContains(t, err, tc.text)
			var damage *journal.DamageError
			if tc.want == nil {
				require.ErrorAs(t, err, &damage)
			} else {
				require.ErrorIs(t, err, tc.want)
			}
		})
	}
}

func TestOnlyOwnSegmentsAreRemoved(t *testing.T) {
	d := written(t, []string{"1"}, []string{"2"})
	foreign := []byte("a user's notes, which have the name of a segment")
	d.Put(first, foreign)
	_, _, err := open(d, 2)
	require.ErrorIs(t, err, journal.ErrForeign)
	require.Equal(t, foreign, d.Files()[first])

	d.Put(first, nil) // damaged, but no longer needed
	d.Put(dir+"/log-1", foreign)
	d.Put(dir+"/notes", foreign)
	_, entries, err := open(d, 2)
	require.NoError(t, err)
	require.Equal(t, []string{"2"}, entries)
	require.Len(t, d.Files(), 3)
}

// TestABatchOfAnotherLog checks that a batch that is valid, and at its own offset, is refused if
// its sequence number is not the next one.
func TestABatchOfAnotherLog(t *testing.T) {
	d := written(t, []string{"1234567", "a"}) // the first batch has 11 bytes in one entry
	other := written(t, []string{"12 3", "a"}).Files()[first]
	change(d, first, func(b []byte) []byte { return append(b[:40+24+11], other[40+24+11:]...) })
	require.ErrorContains(t, refused(t, d), "its batch begins with entry 3, not 2")
}

// TestAMovedBatch checks that a batch at another offset is not valid, since its checksum depends on
// the offset.
func TestAMovedBatch(t *testing.T) {
	d := written(t, []string{"a"})
	change(d, first, func(b []byte) []byte { copy(b[69:], b[40:69]); clear(b[40:69]); return b })
	_, entries := mustOpen(t, d, 1)
	require.Empty(t, entries)
}

// TestTheLastBatch damages a batch that is not followed by a mark, as after a power failure. Damage
// that cannot be an incomplete write is refused.
func TestTheLastBatch(t *testing.T) {
	long := strings.Repeat("x", 2000)
	written := func() *disk.Disk {
		d := written(t, []string{"a", long}) // at 69: 24 bytes of head, then 4 and 2000 bytes
		change(d, first, func(b []byte) []byte { clear(b[69+24+2004:]); return b })
		return d
	}
	_, entries := mustOpen(t, written(), 1)
	require.Equal(t, []string{"a", long}, entries)
	for i := 69; i < 69+24+2004; i++ {
		d := written()
		flip(d, first, i)
		require.ErrorContains(t, refused(t, d), "at byte 69: the last batch is complete, and not sound")
	}
	for _, torn := range [][2]int{{69, 512}, {512, 1024}, {2048, 2097}, {1024, 2097}} {
		d := written()
		zero(first, torn[0], torn[1])(d)
		_, entries := mustOpen(t, d, 1)
		require.Equal(t, []string{"a"}, entries)
	}
}

// TestALogInAnEntry checks that an entry may contain a log, and be written in part: the inner log is
// not mistaken for batches.
func TestALogInAnEntry(t *testing.T) {
	inner := written(t, []string{"a", "b", "c", "d", "e"}).Files()[first]
	d := newDisk()
	j, _ := mustOpen(t, d, 1)
	add(j, string(inner))
	require.NoError(t, j.Close())
	zero(first, 40+28+100, 40+28+len(inner)+markLen)(d)
	_, entries, err := open(d, 1)
	require.NoError(t, err)
	require.Empty(t, entries)
}
