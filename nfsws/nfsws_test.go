package nfsws_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/tensor"
)

func TestMain(m *testing.M) { testcluster.Leaks(m) }

// elements is the number of elements of weights with more than one part.
const elements = nfsws.PartBytes/4 + 1000

func weightsOf(n uint32, elements int) map[string]*tensor.Tensor {
	w := make([]uint32, elements)
	for i := range w {
		w[i] = n
	}
	return map[string]*tensor.Tensor{"w": tensor.From(w, elements), "scale": tensor.From([]uint32{n})}
}

func configOf(n uint32) []byte { return fmt.Appendf(nil, `{"n": %d}`, n) }

// write publishes a state whose config and elements are all n.
func write(w *nfsws.Workspace, n uint32, elements int) (nfsws.Version, error) {
	return w.Write(context.Background(), configOf(n), weightsOf(n, elements))
}

// whole returns the n of a state, and checks that all of its contents are n.
func whole(s *nfsws.State) (uint32, error) {
	var config struct{ N uint32 }
	if err := json.Unmarshal(s.Config, &config); err != nil {
		return 0, err
	}
	seen := 0
	for name, t := range s.Weights.All() {
		seen++
		data, err := tensor.View[uint32](t)
		if err != nil {
			return 0, err
		}
		if i := slices.IndexFunc(data, func(x uint32) bool { return x != config.N }); i >= 0 {
			return 0, fmt.Errorf("half a state: config %d, but %s[%d] is %d", config.N, name, i, data[i])
		}
	}
	if seen != 2 {
		return 0, fmt.Errorf("%d tensors, not 2", seen)
	}
	return config.N, nil
}

// publish publishes state n, which must succeed.
func publish(t testing.TB, w *nfsws.Workspace, n uint32) nfsws.Version {
	t.Helper()
	v, err := write(w, n, small)
	require.NoError(t, err)
	return v
}

func read(w *nfsws.Workspace, rank int, v nfsws.Version) (uint32, error) {
	s, err := w.Read(context.Background(), rank, v)
	if err != nil {
		return 0, err
	}
	return whole(s)
}

// shows checks that the newest state of a rank is n.
func shows(t testing.TB, w *nfsws.Workspace, rank int, n uint32, why ...any) {
	t.Helper()
	showsVersion(t, w, rank, nfsws.Version{}, n, why...)
}

func showsVersion(t testing.TB, w *nfsws.Workspace, rank int, v nfsws.Version, n uint32, why ...any) {
	t.Helper()
	got, err := read(w, rank, v)
	require.NoError(t, err, why...)
	require.Equal(t, n, got, why...)
}

