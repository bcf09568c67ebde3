package gather_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

// pair is two ranks in this process; rank 1 does what rank 0's benchmark does.
type pair struct {
	*testing.B
	ga    [2]*gather.Gatherer
	arena *shm.Arena // where tensors are allocated; nil: on the heap
}

func newPair(b *testing.B, apart, allocated bool) *pair {
	b.Helper()
	p := &pair{B: b}
	o := &gather.Options{}
	if apart {
		o.Listen = "127.0.0.1"
	}
	if allocated {
		var err error
		p.arena, err = shm.NewArena(nil)
		if errors.Is(err, shm.ErrUnsupported) {
			b.Skip("SKIPPED: no shared memory on this system: ", err)
		}
		require.NoError(b, err)
		b.Cleanup(func() { _ = p.arena.Close() })
		o.Arena = p.arena
	}
	meet := store.New(new(store.Memory))
	b.Cleanup(func() { _ = meet.Close() })
	p.both(func(rank int) {
		host := "node"
		if apart {
			host = fmt.Sprint("node ", rank)
		}
		g, err := pgroup.Create(b.Context(), pgroup.Config{Rank: rank, Size: 2, Store: meet, Host: host, Timeout: time.Minute})
		if err == nil {
			b.Cleanup(func() { _ = g.Close() })
			p.ga[rank], err = gather.Open(b.Context(), g, o)
		}
		if err != nil {
			b.Error(err)
		}
	})
	require.False(b, b.Failed())
	b.Cleanup(func() { _, _ = p.ga[0].Close(), p.ga[1].Close() })
	return p
}

// both runs f on both ranks.
func (p *pair) both(f func(rank int)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(1)
	}()
	f(0)
	<-done
}

func (p *pair) tensor(n int) *tensor.Tensor {
	if p.arena == nil {
		return tensor.New(tensor.U8, n)
	}
	t, err := tensor.NewIn(p.arena, tensor.U8, n)
	require.NoError(p, err)
	p.Cleanup(func() { p.arena.Free(t.Data) })
	return t
}

// memcpy returns the time of a copy of n bytes, into memory that was touched before.
func memcpy(n int) time.Duration {
	from, to := make([]byte, n), make([]byte, n)
	copy(to, from)
	const times = 8
	start := time.Now()
	for range times {
		copy(to, from)
	}
	return time.Since(start) / times
}

// measure runs a gather of n bytes b.N times.
func (p *pair) measure(n int, verb func(ctx context.Context, rank int) (release func(), err error)) {
	p.SetBytes(int64(n))
	p.ReportAllocs()
	rounds := 0
	copying := memcpy(max(n, 1))
	start := make(chan struct{})
	ended := make(chan struct{})
	once := func(rank int) {
		release, err := verb(p.Context(), rank)
		if err != nil {
			p.Error(err)
			return
		}
		release()
	}
	go func() {
		defer close(ended)
		for range start {
			once(1)
		}
	}()
	for p.Loop() {
		start <- struct{}{}
		once(0)
		rounds++
	}
	close(start)
	<-ended
	p.ReportMetric(float64(p.Elapsed())/float64(rounds)/float64(max(copying, 1)), "memcpys")
}

// BenchmarkTensors gathers one tensor from each of two ranks; memcpys is its time in units of a
// copy of as many bytes.
func BenchmarkTensors(b *testing.B) {
	for _, way := range []struct {
		name             string
		apart, allocated bool
	}{{"memory", false, false}, {"allocated in the arena", false, true}, {"TCP", true, false}} {
		for _, n := range []int{4 << 10, 1 << 20, 64 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", way.name, n>>10), func(b *testing.B) {
				p := newPair(b, way.apart, way.allocated)
				ts := [2]*tensor.Tensor{p.tensor(n), p.tensor(n)}
				p.measure(n, func(ctx context.Context, rank int) (func(), error) {
					res, err := gather.Tensors(ctx, p.ga[rank], []int{0, 1}, ts[rank])
					if err != nil {
						return nil, err
					}
					return res.Release, nil
				})
			})
		}
	}
}

// BenchmarkManyTensors gathers a thousand tensors of 4 KiB from each of two ranks.
func BenchmarkManyTensors(b *testing.B) {
	const many, n = 1000, 4 << 10
	for _, apart := range []bool{false, true} {
		b.Run(map[bool]string{false: "memory", true: "TCP"}[apart], func(b *testing.B) {
			p := newPair(b, apart, false)
			ts := map[string]*tensor.Tensor{}
			for i := range many {
				ts[fmt.Sprintf("model.layers.%d.mlp.weight", i)] = p.tensor(n)
			}
			p.measure(many*n, func(ctx context.Context, rank int) (func(), error) {
				res, err := gather.TensorMaps(ctx, p.ga[rank], []int{0, 1}, ts)
				if err != nil {
					return nil, err
				}
				return res.Release, nil
			})
		})
	}
}

// BenchmarkConfigs gathers a layer's config: 12 tensors of 64 KiB, and as many numbers.
func BenchmarkConfigs(b *testing.B) {
	type part struct {
		Name   string
		Scale  float64
		Weight *tensor.Tensor
	}
	const parts, n = 12, 64 << 10
	p := newPair(b, false, false)
	var layer []part
	for i := range parts {
		layer = append(layer, part{fmt.Sprint("part ", i), 0.5, p.tensor(n)})
	}
	p.measure(parts*n, func(ctx context.Context, rank int) (func(), error) {
		res, err := gather.Configs(ctx, p.ga[rank], []int{0, 1}, &layer)
		if err != nil {
			return nil, err
		}
		return res.Release, nil
	})
}
