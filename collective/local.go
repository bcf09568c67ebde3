package collective

import (
	"context"
)

// medium is memory that the ranks of one node see of each other. Each rank posts, under numbers that grow, what the others may look at.
type medium interface {
	// slot is where what is posted under a number may be put: room bytes. It is used again for the number after the next.
	slot(n uint64) []byte
	// post shows the others data, which is at the beginning of the slot, or, if the medium is direct, anywhere.
	post(n uint64, h *head, data []byte)
	// wait returns when another rank has posted under a number; false if it has left, or if over has ended.
	wait(over context.Context, index int, n uint64) bool
	// look is what a rank has posted under a number, from wait until this rank posts under the next.
	look(index int, n uint64) (head, []byte)
	// direct reports whether ranks may also write to what others have posted.
	direct() bool
	leave()
	close()
}

// local is the ranks of one node, this one among them, over a medium. All of them take every step together: so what one has posted under a
// number may be replaced when all have posted under the next but one.
type local struct {
	medium
	ranks []int
	me    int // index
	n     uint64

	srcs [][]byte
}

// smallLocal is the most bytes that every rank combines by itself: one step instead of two.
const smallLocal = 8 << 10

// room is how many bytes a step brings, of whole elements.
func (l *local) room(c *call) int { return len(l.slot(0)) / c.elem * c.elem }

// step shows data, and returns when all others have shown theirs.
func (l *local) step(c *call, data []byte) error {
	l.n++
	h := c.head
	h.length = uint32(len(data))
	l.post(l.n, &h, data)
	for i, rank := range l.ranks {
		if i == l.me {
			continue
		}
		c.await(rank)
		if !l.wait(c.over, i, l.n) {
			if c.over.Err() != nil {
				return c.broken(rank, context.Cause(c.over))
			}
			return c.left(rank)
		}
		if theirs, _ := l.look(i, l.n); !c.head.agrees(theirs) {
			return c.disagree(rank, theirs)
		}
	}
	c.await(-1)
	return nil
}

// put is step with a copy of data.
func (l *local) put(c *call, parts ...[]byte) error {
	slot := l.slot(l.n + 1)
	n := 0
	for _, p := range parts {
		n += copy(slot[n:], p)
	}
	return l.step(c, slot[:n])
}

// shown is what a rank has shown in the last step.
func (l *local) shown(index int) []byte {
	_, data := l.look(index, l.n)
	return data
}

// all are views of the same part of what all ranks have shown.
func (l *local) all(part func(data []byte) []byte) [][]byte {
	l.srcs = l.srcs[:0]
	for i := range l.ranks {
		l.srcs = append(l.srcs, part(l.shown(i)))
	}
	return l.srcs
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
		c.into(div, x, l.all(func(data []byte) []byte { return data }))
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
	p := len(l.ranks)
	srcs := l.all(func(data []byte) []byte { return c.chunk(data, l.me, p) })
	dsts := srcs
	if root >= 0 {
		dsts = srcs[root : root+1]
	}
	c.intoAll(div, dsts, srcs)
	return l.step(c, nil)
}

// reduceBlock shows a block, combines a chunk of everybody's, and shows that.
func (l *local) reduceBlock(c *call, x []byte, root, div int) error {
	p := len(l.ranks)
	if err := l.put(c, x); err != nil {
		return err
	}
	mine := c.chunk(x, l.me, p)
	result := l.slot(l.n + 1)[:len(mine)]
	c.into(div, result, l.all(func(data []byte) []byte { return c.chunk(data, l.me, p) }))
	if err := l.step(c, result); err != nil {
		return err
	}
	if root >= 0 && root != l.me {
		return nil
	}
	for i := range l.ranks {
		copy(c.chunk(x, i, p), l.shown(i))
	}
	return nil
}

// parts shows src, of which each rank has an equal part, and calls f for what is at at, n bytes, in the parts that are this rank's.
func (l *local) parts(c *call, src []byte, f func(at, n int, view func(index int) []byte)) error {
	p := len(l.ranks)
	size := len(src) / p
	if l.direct() {
		if err := l.step(c, src); err != nil {
			return err
		}
		f(0, size, func(i int) []byte { return l.shown(i)[l.me*size:][:size] })
		return l.step(c, nil)
	}
	each := l.room(c) / p / c.elem * c.elem
	parts := make([][]byte, p)
	for at := 0; at < size; at += each {
		n := min(each, size-at)
		for i := range parts {
			parts[i] = src[i*size+at:][:n]
		}
		if err := l.put(c, parts...); err != nil {
			return err
		}
		f(at, n, func(i int) []byte { return l.shown(i)[l.me*n:][:n] })
	}
	return nil
}

// scatter combines this rank's part of everybody's src into dst.
func (l *local) scatter(c *call, dst, src []byte) error {
	return l.parts(c, src, func(at, n int, view func(int) []byte) {
		l.srcs = l.srcs[:0]
		for i := range l.ranks {
			l.srcs = append(l.srcs, view(i))
		}
		c.into(c.div, dst[at:][:n], l.srcs)
	})
}

// exchange gets this rank's part of everybody's src.
func (l *local) exchange(c *call, dst, src []byte) error {
	size := len(src) / len(l.ranks)
	return l.parts(c, src, func(at, n int, view func(int) []byte) {
		for i := range l.ranks {
			copy(dst[i*size+at:][:n], view(i))
		}
	})
}

// gather gets everybody's src.
func (l *local) gather(c *call, dst, src []byte) error {
	if l.direct() {
		if err := l.step(c, src); err != nil {
			return err
		}
		for i := range l.ranks {
			copy(dst[i*len(src):][:len(src)], l.shown(i))
		}
		return l.step(c, nil)
	}
	at := 0
	return l.blocks(c, src, func(block []byte) error {
		if err := l.put(c, block); err != nil {
			return err
		}
		for i := range l.ranks {
			copy(dst[i*len(src)+at:][:len(block)], l.shown(i))
		}
		at += len(block)
		return nil
	})
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
			copy(x, l.shown(root))
		}
		return l.step(c, nil)
	}
	return l.blocks(c, x, func(block []byte) error {
		if err := l.put(c, show(block)); err != nil {
			return err
		}
		if l.me != root {
			copy(block, l.shown(root))
		}
		return nil
	})
}
