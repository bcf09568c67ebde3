package collective

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/muster-pg/muster/internal/reduce"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

// AllReduce combines x of all ranks, element by element, into x on all of them.
func AllReduce[T tensor.Number](ctx context.Context, c *Comm, op Op, x []T) error {
	return c.run(ctx, planOf(allReduce, op, -1, x, nil))
}

// AllReduceAll combines xs of all ranks, element by element, into xs on all of them. It reduces
// several slices in place as though they were one, in about the time of one. All ranks pass slices
// of the same lengths, which may be 0, in the same order. The slices must not share memory
// (ErrInvalid).
//
// As with AllReduce, the result has the same bits on every rank and in every run. PyTorch calls it
// all_reduce_coalesced.
func AllReduceAll[T tensor.Number](ctx context.Context, c *Comm, op Op, xs [][]T) error {
	return c.run(ctx, planOfAll(allReduce, op, -1, xs))
}

// Reduce combines x of all ranks, element by element, into x on root. On other ranks x does not
// change.
func Reduce[T tensor.Number](ctx context.Context, c *Comm, root int, op Op, x []T) error {
	return c.run(ctx, planOf(reduceTo, op, rooted(root), x, nil))
}

// ReduceScatter combines src of all ranks, element by element. Each rank gets one part of the
// result: rank 0 the first. src has Size times as many elements as dst, which may be this rank's
// part of it.
func ReduceScatter[T tensor.Number](ctx context.Context, c *Comm, op Op, dst, src []T) error {
	if err := c.lengths(reduceScatter, len(src), len(dst)); err != nil {
		return err
	}
	return c.run(ctx, planOf(reduceScatter, op, -1, src, dst))
}

// AllGather copies src of all ranks to dst, in the order of ranks. dst has Size times as many
// elements as src, which may be this rank's part of it.
func AllGather[T tensor.Number](ctx context.Context, c *Comm, dst, src []T) error {
	if err := c.lengths(allGather, len(dst), len(src)); err != nil {
		return err
	}
	return c.run(ctx, planOf(allGather, 0, -1, src, dst))
}

// Broadcast copies x of root to all ranks.
func Broadcast[T tensor.Number](ctx context.Context, c *Comm, root int, x []T) error {
	return c.run(ctx, planOf(broadcast, 0, rooted(root), x, nil))
}

// BroadcastAll copies xs of root to all ranks: several slices, in place, as though they were one.
// All ranks pass slices of the same lengths, in the same order.
func BroadcastAll[T tensor.Number](ctx context.Context, c *Comm, root int, xs [][]T) error {
	return c.run(ctx, planOfAll(broadcast, 0, rooted(root), xs))
}

// AllToAll sends the ith of Size equal parts of src to rank i, and receives its own part of each
// rank's src, in the order of the ranks. dst and src have the same length, and do not overlap.
func AllToAll[T tensor.Number](ctx context.Context, c *Comm, dst, src []T) error {
	switch {
	case len(dst) != len(src):
		return c.invalid(allToAll, "dst has %d elements, and src %d", len(dst), len(src))
	case len(src)%c.size() != 0:
		return c.invalid(allToAll, "%d elements cannot be parted among %d ranks", len(src), c.size())
	}
	return c.run(ctx, planOf(allToAll, 0, -1, src, dst))
}

// Barrier returns when all ranks have called it.
func (c *Comm) Barrier(ctx context.Context) error {
	return c.run(ctx, plan{verb: barrier, root: -1, dt: tensor.U8})
}

// rooted maps an invalid negative root to a value that differs from -1, which means none.
func rooted(root int) int {
	if root < 0 {
		return -2
	}
	return root
}

func planOf[T tensor.Number](v verb, op Op, root int, x, y []T) plan {
	return plan{verb: v, op: op, dt: tensor.DTypeOf[T](), root: root, count: len(x), x: one(bytesOf(x)), y: one(bytesOf(y))}
}

// planOfAll returns the plan of a verb that takes several slices as one.
func planOfAll[T tensor.Number](v verb, op Op, root int, xs [][]T) plan {
	p := planOf[T](v, op, root, nil, nil)
	p.slices, p.lengths = len(xs), 14695981039346656037 // FNV-1a, of lengths instead of bytes
	for _, x := range xs {
		p.count += len(x)
		p.lengths = (p.lengths ^ uint64(len(x))) * 1099511628211
	}
	p.list = func(list [][]byte) [][]byte {
		for _, x := range xs {
			list = append(list, bytesOf(x))
		}
		return list
	}
	return p
}

// bytesOf returns the memory of x.
func bytesOf[T tensor.Number](x []T) []byte {
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(zero)))
}

// lengths fails unless all is Size parts long.
func (c *core) lengths(v verb, all, part int) error {
	if all != part*c.size() {
		return c.invalid(v, "%d elements in all are not %d times %d", all, c.size(), part)
	}
	return nil
}

func (c *core) invalid(v verb, format string, args ...any) error {
	return fmt.Errorf("collective: %v of group %q on rank %d: %s: %w", v, c.name, c.rank(), fmt.Sprintf(format, args...), pgroup.ErrInvalid)
}

// do runs a verb: over shared memory if all ranks have it, and over connections otherwise.
func (c *call) do(p *plan) error {
	switch {
	case c.size() == 1:
		return c.alone(p)
	case p.op == Avg && reduce.IsNarrow(p.dt):
		return c.doWide(p)
	case c.allShare():
		return c.onHost(p)
	case p.x.n == 0:
		return c.meet()
	}
	return c.amongHosts(p)
}

// doWide averages narrow integers as int64, whose sum does not overflow.
func (c *call) doWide(p *plan) error {
	wide := *p
	times := 8 / c.elem
	x := c.wideBuffer(times * p.x.n)
	for at, narrow := range p.x.slices() {
		reduce.WidenInts(p.dt, x[times*at:][:times*len(narrow)], narrow)
	}
	y := make([]byte, times*p.y.n)
	wide.dt, wide.x, wide.y = tensor.I64, one(x), one(y)
	c.dt, c.elem = tensor.I64, 8
	if err := c.do(&wide); err != nil {
		return err
	}
	dst, result := p.x, x
	switch {
	case p.verb == reduceScatter:
		dst, result = p.y, y
	case p.root >= 0 && p.root != c.rank():
		return nil
	}
	for at, narrow := range dst.slices() {
		reduce.NarrowInts(p.dt, narrow, result[times*at:][:times*len(narrow)])
	}
	return nil
}

// wideBuffer returns reusable memory for n bytes of elements of a wider type than the caller's.
func (c *call) wideBuffer(n int) []byte {
	if cap(c.wide) < n {
		c.wide = make([]byte, n)
	}
	return c.wide[:n]
}

// alone runs a verb in a group of one rank.
func (c *call) alone(p *plan) error {
	copyVector(p.y, p.x)
	return nil
}

func (c *call) amongHosts(p *plan) error {
	n := c.size()
	switch p.verb {
	case allReduce:
		return c.allReduce(p.x)
	case reduceTo:
		return c.collect(p.root, p.x)
	case reduceScatter:
		return c.direct(c.placement.all, c.rank(), p.y, func(i int) vector { return c.chunk(p.x, i, n) })
	case allGather:
		copyVector(c.chunk(p.y, c.rank(), n), p.x)
		return c.ringGather(c.placement.all, c.rank(), func(i int) vector { return c.chunk(p.y, i, n) })
	case broadcast:
		return c.spread(p.root, p.x)
	}
	return c.exchange(p.y, p.x)
}
