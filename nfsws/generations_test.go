package nfsws_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/nfsws"
)

// generations returns the directories of generations.
func generations(dir string) (all []string) {
	for _, d := range must(os.ReadDir(dir)) {
		all = append(all, strings.TrimPrefix(d.Name(), "gen-0000000000000000000"))
	}
	return all
}

func TestLeftOverOfAnOlderRun(t *testing.T) {
	dir := t.TempDir()
	old := open(t, dir, 0, &nfsws.Options{Generation: 1})
	open(t, dir, 1, &nfsws.Options{Generation: 2})

	_, err := nfsws.Open(t.Context(), dir, 3, &nfsws.Options{Generation: 1})
	require.ErrorIs(t, err, nfsws.ErrSuperseded)
	require.EqualError(t, err, "nfsws: open rank 3 of generation 1: "+dir+"/gen-00000000000000000002: "+
		"superseded by a newer generation: end this process, or begin a generation that is higher")
	_, err = write(old, 1, 10)
	require.ErrorIs(t, err, nfsws.ErrSuperseded)
	_, err = old.Read(t.Context(), 0, nfsws.Version{})
	require.ErrorIs(t, err, nfsws.ErrSuperseded, "its generation is gone")
	require.Equal(t, []string{"2"}, generations(dir))
}

func TestManyCollectors(t *testing.T) {
	dir := t.TempDir()
	for g := range uint64(5) { // each of a workspace, since Open removes older ones
		was := t.TempDir()
		for rank := range 8 {
			publish(t, open(t, was, rank, &nfsws.Options{Generation: g}), 1)
		}
		require.NoError(t, os.Rename(nfsws.GenerationDir(was, g), nfsws.GenerationDir(dir, g)))
	}
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	var wg sync.WaitGroup
	for rank := range 8 {
		wg.Go(func() {
			w, err := nfsws.Open(t.Context(), dir, rank, &nfsws.Options{Generation: 9, Logger: logger})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := write(w, 1, 10); err != nil {
				t.Error(err)
			}
			w.Close()
		})
	}
	wg.Wait()
	require.Equal(t, []string{"9"}, generations(dir))
	require.Len(t, names(t, dir), 16)
	require.Empty(t, log.String())
}

// TestOnlyOursIsRemoved tests a generation that contains files of other programs, and links to
// other directories.
func TestOnlyOursIsRemoved(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	precious := filepath.Join(outside, "rank-0.0000000001-00000001.json")
	require.NoError(t, os.WriteFile(precious, []byte("{}"), 0o600))
	publish(t, open(t, dir, 0, &nfsws.Options{Generation: 1}), 1)
	gen := dir + "/gen-00000000000000000001/"
	require.NoError(t, os.WriteFile(gen+"notes.txt", nil, 0o600))
	require.NoError(t, os.WriteFile(gen+"rank-00.0000000001-00000001.json", nil, 0o600))
	require.NoError(t, os.Symlink(precious, gen+"rank-5.0000000001-00000001.json"))
	require.NoError(t, os.Symlink(outside, dir+"/gen-00000000000000000000"))
	require.NoError(t, os.Mkdir(dir+"/gen-1", 0o700))
	require.NoError(t, os.Mkdir(dir+"/other", 0o700))

	open(t, dir, 0, &nfsws.Options{Generation: 2})
	require.Equal(t, []string{
		"gen-00000000000000000001/notes.txt", "gen-00000000000000000001/rank-00.0000000001-00000001.json",
	}, append(names(t, dir)[1:], []string{}...))
	require.FileExists(t, precious)
	require.DirExists(t, dir+"/gen-1")
	require.NoError(t, os.Remove(gen+"notes.txt"))
	require.NoError(t, os.Remove(gen+"rank-00.0000000001-00000001.json"))
	open(t, dir, 0, &nfsws.Options{Generation: 2})
	require.NoDirExists(t, gen)
}

func TestWhatCannotBeRemovedIsLogged(t *testing.T) {
	d := newDisk(1)
	publish(t, on(t, d, 0), 1)
	v := d.client()
	v.arm(func(op string) *fault {
		if strings.HasPrefix(op, "remove") {
			return &fault{err: syscall.EACCES}
		}
		return nil
	})
	var log bytes.Buffer
	w, err := nfsws.Open(t.Context(), "/d", 0, nfsws.Options{Generation: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))}.On(v))
	require.NoError(t, err, "what is old does not get in the way")
	publish(t, w, 1)
	require.Contains(t, log.String(), "path=/d/gen-00000000000000000000/rank-0.0000000001-")
	require.Contains(t, log.String(), "permission denied")
}

func TestRemovedDirectory(t *testing.T) {
	for _, gone := range []string{"", "/gen-00000000000000000000"} {
		dir := t.TempDir() + "/ws"
		w := open(t, dir, 0, nil)
		require.NoError(t, os.RemoveAll(dir+gone))
		_, err := write(w, 1, 10)
		require.Error(t, err)
		_, err = w.Wait(t.Context(), 1)
		require.ErrorContains(t, err, "it was removed while it was in use: open the workspace again", fmt.Sprint(gone))
	}
}

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
