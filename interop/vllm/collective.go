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

// BroadcastObj returns src's v on all ranks; on other ranks v is ignored. src does not wait for the
// others, and gets back v itself. An object that does not fit into a T is pgroup.ErrMismatch, and
// stays for a BroadcastObj of another type; one that is not a plain value, or has expired, is
// skipped, as in RecvObj.
func BroadcastObj[T any](ctx context.Context, g *Group, src int, v T) (T, error) {
	got := v
	if err := g.broadcast(ctx, src, object, v, &got); err != nil {
		var none T
		return none, err
	}
	return got, nil
}

// Broadcast returns src's tensor on all ranks, as BroadcastObj does; on other ranks t is ignored
// and may be nil. An object under the key of a tensor is skipped, as in Recv.
func (g *Group) Broadcast(ctx context.Context, src int, t *tensor.Tensor) (*tensor.Tensor, error) {
	got := t
	if err := g.broadcast(ctx, src, array, t, &got); err != nil {
		return nil, err
	}
	return got, nil
}

// AllGatherObj returns, on all ranks, the v of each rank in the order of ranks.
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

// Op is a reduction operator: Sum, Product, Min or Max.
type Op = pgroup.Op

// The operators, as torch defines them, applied element by element in the order of ranks. Integers
// wrap around, a NaN makes Min and Max NaN, and 16-bit floats are rounded after each step.
const (
	Sum     = pgroup.Sum
	Product = pgroup.Product
	Min     = pgroup.Min
	Max     = pgroup.Max
)

var reductions = map[Op]reduce.Op{Sum: reduce.Sum, Product: reduce.Product, Min: reduce.Min, Max: reduce.Max}

// AllReduce returns the tensors of all ranks reduced by op, with the same bits on all ranks,
// Python's included. All must have the same dtype and shape; otherwise the error is
// pgroup.ErrMismatch. t is not modified.
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
		reduce.Into(&scratch, t.DType, reductions[op], 1, sum.Data, [][]byte{sum.Data, next.Data})
	}
	return sum, nil
}

// checkReduce refuses tensors and operators that cannot be reduced.
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

func (g *Group) broadcast(ctx context.Context, src int, m payloadKind, v, into any) error {
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
	return c.exclusive(ctx, &g.collective, func(ctx context.Context) error {
		c.seq = g.broadcasts[src] + 1
		if src == g.cfg.Rank {
			err := c.publish(ctx, m, g.broadcasts[src], b)
			if err == nil {
				g.broadcasts[src]++
			}
			return err
		}
		err := c.receive(ctx, c.broadcastNeed(src, m), into)
		if consumed(err) {
			g.broadcasts[src]++
		}
		return err
	})
}

// broadcastNeed returns the need of src's next broadcast.
func (c *call) broadcastNeed(src int, m payloadKind) need {
	n := c.broadcasts[src]
	return need{key: m.broadcastKey(src, n), from: src, n: n, m: m, broadcast: true}
}

// publish broadcasts b as number n of this rank.
func (c *call) publish(ctx context.Context, m payloadKind, n uint64, b []byte) error {
	if err := c.put(ctx, m.broadcastKey(c.cfg.Rank, n), b); err != nil {
		return c.asRankError(err)
	}
	if err := c.store.Set(ctx, note(cast, c.cfg.Rank), strconv.AppendUint(nil, n+1, 10), nil); err != nil {
		return c.asRankError(err)
	}
	return nil
}

// allGather broadcasts the result of own, and receives the broadcast of each other rank. vLLM
// proceeds rank by rank; this rank begins with its own, and waits for all others at once, with the
// same keys. It uses one number of each rank whether it succeeds or not.
func (c *call) allGather(ctx context.Context, own func() ([]byte, error), into func(rank int) any) error {
	return c.exclusive(ctx, &c.collective, func(ctx context.Context) error {
		c.gathers++
		c.seq = c.gathers
		n := c.broadcasts[c.cfg.Rank]
		needs := c.nextOfAll()
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

// nextOfAll uses the next number of each rank, and returns the needs of the other ranks.
func (c *call) nextOfAll() []need {
	var needs []need
	for rank := range c.broadcasts {
		if rank != c.cfg.Rank {
			needs = append(needs, c.broadcastNeed(rank, object))
		}
		c.broadcasts[rank]++
	}
	return needs
}
