package shm

import (
	"cmp"
	"slices"
)

// align is what the addresses of allocations are a multiple of: a cache line, and more than any
// dtype needs.
const align = 64

// block is a piece of a segment: free, or an allocation. The arena's mu protects it.
type block struct {
	seg      *segment
	off, len int64
	n        int64 // of an allocation: the bytes that were asked for
	used     bool  // from Alloc to Free, and while memory is reserved for it
	shared   int   // refs shared and not released by the peer, even after Free
}

func (b *block) free() bool { return !b.used && b.shared == 0 }

// at is the index of the block that off is in, which is below top.
func (s *segment) at(off int64) int {
	i, found := slices.BinarySearchFunc(s.blocks, off, func(b *block, off int64) int { return cmp.Compare(b.off, off) })
	if !found {
		i--
	}
	return i
}

// last is the block that ends at top if it is free; otherwise nil.
func (s *segment) last() *block {
	if len(s.blocks) == 0 || !s.blocks[len(s.blocks)-1].free() {
		return nil
	}
	return s.blocks[len(s.blocks)-1]
}

// spare is how large an allocation at the segment's end can be.
func (s *segment) spare() int64 {
	n := s.size - s.top
	if b := s.last(); b != nil {
		n += b.len
	}
	return n
}

// index has the blocks that can be reused, by segment and offset. The first that fits is used: a
// caller that allocates the same sizes again, after all was freed, gets the same places again, and
// reserves no new memory. (With the smallest that fits it may not.)
type index []entry

// entry keeps what a search reads close together.
type entry struct {
	len int64
	b   *block
}

func (e entry) compare(o entry) int {
	return cmp.Or(cmp.Compare(e.b.seg.id, o.b.seg.id), cmp.Compare(e.b.off, o.b.off))
}

// first is the first block that has size bytes; nil if there is none.
func (x index) first(size int64) *block {
	for i := range x {
		if x[i].len >= size {
			return x[i].b
		}
	}
	return nil
}

func (x *index) add(b *block) {
	e := entry{b.len, b}
	i, _ := slices.BinarySearchFunc(*x, e, entry.compare)
	*x = slices.Insert(*x, i, e)
}

func (x *index) remove(b *block) {
	if i, found := slices.BinarySearchFunc(*x, entry{b.len, b}, entry.compare); found {
		*x = slices.Delete(*x, i, i+1)
	}
}

// take makes b, which is in no index, an allocation of n bytes that fills size of it. The rest is
// free. mu is held.
func (a *Arena) take(b *block, n, size int64) []byte {
	s := b.seg
	if rest := b.len - size; rest > 0 {
		r := &block{seg: s, off: b.off + size, len: rest}
		s.blocks = slices.Insert(s.blocks, s.at(b.off)+1, r)
		b.len = size
		a.reusable(r)
	}
	b.used, b.n = true, n
	a.inUse += b.len
	return s.mem[b.off : b.off+n : b.off+n]
}

// release frees b, and merges it with free neighbours. mu is held.
func (a *Arena) release(b *block) {
	s := b.seg
	s.live--
	b.n = 0
	i := s.at(b.off)
	from, to := i, i+1
	if from > 0 && s.blocks[from-1].free() {
		from--
	}
	if to < len(s.blocks) && s.blocks[to].free() {
		to++
	}
	for _, n := range s.blocks[from:to] {
		if n != b {
			a.free.remove(n)
		}
	}
	begin, end := s.blocks[from].off, s.blocks[to-1].off+s.blocks[to-1].len
	if begin == end { // nothing was reserved
		s.blocks = slices.Delete(s.blocks, from, to)
		return
	}
	b.off, b.len = begin, end-begin
	s.blocks = slices.Replace(s.blocks, from, to, b)
	a.reusable(b)
}

// reusable adds b to the index, unless its segment is retired. mu is held.
func (a *Arena) reusable(b *block) {
	if !b.seg.retired {
		a.free.add(b)
	}
}

// retire takes the free blocks of s from the index, permanently. mu is held.
func (a *Arena) retire(s *segment) {
	if s.retired {
		return
	}
	s.retired = true
	for _, b := range s.blocks {
		if b.free() {
			a.free.remove(b)
		}
	}
}