func open(t testing.TB, dir string, rank int, o *nfsws.Options) *nfsws.Workspace {
	t.Helper()
	w, err := nfsws.Open(t.Context(), dir, rank, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

// on opens the workspace of a rank on a volume.
func on(t testing.TB, v nfsws.Volume, rank int) *nfsws.Workspace {
	t.Helper()
	w, err := nfsws.Open(t.Context(), "/d", rank, nfsws.Options{}.On(v))
	require.NoError(t, err)
	return w
}

// names returns the files of all generations on a disk.
func names(t testing.TB, dir string) (all []string) {
	t.Helper()
	for _, d := range must(os.ReadDir(dir)) {
		if !d.IsDir() {
			all = append(all, d.Name())
			continue
		}
		for _, f := range must(os.ReadDir(dir + "/" + d.Name())) {
			all = append(all, d.Name()+"/"+f.Name())
		}
	}
	return all
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestWriteAndRead(t *testing.T) {
	dir := t.TempDir() + "/made"
	w, other := open(t, dir, 0, nil), open(t, dir, 12, nil)
	_, err := read(other, 0, nfsws.Version{})
	require.ErrorIs(t, err, nfsws.ErrNotPublished)
	require.EqualError(t, err, "nfsws: read rank 0 of generation 0: not published")

	v1, err := write(w, 1, elements)
	require.NoError(t, err)
	s, err := other.Read(t.Context(), 0, nfsws.Version{})
	require.NoError(t, err)
	require.Equal(t, v1, s.Version)
	require.Equal(t, 0, s.Rank)
	require.Equal(t, `{"n": 1}`, string(s.Config))
	require.EqualValues(t, 1, must(whole(s)))

	v2 := publish(t, w, 2)
	require.Greater(t, v2.Sequence, v1.Sequence)
	shows(t, other, 0, 2)
	showsVersion(t, other, 0, v1, 1, "one that was replaced stays until the next Write")

	publish(t, w, 3)
	_, err = read(other, 0, v1)
	require.ErrorIs(t, err, nfsws.ErrNotPublished)
	require.ErrorContains(t, err, "was replaced by")
	require.Len(t, names(t, dir), 4, "two states, two files each")
	_, err = read(other, 1, nfsws.Version{})
	require.ErrorIs(t, err, nfsws.ErrNotPublished, "rank 12 is not rank 1")
}

func TestConfigs(t *testing.T) {
	w := open(t, t.TempDir(), 0, nil)
	for in, want := range map[string]string{
		"":                                     "",
		"null":                                 "",
		" {\"a\" : [1,\n 2]}\n":                "{\"a\" : [1,\n 2]}",
		`"<&>\u00e9é"`:                         `"<&>\u00e9é"`,
		"7":                                    "7",
		`{"xxh3":"0123456789abcdef"}`:          `{"xxh3":"0123456789abcdef"}`,
		`[` + strings.Repeat("1,", 1e6) + `2]`: `[` + strings.Repeat("1,", 1e6) + `2]`,
	} {
		must(w.Write(t.Context(), []byte(in), nil))
		s := must(w.Read(t.Context(), 0, nfsws.Version{}))
		require.True(t, want == string(s.Config), "%.100q", s.Config)
		require.Zero(t, s.Weights.Len())
	}
}

// TestNotPublished tests what Write refuses, which leaves nothing.
func TestNotPublished(t *testing.T) {
	w := open(t, t.TempDir(), 0, nil)
	refused := func(config string, weights map[string]*tensor.Tensor, want string) {
		_, err := w.Write(t.Context(), []byte(config), weights)
		require.ErrorContains(t, err, want)
		require.Empty(t, names(t, w.Dir()))
	}
	for _, config := range []string{
		"{", "a", "\"\xff\"", "{} {}", `1,"xxh3":2`, "\u00a01", strings.Repeat("[", 1e4) + strings.Repeat("]", 1e4),
	} {
		refused(config, nil, "nfsws: write rank 0 of generation 0: the config is")
	}
	refused(`"`+strings.Repeat("x", nfsws.MaxManifest)+`"`, nil, "put large data of a config into the weights")
	refused("", map[string]*tensor.Tensor{"decoder": {DType: tensor.F32, Shape: []int{2}, Data: make([]byte, 7)}}, "decoder")
	refused("", map[string]*tensor.Tensor{"none": nil}, "none")
}

func TestBadOptions(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{
		second(nfsws.Open(t.Context(), "", 0, nil)),
		second(nfsws.Open(t.Context(), dir, -1, nil)),
		second(nfsws.Open(t.Context(), dir+"/no/parent", 0, nil)),
		second(nfsws.Open(t.Context(), "/dev/null", 0, nil)),
	} {
		require.ErrorContains(t, err, "nfsws: open")
	}
	require.Empty(t, names(t, dir))
}

func second[T any](_ T, err error) error { return err }

func TestResume(t *testing.T) {
	dir := t.TempDir()
	first := must(nfsws.Open(t.Context(), dir, 3, nil))
	v1 := publish(t, first, 1)
	require.NoError(t, first.Close())

	gen := dir + "/gen-00000000000000000000/"
	for _, left := range []string{
		"rank-3.0000000009-00000001.json.tmp", "rank-3.0000000009-00000001.safetensors", "rank-4.0000000009-00000001.json.tmp",
	} {
		require.NoError(t, os.WriteFile(gen+left, []byte("half"), 0o600))
	}
	w := open(t, dir, 3, nil)
	require.Len(t, names(t, dir), 3, "its own state, and another rank's temporary file")
	require.FileExists(t, gen+"rank-4.0000000009-00000001.json.tmp")
	shows(t, w, 3, 1)
	v2 := publish(t, w, 2)
	require.Greater(t, v2.Sequence, v1.Sequence)
	require.Greater(t, v2.Sequence, uint64(9), "higher than what any process has ever begun")

	require.NoError(t, os.WriteFile(gen+"rank-3.9999999999-00000001.json", nil, 0o600))
	_, err := write(w, 3, small)
	require.ErrorContains(t, err, "begin a new generation")
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	w, other := open(t, dir, 0, nil), open(t, dir, 1, nil)
	for n := range uint32(3) {
		publish(t, w, n)
		publish(t, other, n)
	}
	require.NoError(t, w.Remove(t.Context()))
	require.NoError(t, w.Remove(t.Context()), "nothing is left, and that is no error")
	for _, reader := range []*nfsws.Workspace{w, other} {
		_, err := read(reader, 0, nfsws.Version{})
		require.ErrorIs(t, err, nfsws.ErrNotPublished)
		shows(t, reader, 1, 2)
	}
	require.Len(t, names(t, dir), 4)
}

// TestClose checks that calls end with their context, and with the handle; views outlast it.
func TestClose(t *testing.T) {
	d, waits, looked := newDisk(1), make(chan error), make(chan struct{})
	waiting := on(t, d, 0)
	d.arm(func(string) *fault { close(looked); d.on = nil; return nil })
	go func() { waits <- second(waiting.Wait(context.Background(), 7)) }()
	<-looked
	require.NoError(t, waiting.Close())
	require.ErrorIs(t, <-waits, nfsws.ErrClosed)

	dir := t.TempDir()
	w := open(t, dir, 0, nil)
	v := publish(t, w, 1)
	view := must(w.View(t.Context(), 0, nfsws.Version{}))
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("no more")
	cancel(why)
	for name, call := range calls {
		require.ErrorIs(t, call(ctx, w, v), why, name)
	}
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	for name, call := range calls {
		require.ErrorIs(t, call(t.Context(), w, nfsws.Version{}), nfsws.ErrClosed, name)
	}
	_, err := view.ReadAt(t.Context(), "w", make([]byte, 8), 0)
	require.NoError(t, err, "a view stays open")
	require.NoError(t, view.Close())
	require.NoError(t, view.Close())
	_, err = view.ReadAt(t.Context(), "w", make([]byte, 8), 0)
	require.ErrorIs(t, err, nfsws.ErrClosed)
	require.Len(t, names(t, dir), 2, "what is published stays")
}

// calls are the calls of a handle that has published v.
var calls = map[string]func(ctx context.Context, w *nfsws.Workspace, v nfsws.Version) error{
	"write": func(ctx context.Context, w *nfsws.Workspace, _ nfsws.Version) error {
		return second(w.Write(ctx, nil, weightsOf(2, 10)))
	},
	"read": func(ctx context.Context, w *nfsws.Workspace, _ nfsws.Version) error {
		return second(w.Read(ctx, 0, nfsws.Version{}))
	},
	"version": func(ctx context.Context, w *nfsws.Workspace, v nfsws.Version) error {
		return second(w.Read(ctx, 0, v))
	},
	"wait":    func(ctx context.Context, w *nfsws.Workspace, _ nfsws.Version) error { return second(w.Wait(ctx, 0)) },
	"remove":  func(ctx context.Context, w *nfsws.Workspace, _ nfsws.Version) error { return w.Remove(ctx) },
	"discard": func(ctx context.Context, w *nfsws.Workspace, v nfsws.Version) error { return w.Discard(ctx, v) },
	"view": func(ctx context.Context, w *nfsws.Workspace, v nfsws.Version) error {
		view, err := w.View(ctx, 0, v)
		if err == nil {
			_, err = view.ReadAt(ctx, "w", make([]byte, 8), 0)
		}
		return err
	},
}

// TestWritersAtOnce writes states of a rank from several goroutines, over one handle, and over two, which is a user
// error, such as the restart of a rank whose process has not ended. Each of two processes may replace the other's
// state, or remove a state that the other is about to publish; no reader sees a partial state (failure 9 of
// modelopt.torch.export.distribute), nor, of one handle, an older one after a newer one.
func TestWritersAtOnce(t *testing.T) {
	for _, handles := range []int{1, 2} {
		t.Run(fmt.Sprint(handles), func(t *testing.T) {
			dir := t.TempDir()
			reader := open(t, dir, 1, nil)
			var all []*nfsws.Workspace
			for range handles {
				all = append(all, open(t, dir, 0, nil))
			}
			publish(t, all[0], 0)
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					last := uint64(0)
					for n := range 50 {
						_, err := write(all[i%handles], uint32(100*i+n), small)
						if err != nil && (handles == 1 || !errors.Is(err, fs.ErrNotExist)) {
							t.Error(err)
						}
						s, err := reader.Read(t.Context(), 0, nfsws.Version{})
						if err == nil {
							_, err = whole(s)
						}
						if err != nil {
							t.Error(err)
							return
						}
						if handles == 1 && s.Version.Sequence < last {
							t.Errorf("state %d after %d", s.Version.Sequence, last)
						}
						last = s.Version.Sequence
					}
				})
			}
			wg.Wait()
			if handles == 1 {
				require.Len(t, names(t, dir), 4)
			}
		})
	}
}

