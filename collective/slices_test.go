package collective_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/tensor"
)

// split returns x as slices of these lengths, each in memory of its own, and the remainder as the
// last slice.
func split[T any](x []T, lengths ...int) (xs [][]T) {
	for _, n := range lengths {
		xs = append(xs, append(make([]T, 0, n), x[:n]...))
		x = x[n:]
	}
	return append(xs, slices.Clone(x))
}

// tiny returns n lengths of 0 to 6 elements.
func tiny(n int) []int {
	lengths := make([]int, n)
	for i := range lengths {
		lengths[i] = i * i % 7
	}
	return lengths
}

func total(lengths []int) (n int) {
	for _, l := range lengths {
		n += l
	}
	return n
}

// noisy returns numbers with a period of 997. Their sum depends on the order for floats, and wraps
// around for integers.
func noisy[T tensor.Number](rank, n int) []T {
	x := make([]T, n)
	r := rand.New(rand.NewPCG(uint64(rank), 2))
	for i := range min(n, 997) {
		switch p := any(&x[i]).(type) {
		case *float32, *float64:
			x[i] = T(math.Ldexp(r.Float64(), r.IntN(40)-20))
		case *tensor.Float16:
			*p = tensor.Float16From(r.Float32())
		case *tensor.BFloat16:
			*p = tensor.BFloat16From(r.Float32())
		default:
			x[i] = T(r.Uint64())
		}
	}
	for i := 997; i < n; i += 997 {
		copy(x[i:], x[:997])
	}
	return x
}

// sameBits fails unless slices that are reduced as one have the bits of one slice.
func sameBits[T tensor.Number](r *rank, op collective.Op, lengths []int) {
	x := noisy[T](r.me(), total(lengths)+1) // one element more than the slices have
	xs := split(x, lengths...)
	require.NoError(r, collective.AllReduce(r.ctx, r.c, op, x))
	require.NoError(r, collective.AllReduceAll(r.ctx, r.c, op, xs))
	if !bytes.Equal(tensor.From(x).Data, tensor.From(slices.Concat(xs...)).Data) {
		assert.Failf(r, "other bits", "%v of %T in %d slices of %.50v on rank %d", op, x, len(xs), fmt.Sprint(lengths), r.me())
	}
}

var ops = []collective.Op{collective.Sum, collective.Product, collective.Min, collective.Max, collective.Avg}

// sameBitsOf tests every operation on few elements.
func sameBitsOf[T tensor.Number](r *rank) {
	for _, op := range ops {
		for _, lengths := range [][]int{nil, {0, 0}, {1, 0, 0, 1, 1}, {3, 5, 0, 700, 1, 90}, tiny(200)} {
			sameBits[T](r, op, lengths)
		}
	}
}

// sameBitsOfMany averages one element less than a message holds, exactly as many, and one more,
// with tiny slices between.
func sameBitsOfMany[T tensor.Number](r *rank) {
	var zero T
	message := (256 << 10) / len(tensor.From([]T{zero}).Data)
	sameBits[T](r, collective.Avg, slices.Concat([]int{message - 1, 1, message, 0, message + 1}, tiny(100), []int{message/2 + 1}))
}

// TestSlices checks that the result has the same bits, whether the data is passed as one slice or
// as several.
func TestSlices(t *testing.T) {
	everywhere(t, testcluster.Form([]int{1, 3}, []int{1, 2, 3, 4, 5, 8}), func(r *rank, n int) {
		sameBitsOf[float32](r)
		sameBitsOf[tensor.BFloat16](r)
		sameBitsOf[int8](r)
		if !underRace {
			sameBitsOfMany[float32](r)
			sameBitsOfMany[tensor.BFloat16](r)
			sameBitsOfMany[int8](r)
		}
		if n != 3 {
			return
		}
		sameBitsOf[tensor.Float16](r)
		sameBitsOf[float64](r)
		sameBitsOf[int16](r)
		sameBitsOf[int32](r)
		sameBitsOf[int64](r)
		sameBitsOf[uint8](r)
		sameBitsOf[uint16](r)
		sameBitsOf[uint32](r)
		sameBitsOf[uint64](r)
	})
}

// TestBroadcastAll broadcasts small and large slices, and none, from each root.
func TestBroadcastAll(t *testing.T) {
	everywhere(t, []int{1, 2, 5}, func(r *rank, n int) {
		assert.NoError(r, collective.AllReduceAll(r.ctx, r.c, collective.Sum, [][]float32{}))
		for _, root := range []int{0, n - 1} {
			assert.NoError(r, collective.BroadcastAll[int8](r.ctx, r.c, root, nil))
			for _, lengths := range [][]int{{0, 1, 5}, tiny(300), {50_000, 3, 0, 100_000}} {
				xs := split(noisy[int16](r.me(), total(lengths)), lengths...)
				require.NoError(r, collective.BroadcastAll(r.ctx, r.c, root, xs))
				assert.True(r, slices.Equal(noisy[int16](root, total(lengths)), slices.Concat(xs...)), "%.50v from %d", lengths, root)
			}
		}
	})
}

// reducesAll runs one all-reduce of several slices, and checks their sums.
func (r *rank) reducesAll(length int) error {
	lengths := []int{length / 2, 0, 1, length / 3}
	xs := split(vector[float32](r.me(), length), lengths...)
	err := collective.AllReduceAll(r.ctx, r.c, collective.Sum, xs)
	if err == nil {
		assert.True(r, slices.Equal(sum[float32](r.g.Size(), length), slices.Concat(xs...)), "%d elements in slices", length)
	}
	return err
}
