package collective_test

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/tensor"
)

// TestBits checks that every rank has the same bits in every run, whichever rank comes first.
func TestBits(t *testing.T) {
	over(t, testcluster.Form([]int{3}, []int{2, 3, 4, 5}), func(t *testing.T, w way, n int) {
		var before []uint64
		for run := range 2 {
			bits := make([]uint64, n)
			w.run(t, n, func(r *rank) {
				h := fnv.New64a()
				for _, length := range []int{1, 7, 3000, long} {
					x, y := noisy[float32](r.me(), length), noisy[tensor.BFloat16](r.me(), length)
					require.NoError(r, collective.AllReduce(r.ctx, r.c, collective.Avg, x))
					assert.NoError(r, binary.Write(h, binary.LittleEndian, x))
					require.NoError(r, collective.AllReduce(r.ctx, r.c, collective.Sum, y))
					assert.NoError(r, binary.Write(h, binary.LittleEndian, y))
				}
				bits[r.me()] = h.Sum64()
			})
			for rank, sum := range bits {
				assert.Equal(t, bits[0], sum, "rank %d", rank)
			}
			if run > 0 {
				assert.Equal(t, before, bits, "run %d", run)
			}
			before = bits
		}
	})
}

// everyType reduces a type of numbers on five ranks, by each operation.
func everyType[T tensor.Number](r *rank) {
	results := map[collective.Op]int{collective.Sum: 15, collective.Min: 1, collective.Max: 5, collective.Product: 120, collective.Avg: 3}
	for _, op := range slices.Sorted(maps.Keys(results)) {
		want := results[op]
		for _, length := range []int{1, 10_000} {
			x := slices.Repeat([]T{of[T](r.me() + 1)}, length)
			require.NoError(r, collective.AllReduce(r.ctx, r.c, op, x))
			assert.Equal(r, of[T](want), x[length-1], "%v of %T", op, x)
		}
	}
}

func TestEveryType(t *testing.T) {
	everywhere(t, []int{5}, func(r *rank, n int) {
		everyType[int8](r)
		everyType[int16](r)
		everyType[int32](r)
		everyType[int64](r)
		everyType[uint8](r)
		everyType[uint16](r)
		everyType[uint32](r)
		everyType[uint64](r)
		everyType[float32](r)
		everyType[float64](r)
		everyType[tensor.Float16](r)
		everyType[tensor.BFloat16](r)
		wide := []uint64{math.MaxUint64, 1<<63 + uint64(r.me())}
		require.NoError(r, collective.AllReduce(r.ctx, r.c, collective.Max, wide))
		assert.Equal(r, []uint64{math.MaxUint64, 1<<63 + uint64(n-1)}, wide)
		exact := []float64{1 + 0x1p-40}
		require.NoError(r, collective.AllReduce(r.ctx, r.c, collective.Sum, exact))
		assert.Equal(r, []float64{float64(n) + float64(n)*0x1p-40}, exact, fmt.Sprint(n))
		nan := []float32{float32(r.me()), 1}
		if r.me() == 1 {
			nan[0] = float32(math.NaN())
		}
		require.NoError(r, collective.AllReduce(r.ctx, r.c, collective.Max, nan))
		assert.True(r, math.IsNaN(float64(nan[0])))
	})
}

// average lets every rank pass v, which is then the average, in every verb that averages.
func average[T tensor.Number](r *rank, v T) {
	n := r.g.Size()
	for _, length := range []int{n, 70_000} {
		x, part := slices.Repeat([]T{v}, length), make([]T, length/n)
		want := slices.Clone(x)
		require.NoError(r, collective.AllReduce(r.ctx, r.c, collective.Avg, x))
		assert.True(r, slices.Equal(want, x), "allreduce of %d %T", length, v)
		require.NoError(r, collective.Reduce(r.ctx, r.c, 1, collective.Avg, x))
		assert.True(r, slices.Equal(want, x), "reduce of %d %T", length, v)
		require.NoError(r, collective.ReduceScatter(r.ctx, r.c, collective.Avg, part, x))
		assert.True(r, slices.Equal(want[:length/n], part), "reducescatter of %d %T", length, v)
	}
}

// TestAveragesOfLargeNumbers averages numbers whose sum is too large for their type.
func TestAveragesOfLargeNumbers(t *testing.T) {
	everywhere(t, []int{4}, func(r *rank, _ int) {
		average(r, uint8(200))
		average(r, int8(-100))
		average(r, uint16(60_000))
		average(r, int16(30_000))
		average(r, uint32(4_000_000_000))
		average(r, int32(-2_000_000_000))
		average(r, tensor.Float16From(60_000))
		average(r, tensor.BFloat16From(3e38))
	})
}
