package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/muster-pg/muster/collective"
)

const (
	allReduceVerb = "all-reduce"
	barrierVerb   = "barrier"
)

// openSlices prepares an all-reduce or a barrier of a Comm.
func (r *rank) openSlices(d *drill, verb string, where, bytes int) error {
	c, err := r.comm(where)
	if err != nil {
		return err
	}
	ctx := context.Background()
	d.fence = func() error { return c.Barrier(ctx) }
	if d.verbs = 1; !d.chain {
		d.verbs++ // the barrier is one too
	}
	if verb == barrierVerb {
		d.call = d.fence
		return nil
	}
	x := floats(bytes)
	d.call = func() error { return collective.AllReduce(ctx, c, collective.Sum, x) }
	return check(ctx, c, bytes)
}

// check runs one all-reduce whose result is known.
func check(ctx context.Context, c *collective.Comm, bytes int) error {
	rank, size := c.Group().Rank(), c.Group().Size()
	x := make([]float32, bytes/4)
	for i := range x {
		x[i] = float32(rank + 1)
	}
	if err := collective.AllReduce(ctx, c, collective.Sum, x); err != nil {
		return err
	}
	for i, v := range x {
		if v != float32(size*(size+1)/2) {
			return fmt.Errorf("element %d of the sum is %v", i, v)
		}
	}
	return nil
}

// floats returns a slice of so many bytes of zeros. All pages have been written to. Zeros keep the
// sums zero.
func floats(bytes int) []float32 {
	x := make([]float32, bytes/4)
	for i := range x {
		x[i] = 0
	}
	return x
}

// bareRanks is the lower bound of an all-reduce between goroutines. All see each other's slices,
// each combines a part of them, and gates separate the steps.
type bareRanks struct {
	gate *gate
	own  [][]float32 // the slice of each rank
	room [][]float32 // the copies that other ranks read
}

func newBareRanks(size int) *bareRanks {
	return &bareRanks{gate: newGate(size), own: make([][]float32, size), room: make([][]float32, size)}
}

func (b *bareRanks) open(rank, bytes int, copied bool) func() error {
	x := floats(bytes)
	b.own[rank] = x
	p := len(b.own)
	begin, end := rank*len(x)/p, (rank+1)*len(x)/p
	if !copied {
		return func() error {
			b.gate.wait()
			sum(b.own, begin, end, b.own)
			b.gate.wait()
			return nil
		}
	}
	b.room[rank] = floats(bytes)
	return func() error {
		copy(b.room[rank], x)
		b.gate.wait()
		sum(b.room, begin, end, b.room[:1])
		b.gate.wait()
		copy(x, b.room[0])
		b.gate.wait() // so that no rank overwrites what others copy
		return nil
	}
}

// sum sets a part of each of tos to the sum of that part of xs, in blocks that stay in the cache.
func sum(xs [][]float32, begin, end int, tos [][]float32) {
	const block = 1024
	var room [block]float32
	for at := begin; at < end; at += block {
		n := min(block, end-at)
		acc := room[:n]
		copy(acc, xs[0][at:])
		for _, x := range xs[1:] {
			for i, v := range x[at:][:n] {
				acc[i] += v
			}
		}
		for _, to := range tos {
			copy(to[at:], acc)
		}
	}
}

// gate is a barrier of goroutines.
type gate struct {
	size  int
	mu    sync.Mutex // protects the fields below
	all   *sync.Cond
	came  int
	round int
}

func newGate(size int) *gate {
	g := &gate{size: size}
	g.all = sync.NewCond(&g.mu)
	return g
}

func (g *gate) wait() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.came++; g.came == g.size {
		g.came = 0
		g.round++
		g.all.Broadcast()
		return
	}
	for round := g.round; round == g.round; {
		g.all.Wait()
	}
}
