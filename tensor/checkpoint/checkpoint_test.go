package checkpoint_test

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/checkpoint"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// saved are the directories of testdata that a version of torch wrote: see make.py.
func saved(t *testing.T) (dirs []string) {
	t.Helper()
	for _, format := range []string{"dcp", "hf"} {
		found, err := filepath.Glob("testdata/*/" + format)
		require.NoError(t, err)
		dirs = append(dirs, found...)
	}
	require.NotEmpty(t, dirs)
	return dirs
}

// model returns the tensors of which a directory of saved has the parts.
func model(t *testing.T, dir string) map[string]*tensor.Tensor {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(filepath.Dir(dir), "model.safetensors"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	all := maps.Collect(f.All())
	if filepath.Base(dir) == "dcp" {
		q := all["q"]
		turned := tensor.New(q.DType, q.Shape[1], q.Shape[0])
		for i := range q.Shape[0] {
			for j := range q.Shape[1] {
				copy(turned.Data[4*(j*q.Shape[0]+i):][:4], q.Data[4*(i*q.Shape[1]+j):])
			}
		}
		all["t"] = turned
		all["parameter"] = tensor.From([]float32{1, 1})
	}
	return all
}

func open(t *testing.T, o *checkpoint.Options, paths ...string) *checkpoint.Set {
	t.Helper()
	s, err := checkpoint.Open(o, paths...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestSaved reads what torch wrote: whole tensors, all of them as a stream from anywhere on, and blocks.
func TestSaved(t *testing.T) {
	for _, dir := range saved(t) {
		t.Run(dir, func(t *testing.T) {
			want := model(t, dir)
			s := open(t, nil, dir)
			require.Len(t, s.Names(), len(want))
			var all []byte
			for _, name := range s.Names() {
				got, err := s.ReadTensor(t.Context(), name)
				require.NoError(t, err)
				require.Equal(t, want[name].String(), got.String(), name)
				require.Equal(t, want[name].Data, got.Data, name)
				all = append(all, got.Data...)
				blocks(t, s, name, got)
			}
			for range 50 {
				skip := rand.IntN(len(all) + 1)
				var b bytes.Buffer
				require.NoError(t, s.Stream(t.Context(), &b, s.Names(), int64(skip)))
				require.True(t, bytes.Equal(all[skip:], b.Bytes()))
			}
			require.NoError(t, s.CheckUnchanged())
			if filepath.Base(dir) == "dcp" {
				require.Equal(t, []string{"options.betas", "options.lr"}, s.Others)
				require.Empty(t, s.Assumed)
			} else {
				require.Equal(t, map[string]string{"format": "pt"}, s.Metadata)
				require.NotEmpty(t, s.Assumed)
				require.Empty(t, open(t, &checkpoint.Options{Shards: 4}, dir).Assumed)
			}
		})
	}
}

// blocks compares random blocks of a tensor.
func blocks(t *testing.T, s *checkpoint.Set, name string, x *tensor.Tensor) {
	t.Helper()
	width := x.DType.Bits() / 8
	if x.Len() == 0 || width == 0 {
		return
	}
	for range 30 {
		start, shape, size := make([]int, len(x.Shape)), make([]int, len(x.Shape)), width
		for i, d := range x.Shape {
			start[i] = rand.IntN(d)
			shape[i] = rand.IntN(d-start[i]) + 1
			size *= shape[i]
		}
		var want []byte
		var visit func(axis, at int)
		visit = func(axis, at int) {
			if axis == len(shape) {
				want = append(want, x.Data[at*width:][:width]...)
				return
			}
			for i := range shape[axis] {
				visit(axis+1, at*x.Shape[axis]+start[axis]+i)
			}
		}
		visit(0, 0)
		got := make([]byte, size)
		require.NoError(t, s.Read(t.Context(), name, start, shape, got))
		require.Equal(t, want, got, "%s %v at %v", name, shape, start)
	}
}

// grid writes a tensor of rows and columns in shards of a random grid, in random files, and returns it.
func grid(t *testing.T, dir string, rows, columns int) *tensor.Tensor {
	t.Helper()
	x := tensor.New(tensor.U8, rows, columns)
	_, _ = rand.NewChaCha8([32]byte{byte(rows)}).Read(x.Data)
	for i, down := range cuts(rows) {
		for k, across := range cuts(columns) {
			p := tensor.New(tensor.U8, down[1]-down[0], across[1]-across[0])
			for r := range p.Shape[0] {
				copy(p.Data[r*p.Shape[1]:][:p.Shape[1]], x.Data[(down[0]+r)*columns+across[0]:])
			}
			shard(t, dir, 100*i+k+1, map[string]*tensor.Tensor{"x": p}, `{"x": {"saved_offsets": [`+text(down[0], across[0])+`]}}`)
		}
	}
	return x
}

// cuts returns consecutive ranges that make up n.
func cuts(n int) (ranges [][2]int) {
	for at := 0; at < n; {
		end := min(n, at+1+rand.IntN(n))
		ranges = append(ranges, [2]int{at, end})
		at = end
	}
	return ranges
}

// TestGrids reads tensors that are larger than a block, whose rows are in several files.
func TestGrids(t *testing.T) {
	for range 5 {
		dir := t.TempDir()
		x := grid(t, dir, 3000+rand.IntN(1000), 5000+rand.IntN(3000))
		s := open(t, nil, dir)
		var b bytes.Buffer
		require.NoError(t, s.Stream(t.Context(), &b, []string{"x"}, 0))
		require.True(t, bytes.Equal(x.Data, b.Bytes()))
		for _, shape := range [][2]int{{x.Shape[0], 3}, {2, x.Shape[1]}, {500, 700}} {
			got := make([]byte, shape[0]*shape[1])
			start := []int{rand.IntN(x.Shape[0] - shape[0] + 1), rand.IntN(x.Shape[1] - shape[1] + 1)}
			require.NoError(t, s.Read(t.Context(), "x", start, shape[:], got))
			for r := range shape[0] {
				require.True(t, bytes.Equal(x.Data[(start[0]+r)*x.Shape[1]+start[1]:][:shape[1]], got[r*shape[1]:][:shape[1]]))
			}
		}
	}
}

// first returns the path of the first file.
func first(s *checkpoint.Set) string {
	for path := range s.Files() {
		return path
	}
	return ""
}

// TestChanged checks that a file that changes while it is read is noticed.
func TestChanged(t *testing.T) {
	dir := t.TempDir()
	grid(t, dir, 2, 2)
	s := open(t, nil, dir)
	path := first(s)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text[:len(text)-1], 0o600))
	require.EqualError(t, s.CheckUnchanged(), "checkpoint: "+path+": the file has changed since it was opened")
	require.ErrorContains(t, s.Stream(t.Context(), new(bytes.Buffer), []string{"x"}, 0), path+`: tensor "x": the file has been cut off since it was opened`)
}
