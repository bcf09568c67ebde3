package core

import (
	"cmp"
	"slices"
)

// groupIndex lists the groups by generation, in order. A removed group leaves a hole, and the list
// is compacted when more than half of it are holes, so that a removal takes amortized constant time
// beside its binary search.
type groupIndex struct {
	list  []indexedGroup
	holes int
}

// indexedGroup is one place of the list; g is nil in a hole, and gen stays for the search.
type indexedGroup struct {
	gen uint64
	g   *group
}

func (o *groupIndex) add(g *group) { o.list = append(o.list, indexedGroup{g.gen, g}) }

func (o *groupIndex) remove(g *group) {
	i, ok := slices.BinarySearchFunc(o.list, g.gen, func(x indexedGroup, gen uint64) int { return cmp.Compare(x.gen, gen) })
	if !ok || o.list[i].g == nil {
		return
	}
	o.list[i].g = nil
	if o.holes++; o.holes > len(o.list)/2 {
		o.list = slices.DeleteFunc(o.list, func(x indexedGroup) bool { return x.g == nil })
		o.holes = 0
	}
}
