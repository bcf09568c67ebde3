package collective

import "context"

// medium is memory through which the ranks of one host see each other's data. Each rank posts data
// under increasing numbers.
type medium interface {
	// slot returns the buffer, of capacity bytes, for the post with a number. The number after the
	// next uses it again.
	slot(n uint64) []byte
	// post shows what is in the slot to the other ranks.
	post(n uint64, h *head)
	// wait returns true when another rank has posted under a number, and false if it has left, or
	// if over has ended.
	wait(over context.Context, index int, n uint64) bool
	// look returns a rank's post under a number. It may be called from wait until this rank posts
	// under the next number. It returns length bytes of data, whatever the rank's head says, since
	// a faulty rank may have written it.
	look(index int, n uint64, length int) (head, vector)
	leave()
	close()
}

// local is the ranks of one host, including this one, over a medium. All of them take every step
// together. So a rank may replace what it has posted under a number when all have posted under the
// next but one.
type local struct {
	medium
	ranks []int
	me    int // index
	n     uint64
	head  head // of the current post

	srcs, pieces []vector // reused
}

// capacity returns the number of bytes that a step carries, a multiple of the element size.
func (l *local) capacity(c *call) int { return len(l.slot(0)) / c.elem * c.elem }

// step posts n bytes that are in the slot, and returns when all others have posted theirs.
func (l *local) step(c *call, n int) error {
	l.n++
	l.head = c.head
	l.head.length = uint32(n)
	l.post(l.n, &l.head)
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
		if theirs, _ := l.look(i, l.n, 0); !c.head.agrees(theirs) {
			return c.mismatchOf(rank, theirs)
		}
	}
	c.await(-1)
	return nil
}

// put posts a copy of data.
func (l *local) put(c *call, data vector) error {
	copyVector(one(l.slot(l.n+1)), data)
	return l.step(c, data.n)
}

// putAll is put of several slices, one after the other.
func (l *local) putAll(c *call, parts []vector) error {
	slot := one(l.slot(l.n + 1))
	n := 0
	for _, p := range parts {
		copyVector(slot.from(n), p)
		n += p.n
	}
	return l.step(c, n)
}

// shown returns bytes that a rank has posted in the last step.
func (l *local) shown(index, at, length int) vector {
	_, data := l.look(index, l.n, at+length)
	return data.part(at, length)
}

// all returns the same range of bytes of all ranks' posts.
func (l *local) all(at, length int) []vector {
	l.srcs = l.srcs[:0]
	for i := range l.ranks {
		l.srcs = append(l.srcs, l.shown(i, at, length))
	}
	return l.srcs
}
