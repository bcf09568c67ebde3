package collective

import "unsafe"

// The chunks of a slice are parts whose lengths differ by an element at most.

// span is where the ith of n chunks of x begins, and how many bytes it has.
func (c *call) span(x []byte, i, n int) (at, length int) {
	count := len(x) / c.elem
	at = i * count / n * c.elem
	return at, (i+1)*count/n*c.elem - at
}

// chunk is the ith of n chunks of x.
func (c *call) chunk(x []byte, i, n int) []byte {
	at, length := c.span(x, i, n)
	return x[at:][:length:length]
}

// overlap reports whether two slices share memory.
func overlap(a, b []byte) bool {
	return len(a) > 0 && len(b) > 0 && at(a) < at(b)+uintptr(len(b)) && at(b) < at(a)+uintptr(len(a))
}

// isPart reports whether part is the ith of the equal parts of all, where it is.
func isPart(part, all []byte, i int) bool { return at(part) == at(all)+uintptr(i*len(part)) }

func at(x []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(x))) }

// longest is how many bytes the longest of n chunks of x has.
func (c *call) longest(x []byte, n int) int { return (len(x)/c.elem + n - 1) / n * c.elem }
