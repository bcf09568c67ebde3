package collective

import "slices"

// Algorithms over connections. All ranks use x in the same order, that of the list of ranks, in
// which this rank has index me; and all ranks do the same steps, so that a receiver knows what
// arrives.

// pieceLen is the maximum size of a message: a piece is combined and sent on while the next one
// arrives.
const pieceLen = 256 << 10

// pieces calls f for pieces of x, each a message, which may span several slices: many small slices
// make few messages. An empty x is one empty message, so that a rank without data still sends its
// head.
func pieces(x vector, f func(part uint32, piece vector) error) error {
	for part := uint32(0); ; part++ {
		n := min(x.n, pieceLen)
		if err := f(part, x.part(0, n)); err != nil {
			return err
		}
		if x = x.from(n); x.n == 0 {
			return nil
		}
	}
}

// step returns the part number of a piece in a step of an algorithm.
func step(s int, piece uint32) uint32 { return uint32(s)<<20 | piece }

// ring reduces x on all ranks. Each chunk goes round twice: first it is combined with that of every
// rank, beginning after its owner, then the result is copied to every rank. (See Patarasuk and
// Yuan, Bandwidth optimal all-reduce algorithms, 2009.)
func (c *call) ring(ranks []int, me int, x vector) error {
	p := len(ranks)
	next, prev := ranks[(me+1)%p], ranks[(me+p-1)%p]
	err := pieces(c.chunk(x, me, p), func(n uint32, piece vector) error { return c.send(next, step(0, n), piece) })
	for s := 0; s < 2*(p-1) && err == nil; s++ {
		div := 1
		if s == p-2 {
			div = c.div
		}
		err = pieces(c.chunk(x, (me-s-1+2*p)%p, p), func(n uint32, piece vector) error {
			if err := c.ringPiece(prev, step(s, n), piece, s < p-1, div); err != nil || s == 2*(p-1)-1 {
				return err
			}
			return c.send(next, step(s+1, n), piece)
		})
	}
	if err != nil {
		return err
	}
	return c.flush(next)
}

// ringPiece receives a piece, and combines it with this rank's or replaces this rank's by it.
func (c *call) ringPiece(from int, part uint32, piece vector, combine bool, div int) error {
	if !combine {
		return c.receive(from, part, piece)
	}
	got := one(c.buffer(piece.n))
	if err := c.receive(from, part, got); err != nil {
		return err
	}
	c.combine(div, piece, got, piece)
	return nil
}

// ringGather copies each rank's chunk of x, which is already in its place, to all ranks.
func (c *call) ringGather(ranks []int, me int, chunk func(i int) vector) error {
	p := len(ranks)
	next, prev := ranks[(me+1)%p], ranks[(me+p-1)%p]
	err := pieces(chunk(me), func(n uint32, piece vector) error { return c.send(next, step(0, n), piece) })
	for s := 0; s < p-1 && err == nil; s++ {
		err = pieces(chunk((me-s-1+p)%p), func(n uint32, piece vector) error {
			if err := c.receive(prev, step(s, n), piece); err != nil || s == p-2 {
				return err
			}
			return c.send(next, step(s+1, n), piece)
		})
	}
	if err != nil {
		return err
	}
	return c.flush(next)
}

// direct sends every rank its part of src, and combines the parts for this rank into dst, in the
// order of the ranks: each element is rounded once. dst may be this rank's own part.
func (c *call) direct(ranks []int, me int, dst vector, part func(i int) vector) error {
	p := len(ranks)
	for s := 1; s < p; s++ {
		to := (me + s) % p
		err := c.sendAll(ranks[to], 0, part(to))
		if err != nil {
			return err
		}
	}
	own := part(me)
	all := c.buffer(p * min(pieceLen, own.n))
	srcs := slices.Grow(c.parts[:0], p)[:p]
	c.parts = srcs
	err := pieces(own, func(n uint32, piece vector) error {
		for i := range ranks {
			if srcs[i] = piece; i != me {
				srcs[i] = one(all[i*len(all)/p:][:piece.n])
				if err := c.receive(ranks[i], step(0, n), srcs[i]); err != nil {
					return err
				}
			}
		}
		c.into(c.div, dst.part(0, piece.n), srcs)
		dst = dst.from(piece.n)
		return nil
	})
	if err != nil {
		return err
	}
	return c.flushAll(ranks, me)
}

func (c *call) flushAll(ranks []int, me int) error {
	for i, r := range ranks {
		if i != me {
			if err := c.flush(r); err != nil {
				return err
			}
		}
	}
	return nil
}
