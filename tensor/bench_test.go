package tensor_test

import (
	"testing"

	"github.com/muster-pg/muster/tensor"
)

// Elements of a benchmark: a block that stays in the cache.
const block = 1 << 14

// BenchmarkDecode converts elements to float32; MB/s are of the elements.
func BenchmarkDecode(b *testing.B) {
	for dt := tensor.Bool; dt.Valid(); dt++ {
		if dt == tensor.C64 {
			continue
		}
		x, dst := tensor.New(dt, block), make([]float32, block)
		if dt != tensor.Bool {
			for i := range x.Data {
				x.Data[i] = byte(i % 120)
			}
		}
		b.Run(dt.String(), func(b *testing.B) {
			b.SetBytes(int64(len(x.Data)))
			for b.Loop() {
				if _, err := x.Float32sAt(dst, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEncode converts float32s to elements; MB/s are of the float32s.
func BenchmarkEncode(b *testing.B) {
	for dt := tensor.Bool; dt.Valid(); dt++ {
		if dt == tensor.C64 {
			continue
		}
		vals := make([]float32, block)
		for i := range vals {
			vals[i] = float32(i % 2)
		}
		b.Run(dt.String(), func(b *testing.B) {
			b.SetBytes(4 * block)
			for b.Loop() {
				if _, err := tensor.FromFloat32s(dt, vals); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCopyInto puts a quarter of a matrix of 16 MiB into its place, along either axis.
func BenchmarkCopyInto(b *testing.B) {
	whole := tensor.New(tensor.BF16, 2048, 4096)
	for name, tc := range map[string]struct {
		axis int
		part *tensor.Tensor
	}{
		"rows":       {0, tensor.New(tensor.BF16, 512, 4096)},
		"columns":    {1, tensor.New(tensor.BF16, 2048, 1024)},
		"one column": {1, tensor.New(tensor.BF16, 2048, 1)},
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(tc.part.Data)))
			for b.Loop() {
				if err := tensor.CopyInto(whole, tc.axis, 0, tc.part); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
