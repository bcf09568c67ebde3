package tensor_test

import (
	"testing"

	"github.com/muster-pg/muster/tensor"
)

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
