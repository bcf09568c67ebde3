package checkpoint

import (
	"cmp"
	"fmt"
	"slices"
)

// cover returns an error unless each element of a tensor belongs to exactly one of its parts, all of
// which are in it.
func cover(shape []int, parts []part) error {
	left, axis := whole(shape).size(), sortParts(shape, parts)
	for i, p := range parts {
		if !p.within(shape) {
			return fmt.Errorf("%s has its part %v, which is not within its shape [%s]", p.file.name, p.box, numbers(shape))
		}
		left -= p.size()
		for _, q := range parts[i+1:] {
			if axis >= 0 && q.start[axis] >= p.end(axis) {
				break // and all after it
			}
			if p.and(q.box).size() > 0 {
				return fmt.Errorf("%s has its part %v, and %s its part %v, which overlap", p.file.name, p.box, q.file.name, q.box)
			}
		}
	}
	if left > 0 {
		return fmt.Errorf("no file has its element [%s]: %d elements are missing", numbers(hole(shape, parts)), left)
	}
	return nil
}

// sortParts sorts parts by where they begin along the axis along which they have the most starts, and
// returns it: the fewest parts are beside each other there. It returns -1 if there are no axes.
func sortParts(shape []int, parts []part) (axis int) {
	axis, most := -1, -1
	for i := range shape {
		starts := map[int]bool{}
		for _, p := range parts {
			starts[p.start[i]] = true
		}
		if len(starts) > most {
			axis, most = i, len(starts)
		}
	}
	if axis >= 0 {
		slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.start[axis], b.start[axis]) })
	}
	return axis
}

// hole returns the first element of a tensor, in row-major order, that is in none of its parts. They do
// not overlap.
func hole(shape []int, parts []part) []int {
	at := make([]int, len(shape))
	next := slices.Clone(shape) // for each axis, the least end of the parts found since it was advanced
	for {
		in := slices.IndexFunc(parts, func(p part) bool {
			return p.and(box{at, ones(len(at))}).size() == 1
		})
		if in < 0 {
			return at
		}
		axis := len(shape) - 1
		for i := range shape {
			next[i] = min(next[i], parts[in].end(i))
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

func ones(n int) []int { return slices.Repeat([]int{1}, n) }
