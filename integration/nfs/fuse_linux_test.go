package nfs_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/tensor"
)

func TestMain(m *testing.M) { testcluster.Leaks(m) }

// believe is how long a client caches that a name does not exist: longer than any test takes.
const believe = time.Minute

// soon returns a context that ends before the cache of a client expires.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), believe/2)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, dir string, rank int) *nfsws.Workspace {
	t.Helper()
	w, err := nfsws.Open(t.Context(), dir, rank, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

func weights(n int32) map[string]*tensor.Tensor {
	return map[string]*tensor.Tensor{"w": tensor.From([]int32{n, n, n})}
}

// absent looks up names that do not exist, so that the client caches this for the duration believe.
func absent(t *testing.T, paths ...string) {
	t.Helper()
	for _, p := range paths {
		_, err := os.Stat(p)
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
}

// elsewhere publishes a state in a separate directory, and returns a function that moves it to
// another directory as if it were published there. So its names can be looked up before they exist.
func elsewhere(t *testing.T, rank int) (v nfsws.Version, files []string, bring func(gen string)) {
	dir := t.TempDir()
	v, err := open(t, dir, rank).Write(t.Context(), []byte(`{"layer":7}`), weights(7))
	require.NoError(t, err)
	found, err := filepath.Glob(dir + "/gen-*/*")
	require.NoError(t, err)
	require.Len(t, found, 2)
	for _, f := range found {
		files = append(files, filepath.Base(f))
	}
	return v, files, func(gen string) {
		for i := range found {
			last := len(found) - 1 - i // the manifest is the first by name and must come last
			require.NoError(t, os.Rename(found[last], filepath.Join(gen, files[last])))
		}
	}
}

const generation = "gen-00000000000000000000"

// TestModelOptNegativeLookup is failure 8: this client has looked up a file before another client
// created it, so for a minute it does not exist here. The state of a rank is visible at once all
// the same.
func TestModelOptNegativeLookup(t *testing.T) {
	t.Run("the trap", func(t *testing.T) {
		under := t.TempDir()
		mounted := mountAt(t, under)
		absent(t, mounted+"/rank_1_state.pth")
		require.NoError(t, os.WriteFile(under+"/rank_1_state.pth", nil, 0o600))
		absent(t, mounted+"/rank_1_state.pth") // so a layer would be missing
	})
	t.Run("Wait", func(t *testing.T) {
		under := t.TempDir()
		mounted := mountAt(t, under)
		w := open(t, mounted, 1)
		_, err := w.Read(t.Context(), 0, nfsws.Version{})
		require.ErrorIs(t, err, nfsws.ErrNotPublished)
		_, files, bring := elsewhere(t, 0)
		absent(t, filepath.Join(mounted, generation, files[0]), filepath.Join(mounted, generation, files[1]))
		bring(filepath.Join(under, generation))
		s, err := w.Wait(soon(t), 0)
		require.NoError(t, err)
		require.JSONEq(t, `{"layer":7}`, string(s.Config))
	})
	t.Run("Read", func(t *testing.T) {
		under := t.TempDir()
		mounted := mountAt(t, under)
		w := open(t, mounted, 1)
		v, files, bring := elsewhere(t, 0)
		absent(t, filepath.Join(mounted, generation, files[0]), filepath.Join(mounted, generation, files[1]))
		bring(filepath.Join(under, generation))
		s, err := w.Read(soon(t), 0, v)
		require.NoError(t, err)
		x, err := s.Weights.Tensor("w")
		require.NoError(t, err)
		require.Equal(t, weights(7)["w"], x)
		view, err := w.View(soon(t), 0, v)
		require.NoError(t, err)
		require.NoError(t, view.Close())
	})
	t.Run("Read comes first", func(t *testing.T) {
		under := t.TempDir()
		w := open(t, mountAt(t, under), 1)
		v, _, bring := elsewhere(t, 0)
		got := make(chan error)
		go func() {
			_, err := w.Read(soon(t), 0, v)
			got <- err
		}()
		bring(filepath.Join(under, generation))
		require.NoError(t, <-got)
	})
}

// TestOtherClients runs three clients that publish and read concurrently: two mounts, and the
// directory itself.
func TestOtherClients(t *testing.T) {
	under := t.TempDir()
	dirs := []string{under, mountAt(t, under), mountAt(t, under)}
	var ranks sync.WaitGroup
	for rank, dir := range dirs {
		w := open(t, dir, rank)
		ranks.Go(func() {
			for n := range int32(50) {
				if _, err := w.Write(t.Context(), nil, weights(n)); err != nil {
					t.Error(err)
					return
				}
				for other := range dirs {
					s, err := w.Wait(soon(t), other)
					if err != nil {
						t.Error(err)
						return
					}
					x, err := s.Weights.Tensor("w")
					if err != nil {
						t.Error(err)
						return
					}
					if v, err := tensor.View[int32](x); err != nil || v[0] != v[2] || other == rank && v[0] != n {
						t.Error(rank, other, n, v, err)
					}
				}
			}
		})
	}
	ranks.Wait()
}

// TestAnotherClientRemoves removes a state that this client has cached.
func TestAnotherClientRemoves(t *testing.T) {
	under := t.TempDir()
	publisher, w := open(t, under, 0), open(t, mountAt(t, under), 1)
	v, err := publisher.Write(t.Context(), nil, weights(1))
	require.NoError(t, err)
	_, err = w.Read(t.Context(), 0, nfsws.Version{})
	require.NoError(t, err)
	require.NoError(t, publisher.Remove(t.Context()))
	_, err = w.Read(t.Context(), 0, nfsws.Version{})
	require.ErrorIs(t, err, nfsws.ErrNotPublished)
	_, err = publisher.Write(t.Context(), nil, weights(2))
	require.NoError(t, err)
	_, err = w.Read(soon(t), 0, v)
	require.True(t, err == nil || errors.Is(err, nfsws.ErrNotPublished), "whole, from a cache, or replaced: %v", err)
	s, err := w.Read(t.Context(), 0, nfsws.Version{})
	require.NoError(t, err)
	require.NotEqual(t, v, s.Version)
}

// TestServerIsGone checks that calls on a mount that hangs in the kernel end with their context.
func TestServerIsGone(t *testing.T) {
	mounted, hang := mountHanging(t, t.TempDir())
	w := open(t, mounted, 0)
	_, err := w.Write(t.Context(), nil, weights(1))
	require.NoError(t, err)
	answer := hang()
	defer answer() // before Close and the end of the mount
	var calls sync.WaitGroup
	defer calls.Wait()
	for name, call := range map[string]func(ctx context.Context) error{
		"open":  func(ctx context.Context) error { _, err := nfsws.Open(ctx, mounted, 1, nil); return err },
		"begin": func(ctx context.Context) error { _, err := nfsws.Begin(ctx, filepath.Join(mounted, "job")); return err },
		"write": func(ctx context.Context) error { _, err := w.Write(ctx, nil, weights(2)); return err },
		"read":  func(ctx context.Context) error { _, err := w.Read(ctx, 0, nfsws.Version{}); return err },
	} {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			err := call(ctx)
			assert.ErrorIs(t, err, context.DeadlineExceeded, name)
			assert.ErrorContains(t, err, "the file system does not answer", name)
		})
	}
}
