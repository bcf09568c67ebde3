package dataparallel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

// BenchmarkAllReduceGradients averages a fixed set on one rank: it measures the cost of a call
// without the reduction.
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
			a := dataparallel.New(c, nil)
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

// gradients returns tensors like the gradients of a transformer: many small tensors between large
// ones, 24 MiB in total.
func gradients() map[string]*tensor.Tensor {
	grads := map[string]*tensor.Tensor{}
	for layer := range 12 {
		for name, n := range map[string]int{
			"attention.q": 64 << 10, "attention.k": 64 << 10, "attention.v": 64 << 10, "attention.out": 64 << 10,
			"mlp.up": 128 << 10, "mlp.down": 128 << 10, "norm.1": 256, "norm.2": 256, "bias.1": 256, "bias.2": 1024,
		} {
			grads[fmt.Sprintf("layer.%02d.%s", layer, name)] = tensor.New(tensor.F32, n)
		}
	}
	return grads
}

// averageAll is the loop of a rank of BenchmarkGradients: it averages all gradients as one slice,
// or with a Strategy.
func averageAll(ctx context.Context, g *pgroup.Group, mode string, loop func() bool) error {
	c, err := collective.Open(ctx, g, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	grads, total := gradients(), 0
	for _, t := range grads {
		total += len(t.Data)
	}
	var step func() error
	if mode == "flat" {
		all := make([]float32, total/4)
		step = func() error { return collective.AllReduce(ctx, c, collective.Avg, all) }
	} else {
		s := dataparallel.New(c, nil)
		step = func() error { return s.AllReduceGradients(ctx, grads) }
	}
	for range 3 {
		if err := step(); err != nil {
			return err
		}
	}
	for loop() {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// childAverager is the other rank of BenchmarkGradients, which runs until the first one leaves.
func childAverager(ctx context.Context, arg string) error {
	args := strings.Fields(arg)
	g, err := pgroup.Create(ctx, pgroup.Config{Rank: 1, Size: 2, Address: args[0], Host: args[1], Timeout: time.Minute})
	if err != nil {
		return err
	}
	defer g.Close()
	err = averageAll(ctx, g, args[2], func() bool { return true })
	if errors.Is(err, pgroup.ErrLeft) {
		return nil
	}
	return err
}

// BenchmarkGradients averages gradients on two processes, over shared memory and over TCP: as one
// slice, which is the lower bound, and with a Strategy, which must take no more than 1.15 times as
// long.
func BenchmarkGradients(b *testing.B) {
	for _, host := range []string{"memory", "TCP"} {
		for _, mode := range []string{"flat", "strategy"} {
			b.Run(host+"/"+mode, func(b *testing.B) {
				at := url(b)
				there := "here"
				if host == "TCP" {
					there = "there"
				}
				testcluster.Start(b, "averager", fmt.Sprint(at, " ", there, " ", mode))
				g, err := pgroup.Create(b.Context(), pgroup.Config{Rank: 0, Size: 2, Address: at, Host: "here", Timeout: time.Minute})
				require.NoError(b, err)
				defer g.Close()
				b.SetBytes(24 << 20)
				require.NoError(b, averageAll(b.Context(), g, mode, b.Loop))
			})
		}
	}
}
