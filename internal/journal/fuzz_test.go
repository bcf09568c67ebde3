package journal_test

import (
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzOpen opens a log whose last segment has arbitrary bytes.
func FuzzOpen(f *testing.F) {
	segments := [][]string{{"one", "two three"}, {"four", "5 6", "seven"}}
	all := []string{"one", "two", "three", "four", "5", "6", "seven"}
	files := written(f, segments...).Files()
	whole := files[second][:200]
	f.Add(whole)
	f.Add(files[second])
	f.Add(whole[:130])
	f.Add(whole[:40])
	f.Add(whole[:20])
	f.Add([]byte{})
	huge := slices.Clone(whole)
	copy(huge[44:], "\xff\xff\xff\xff")
	f.Add(huge)
	f.Fuzz(func(t *testing.T, b []byte) {
		d := newDisk()
		d.Put(first, files[first])
		d.Put(second, b)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		j, entries, err := open(d, 1)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20+8*len(b)))
		require.LessOrEqual(t, len(entries), len(all))
		require.Equal(t, all[:len(entries)], entries)
		if err != nil {
			d.Crash()
			require.Equal(t, b, d.Files()[second])
			return
		}
		require.NoError(t, j.Sync(add(j, "more")))
		d.Crash()
		_, again := mustOpen(t, d, 1)
		require.Equal(t, append(entries, "more"), again)
	})
}
