package nfsws_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
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

func read(w *nfsws.Workspace, rank int) (uint32, error) {
	s, err := w.Read(context.Background(), rank, nfsws.Version{})
	if err != nil {
		return 0, err
	}
	return whole(s)
}

func open(t testing.TB, dir string, rank int, o *nfsws.Options) *nfsws.Workspace {
	t.Helper()
	w, err := nfsws.Open(t.Context(), dir, rank, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
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
	_, err := other.Read(t.Context(), 0, nfsws.Version{})
	require.ErrorIs(t, err, nfsws.ErrNotPublished)
	require.EqualError(t, err, "nfsws: read rank 0 of generation 0: not published")

	v1, err := write(w, 1, elements)
	require.NoError(t, err)
	s, err := other.Read(t.Context(), 0, nfsws.Version{})
	require.NoError(t, err)
	require.Equal(t, v1, s.Version)
	require.Equal(t, 0, s.Rank)
	require.Equal(t, `{"n": 1}`, string(s.Config))
	n, err := whole(s)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)

	v2, err := write(w, 2, 10)
	require.NoError(t, err)
	require.Greater(t, v2.Sequence, v1.Sequence)
	n, err = read(other, 0)
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
	s, err = other.Read(t.Context(), 0, v1)
	require.NoError(t, err, "one that was replaced stays until the next Write")
	n, err = whole(s)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)

	_, err = write(w, 3, 10)
	require.NoError(t, err)
	_, err = other.Read(t.Context(), 0, v1)
	require.ErrorIs(t, err, nfsws.ErrNotPublished)
	require.ErrorContains(t, err, "was replaced by")
	require.Len(t, names(t, dir), 4, "two states, two files each")
	_, err = other.Read(t.Context(), 1, nfsws.Version{})
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
		_, err := w.Write(t.Context(), []byte(in), nil)
		require.NoError(t, err)
		s, err := w.Read(t.Context(), 0, nfsws.Version{})
		require.NoError(t, err)
		require.True(t, want == string(s.Config), "%.100q", s.Config)
		require.Zero(t, s.Weights.Len())
	}
	before := names(t, w.Dir())
	for _, in := range []string{
		"{", "a", "\"\xff\"", "{} {}", `1,"xxh3":2`, "\u00a01", strings.Repeat("[", 1e4) + strings.Repeat("]", 1e4),
	} {
		_, err := w.Write(t.Context(), []byte(in), nil)
		require.ErrorContains(t, err, "nfsws: write rank 0 of generation 0: the config is")
	}
	_, err := w.Write(t.Context(), []byte(`"`+strings.Repeat("x", nfsws.MaxManifest)+`"`), nil)
	require.ErrorContains(t, err, "put large data of a config into the weights")
	require.Equal(t, before[2:], names(t, w.Dir()), "what cannot be published leaves nothing")
}

