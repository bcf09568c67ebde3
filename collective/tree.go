package collective

import (
	"math/bits"
	"slices"
)

// largeTree is the size from which on a chain of ranks, each of which forwards what it receives, is
// faster than a tree.
const largeTree = 128 << 10

// spread copies root's x to all ranks: by a binomial tree, or along a chain if it is large.
func (c *call) spread(root int, x vector) error {
	p := c.size()
	me := (c.rank() - root + p) % p // position after root
	reach := me & -me               // number of positions, from this one on, that this rank serves
	if me == 0 {
		reach = 1 << bits.Len(uint(p-1))
	}
	step := reach // distance to the rank that x comes from
	if x.n >= largeTree {
		step, reach = 1, 2
	}
	c.next = c.next[:0]
	for reach >>= 1; reach > 0; reach >>= 1 {
		if me+reach < p {
			c.next = append(c.next, (c.rank()+reach)%p)
		}
	}
	from := -1
	if me > 0 {
		from = (c.rank() - step + p) % p
	}
	return c.pass(from, c.next, x)
}

const received = 1 // the step of the acknowledgements

// pass copies x from one rank, or none, to others. They acknowledge it for themselves and for the
// ranks after them, so the root gets an error if they call another verb.
func (c *call) pass(from int, to []int, x vector) error {
	err := pieces(x, func(n uint32, piece vector) (err error) {
		if from >= 0 {
			err = c.receive(from, step(0, n), piece)
		}
		for i := 0; i < len(to) && err == nil; i++ {
			err = c.send(to[i], step(0, n), piece)
		}
		return err
	})
	for i := 0; i < len(to) && err == nil; i++ {
		if err = c.receive(to[i], step(received, 0), vector{}); err == nil {
			// an acknowledged message has been written, and the sender's goroutine no longer uses x
			err = c.flush(to[i])
		}
	}
	if err != nil || from < 0 {
		return err
	}
	return c.send(from, step(received, 0), vector{})
}

// collect combines all ranks' x on root. Each rank combines a part, in the order of the ranks, and
// sends it to root.
func (c *call) collect(root int, x vector) error {
	p := c.size()
	own := c.chunk(x, c.rank(), p)
	dst := own
	if c.rank() != root {
		c.result = slices.Grow(c.result[:0], own.n) // x must not change
		dst = one(c.result[:own.n])
	}
	if err := c.direct(c.placement.all, c.rank(), dst, func(i int) vector { return c.chunk(x, i, p) }); err != nil {
		return err
	}
	if c.rank() != root {
		if err := c.sendAll(root, 1, dst); err != nil {
			return err
		}
		return c.flush(root)
	}
	for i := range p {
		if i != root {
			if err := c.receiveAll(i, 1, c.chunk(x, i, p)); err != nil {
				return err
			}
		}
	}
	return nil
}

// exchange sends every rank its part of src, and receives this rank's part of theirs.
func (c *call) exchange(dst, src vector) error {
	p, me := c.size(), c.rank()
	copyVector(c.chunk(dst, me, p), c.chunk(src, me, p))
	for s := 1; s < p; s++ {
		to := (me + s) % p
		if err := c.sendAll(to, 0, c.chunk(src, to, p)); err != nil {
			return err
		}
	}
	for s := 1; s < p; s++ {
		from := (me - s + p) % p
		if err := c.receiveAll(from, 0, c.chunk(dst, from, p)); err != nil {
			return err
		}
	}
	return c.flushAll(c.placement.all, me)
}

// meet returns when all ranks have called it: a dissemination barrier of log₂ p steps. In each step
// the number of ranks that a rank knows to have called doubles. (See Hensgen, Finkel and Manber,
// Two algorithms for barrier synchronization, 1988.)
func (c *call) meet() error {
	p, me := c.size(), c.rank()
	for mask, s := 1, 0; mask < p; mask, s = mask<<1, s+1 {
		if err := c.send((me+mask)%p, step(s, 0), vector{}); err != nil {
			return err
		}
		if err := c.receive((me-mask+p)%p, step(s, 0), vector{}); err != nil {
			return err
		}
	}
	return nil
}
