package shm

import "io/fs"

// Span is a block as tests see it.
type Span struct {
	Segment  uint32
	Off, Len int64
	Free     bool
}

// Layout returns the blocks in the segments of a, and the free blocks that Alloc searches, in this
// order.
func Layout(a *Arena) (all, free []Span) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.segs {
		for _, b := range s.blocks {
			all = append(all, Span{s.id, b.off, b.len, b.free()})
		}
	}
	for _, e := range a.free {
		free = append(free, Span{e.b.seg.id, e.b.off, e.len, e.b.free()})
	}
	return all, free
}

// CheckBelow checks n bytes against the limits that are read below root.
func CheckBelow(root fs.FS, n int64) error { return newHost(root).check(n) }

// CheckIn is Room with the limits that an arena has read.
func CheckIn(a *Arena, n int64) error { return a.host.check(n) }

// SetHost makes a read its limits below root.
func SetHost(a *Arena, root fs.FS) { a.host = newHost(root) }

// Touch takes memory in the way for kernels that cannot populate it.
func Touch(mem []byte) { touch(mem) }

// Parse parses a frame and encodes it again.
func Parse(b []byte) (again []byte, n int, err error) {
	f, n, err := parse(b)
	if err != nil || n == 0 {
		return nil, n, err
	}
	size := sizes[f.kind]
	again = appendHeader(nil, f.kind, len(f.body)/size)
	for body := f.body; len(body) > 0; body = body[size:] {
		switch f.kind {
		case kindReturn:
			r, err := readRef(body)
			if err != nil {
				return nil, n, err
			}
			again = appendRef(again, r)
		case kindDrop, kindSegment:
			k, err := readKey(body)
			if err != nil {
				return nil, n, err
			}
			again = append(appendKey(again, k), body[16:size]...)
		}
	}
	return again, n, nil
}

// Bits sets the bits from ≤ i < to in a set of n, and returns the set, and whether all of these
// bits were set before and after.
func Bits(n, from, to int) (set []uint64, before, after bool) {
	set = make([]uint64, (n+63)/64)
	before = allSet(set, from, to)
	setAll(set, from, to)
	return set, before, allSet(set, from, to)
}
