// Package alias finds slices that share memory.
package alias

import (
	"cmp"
	"slices"
	"unsafe"
)

// Finder finds slices that share memory. It keeps the order of the slices of the last call, so that
// a call with the same slices takes one pass and allocates nothing. The zero value is ready to use,
// by one goroutine at a time.
type Finder struct {
	order []int // indices of slices, by address
}

// Find returns the indices of two of xs that share memory, i before j; ok is false if there are
// none. Empty slices share no memory. Find keeps no slice.
func (f *Finder) Find(xs [][]byte) (i, j int, ok bool) {
	if len(f.order) != len(xs) {
		f.order = f.order[:0]
		for i := range xs {
			f.order = append(f.order, i)
		}
	}
	slices.SortFunc(f.order, func(i, j int) int { return cmp.Compare(start(xs[i]), start(xs[j])) })
	last := -1 // the slice that reaches furthest
	for _, k := range f.order {
		switch {
		case len(xs[k]) == 0:
			continue
		case last >= 0 && start(xs[k]) < start(xs[last])+uintptr(len(xs[last])):
			return min(k, last), max(k, last), true
		}
		last = k
	}
	return 0, 0, false
}

func start(x []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(x))) }
