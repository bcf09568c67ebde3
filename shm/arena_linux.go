package shm

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// grain is the least memory that is reserved at a time, so that small allocations seldom read the
// limits.
const grain = 1 << 20

// Arena allocates memory that can be shared with peers. It is a tensor.Allocator, and safe for
// concurrent use.
type Arena struct {
	id      uint64
	segment int64
	limit   int64
	page    int64
	host    host

	grow sync.Mutex // held while memory is reserved, which takes time; acquired before mu

	mu     sync.Mutex // protects the fields below, the segments and the blocks; acquired after that of a Conn
	closed bool
	next   uint32
	segs   []*segment // by their addresses
	byID   map[uint32]*segment
	free   index
	taken  int64 // the sum of all tops
	inUse  int64
	shared int64
}

// NewArena makes an arena, which takes no memory yet.
func NewArena(o *Options) (*Arena, error) {
	if o == nil {
		o = &Options{}
	}
	page := int64(os.Getpagesize())
	a := &Arena{page: page, limit: o.Limit, segment: o.Segment, host: thisHost(), byID: map[uint32]*segment{}}
	switch {
	case o.Segment < 0 || o.Segment > maxMapped:
		return nil, fmt.Errorf("shm: Options.Segment is %d: give a size in bytes, or 0", o.Segment)
	case o.Limit < 0:
		return nil, fmt.Errorf("shm: Options.Limit is %d: give a size in bytes, or 0 for none", o.Limit)
	case o.Segment == 0:
		a.segment = DefaultSegment
	}
	a.segment = roundUp(a.segment, page)
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	a.id = binary.LittleEndian.Uint64(id[:])
	s, err := newSegment(a.id, 0, page) // to fail now if the system has no such memory
	if err != nil {
		return nil, err
	}
	_ = unix.Munmap(s.mem)
	s.unhold()
	return a, nil
}

// Alloc returns n bytes that begin at a multiple of 64; their capacity is their length, and their
// contents are undefined. The memory is reserved when Alloc returns; otherwise the error is
// ErrFull. Freed memory is reused first; to reserve new memory is slower by far, and one goroutine
// does it at a time.
func (a *Arena) Alloc(n int) ([]byte, error) {
	if n < 0 || n > math.MaxInt-align || int64(n) > maxMapped {
		return nil, fmt.Errorf("shm: Alloc(%d): no memory has that many bytes", n)
	}
	size := roundUp(int64(n), align)
	if b, err := a.reuse(int64(n), size); b != nil || err != nil {
		return b, err
	}
	a.grow.Lock()
	defer a.grow.Unlock()
	if b, err := a.reuse(int64(n), size); b != nil || err != nil { // what the goroutine that had grow left over
		return b, err
	}
	b, err := a.reserve(size)
	if err != nil {
		return nil, err
	}
	return a.commit(b, int64(n), size, a.extend(b, size))
}

// reuse allocates from memory that was reserved before; nil if none fits.
func (a *Arena) reuse(n, size int64) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, ErrClosed
	}
	if size == 0 {
		return []byte{}, nil
	}
	b := a.free.first(size)
	if b == nil {
		return nil, nil
	}
	a.free.remove(b)
	b.seg.live++
	b.seg.owned++
	return a.take(b, n, size), nil
}

// reserve finds the first segment with space for size bytes at its end, or makes one. The block is
// the caller's, the last of its segment, and too short until extend. grow is held.
func (a *Arena) reserve(size int64) (*block, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var first *segment
	for _, s := range a.segs { // which are by address, not by id
		if !s.retired && s.spare() >= size && (first == nil || s.id < first.id) {
			first = s
		}
	}
	if first == nil {
		s, err := a.open(max(a.segment, roundUp(size, a.page)))
		if err != nil {
			return nil, err
		}
		first = s
	}
	b := first.last()
	if b != nil {
		a.free.remove(b)
	} else {
		b = &block{seg: first, off: first.top}
		first.blocks = append(first.blocks, b)
	}
	b.used = true
	first.live++
	first.owned++
	return b, nil
}

