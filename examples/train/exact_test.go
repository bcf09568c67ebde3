package main_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	train "github.com/muster-pg/muster/examples/train"
)

// TestExactOrder checks that neither the order of the summands nor their distribution over ranks
// matters.
func TestExactOrder(t *testing.T) {
	const n, width = 64, 5
	r := rand.New(rand.NewPCG(1, 2))
	grads, losses := make([][]float32, n), make([]float64, n)
	var want [width]float64
	for i := range grads {
		grads[i] = make([]float32, width)
		for k := range grads[i] {
			grads[i][k] = float32(r.NormFloat64() * math.Pow(10, float64(r.IntN(6)-4)))
			want[k] += float64(grads[i][k]) / n
		}
		losses[i] = r.ExpFloat64()
	}
	one, loss, err := train.ExactMean([][][]float32{grads}, [][]float64{losses})
	require.NoError(t, err)
	for k := range want {
		assert.InEpsilon(t, want[k], one[k], 1e-6)
	}
	for range 20 {
		r.Shuffle(n, func(i, j int) {
			grads[i], grads[j], losses[i], losses[j] = grads[j], grads[i], losses[j], losses[i]
		})
		at := r.IntN(n)
		many, l, err := train.ExactMean([][][]float32{grads[:at], grads[at:]}, [][]float64{losses[:at], losses[at:]})
		require.NoError(t, err)
		assert.Equal(t, one, many)
		assert.Equal(t, math.Float64bits(loss), math.Float64bits(l))
	}
}

func TestExactRange(t *testing.T) {
	most := make([][]float32, 4096)
	losses := make([]float64, len(most))
	for i := range most {
		most[i], losses[i] = []float32{1024, -1024}, 1024
	}
	mean, loss, err := train.ExactMean([][][]float32{most}, [][]float64{losses})
	require.NoError(t, err, "the largest batch of the largest numbers")
	assert.Equal(t, []float32{1024, -1024}, mean)
	assert.Equal(t, 1024.0, loss)

	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for _, bad := range []float32{1024.001, -2000, nan, inf} {
		_, _, err := train.ExactMean([][][]float32{{{0, bad}}}, [][]float64{{0}})
		assert.ErrorContains(t, err, "gradient: ")
		_, _, err = train.ExactMean([][][]float32{{{0, 0}}}, [][]float64{{float64(bad)}})
		assert.ErrorContains(t, err, "loss: ")
		assert.ErrorContains(t, err, "beyond the ±1024 that -deterministic can add")
	}
}
