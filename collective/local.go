package collective

import (
	"context"
	"errors"
)

// medium is memory that the ranks of one node see of each other. Each rank posts, under numbers
// that grow, what the others may look at.
type medium interface {
	// slot is the buffer for what is posted under a number: capacity bytes. It is used again for
	// the number after the next.
	slot(n uint64) []byte
	// post shows the others data, which is at the beginning of the slot, or, if the medium is
	// direct, anywhere.
	post(n uint64, h *head, data vector)
	// wait returns when another rank has posted under a number; false if it has left, or if over
	// has ended.
	wait(over context.Context, index int, n uint64) bool
	// look is what a rank has posted under a number, from wait until this rank posts under the
	// next. Of the data it shows as much as is asked for, whatever the rank says: it may have gone
	// wrong.
	look(index int, n uint64, length int) (head, vector)
	// direct reports whether ranks may also write to what others have posted, which is theirs.
	direct() bool
	// hold begins the use of what others have posted, and unhold ends it; it is false if one of
	// them has withdrawn. A rank that withdraws waits until what it has posted is not used any
	// more.
	hold() bool
	unhold()
	withdraw()
	leave()
	close()
}

// local is the ranks of one node, this one among them, over a medium. All of them take every step
// together: so what one has posted under a number may be replaced when all have posted under the
// next but one.
type local struct {
	medium
	ranks []int
	me    int // index
	n     uint64
	head  head // of what is posted

	srcs, pieces []vector // used again
}

// capacity is how many bytes a step carries, of whole elements.
func (l *local) capacity(c *call) int { return len(l.slot(0)) / c.elem * c.elem }

// step shows data, and returns when all others have shown theirs.
func (l *local) step(c *call, data vector) error {
	l.unhold()
	l.n++
	l.head = c.head
	l.head.length = uint32(data.n)
	l.post(l.n, &l.head, data)
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
	if !l.hold() {
		return c.broken(l.ranks[0], errRetreat)
	}
	return nil
}

var errRetreat = errors.New("another rank has failed")

// end returns when all others have used what this one has shown, as this one has what they have.
func (l *local) end(c *call) error {
	err := l.step(c, vector{})
	l.unhold()
	return err
}

// put is step with a copy of data.
func (l *local) put(c *call, data vector) error {
	slot := one(l.slot(l.n + 1)[:data.n])
	copyVector(slot, data)
	return l.step(c, slot)
}

// putAll is put of several slices, one behind the other.
func (l *local) putAll(c *call, parts []vector) error {
	slot := one(l.slot(l.n + 1))
	n := 0
	for _, p := range parts {
		copyVector(slot.from(n), p)
		n += p.n
	}
	return l.step(c, slot.part(0, n))
}

// shown are bytes that a rank has shown in the last step.
func (l *local) shown(index, at, length int) vector {
	_, data := l.look(index, l.n, at+length)
	return data.part(at, length)
}

// all are views of the same bytes that all ranks have shown.
func (l *local) all(at, length int) []vector {
	l.srcs = l.srcs[:0]
	for i := range l.ranks {
		l.srcs = append(l.srcs, l.shown(i, at, length))
	}
	return l.srcs
}
