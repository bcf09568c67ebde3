package tensorstats_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/cmd/muster/internal/tensorstats"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// statsOf returns min, max, mean and standard deviation of the finite elements of a tensor.
func statsOf(ctx context.Context, t *tensor.Tensor) ([4]float64, error) {
	s, err := tensorstats.Of(ctx, new(tensorstats.Reader), t)
	if err != nil || s.Spread == nil {
		return [4]float64{}, err
	}
	return [4]float64{s.Min, s.Max, s.Mean, s.Std}, nil
}

// TestStats checks that the statistics do not overflow, and that they keep the digits that a
// float32 would lose.
func TestStats(t *testing.T) {
	t.Parallel()
	most := math.MaxFloat64
	for _, test := range []struct {
		t    *tensor.Tensor
		want [4]float64
	}{
		{tensor.From([]float64{most, -most, most, -most}), [4]float64{-most, most, 0, most}},
		{tensor.From([]float64{most, most}), [4]float64{most, most, most, 0}},
		{tensor.From([]float64{1e15, 1e15 + 1, 1e15 + 2, 1e15 + 1}), [4]float64{1e15, 1e15 + 2, 1e15 + 1, math.Sqrt(0.5)}},
		{tensor.From([]int64{1<<53 - 1, 1<<53 - 3}), [4]float64{1<<53 - 3, 1<<53 - 1, 1<<53 - 2, 1}},
		{tensor.From([]uint64{math.MaxUint64, math.MaxUint64}), [4]float64{1 << 64, 1 << 64, 1 << 64, 0}},
		{tensor.From([]int32{math.MinInt32, math.MaxInt32}), [4]float64{math.MinInt32, math.MaxInt32, -0.5, math.MaxInt32 + 0.5}},
		{tensor.From([]uint32{math.MaxUint32, math.MaxUint32 - 2}), [4]float64{math.MaxUint32 - 2, math.MaxUint32, math.MaxUint32 - 1, 1}},
		{tensor.From([]float64{math.NaN(), 5, math.Inf(-1)}), [4]float64{5, 5, 5, 0}},
	} {
		got, err := statsOf(t.Context(), test.t)
		require.NoError(t, err)
		for i := range got {
			if math.Abs(got[i]-test.want[i]) > 1e-12*math.Abs(test.want[i]) {
				t.Errorf("%v: %v, not %v", test.t, got, test.want)
				break
			}
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := statsOf(ctx, tensor.New(tensor.F32, 3)); err == nil || err.Error() != "enough" {
		t.Error(err)
	}
}

// TestCodes checks that the statistics computed from counts of codes are equal to
// those computed from the values.
func TestCodes(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for dt := tensor.Bool + 1; dt.Valid(); dt++ {
		if dt.Bits() > 16 {
			continue
		}
		const n = 100_000 // more than a block
		codes := tensor.New(dt, n)
		for i := range codes.Data {
			codes.Data[i] = byte(r.Uint32())
		}
		vals, err := codes.AppendFloat32s(nil)
		require.NoError(t, err)
		got, err1 := statsOf(t.Context(), codes)
		want, err2 := statsOf(t.Context(), tensor.From(vals))
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(dt, err)
		}
		for i := range got {
			if math.Abs(got[i]-want[i]) > 1e-12*want[1] {
				t.Errorf("%v: %v, not %v", dt, got, want)
				break
			}
		}
	}
	got, err := statsOf(t.Context(), tensor.From([]tensor.BFloat16{0x8000, 0x8000}))
	if err != nil || math.Signbit(got[0]) {
		t.Error(got, err)
	}
}

func TestTruncatedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "w.safetensors")
	require.NoError(t, safetensors.WriteFile(path, map[string]*tensor.Tensor{"w": tensor.New(tensor.F32, 1<<20)}, nil))
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	defer f.Close()
	w, err := f.Tensor("w")
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, 1<<20))
	if _, err := statsOf(t.Context(), w); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Error(err)
	}
}
