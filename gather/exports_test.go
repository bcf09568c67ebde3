package gather_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/checkpoint"
)

// whole returns a tensor whose bytes are those of its name.
func wholeOf(name string, shape ...int) *tensor.Tensor {
	x := tensor.New(tensor.I16, shape...)
	_, _ = rand.NewChaCha8([32]byte(fmt.Appendf(nil, "%-32s", name))).Read(x.Data)
	return x
}

// block returns the part of x from start on.
func block(x *tensor.Tensor, start, shape []int) gather.Part {
	p := tensor.New(x.DType, shape...)
	row := 2 * shape[1]
	for i := range shape[0] {
		copy(p.Data[i*row:][:row], x.Data[2*((start[0]+i)*x.Shape[1]+start[1]):])
	}
	return gather.Part{Tensor: p, Start: start, Shape: x.Shape}
}

// TestExport writes tensors that are split over rows, columns and a grid, replicas, one that a single rank
// has, and ones that are tied, twice: the second model replaces the first.
func TestExport(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "model")
			want := map[string]*tensor.Tensor{
				"rows": wholeOf("rows", 13, 7), "columns": wholeOf("columns", 5, 40), "grid": wholeOf("grid", 10, 9),
				"same": wholeOf("same", 3), "own": wholeOf("own", 4, 4), "step": wholeOf("step"), "none": wholeOf("none", 0, 3),
				"large": wholeOf("large", 3000, 2000),
			}
			want["tied in part"] = want["columns"]
			require.NoError(t, os.MkdirAll(dir, 0o755))
			for _, left := range []string{".muster-export-A-0.part", "model-AAAAAAAAAAAA-00001-of-00002.safetensors"} { // by a killed job
				require.NoError(t, os.WriteFile(filepath.Join(dir, left), nil, 0o600))
			}
			w.run(t, 4, gather.Options{}, func(r *rank) {
				for n := range 2 {
					parts := r.parts(want)
					parts["tied"] = parts["rows"]
					parts["tied in part"] = parts["columns"]
					if r.me() == 2 {
						parts["tied in part"] = gather.Part{Tensor: parts["columns"].Clone(), Start: parts["columns"].Start, Shape: parts["columns"].Shape}
					}
					assert.NoError(r, gather.Export(r.ctx, r.ga, dir, parts, &gather.ExportOptions{Metadata: map[string]string{"n": fmt.Sprint(n)}}))
				}
			})
			s, err := checkpoint.Open(nil, dir)
			require.NoError(t, err)
			defer s.Close()
			require.Len(t, s.Names(), len(want))
			require.Equal(t, map[string]string{"n": "1", "tied": "rows"}, s.Metadata)
			for name, x := range want {
				got, err := s.ReadTensor(t.Context(), name)
				require.NoError(t, err)
				require.Equal(t, x.String(), got.String())
				require.True(t, bytes.Equal(x.Data, got.Data), name)
			}
			files, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, files, 5, "four files and their index: %v", files)
		})
	}
}

// parts returns what this rank of four has.
func (r *rank) parts(of map[string]*tensor.Tensor) map[string]gather.Part {
	i := r.me()
	rows := [][2]int{{0, 4}, {4, 4}, {8, 4}, {12, 1}}[i]
	p := map[string]gather.Part{
		"rows":    block(of["rows"], []int{rows[0], 0}, []int{rows[1], 7}),
		"columns": block(of["columns"], []int{0, 10 * i}, []int{5, 10}),
		"grid":    block(of["grid"], []int{i / 2 * 6, i % 2 * 5}, []int{6 - i/2*2, 5 - i%2}),
		"large":   block(of["large"], []int{0, i / 2 * 1000}, []int{of["large"].Shape[0], 1000}), // ranks 0 and 1 have the same, and 2 and 3
		"same":    {Tensor: of["same"]},
		"step":    {Tensor: of["step"]},
		"none":    {Tensor: of["none"]},
	}
	if i == 2 {
		p["own"] = gather.Part{Tensor: of["own"]}
	}
	for name, x := range p {
		x.Tensor = r.inArena(x.Tensor)
		p[name] = x
	}
	return p
}

// TestExportRefuses checks that parts that do not fit are an error of all ranks, which names one, and that
// nothing is written.
func TestExportRefuses(t *testing.T) {
	x := wholeOf("x", 4, 4)
	for want, parts := range map[string][2]map[string]gather.Part{
		`tensor "x": nobody has its element [2,0]: 8 elements are missing`: {{"x": block(x, []int{0, 0}, []int{2, 4})}},
		`tensor "x": rank 0 has its part [2,4] at [0,0], and rank 1 its part [2,4] at [1,0], which overlap`: {
			{"x": block(x, []int{0, 0}, []int{2, 4})}, {"x": block(x, []int{1, 0}, []int{2, 4})},
		},
		`tensor "x": rank 1 has a part of F32[4,4], and rank 0 of I16[4,4]`: {{"x": {Tensor: x}}, {"x": {Tensor: tensor.New(tensor.F32, 4, 4)}}},
		`tensor "x": nobody has its element [0,0]: 16 elements are missing`: {{"x": block(x, []int{1, 0}, []int{0, 4})}, {"x": block(x, []int{0, 0}, []int{0, 4})}},
		`no rank has a tensor`:                                             {},
		`rank 1: failed: tensor "x": it is nil`:                            {{}, {"x": {}}},
		`rank 0: failed: tensor "x": a part of 2 axes begins at 1 numbers`: {{"x": {Tensor: x, Start: []int{0}, Shape: []int{4, 4}}}},
	} {
		dir := t.TempDir()
		ways()[0].run(t, 2, gather.Options{}, func(r *rank) {
			err := gather.Export(r.ctx, r.ga, dir, parts[r.me()], nil)
			assert.ErrorContains(r, err, want)
			_, ok := errors.AsType[*pgroup.RankError](err)
			assert.True(r, ok)
		})
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, files)
	}
}

