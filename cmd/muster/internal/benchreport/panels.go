package benchreport

import (
	"fmt"
	"slices"
)

// section is a list of plots of one kind, whose lines have the same meaning in all plots.
type section struct {
	title, about string
	lines        []string // the names of the lines, by colour
	panels       []panel
}

// panel is one plot.
type panel struct {
	title string
	x, y  axis
	lines []line
	first bool // whether to emphasize the first line
}

// axis is an axis of a plot.
type axis struct {
	label string
	text  func(float64) string
	room  int // how many labels fit, for a horizontal axis
}

// line is a curve. The key is its index in the lines of the section.
type line struct {
	key    int
	points []point
}

type point struct{ x, y float64 }

var (
	byRanks   = axis{"ranks", func(x float64) string { return fmt.Sprintf("%.0f", x) }, 12}
	bySize    = axis{"size of an object", func(x float64) string { return Size(int(x)) }, 6}
	inMicros  = axis{text: Latency}
	inBytesPS = axis{text: Rate}
)

// dimension is a parameter in which results differ besides their case.
type dimension struct {
	of    func(Result) int
	named func(int) string
}

var (
	ofRanks = dimension{func(r Result) int { return r.Ranks }, func(n int) string { return fmt.Sprintf("%d ranks", n) }}
	ofSize  = dimension{func(r Result) int { return r.Size }, func(n int) string {
		if n == 0 {
			return "no object"
		}
		return Size(n)
	}}
)

// sections returns all plots of runs that have more than one point.
func sections(runs []Run) []section {
	m := metricOf(runs)
	all := []section{
		plots(runs, ofRanks, ofSize, byRanks, inMicros, m.of),
		plots(runs, ofSize, ofRanks, bySize, inBytesPS, Result.Throughput),
	}
	all[0].title, all[0].about = "Latency by ranks", fmt.Sprintf("One operation, of all ranks together: the %s. Less is better; both axes are logarithmic.", m)
	all[1].title, all[1].about = "Throughput by size", "Bytes of objects that pass in a second, each object counted once. More is better; both axes are logarithmic."
	return slices.DeleteFunc(all, func(s section) bool { return len(s.panels) == 0 })
}

// plots returns plots of y over one dimension. For one run, there is a line for each value of the
// other dimension. For several runs, there is a line for each run, and a panel for each value of
// the other dimension.
func plots(runs []Run, over, other dimension, x, y axis, value func(Result) float64) (s section) {
	cases, others := casesOf(runs[0]), valuesOf(runs[0], other)
	if len(runs) > 1 {
		for _, r := range runs {
			s.lines = append(s.lines, r.Name)
		}
	} else {
		for _, o := range others {
			s.lines = append(s.lines, other.named(o))
		}
	}
	add := func(title string, lines []line) {
		if slices.ContainsFunc(lines, func(l line) bool { return len(l.points) > 1 }) {
			s.panels = append(s.panels, panel{title, x, y, lines, len(runs) > 1})
		}
	}
	for _, c := range cases {
		var lines []line // if there is only one run
		for key, o := range others {
			if len(runs) == 1 {
				lines = append(lines, curve(runs[0], key, c, o, over, other, value)...)
				continue
			}
			var each []line
			for key, r := range runs {
				each = append(each, curve(r, key, c, o, over, other, value)...)
			}
			add(titled(c, o, other), each)
		}
		add(c, lines)
	}
	return s
}

func titled(name string, o int, other dimension) string {
	if o == 0 {
		return name
	}
	return name + ", " + other.named(o)
}

// curve returns a run's values of a case, if it has any.
func curve(r Run, key int, name string, o int, over, other dimension, value func(Result) float64) []line {
	l := line{key: key}
	for _, res := range r.Results {
		if x, y := over.of(res), value(res); res.Case == name && other.of(res) == o && x > 0 && y > 0 {
			l.points = append(l.points, point{float64(x), y})
		}
	}
	if len(l.points) == 0 {
		return nil
	}
	slices.SortFunc(l.points, func(a, b point) int { return int(a.x - b.x) })
	return []line{l}
}

func casesOf(r Run) (names []string) {
	for _, res := range r.Results {
		if !slices.Contains(names, res.Case) {
			names = append(names, res.Case)
		}
	}
	return names
}

func valuesOf(r Run, d dimension) (all []int) {
	for _, res := range r.Results {
		all = append(all, d.of(res))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
