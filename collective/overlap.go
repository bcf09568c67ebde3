package collective

import "unsafe"

// overlap reports whether two slices share memory.
func overlap(a, b []byte) bool {
	return len(a) > 0 && len(b) > 0 && at(a) < at(b)+uintptr(len(b)) && at(b) < at(a)+uintptr(len(a))
}

// isPart reports whether part is, in memory, the ith of the equal parts of all.
func isPart(part, all []byte, i int) bool { return at(part) == at(all)+uintptr(i*len(part)) }

func at(x []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(x))) }