// TestOpenWhileAnotherWrites tests the same error: the Open removes the files that are being
// written as left over. The Write fails.
func TestOpenWhileAnotherWrites(t *testing.T) {
	s := newStage(t)
	s.v.arm(func(op string) *fault {
		if op == "sync .safetensors" {
			on(t, s.disk, 0)
		}
		return nil
	})
	_, err := write(s.writer, 2, small)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "is there another process of this rank and generation?")
	shows(t, s.reader, 0, 1)
}

// TestAccumulate tests states beside each other, which are removed one by one, and leave no files.
func TestAccumulate(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	w := open(t, dir, 3, &nfsws.Options{Accumulate: true, Generation: 1})
	var versions []nfsws.Version
	for n := range uint32(5) {
		versions = append(versions, publish(t, w, n))
	}
	for _, gone := range []int{4, 0, 2, 1, 3} {
		showsVersion(t, w, 3, versions[gone], uint32(gone))
		require.NoError(t, w.Discard(ctx, versions[gone]))
		require.NoError(t, w.Discard(ctx, versions[gone]), "again")
	}
	_, err := read(w, 3, nfsws.Version{})
	require.ErrorIs(t, err, nfsws.ErrNotPublished)
	require.Empty(t, names(t, dir))
	require.NoError(t, w.Close())
	require.ErrorIs(t, w.Discard(ctx, versions[0]), nfsws.ErrClosed)
}
