package gather_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// part returns a rank's part of whole, along an axis, if three ranks share it 1:2:3.
func part(whole *tensor.Tensor, axis, i int) *tensor.Tensor {
	n := whole.Shape[axis] / 6
	return slice(whole, axis, []int{0, n, 3 * n}[i], []int{n, 3 * n, 6 * n}[i])
}

// slice returns a copy of the elements from ≤ i < to along axis of an F32 tensor.
func slice(whole *tensor.Tensor, axis, from, to int) *tensor.Tensor {
	shape, step := slices.Clone(whole.Shape), 4
	for _, d := range shape[axis+1:] {
		step *= d
	}
	row := step * shape[axis]
	shape[axis] = to - from
	p := &tensor.Tensor{DType: tensor.F32, Shape: shape}
	for at := 0; at < len(whole.Data); at += row {
		p.Data = append(p.Data, whole.Data[at+step*from:at+step*to]...)
	}
	return p
}

// inArena returns t, or its copy in this rank's arena if there is one.
func (r *rank) inArena(t *tensor.Tensor) *tensor.Tensor {
	if r.arena == nil {
		return t
	}
	c, err := tensor.NewIn(r.arena, t.DType, t.Shape...)
	require.NoError(r, err)
	copy(c.Data, t.Data)
	return c
}

func TestConcat(t *testing.T) {
	overAll(t, 4, func(r *rank) {
		for axis := range 3 {
			whole := filled(0, 12, 18, 60)
			var mine *tensor.Tensor
			if i := slices.Index(list, r.me()); i >= 0 {
				mine = r.inArena(part(whole, axis, i))
			}
			got, err := gather.Concat(r.ctx, r.ga, list, axis, mine)
			require.NoError(r, err)
			if r.me() == list[0] {
				equal(r.T, whole, got)
			} else {
				assert.Nil(r, got)
			}
		}
	})
}

func TestConcatRefuses(t *testing.T) {
	overAll(t, 3, func(r *rank) {
		for _, test := range []struct {
			axis int
			odd  []int
			by   int
			want string
		}{
			{2, []int{2, 3}, 0, "has no axis 2"},
			{-1, []int{2, 3}, 0, "has no axis -1"},
			{0, []int{2, 4}, 1, "rank 1 has F32[2,4], and rank 0 has F32[2,3]; they may differ along axis 0 only"},
			{1, []int{6}, 1, "rank 1 has F32[6]"},
		} {
			mine := tensor.New(tensor.F32, 2, 3)
			if r.me() == 1 {
				mine = tensor.New(tensor.F32, test.odd...)
			}
			_, err := gather.Concat(r.ctx, r.ga, []int{0, 1, 2}, test.axis, mine)
			assert.Equal(r, test.by, r.rankError(err).By)
			assert.ErrorIs(r, err, pgroup.ErrMismatch)
			assert.ErrorContains(r, err, test.want)
		}
		_, err := gather.Concat(r.ctx, r.ga, []int{0, 1, 2}, r.me()/2, tensor.New(tensor.F32, 2, 3))
		assert.Equal(r, 2, r.rankError(err).By)
		assert.ErrorContains(r, err, "rank 2 joins along axis 1, and rank 0 along axis 0")
		got, err := gather.Concat(r.ctx, r.ga, []int{0, 1, 2}, 0, nil)
		assert.NoError(r, err)
		assert.Nil(r, got, "no rank has any")
	})
}

// shards returns what a tensor- and pipeline-parallel rank has: parts, replicas, and tensors that
// only it has.
func shards(i int) map[string]*tensor.Tensor {
	return map[string]*tensor.Tensor{
		"wide":                     part(filled(1, 600, 300), 0, i),
		"tall":                     part(filled(2, 300, 600), 1, i),
		"norm":                     filled(3, 1<<20),
		fmt.Sprintf("stage.%d", i): filled(4+i, 10),
	}
}

var axes = map[string]int{"wide": 0, "tall": 1}