// open adds a segment. mu and grow are held; mu is not held during the system call.
func (a *Arena) open(size int64) (*segment, error) {
	if a.next == math.MaxUint32 {
		return nil, fmt.Errorf("shm: the arena has had %d segments, as many as there are names: make a new one", a.next)
	}
	id := a.next
	a.next++
	a.mu.Unlock()
	s, err := newSegment(a.id, id, size)
	if err != nil && a.trim() {
		s, err = newSegment(a.id, id, size)
	}
	a.mu.Lock()
	if err != nil {
		return nil, err
	}
	s.arena = a
	i, _ := slices.BinarySearchFunc(a.segs, address(s.mem), func(s *segment, at uintptr) int { return cmp.Compare(address(s.mem), at) })
	a.segs = slices.Insert(a.segs, i, s)
	a.byID[id] = s
	return s, nil
}

// extend reserves memory for b, which is from reserve, until it has size bytes, or as many as there
// are. grow is held.
func (a *Arena) extend(b *block, size int64) error {
	s, from := b.seg, b.off+b.len // that is top, which only the holder of grow moves
	least := roundUp(b.off+size, a.page) - from
	n, err := a.afford(min(max(least, grain), s.size-from), least)
	if err != nil {
		return err
	}
	to, err := s.populate(from, from+n, a.host)
	a.mu.Lock()
	defer a.mu.Unlock()
	s.top = to
	b.len = to - b.off
	a.taken += to - from
	return err
}

// afford returns how much can be reserved: want, or, if that is too much, least.
func (a *Arena) afford(want, least int64) (int64, error) {
	if a.check(want) == nil {
		return want, nil
	}
	err := a.check(least)
	if err != nil && a.trim() {
		err = a.check(least)
	}
	return least, err
}

// check returns ErrFull unless n more bytes can be reserved.
func (a *Arena) check(n int64) error {
	a.mu.Lock()
	left := a.limit - a.taken
	a.mu.Unlock()
	if a.limit > 0 && n > left {
		return full(n, left, fmt.Sprintf("Options.Limit of %s", amount(a.limit)))
	}
	return a.host.check(n)
}

// commit makes b, which was reserved, an allocation; if err is not nil, it frees b and returns err.
func (a *Arena) commit(b *block, n, size int64, err error) ([]byte, error) {
	a.mu.Lock()
	if a.closed && err == nil {
		err = ErrClosed
	}
	if err == nil {
		defer a.mu.Unlock()
		return a.take(b, n, size), nil
	}
	b.used = false
	b.seg.owned--
	a.release(b)
	gone := a.sweep(func(s *segment) bool { return s == b.seg && s.top == 0 })
	a.mu.Unlock()
	giveBack(gone)
	return nil, err
}

// Free frees exactly what Alloc returned. It is reused as soon as no peer holds any of it. Free
// panics if b is not of this arena, is only a part, or was freed already: such a mistake would
// corrupt other memory. (It does not detect that the same bytes have been allocated again since.)
func (a *Arena) Free(b []byte) {
	if len(b) == 0 {
		return
	}
	a.mu.Lock()
	bl, fault := a.freeable(b)
	if fault != "" {
		a.mu.Unlock()
		panic("shm: Free of " + fault)
	}
	bl.used = false
	bl.seg.owned--
	a.freeIfUnused(bl)
	gone := a.sweep(func(*segment) bool { return false })
	a.mu.Unlock()
	giveBack(gone)
}

// freeable returns b's block, or what is wrong with b. mu is held.
func (a *Arena) freeable(b []byte) (*block, string) {
	s, off := a.locate(b)
	if s == nil {
		return nil, fmt.Sprintf("%d bytes that are not of this arena", len(b))
	}
	if off >= s.top {
		return nil, fmt.Sprintf("%d bytes that Alloc did not give", len(b))
	}
	bl := s.blocks[s.at(off)]
	switch {
	case !bl.used:
		return nil, fmt.Sprintf("%d bytes that were freed already", len(b))
	case bl.off != off || bl.n != int64(len(b)):
		return nil, fmt.Sprintf("%d bytes at %d of an allocation of %d: give all of it", len(b), off-bl.off, bl.n)
	}
	return bl, ""
}

// freeIfUnused frees bl if it is neither allocated nor shared. mu is held.
func (a *Arena) freeIfUnused(bl *block) {
	if bl.free() && !bl.seg.gone {
		a.inUse -= bl.len
		a.release(bl)
	}
}

