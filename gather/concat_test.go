package gather_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
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