func TestConcatTo(t *testing.T) {
	overAll(t, 4, func(r *rank) {
		for range 2 {
			var file bytes.Buffer
			var mine map[string]*tensor.Tensor
			if i := slices.Index(list, r.me()); i >= 0 {
				mine = shards(i)
				mine["wide"] = r.inArena(mine["wide"])
			}
			how := gather.Merge{Axis: axes, Metadata: map[string]string{"format": "pt"}}
			require.NoError(r, gather.ConcatTo(r.ctx, r.ga, &file, list, how, mine))
			if r.me() != list[0] {
				assert.Zero(r, file.Len())
				continue
			}
			got, err := safetensors.Parse(file.Bytes())
			require.NoError(r, err)
			assert.Equal(r, how.Metadata, got.Metadata)
			want := map[string]*tensor.Tensor{"wide": filled(1, 600, 300), "tall": filled(2, 300, 600), "norm": filled(3, 1<<20)}
			for i := range list {
				want[fmt.Sprintf("stage.%d", i)] = filled(4+i, 10)
			}
			for name, w := range want {
				g, err := got.Tensor(name)
				require.NoError(r, err)
				equal(r.T, w, g)
			}
			assert.Len(r, got.Names(), len(want))
		}
	})
}

// TestConcatToNeedsABlock measures what all ranks together allocate to merge 96 MiB.
func TestConcatToNeedsABlock(t *testing.T) {
	for _, w := range ways() {
		if w.dir { // publishing reads and writes files with its own buffers
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			w.run(t, 3, gather.Options{}, func(r *rank) {
				mine := map[string]*tensor.Tensor{"w": r.inArena(filled(r.me(), 2048, 4096))} // 32 MiB
				merge := func() {
					assert.NoError(r, gather.ConcatTo(r.ctx, r.ga, io.Discard, []int{0, 1, 2}, gather.Merge{Axis: map[string]int{"w": 1}}, mine))
				}
				merge() // so that connections are open
				var before, after runtime.MemStats
				assert.NoError(r, r.group.Barrier(r.ctx))
				runtime.ReadMemStats(&before)
				assert.NoError(r, r.group.Barrier(r.ctx))
				merge()
				runtime.ReadMemStats(&after)
				assert.Less(r, (after.TotalAlloc-before.TotalAlloc)>>20, uint64(20), "MiB")
			})
		})
	}
}

// full is a writer with space for a number of bytes.
type full struct{ room int }

var errNoSpace = errors.New("no space left on device")

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, errNoSpace
	}
	return len(p), nil
}

func TestConcatToFails(t *testing.T) {
	t.Parallel()
	overAll(t, 4, func(r *rank) {
		i := slices.Index(list, r.me())
		if i < 0 {
			return
		}
		for _, room := range []int{0, 2 << 20} {
			err := gather.ConcatTo(r.ctx, r.ga, &full{room}, list, gather.Merge{Axis: axes}, shards(i))
			assert.ErrorIs(r, err, pgroup.ErrFailed)
			assert.Equal(r, 2, r.rankError(err).By)
			assert.ErrorContains(r, err, "no space left")
			assert.Equal(r, r.me() == 2, errors.Is(err, errNoSpace))
		}

		diverged := shards(i)
		if r.me() == 0 {
			diverged["norm"].Data[4<<20-1]++
		}
		err := gather.ConcatTo(r.ctx, r.ga, new(bytes.Buffer), list, gather.Merge{Axis: axes}, diverged)
		assert.ErrorIs(r, err, pgroup.ErrMismatch)
		assert.Equal(r, 0, r.rankError(err).By)
		assert.ErrorContains(r, err, `tensor "norm": rank 0 has other bytes than rank 2`)

		err = gather.ConcatTo(r.ctx, r.ga, new(bytes.Buffer), list, gather.Merge{Axis: map[string]int{"wide": 0, "tal": 1}}, shards(i))
		assert.Equal(r, 2, r.rankError(err).By, "it alone says what is joined")
		assert.ErrorContains(r, err, `"tal"`)
		assert.NoError(r, gather.ConcatTo(r.ctx, r.ga, new(bytes.Buffer), list, gather.Merge{Axis: axes}, shards(i)))
	})
}
