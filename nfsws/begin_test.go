package nfsws_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/nfsws"
)

// TestBegin begins generations from several goroutines: each is newer than all that existed before,
// and no two are the same.
func TestBegin(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	first, err := nfsws.Begin(t.Context(), dir)
	require.NoError(t, err)
	require.EqualValues(t, 1, first)
	require.NoError(t, os.Mkdir(nfsws.GenerationDir(dir, 1<<60), 0o777))
	all := make([]uint64, 8)
	var begins sync.WaitGroup
	for i := range all {
		begins.Go(func() {
			var err error
			if all[i], err = nfsws.Begin(t.Context(), dir); err != nil {
				t.Error(err)
			}
		})
	}
	begins.Wait()
	slices.Sort(all)
	require.Len(t, slices.Compact(all), 8)
	require.Greater(t, all[0], uint64(1<<60))
	open(t, dir, 0, &nfsws.Options{Generation: all[7]})

	require.NoError(t, os.Mkdir(nfsws.GenerationDir(dir, math.MaxUint64), 0o777))
	_, err = nfsws.Begin(t.Context(), dir)
	require.ErrorContains(t, err, "is the last that there can be: remove it")
	_, err = nfsws.Begin(t.Context(), filepath.Join(dir, "no", "parent"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
