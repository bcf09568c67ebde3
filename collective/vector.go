package collective

import "iter"

// vector is the data of a verb: several slices, or a range of them, that are treated as one
// contiguous slice without being copied into one. It is a value of fixed size: a part of a vector
// is another vector of the same memory, and making one allocates nothing. Slices begin and end
// between elements, so that every part with whole elements is made of slices with whole elements.
type vector struct {
	head []byte   // the first contiguous bytes, at most n; empty only if n is 0
	rest [][]byte // the slices after it; those at the end may lie beyond n
	n    int      // bytes
}

// one returns a vector of a single slice.
func one(x []byte) vector { return vector{head: x, n: len(x)} }

// vectorOf returns a vector of xs, one after the other.
func vectorOf(xs [][]byte) vector {
	v := vector{rest: xs}
	for _, x := range xs {
		v.n += len(x)
	}
	return v.from(0)
}

// part returns n bytes of v, from at on.
func (v vector) part(at, n int) vector {
	if n == 0 {
		return vector{}
	}
	for at >= len(v.head) {
		at -= len(v.head)
		v.head, v.rest = v.rest[0], v.rest[1:]
	}
	end := min(len(v.head), at+n)
	return vector{v.head[at:end:end], v.rest, n}
}

// from returns the bytes of v from at on.
func (v vector) from(at int) vector { return v.part(at, v.n-at) }

// slices yields the contiguous parts of v, none of them empty, each with its offset in v.
func (v vector) slices() iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for at := 0; v.n > 0; v = v.from(len(v.head)) {
			if !yield(at, v.head) {
				return
			}
			at += len(v.head)
		}
	}
}

// copyVector copies as many bytes as the shorter one has.
func copyVector(dst, src vector) {
	for dst.n > 0 && src.n > 0 {
		n := copy(dst.head, src.head)
		dst, src = dst.from(n), src.from(n)
	}
}

// The chunks of a vector are parts whose lengths differ by at most one element.

// span returns the offset and the length of the ith of k chunks of n bytes.
func (c *call) span(n, i, k int) (at, length int) {
	count := n / c.elem
	at = i * count / k * c.elem
	return at, (i+1)*count/k*c.elem - at
}

// chunk returns the ith of k chunks of x.
func (c *call) chunk(x vector, i, k int) vector { return x.part(c.span(x.n, i, k)) }

// longest returns the length of the longest of k chunks of n bytes.
func (c *call) longest(n, k int) int { return (n/c.elem + k - 1) / k * c.elem }
