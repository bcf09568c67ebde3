package collective

import "math/bits"

// fold reduces the number of ranks to a power of two, for algorithms that need one: pairs of the
// first ranks combine their data until the rest is a power of two. (See Rabenseifner, Optimization
// of Collective Reduction Operations, 2004.)
type fold struct {
	*call
	ranks []int
	me    int
	p     int // the power of two
	rest  int // number of pairs
	id    int // number among those p; -1: the other rank of the pair takes part
}

const (
	foldIn  = 1 << 10 // steps of the messages before and after the algorithm
	foldOut = 1<<10 + 1
)

func (c *call) fold(ranks []int, me int) *fold {
	f := &fold{call: c, ranks: ranks, me: me, p: 1 << (bits.Len(uint(len(ranks))) - 1)}
	f.rest = len(ranks) - f.p
	switch {
	case me >= 2*f.rest:
		f.id = me - f.rest
	case me%2 == 1:
		f.id = me / 2
	default:
		f.id = -1
	}
	return f
}

// rank returns the rank with a number among the power of two.
func (f *fold) rank(id int) int {
	if id < f.rest {
		return f.ranks[2*id+1]
	}
	return f.ranks[id+f.rest]
}

// begin combines the data of the pairs, and end sends the result to the ranks that took no part.
func (f *fold) begin(x vector) error {
	switch {
	case f.id < 0:
		if err := f.sendAll(f.ranks[f.me+1], foldIn, x); err != nil {
			return err
		}
		return f.flush(f.ranks[f.me+1])
	case f.me < 2*f.rest:
		return f.combineWith(f.ranks[f.me-1], foldIn, x, 1, true)
	}
	return nil
}

func (f *fold) end(x vector) error {
	switch {
	case f.id < 0:
		return f.receiveAll(f.ranks[f.me+1], foldOut, x)
	case f.me < 2*f.rest:
		if err := f.sendAll(f.ranks[f.me-1], foldOut, x); err != nil {
			return err
		}
		return f.flush(f.ranks[f.me-1])
	}
	return nil
}

func (c *call) sendAll(to, s int, x vector) error {
	return pieces(x, func(n uint32, piece vector) error { return c.send(to, step(s, n), piece) })
}

func (c *call) receiveAll(from, s int, x vector) error {
	return pieces(x, func(n uint32, piece vector) error { return c.receive(from, step(s, n), piece) })
}

// combineWith receives a rank's x, and combines it with this rank's: theirs first if lower is set.
// So both ranks of a pair get the same bits.
func (c *call) combineWith(from, s int, x vector, div int, lower bool) error {
	return pieces(x, func(n uint32, piece vector) error {
		got := one(c.buffer(piece.n))
		if err := c.receive(from, step(s, n), got); err != nil {
			return err
		}
		if lower {
			c.combine(div, piece, got, piece)
		} else {
			c.combine(div, piece, piece, got)
		}
		return nil
	})
}

// doubling reduces x on all ranks: in each step, pairs exchange all of it.
func (c *call) doubling(ranks []int, me int, x vector) error {
	f := c.fold(ranks, me)
	if err := f.begin(x); err != nil {
		return err
	}
	for mask, s := 1, 0; mask < f.p && f.id >= 0; mask, s = mask<<1, s+1 {
		partner := f.id ^ mask
		to, div := f.rank(partner), 1
		if mask == f.p/2 {
			div = c.div
		}
		if err := c.sendAll(to, s, x); err != nil {
			return err
		}
		if x.n > smallMessage { // it is sent from x itself, which changes now
			if err := c.exchangeLarge(to, s, x, div, partner < f.id); err != nil {
				return err
			}
			continue
		}
		if err := c.flush(to); err != nil {
			return err
		}
		if err := c.combineWith(to, s, x, div, partner < f.id); err != nil {
			return err
		}
	}
	return f.end(x)
}

// exchangeLarge receives all of a partner's x before it changes this rank's.
func (c *call) exchangeLarge(with, s int, x vector, div int, lower bool) error {
	got := one(c.buffer(x.n))
	if err := c.receiveAll(with, s, got); err != nil {
		return err
	}
	if err := c.flush(with); err != nil {
		return err
	}
	if lower {
		c.combine(div, x, got, x)
	} else {
		c.combine(div, x, x, got)
	}
	return nil
}

// halving reduces x on all ranks by recursive halving and doubling (Rabenseifner): pairs exchange
// halves, then halves of those, until each rank has a part of the result; then the same steps in
// reverse.
func (c *call) halving(ranks []int, me int, x vector) error {
	f := c.fold(ranks, me)
	if err := f.begin(x); err != nil {
		return err
	}
	if f.id >= 0 {
		if err := f.halve(x, f.p/2, 0); err != nil {
			return err
		}
	}
	return f.end(x)
}

func (f *fold) halve(x vector, mask, s int) error {
	if mask == 0 {
		return nil
	}
	partner := f.id ^ mask
	to, div := f.rank(partner), 1
	if mask == 1 {
		div = f.div
	}
	mine, theirs := f.chunk(x, 0, 2), f.chunk(x, 1, 2)
	if f.id&mask != 0 {
		mine, theirs = theirs, mine
	}
	if err := f.sendAll(to, 2*s, theirs); err != nil {
		return err
	}
	if err := f.combineWith(to, 2*s, mine, div, partner < f.id); err != nil {
		return err
	}
	if err := f.halve(mine, mask/2, s+1); err != nil {
		return err
	}
	if err := f.sendAll(to, 2*s+1, mine); err != nil {
		return err
	}
	if err := f.receiveAll(to, 2*s+1, theirs); err != nil {
		return err
	}
	return f.flush(to)
}
