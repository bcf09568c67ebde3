package dataparallel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

// gradients returns n tensors like the gradients of a transformer, 24 MiB in total: for each large one
// there are small ones.
func gradients(n int) map[string]*tensor.Tensor {
	const total = 24 << 18 // elements
	grads, small := map[string]*tensor.Tensor{}, 0
	for i := range n {
		if i%3 != 0 {
			small += 256 + i
		}
	}
	large := (total - small) / ((n + 2) / 3)
	for i := range n {
		size := 256 + i
		if i%3 == 0 {
			size = large
		}
		grads[fmt.Sprintf("layer.%d", i)] = tensor.New(tensor.F32, size)
	}
	return grads
}

// averager is a rank of BenchmarkGradients. Each round measures every mode once, so that a busy moment of
// the machine does not favor one of them.
type averager struct {
	flat     []float32
	comm     *collective.Comm
	strategy *dataparallel.Strategy
	grads    map[string]*tensor.Tensor
	names    []string // as a backward pass computes them
	backward time.Duration
	times    map[string][]time.Duration
}

var modes = []string{"flat", "strategy", "serial", "overlapped"}

func newAverager(ctx context.Context, rank int, at, host string, n int) (*averager, error) {
	g, err := pgroup.Create(ctx, pgroup.Config{Rank: rank, Size: 2, Address: at, Host: host, Timeout: time.Minute})
	if err != nil {
		return nil, err
	}
	c, err := collective.Open(ctx, g, nil)
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	a := &averager{comm: c, strategy: dataparallel.New(c, nil), grads: gradients(n), times: map[string][]time.Duration{}}
	total := 0
	for _, t := range a.grads {
		total += len(t.Data)
	}
	a.flat = make([]float32, total/4)
	for i := range n {
		a.names = append(a.names, fmt.Sprintf("layer.%d", n-1-i))
	}
	// A simulated backward pass takes as long as the average.
	for range 20 {
		if err := a.run(ctx, "strategy"); err != nil {
			return nil, err
		}
	}
	length := []int64{int64(median(a.times["strategy"]))}
	err = collective.Broadcast(ctx, c, 0, length)
	a.backward = time.Duration(length[0])
	clear(a.times)
	return a, err
}

func (a *averager) close() { _, _ = a.comm.Close(), a.comm.Group().Close() }

// compute waits as long as a device would compute, and calls ready after each gradient.
func (a *averager) compute(ready func(name string)) {
	begun := time.Now()
	for i, name := range a.names {
		if left := time.Until(begun.Add(a.backward * time.Duration(i+1) / time.Duration(len(a.names)))); left > 0 {
			<-time.After(left)
		}
		ready(name)
	}
}

func (a *averager) run(ctx context.Context, mode string) (err error) {
	if err := a.comm.Barrier(ctx); err != nil {
		return err
	}
	begun := time.Now()
	switch mode {
	case "flat":
		err = collective.AllReduce(ctx, a.comm, collective.Avg, a.flat)
	case "strategy":
		err = a.strategy.AllReduceGradients(ctx, a.grads)
	case "serial":
		a.compute(func(string) {})
		err = a.strategy.AllReduceGradients(ctx, a.grads)
	case "overlapped":
		var average *dataparallel.Average
		if average, err = a.strategy.StartGradients(ctx, a.grads); err == nil {
			a.compute(func(name string) { average.Ready(name) })
			err = average.Wait(ctx)
		}
	}
	a.times[mode] = append(a.times[mode], time.Since(begun))
	return err
}

// round runs each mode once.
func (a *averager) round(ctx context.Context) error {
	for _, mode := range modes {
		if err := a.run(ctx, mode); err != nil {
			return err
		}
	}
	return nil
}

func median(of []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

var children = testcluster.Children{"averager": childAverager}

// childAverager is the other rank of BenchmarkGradients, which runs until the first one leaves.
func childAverager(ctx context.Context, arg string) error {
	args := strings.Fields(arg)
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	a, err := newAverager(ctx, 1, args[0], args[1], n)
	if err != nil {
		return err
	}
	defer a.close()
	for err == nil {
		err = a.round(ctx)
	}
	if errors.Is(err, pgroup.ErrLeft) {
		return nil
	}
	return err
}

// BenchmarkGradients averages 24 MiB of gradients on two processes, over shared memory and over TCP. It
// reports medians in ms, and two ratios: of AllReduceGradients to an all-reduce of one slice, which is the
// lower bound; and of an average that overlaps with a backward pass of equal length to one after it.
//
//	go test -run xxx -bench Gradients -benchtime 100x ./dataparallel
func BenchmarkGradients(b *testing.B) {
	for _, host := range []string{"memory", "TCP"} {
		for _, n := range []int{148, 500} {
			b.Run(fmt.Sprint(host, "/", n), func(b *testing.B) {
				at := url(b)
				there := "here"
				if host == "TCP" {
					there = "there"
				}
				testcluster.Start(b, "averager", fmt.Sprint(at, " ", there, " ", n))
				a, err := newAverager(b.Context(), 0, at, "here", n)
				require.NoError(b, err)
				defer a.close()
				for b.Loop() {
					require.NoError(b, a.round(b.Context()))
				}
				for _, mode := range modes {
					b.ReportMetric(float64(median(a.times[mode]).Microseconds())/1000, mode+"-ms")
				}
				b.ReportMetric(float64(median(a.times["strategy"]))/float64(median(a.times["flat"])), "strategy/flat")
				b.ReportMetric(float64(median(a.times["overlapped"]))/float64(median(a.times["serial"])), "overlapped/serial")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
