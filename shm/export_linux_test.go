package shm

import "io/fs"

// Span is a block as tests see it.
type Span struct {
	Segment  uint32
	Off, Len int64
	Free     bool
}

// Layout is what the segments of a are made of, and what of it Alloc looks at, in this order.
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

// RoomBelow is what the limits that are read below root say about n bytes.
func RoomBelow(root fs.FS, n int64) error { return newHost(root).check(n) }

// RoomOf is Room for what an arena has seen.
func RoomOf(a *Arena, n int64) error { return a.host.check(n) }

// SetHost makes a look for limits below root.
func SetHost(a *Arena, root fs.FS) { a.host = newHost(root) }

// Touch is how memory is taken by kernels that cannot populate.
func Touch(mem []byte) { touch(mem) }

// Parse parses a frame and writes it again.
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

// Bits are the bits from ≤ i < to in a set of n, and whether the set says that they are all there
// before and after.
func Bits(n, from, to int) (set []uint64, before, after bool) {
	set = make([]uint64, (n+63)/64)
	before = allSet(set, from, to)
	setAll(set, from, to)
	return set, before, allSet(set, from, to)
}