func TestBadTensors(t *testing.T) {
	dir := t.TempDir()
	w := open(t, dir, 0, nil)
	_, err := w.Write(t.Context(), nil, map[string]*tensor.Tensor{"decoder": {DType: tensor.F32, Shape: []int{2}, Data: make([]byte, 7)}})
	require.ErrorContains(t, err, "decoder")
	_, err = w.Write(t.Context(), nil, map[string]*tensor.Tensor{"none": nil})
	require.ErrorContains(t, err, "none")
	require.Empty(t, names(t, dir))
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

func TestEveryDTypeAndEmptyTensors(t *testing.T) {
	w := open(t, t.TempDir(), 0, nil)
	in := map[string]*tensor.Tensor{"../../etc/passwd": tensor.New(tensor.U8, 3), "": {DType: tensor.F32, Shape: []int{}, Data: make([]byte, 4)}}
	for d := tensor.Bool; d.Valid(); d++ {
		in[d.String()] = tensor.New(d, 4, 2)
		in[d.String()+" empty"] = tensor.New(d, 0, 3)
	}
	_, err := w.Write(t.Context(), nil, in)
	require.NoError(t, err)
	s, err := w.Read(t.Context(), 0, nfsws.Version{})
	require.NoError(t, err)
	require.Equal(t, in, maps.Collect(s.Weights.All()))
	require.Len(t, names(t, w.Dir()), 2, "no name of a tensor is a path")
}

func TestResume(t *testing.T) {
	dir := t.TempDir()
	first, err := nfsws.Open(t.Context(), dir, 3, nil)
	require.NoError(t, err)
	v1, err := write(first, 1, 10)
	require.NoError(t, err)
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
	n, err := read(w, 3)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	v2, err := write(w, 2, 10)
	require.NoError(t, err)
	require.Greater(t, v2.Sequence, v1.Sequence)
	require.Greater(t, v2.Sequence, uint64(9), "higher than what any process has ever begun")
}

func TestTheLastSequence(t *testing.T) {
	dir := t.TempDir()
	w := open(t, dir, 3, nil)
	require.NoError(t, os.WriteFile(dir+"/gen-00000000000000000000/rank-3.9999999999-00000001.json", nil, 0o600))
	_, err := write(w, 1, 10)
	require.ErrorContains(t, err, "begin a new generation")
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	w, other := open(t, dir, 0, nil), open(t, dir, 1, nil)
	for n := range uint32(3) {
		_, err := write(w, n, 10)
		require.NoError(t, err)
		_, err = write(other, n, 10)
		require.NoError(t, err)
	}
	require.NoError(t, w.Remove(t.Context()))
	require.NoError(t, w.Remove(t.Context()), "nothing is left, and that is no error")
	for _, reader := range []*nfsws.Workspace{w, other} {
		_, err := reader.Read(t.Context(), 0, nfsws.Version{})
		require.ErrorIs(t, err, nfsws.ErrNotPublished)
		n, err := read(reader, 1)
		require.NoError(t, err)
		require.EqualValues(t, 2, n)
	}
	require.Len(t, names(t, dir), 4)
}

func TestClose(t *testing.T) {
	dir := t.TempDir()
	v := &faulty{Volume: must(nfsws.OSVolume(dir))}
	w, err := nfsws.Open(t.Context(), dir, 0, nfsws.Options{}.On(v))
	require.NoError(t, err)
	_, err = write(w, 1, 10)
	require.NoError(t, err)
	view, err := w.View(t.Context(), 0, nfsws.Version{})
	require.NoError(t, err)
	waits := make(chan error)
	looked := make(chan struct{})
	v.arm(func(string) *fault { close(looked); v.on = nil; return nil })
	go func() { waits <- second(w.Wait(context.Background(), 7)) }()
	<-looked
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	require.ErrorIs(t, <-waits, nfsws.ErrClosed)

	for name, call := range calls {
		require.ErrorIs(t, call(t.Context(), w, nfsws.Version{}), nfsws.ErrClosed, name)
	}
	_, err = view.ReadAt(t.Context(), "w", make([]byte, 8), 0)
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

func TestEndedContext(t *testing.T) {
	w := open(t, t.TempDir(), 0, nil)
	v, err := write(w, 1, 10)
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("no more")
	cancel(why)
	for name, call := range calls {
		require.ErrorIs(t, call(ctx, w, v), why, name)
	}
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
			require.NoError(t, second(write(all[0], 0, small)))
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
			require.NoError(t, second(nfsws.Open(t.Context(), "/d", 0, nfsws.Options{}.On(s.disk))))
		}
		return nil
	})
	_, err := write(s.writer, 2, small)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "is there another process of this rank and generation?")
	n, err := read(s.reader, 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}

// TestAccumulate tests states beside each other, which are removed one by one, and leave no files.
func TestAccumulate(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	w, err := nfsws.Open(t.Context(), dir, 3, &nfsws.Options{Accumulate: true, Generation: 1})
	require.NoError(t, err)
	defer w.Close()
	var versions []nfsws.Version
	for n := range uint32(5) {
		v, err := write(w, n, 10)
		require.NoError(t, err)
		versions = append(versions, v)
	}
	for _, gone := range []int{4, 0, 2, 1, 3} {
		s, err := w.Read(ctx, 3, versions[gone])
		require.NoError(t, err)
		n, err := whole(s)
		require.NoError(t, err)
		require.Equal(t, uint32(gone), n)
		require.NoError(t, w.Discard(ctx, versions[gone]))
		require.NoError(t, w.Discard(ctx, versions[gone]), "again")
	}
	_, err = w.Read(ctx, 3, nfsws.Version{})
	require.ErrorIs(t, err, nfsws.ErrNotPublished)
	files, err := os.ReadDir(dir + "/gen-00000000000000000001")
	require.NoError(t, err)
	require.Empty(t, files)
	require.NoError(t, w.Close())
	require.ErrorIs(t, w.Discard(ctx, versions[0]), nfsws.ErrClosed)
}
