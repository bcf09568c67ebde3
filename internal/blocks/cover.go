package blocks

import (
	"cmp"
	"fmt"
	"slices"
)

// Cover returns an error unless each element of a tensor belongs to exactly one of its parts, all of
// which are in it.
func Cover(shape []int, parts []Part) error {
	left, axis := Whole(shape).Size(), sortParts(shape, parts)
	for i, p := range parts {
		if !p.Within(shape) {
			return fmt.Errorf("%s has its part %v, which is not within its shape [%s]", p.Who, p.Box, Numbers(shape))
		}
		left -= p.Size()
		for _, q := range parts[i+1:] {
			if axis >= 0 && q.Start[axis] >= p.End(axis) {
				break // and all after it
			}
			if p.And(q.Box).Size() > 0 {
				return fmt.Errorf("%s has its part %v, and %s its part %v, which overlap", p.Who, p.Box, q.Who, q.Box)
			}
		}
	}
	if left > 0 {
		return fmt.Errorf("nobody has its element [%s]: %d elements are missing", Numbers(hole(shape, parts)), left)
	}
	return nil
}

// sortParts sorts parts by where they begin along the axis along which they have the most starts, and
// returns it: the fewest parts are beside each other there. It returns -1 if there are no axes.
func sortParts(shape []int, parts []Part) (axis int) {
	axis, most := -1, -1
	for i := range shape {
		starts := map[int]bool{}
		for _, p := range parts {
			starts[p.Start[i]] = true
		}
		if len(starts) > most {
			axis, most = i, len(starts)
		}
	}
	if axis >= 0 {
		slices.SortStableFunc(parts, func(a, b Part) int { return cmp.Compare(a.Start[axis], b.Start[axis]) })
	}
	return axis
}

// hole returns the first element of a tensor, in row-major order, that is in none of its parts. They do
// not overlap.
func hole(shape []int, parts []Part) []int {
	at := make([]int, len(shape))
	next := slices.Clone(shape) // for each axis, the least end of the parts found since it was advanced
	for {
		in := slices.IndexFunc(parts, func(p Part) bool { return p.has(at) })
		if in < 0 {
			return at
		}
		axis := len(shape) - 1
		for i := range shape {
			next[i] = min(next[i], parts[in].End(i))
		}
		for ; axis > 0 && next[axis] == shape[axis]; axis-- {
			at[axis] = 0
		}
		at[axis] = next[axis]
		for i := axis; i < len(shape); i++ {
			next[i] = shape[i]
		}
	}
}

// has reports whether an element is in b.
func (b Box) has(at []int) bool {
	for i, n := range at {
		if n < b.Start[i] || n >= b.End(i) {
			return false
		}
	}
	return true
}
