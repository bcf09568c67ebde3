package main

import (
	"slices"
	"strings"
)

// target is the goal for one row: at most a factor of another row, or a time.
type target struct {
	what      string
	verb      string
	bytes     int
	who, than string // if than is empty, the bound is in µs
	most      float64
}

var collectiveTargets = []target{
	{what: "16 MiB over TCP, no slower than Open MPI's TCP", verb: allReduceVerb, bytes: 16 * mib, who: byTCP, than: byMPITCP, most: 1},
	{what: "16 MiB over TCP, 4 times as fast as Zerfoo", verb: allReduceVerb, bytes: 16 * mib, who: byTCP, than: byZerfoo, most: 0.25},
	{what: "16 MiB over shared memory, faster than Open MPI's", verb: allReduceVerb, bytes: 16 * mib, who: byMemory, than: byMPI, most: 1},
	{what: "4 B over shared memory, within 2 of Open MPI's", verb: allReduceVerb, bytes: 4, who: byMemory, than: byMPI, most: 2},
	{what: "4 B over shared memory, one after the other, likewise", verb: allReduceVerb + chainedSuffix, bytes: 4, who: byMemory, than: byMPI, most: 2},
	{what: "16 MiB in one process, under 6 ms", verb: allReduceVerb, bytes: 16 * mib, who: inOne, most: 6000},
}

// allocTarget is the maximum number of bytes that a rank may allocate per call.
const allocTarget = 1024

// note reports whether a target was reached. It reports nothing if the row was not measured.
func (t target) note(g *games, rep *report) {
	e := g.find(t.verb+atWhom+t.who, t.bytes)
	if e == nil {
		return
	}
	unit, found := "µs", 0.0
	if t.than == "" {
		found = e.calm(func(x turned) float64 { return x.p50 })
	} else if base := g.find(t.verb+atWhom+t.than, t.bytes); base != nil {
		unit, found = "times", e.over(base)
	} else {
		return
	}
	rep.note("target %s: %s %s, %s", t.what, figure(found), unit, metText(found <= t.most))
}

// noteAlloc reports whether any of muster's rows allocates more than allocTarget.
func noteAlloc(g *games, rep *report) {
	worst, where := 0.0, ""
	for _, e := range g.events {
		if strings.Contains(e.way, atWhom+"muster") {
			if alloc := e.calm(func(x turned) float64 { return x.alloc }); alloc > worst {
				worst, where = alloc, strings.Join(e.name, ", ")
			}
		}
	}
	if where != "" {
		rep.note("target at most %d B allocated per call: at most %s B (%s), %s", allocTarget, figure(worst), where, metText(worst <= allocTarget))
	}
}

func metText(met bool) string {
	if met {
		return "met"
	}
	return "NOT MET"
}

// find returns the event of a way and a size, or nil if it was not measured.
func (g *games) find(way string, bytes int) *event {
	i := slices.IndexFunc(g.events, func(e *event) bool { return e.way == way && e.bytes == bytes })
	if i < 0 {
		return nil
	}
	return g.events[i]
}
