package strategy_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/strategy"
	"github.com/muster-pg/muster/tensor"
)

// BenchmarkAllReduceGradients is a fixed set of one rank: what a call costs beside the reduction.
func BenchmarkAllReduceGradients(b *testing.B) {
	for _, n := range []int{1, 10, 1000} {
		b.Run(fmt.Sprint(n, " tensors"), func(b *testing.B) {
			s := store.New(new(store.Memory))
			defer s.Close()
			g, err := pgroup.Create(b.Context(), pgroup.Config{Size: 1, Store: s})
			require.NoError(b, err)
			defer g.Close()
			c, err := collective.Open(b.Context(), g, nil)
			require.NoError(b, err)
			defer c.Close()
			a := strategy.New(c, nil)
			grads := map[string]*tensor.Tensor{}
			for i := range n {
				grads[fmt.Sprint("layer ", i)] = tensor.New(tensor.F32, 100)
			}
			ctx := bounded(b)
			require.NoError(b, a.AllReduceGradients(ctx, grads))
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, a.AllReduceGradients(ctx, grads))
			}
		})
	}
}
