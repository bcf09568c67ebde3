package collective

import "slices"

// largeTree is the fewest bytes for which a chain of ranks, each of which passes on what it gets, is faster than a tree.
const largeTree = 128 << 10

// spread brings root's x to all ranks: by a binomial tree, or along a chain if it is large.
func (c *call) spread(root int, x []byte) error {
	if len(x) >= largeTree {
		return c.chain(root, x)
	}
	p := c.size()
	me := (c.rank() - root + p) % p
	mask := 1
	for ; mask < p; mask <<= 1 {
		if me&mask != 0 {
			if err := c.receiveAll((me-mask+root)%p, 0, x); err != nil {
				return err
			}
			break
		}
	}
	for mask >>= 1; mask > 0; mask >>= 1 {
		if me+mask < p {
			if err := c.sendAll((me+mask+root)%p, 0, x); err != nil {
				return err
			}
		}
	}
	return c.flushOpen()
}

func (c *call) chain(root int, x []byte) error {
	p := c.size()
	me := (c.rank() - root + p) % p
	next, prev := (c.rank()+1)%p, (c.rank()+p-1)%p
	err := pieces(x, func(n uint32, piece []byte) error {
		if me > 0 {
			if err := c.receive(prev, n, piece); err != nil {
				return err
			}
		}
		if me == p-1 {
			return nil
		}
		return c.send(next, n, piece)
	})
	if err != nil {
		return err
	}
	return c.flushOpen()
}

// collect combines all ranks' x on root. Each rank combines a part, in the order of the ranks, and root gets the parts.
func (c *call) collect(root int, x []byte) error {
	p := c.size()
	own := c.chunk(x, c.rank(), p)
	dst := own
	if c.rank() != root {
		c.result = slices.Grow(c.result[:0], len(own)) // x is not to change
		dst = c.result[:len(own)]
	}
	if err := c.direct(c.sites.all, c.rank(), dst, func(i int) []byte { return c.chunk(x, i, p) }); err != nil {
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

// exchange sends every rank its part of src, and gets this rank's part of theirs.
func (c *call) exchange(dst, src []byte) error {
	p, me := c.size(), c.rank()
	copy(c.chunk(dst, me, p), c.chunk(src, me, p))
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
	return c.flushAll(c.sites.all, me)
}

// meet returns when all ranks have come: in each of log₂ p steps a rank hears of twice as many.
func (c *call) meet() error {
	p, me := c.size(), c.rank()
	for mask, s := 1, 0; mask < p; mask, s = mask<<1, s+1 {
		if err := c.send((me+mask)%p, step(s, 0), nil); err != nil {
			return err
		}
		if err := c.receive((me-mask+p)%p, step(s, 0), nil); err != nil {
			return err
		}
	}
	return nil
}

// flushOpen returns when all that was sent is written.
func (c *call) flushOpen() error {
	for rank := range c.size() {
		if c.lanes.has(rank) {
			if err := c.flush(rank); err != nil {
				return err
			}
		}
	}
	return nil
}
