package collective_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/tensor"
)

// average lets every rank pass v, which is then the average, in every verb that averages.
func average[T tensor.Number](r *rank, v T) {
	n := r.g.Size()
	for _, length := range []int{n, 70_000} {
		fill := func() []T {
			x := make([]T, length)
			for i := range x {
				x[i] = v
			}
			return x
		}
		want := fill()
		x := fill()
		require.NoError(r, collective.AllReduce(r.ctx, r.c, collective.Avg, x))
		assert.True(r, slices.Equal(want, x), "allreduce of %d %T", length, v)
		x = fill()
		require.NoError(r, collective.Reduce(r.ctx, r.c, 1, collective.Avg, x))
		assert.True(r, slices.Equal(want, x), "reduce of %d %T", length, v)
		part := make([]T, length/n)
		require.NoError(r, collective.ReduceScatter(r.ctx, r.c, collective.Avg, part, fill()))
		assert.True(r, slices.Equal(want[:length/n], part), "reducescatter of %d %T", length, v)
	}
}

// TestAveragesOfLargeNumbers averages numbers whose sum is too large for their type.
func TestAveragesOfLargeNumbers(t *testing.T) {
	over(t, []int{4}, func(t *testing.T, w way, n int) {
		w.run(t, n, func(r *rank) {
			average(r, uint8(200))
			average(r, int8(-100))
			average(r, uint16(60_000))
			average(r, int16(30_000))
			average(r, uint32(4_000_000_000))
			average(r, int32(-2_000_000_000))
			average(r, tensor.Float16From(60_000))
			average(r, tensor.BFloat16From(3e38))
		})
	})
}
