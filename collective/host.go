package collective

// The verbs of ranks on one host, over shared memory. Data is split into the chunks of a slice
// (call.chunk), one for each of the first ranks.

// smallLocal is the maximum size that every rank combines by itself, in one step instead of two.
const smallLocal = 8 << 10

// onHost runs a verb whose ranks are all on this host.
func (c *call) onHost(p *plan) error {
	l := c.local
	n := len(l.ranks)
	if p.x.n == 0 {
		return l.step(c, 0)
	}
	switch p.verb {
	case allReduce:
		return l.reduce(c, p.x, -1, c.div)
	case reduceTo:
		return l.reduce(c, p.x, p.root, c.div)
	case reduceScatter:
		return l.scatter(c, p.x, n, c.div, p.y)
	case allGather:
		copyVector(c.chunk(p.y, l.me, n), p.x)
		return l.gather(c, p.y, n)
	case broadcast:
		return l.spread(c, p.root, p.x)
	}
	return l.exchange(c, p.y, p.x)
}

// blocks calls f for parts of x that fit into a step.
func (l *local) blocks(c *call, x vector, f func(block vector) error) error {
	capacity := l.capacity(c)
	for x.n > 0 {
		n := min(x.n, capacity)
		if err := f(x.part(0, n)); err != nil {
			return err
		}
		x = x.from(n)
	}
	return nil
}

// reduce combines x on all ranks, or only on the one with index root.
func (l *local) reduce(c *call, x vector, root, div int) error {
	if x.n <= smallLocal {
		if err := l.put(c, x); err != nil || root >= 0 && root != l.me {
			return err
		}
		c.into(div, x, l.all(0, x.n))
		return nil
	}
	return l.blocks(c, x, func(block vector) error { return l.reduceBlock(c, block, root, div) })
}

// reduceBlock posts a block, combines one chunk of all ranks' blocks, and posts the result.
func (l *local) reduceBlock(c *call, x vector, root, div int) error {
	if err := l.put(c, x); err != nil {
		return err
	}
	p := len(l.ranks)
	at, n := c.span(x.n, l.me, p)
	c.into(div, one(l.slot(l.n + 1)[:n]), l.all(at, n))
	if err := l.step(c, n); err != nil || root >= 0 && root != l.me {
		return err
	}
	for i := range l.ranks {
		chunk := c.chunk(x, i, p)
		copyVector(chunk, l.shown(i, 0, chunk.n))
	}
	return nil
}

// parts posts src, and calls f for ranges of this rank's one of its k chunks; view returns such a
// range of what a rank has posted.
func (l *local) parts(c *call, src vector, k int, f func(at, n int, view func(index int) vector)) error {
	each := l.capacity(c) / k / c.elem * c.elem
	for at := 0; at < c.longest(src.n, k); at += each {
		l.pieces = l.pieces[:0]
		before := 0 // offsets in this rank's part, and in those of others
		for i := range k {
			piece := cut(c.chunk(src, i, k), at, each)
			l.pieces = append(l.pieces, piece)
			if i < l.me {
				before += piece.n
			}
		}
		if err := l.putAll(c, l.pieces); err != nil {
			return err
		}
		if l.me < k {
			n := l.pieces[l.me].n
			f(at, n, func(i int) vector { return l.shown(i, before, n) })
		}
	}
	return nil
}

// cut returns at most n bytes of x from at on.
func cut(x vector, at, n int) vector {
	at = min(at, x.n)
	return x.part(at, min(n, x.n-at))
}

// scatter combines this rank's one of k chunks of all ranks' src into dst.
func (l *local) scatter(c *call, src vector, k, div int, dst vector) error {
	return l.parts(c, src, k, func(at, n int, view func(int) vector) {
		l.srcs = l.srcs[:0]
		for i := range l.ranks {
			l.srcs = append(l.srcs, view(i))
		}
		c.into(div, dst.part(at, n), l.srcs)
	})
}

// exchange copies this rank's part of each rank's src.
func (l *local) exchange(c *call, dst, src vector) error {
	p := len(l.ranks)
	return l.parts(c, src, p, func(at, n int, view func(int) vector) {
		for i := range l.ranks {
			copyVector(c.chunk(dst, i, p).part(at, n), view(i))
		}
	})
}

// gather copies the k chunks of x, which the first ranks have, to all ranks.
func (l *local) gather(c *call, x vector, k int) error {
	var mine vector
	if l.me < k {
		mine = c.chunk(x, l.me, k)
	}
	capacity := l.capacity(c)
	for at := 0; at < c.longest(x.n, k); at += capacity {
		if err := l.put(c, cut(mine, at, capacity)); err != nil {
			return err
		}
		for i := range k {
			if piece := cut(c.chunk(x, i, k), at, capacity); i != l.me {
				copyVector(piece, l.shown(i, 0, piece.n))
			}
		}
	}
	return nil
}

// spread copies the x of the rank with index root to all ranks.
func (l *local) spread(c *call, root int, x vector) error {
	return l.blocks(c, x, func(block vector) error {
		if l.me == root {
			return l.put(c, block)
		}
		if err := l.step(c, 0); err != nil {
			return err
		}
		copyVector(block, l.shown(root, 0, block.n))
		return nil
	})
}