// TestExportFails checks that a rank that cannot write is named on all ranks, and that nothing is left but the
// older model.
func TestExportFails(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			dir := t.TempDir()
			of := map[string]*tensor.Tensor{
				"rows": wholeOf("rows", 13, 7), "columns": wholeOf("columns", 5, 40), "grid": wholeOf("grid", 10, 9),
				"same": wholeOf("same", 3), "own": wholeOf("own", 4, 4), "step": wholeOf("step"), "none": wholeOf("none", 0, 3),
				"large": wholeOf("large", 30, 2000),
			}
			w.run(t, 4, gather.Options{}, func(r *rank) {
				assert.NoError(r, gather.Export(r.ctx, r.ga, dir, r.parts(of), nil))
				before := names(t, dir)
				path := dir
				if r.me() == 2 {
					path += "/none"
				}
				err := gather.Export(r.ctx, r.ga, path, r.parts(of), nil)
				assert.ErrorContains(r, err, "rank 2: failed: ")
				assert.ErrorContains(r, err, "no such file or directory")
				assert.NoError(r, r.group.Barrier(r.ctx))
				assert.Equal(r, before, names(t, dir))
				assert.NoError(r, gather.Export(r.ctx, r.ga, dir, r.parts(of), nil), "the next one works")
			})
		})
	}
}

// TestExportToOtherDirectories checks that ranks that write to directories of their own are an error, and that
// one with a model that has no index is refused.
func TestExportToOtherDirectories(t *testing.T) {
	x := wholeOf("x", 4, 4)
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	require.NoError(t, os.WriteFile(filepath.Join(dirs[2], "model.safetensors"), nil, 0o600))
	ways()[0].run(t, 2, gather.Options{}, func(r *rank) {
		parts := map[string]gather.Part{"x": {Tensor: x}, "y": {Tensor: x.Clone()}}
		err := gather.Export(r.ctx, r.ga, dirs[r.me()], parts, nil)
		assert.ErrorContains(r, err, "rank 1: failed: its file is not in the directory of rank 0: ")
		err = gather.Export(r.ctx, r.ga, dirs[2], parts, nil)
		assert.ErrorContains(r, err, "rank 0: failed: "+dirs[2]+" has model.safetensors, which readers may take instead")
	})
	assert.Empty(t, names(t, dirs[0]))
	assert.Empty(t, names(t, dirs[1]))
}

// TestExportWithoutARank checks that a rank that has left is named on all others.
func TestExportWithoutARank(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			dir := t.TempDir()
			x := wholeOf("x", 8, 1000)
			w.run(t, 4, gather.Options{}, func(r *rank) {
				mine := map[string]gather.Part{"x": block(x, []int{2 * r.me(), 0}, []int{2, 1000})}
				assert.NoError(r, gather.Export(r.ctx, r.ga, dir, mine, nil))
				if r.me() == 3 {
					assert.NoError(r, r.ga.Close())
					assert.NoError(r, r.group.Close())
					return
				}
				err := gather.Export(r.ctx, r.ga, dir, mine, nil)
				assert.ErrorIs(r, err, pgroup.ErrLeft)
				assert.Equal(r, []int{3}, r.rankError(err).Left)
			})
			require.Len(t, names(t, dir), 2, "the first model")
		})
	}
}

// TestExportNeedsBlocks measures what all ranks together allocate to export 96 MiB that are split over columns.
func TestExportNeedsBlocks(t *testing.T) {
	for _, w := range ways() {
		if w.dir { // publishing reads and writes files with its own buffers
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			dir := t.TempDir()
			w.run(t, 3, gather.Options{}, func(r *rank) {
				x := r.inArena(filled(r.me(), 2048, 4096)) // 32 MiB
				mine := map[string]gather.Part{"x": {Tensor: x, Start: []int{0, 4096 * r.me()}, Shape: []int{2048, 3 * 4096}}}
				assert.NoError(r, gather.Export(r.ctx, r.ga, dir, mine, nil)) // so that connections are open
				var before, after runtime.MemStats
				assert.NoError(r, r.group.Barrier(r.ctx))
				runtime.ReadMemStats(&before)
				assert.NoError(r, r.group.Barrier(r.ctx))
				assert.NoError(r, gather.Export(r.ctx, r.ga, dir, mine, nil))
				runtime.ReadMemStats(&after)
				assert.Less(r, (after.TotalAlloc-before.TotalAlloc)>>20, uint64(40), "MiB")
			})
		})
	}
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	assert.NoError(t, err)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return slices.Clip(all)
}
