package collective

// The verbs of ranks on one host, over what they show each other. Where data are parted, they are the chunks of a slice (call.chunk), of
// which the first ranks have one each.

// smallLocal is the most bytes that every rank combines by itself: one step instead of two.
const smallLocal = 8 << 10

// onHost does a verb whose ranks are all here.
func (c *call) onHost(p *plan) error {
	l := c.local
	n := len(l.ranks)
	if len(p.x) == 0 {
		return l.step(c, nil)
	}
	switch p.verb {
	case allReduce:
		return l.reduce(c, p.x, -1, c.div)
	case reduceTo:
		return l.reduce(c, p.x, p.root, c.div)
	case reduceScatter:
		return l.scatter(c, p.x, n, c.div, p.y)
	case allGather:
		copy(c.chunk(p.y, l.me, n), p.x)
		return l.gather(c, p.y, n)
	case broadcast:
		return l.spread(c, p.root, p.x)
	}
	return l.exchange(c, p.y, p.x)
}

// blocks calls f for parts of x that fit into a step.
func (l *local) blocks(c *call, x []byte, f func(block []byte) error) error {
	room := l.room(c)
	for len(x) > 0 {
		n := min(len(x), room)
		if err := f(x[:n:n]); err != nil {
			return err
		}
		x = x[n:]
	}
	return nil
}

// reduce combines x on all ranks, or on the one with index root alone.
func (l *local) reduce(c *call, x []byte, root, div int) error {
	switch {
	case len(x) <= smallLocal:
		if err := l.put(c, x); err != nil || root >= 0 && root != l.me {
			return err
		}
		c.into(div, x, l.all(0, len(x)))
		return nil
	case l.direct():
		return l.reduceDirect(c, x, root, div)
	}
	return l.blocks(c, x, func(block []byte) error { return l.reduceBlock(c, block, root, div) })
}

// reduceDirect has each rank combine its chunk of everybody's x, and write it there.
func (l *local) reduceDirect(c *call, x []byte, root, div int) error {
	if err := l.step(c, x); err != nil {
		return err
	}
	at, n := c.span(x, l.me, len(l.ranks))
	srcs := l.all(at, n)
	dsts := srcs
	if root >= 0 {
		dsts = srcs[root : root+1]
	}
	c.intoAll(div, dsts, srcs)
	return l.end(c)
}

// reduceBlock shows a block, combines a chunk of everybody's, and shows that.
func (l *local) reduceBlock(c *call, x []byte, root, div int) error {
	if err := l.put(c, x); err != nil {
		return err
	}
	p := len(l.ranks)
	at, n := c.span(x, l.me, p)
	result := l.slot(l.n + 1)[:n]
	c.into(div, result, l.all(at, n))
	if err := l.step(c, result); err != nil || root >= 0 && root != l.me {
		return err
	}
	for i := range l.ranks {
		chunk := c.chunk(x, i, p)
		copy(chunk, l.shown(i, 0, len(chunk)))
	}
	return nil
}

// parts shows src, and calls f for bytes of this rank's one of its k chunks, from at on, which view finds in what a rank has shown.
func (l *local) parts(c *call, src []byte, k int, f func(at, n int, view func(index int) []byte)) error {
	if l.direct() {
		if err := l.step(c, src); err != nil {
			return err
		}
		if l.me < k {
			at, n := c.span(src, l.me, k)
			f(0, n, func(i int) []byte { return l.shown(i, at, n) })
		}
		return l.end(c)
	}
	each := l.room(c) / k / c.elem * c.elem
	for at := 0; at < c.longest(src, k); at += each {
		l.pieces = l.pieces[:0]
		before := 0 // of this rank's part, of others'
		for i := range k {
			piece := cut(c.chunk(src, i, k), at, each)
			l.pieces = append(l.pieces, piece)
			if i < l.me {
				before += len(piece)
			}
		}
		if err := l.putAll(c, l.pieces); err != nil {
			return err
		}
		if l.me < k {
			n := len(l.pieces[l.me])
			f(at, n, func(i int) []byte { return l.shown(i, before, n) })
		}
	}
	return nil
}

// cut is what x has of n bytes from at on.
func cut(x []byte, at, n int) []byte { return x[min(at, len(x)):min(at+n, len(x))] }

// scatter combines this rank's one of k chunks of everybody's src into dst.
func (l *local) scatter(c *call, src []byte, k, div int, dst []byte) error {
	return l.parts(c, src, k, func(at, n int, view func(int) []byte) {
		l.srcs = l.srcs[:0]
		for i := range l.ranks {
			l.srcs = append(l.srcs, view(i))
		}
		c.into(div, dst[at:][:n], l.srcs)
	})
}

// exchange gets this rank's part of everybody's src.
func (l *local) exchange(c *call, dst, src []byte) error {
	p := len(l.ranks)
	return l.parts(c, src, p, func(at, n int, view func(int) []byte) {
		for i := range l.ranks {
			copy(c.chunk(dst, i, p)[at:][:n], view(i))
		}
	})
}

// gather brings the k chunks of x, which the first ranks have, to all.
func (l *local) gather(c *call, x []byte, k int) error {
	var mine []byte
	if l.me < k {
		mine = c.chunk(x, l.me, k)
	}
	if l.direct() {
		if err := l.step(c, x); err != nil {
			return err
		}
		for i := range k {
			if at, n := c.span(x, i, k); i != l.me {
				copy(x[at:], l.shown(i, at, n))
			}
		}
		return l.end(c)
	}
	room := l.room(c)
	for at := 0; at < c.longest(x, k); at += room {
		if err := l.put(c, cut(mine, at, room)); err != nil {
			return err
		}
		for i := range k {
			if piece := cut(c.chunk(x, i, k), at, room); i != l.me {
				copy(piece, l.shown(i, 0, len(piece)))
			}
		}
	}
	return nil
}

// spread brings the x of the rank with index root to all.
func (l *local) spread(c *call, root int, x []byte) error {
	show := func(x []byte) []byte {
		if l.me == root {
			return x
		}
		return nil
	}
	if l.direct() && len(x) > l.room(c) {
		if err := l.step(c, show(x)); err != nil {
			return err
		}
		if l.me != root {
			copy(x, l.shown(root, 0, len(x)))
		}
		return l.end(c)
	}
	return l.blocks(c, x, func(block []byte) error {
		if err := l.put(c, show(block)); err != nil {
			return err
		}
		if l.me != root {
			copy(block, l.shown(root, 0, len(block)))
		}
		return nil
	})
}
