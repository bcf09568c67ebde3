package main

import (
	"context"
	"fmt"

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