// locate returns where b begins; nil if that is not in this arena. mu is held.
func (a *Arena) locate(b []byte) (*segment, int64) {
	at := address(b)
	i, found := slices.BinarySearchFunc(a.segs, at, func(s *segment, at uintptr) int { return cmp.Compare(address(s.mem), at) })
	if !found {
		i--
	}
	if i < 0 {
		return nil, 0
	}
	off := int64(at - address(a.segs[i].mem))
	if off >= a.segs[i].size {
		return nil, 0
	}
	return a.segs[i], off
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Find returns the ref of b, which is what Alloc returned or a part of it. It is false if b is not
// of this arena, was freed, or is empty, and after Close.
func (a *Arena) Find(b []byte) (Ref, bool) {
	if len(b) == 0 {
		return Ref{}, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s, off := a.locate(b)
	if s == nil || a.closed {
		return Ref{}, false
	}
	r := Ref{Arena: a.id, Segment: s.id, Offset: off, Len: int64(len(b))}
	_, err := a.allocation(r)
	return r, err == nil
}

// allocation returns the allocation that r is a part of. mu is held.
func (a *Arena) allocation(r Ref) (*block, error) {
	s := a.byID[r.Segment]
	if r.Arena != a.id || s == nil {
		return nil, fmt.Errorf("%+v is not of this arena", r)
	}
	if r.Offset < 0 || r.Len < 1 || r.Offset >= s.top {
		return nil, fmt.Errorf("%+v is no part of an allocation", r)
	}
	b := s.blocks[s.at(r.Offset)]
	if !b.used || r.Len > b.n-(r.Offset-b.off) {
		return nil, fmt.Errorf("%+v is no part of one allocation that is in use", r)
	}
	return b, nil
}

// Trim gives empty segments back to the host. Peers that have them mapped are notified, and the
// host has the memory when they have unmapped them.
func (a *Arena) Trim() { a.trim() }

// trim reports whether it gave something back.
func (a *Arena) trim() bool {
	a.mu.Lock()
	gone := a.sweep(func(s *segment) bool { return s.live == 0 })
	a.mu.Unlock()
	giveBack(gone)
	return len(gone) > 0
}

// sweep removes segments from the arena: those for which also is true, and those that can never be
// used again. mu is held; the caller gives them back after it has released mu.
func (a *Arena) sweep(also func(*segment) bool) (gone []*segment) {
	leaves := func(s *segment) bool {
		return s.retired && s.live == 0 || a.closed && s.owned == 0 || also(s)
	}
	if !slices.ContainsFunc(a.segs, leaves) {
		return nil
	}
	a.segs = slices.DeleteFunc(a.segs, func(s *segment) bool {
		if !leaves(s) {
			return false
		}
		a.retire(s)
		s.gone = true
		delete(a.byID, s.id)
		a.taken -= s.top
		for _, b := range s.blocks { // what is shared of a closed arena
			if !b.free() {
				a.inUse -= b.len
				a.shared -= b.len
			}
		}
		gone = append(gone, s)
		return true
	})
	return gone
}

// giveBack unmaps segments that were removed from their arenas, and notifies the peers that have
// them. No lock is held.
func giveBack(gone []*segment) {
	for _, s := range gone {
		_ = unix.Munmap(s.mem)
		s.unhold()
		s.arena.mu.Lock()
		conns := s.conns
		s.conns = map[*Conn]struct{}{}
		s.arena.mu.Unlock()
		for c := range conns {
			c.drop(key{s.arena.id, s.id})
		}
	}
}

// Stats returns the arena's sizes and counts.
func (a *Arena) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	st := Stats{Segments: len(a.segs), Taken: a.taken, InUse: a.inUse, Shared: a.shared}
	for _, s := range a.segs {
		st.Mapped += s.size
		if s.retired {
			st.Retired++
		}
	}
	return st
}

// Close ends the arena: Alloc and Share return ErrClosed. Segments of which all was freed are given
// back at once, even if something of them is shared: a peer's mapping is its own and lives as long
// as its Blocks. A slice that was not freed stays valid, with its segment, until Free. Close may be
// called twice, and always returns nil.
func (a *Arena) Close() error {
	a.mu.Lock()
	a.closed = true
	gone := a.sweep(func(*segment) bool { return false })
	a.mu.Unlock()
	giveBack(gone)
	return nil
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }
