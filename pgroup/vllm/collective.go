package vllm

import (
	"context"
	"slices"
	"strconv"

	"github.com/muster-pg/muster/internal/reduce"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

// BroadcastObj returns src's v on every rank; what the others pass counts for nothing. src does not wait for the others, and gets back v
// itself. If it does not fit into a T the error is pgroup.ErrMismatch, and the object stays for a BroadcastObj of another type;
// what is no plain value, or has expired, is passed over, as in RecvObj.
func BroadcastObj[T any](ctx context.Context, g *Group, src int, v T) (T, error) {
	got := v
	if err := g.broadcast(ctx, src, object, v, &got); err != nil {
		var none T
		return none, err
	}
	return got, nil
}

// Broadcast returns src's tensor on every rank, as BroadcastObj does; t counts for nothing on the others, and may be nil there.
// What is no tensor, though its key is a tensor's, is passed over, as in Recv.
func (g *Group) Broadcast(ctx context.Context, src int, t *tensor.Tensor) (*tensor.Tensor, error) {
	got := t
	if err := g.broadcast(ctx, src, array, t, &got); err != nil {
		return nil, err
	}
	return got, nil
}

// AllGatherObj returns the v of every rank, in rank order, on every rank.
func AllGatherObj[T any](ctx context.Context, g *Group, v T) ([]T, error) {
	vs := make([]T, g.cfg.Size)
	vs[g.cfg.Rank] = v
	c := &call{Group: g, op: "allgather"}
	own := func() ([]byte, error) { return c.encode(object, v) }
	if err := c.allGather(ctx, own, func(rank int) any { return &vs[rank] }); err != nil {
		return nil, err
	}
	return vs, nil
}

// Op is a reduction: Sum, Product, Min or Max.
type Op = pgroup.Op

// The reductions: what torch makes of it, element by element, in rank order. Integers wrap around, a NaN anywhere is the Min and the
// Max, and 16-bit floats are rounded after each step.
const (
	Sum     = pgroup.Sum
	Product = pgroup.Product
	Min     = pgroup.Min
	Max     = pgroup.Max
)

var reductions = map[Op]reduce.Op{Sum: reduce.Sum, Product: reduce.Product, Min: reduce.Min, Max: reduce.Max}

// AllReduce returns the tensors of all ranks combined, the same bits on every rank, those of Python included. All have one dtype and one
// shape; if not, the error is pgroup.ErrMismatch. t stays as it is.
func (g *Group) AllReduce(ctx context.Context, t *tensor.Tensor, op Op) (*tensor.Tensor, error) {
	all := make([]*tensor.Tensor, g.cfg.Size)
	c := &call{Group: g, op: "allreduce"}
	own := func() ([]byte, error) {
		if err := c.checkReduce(t, op); err != nil {
			return nil, err
		}
		all[g.cfg.Rank] = t.Clone() // aligned, whatever t is
		return c.encode(array, t)
	}
	if err := c.allGather(ctx, own, func(rank int) any { return &all[rank] }); err != nil {
		return nil, err
	}
	for rank, other := range all {
		if other == nil || other.DType != t.DType || !slices.Equal(other.Shape, t.Shape) {
			return nil, c.rankError(&wire.Failure{Code: wire.CodeMismatch, By: -1, Reason: "rank " + strconv.Itoa(rank) + " has " + other.String() + ", this rank " + t.String()}, nil)
		}
	}
	sum := all[0].Clone()
	var scratch reduce.Scratch
	for _, next := range all[1:] { // one at a time, as torch does: rounding is part of the result
		reduce.Into(&scratch, t.DType, reductions[op], 1, [][]byte{sum.Data}, [][]byte{sum.Data, next.Data})
	}
	return sum, nil
}

// checkReduce refuses what cannot be reduced.
func (c *call) checkReduce(t *tensor.Tensor, op Op) error {
	_, ok := reductions[op]
	switch err := t.Check(); {
	case !ok:
		return c.invalid("vLLM has Sum, Product, Min and Max, not %v", op)
	case err != nil:
		return c.invalid("%v", err)
	case !reduce.Can(t.DType):
		return c.invalid("elements of %v cannot be combined", t.DType)
	}
	return nil
}

func (g *Group) broadcast(ctx context.Context, src int, m medium, v, into any) error {
	c := &call{Group: g, op: "broadcast from " + strconv.Itoa(src)}
	if err := c.check(src); err != nil {
		return err
	}
	var b []byte
	if src == g.cfg.Rank {
		var err error
		if b, err = c.encode(m, v); err != nil {
			return err
		}
	}
	return c.alone(ctx, &g.together, func(ctx context.Context) error {
		c.seq = g.casts[src] + 1
		if src == g.cfg.Rank {
			err := c.publish(ctx, m, g.casts[src], b)
			if err == nil {
				g.casts[src]++
			}
			return err
		}
		err := c.take(ctx, c.castNeed(src, m), into)
		if passes(err) {
			g.casts[src]++
		}
		return err
	})
}

// castNeed is src's next broadcast.
func (c *call) castNeed(src int, m medium) need {
	n := c.casts[src]
	return need{key: m.cast(src, n), from: src, n: n, m: m, cast: true}
}

// publish broadcasts b, as this rank's number n.
func (c *call) publish(ctx context.Context, m medium, n uint64, b []byte) error {
	if err := c.put(ctx, m.cast(c.cfg.Rank, n), b); err != nil {
		return c.fault(err)
	}
	if err := c.store.Set(ctx, note(cast, c.cfg.Rank), strconv.AppendUint(nil, n+1, 10), nil); err != nil {
		return c.fault(err)
	}
	return nil
}

// allGather broadcasts what own is, and reads what every other rank has broadcast. vLLM goes rank by rank; the keys are the same if
// this rank begins with its own, and waits for all others at once. It takes its numbers whether it succeeds or not.
func (c *call) allGather(ctx context.Context, own func() ([]byte, error), into func(rank int) any) error {
	return c.alone(ctx, &c.together, func(ctx context.Context) error {
		c.gathers++
		c.seq = c.gathers
		n := c.casts[c.cfg.Rank]
		needs := c.takeAll()
		b, err := own()
		if err != nil {
			return err
		}
		if err := c.publish(ctx, object, n, b); err != nil {
			return err
		}
		values, err := c.await(ctx, needs)
		if err != nil {
			return err
		}
		for i, n := range needs {
			if err := c.parse(values[i], n, into(n.from)); err != nil {
				return err
			}
		}
		return nil
	})
}

// takeAll takes the next number of every rank, and is what those of the others stand for.
func (c *call) takeAll() []need {
	var needs []need
	for rank := range c.casts {
		if rank != c.cfg.Rank {
			needs = append(needs, c.castNeed(rank, object))
		}
		c.casts[rank]++
	}
	return needs
}
