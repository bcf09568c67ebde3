package benchreport

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
)

// palette is a list of colours that colour-blind readers can distinguish, on light and dark
// backgrounds.
var palette = []string{"#2f6fdb", "#d95f0e", "#0e9a73", "#c25d9c", "#b08a00", "#3a9fd0", "#7d7d85"}

// glyphs are the outlines of points, around 0,0. Together with the colours they distinguish lines.
var glyphs = []string{
	"M-3,0a3,3 0 1 0 6,0a3,3 0 1 0 -6,0z", "M-3,-3h6v6h-6z", "M0,-4l4,7h-8z", "M0,-4l4,4l-4,4l-4,-4z", "M0,4l4,-7h-8z",
	"M-4,-1h3v-3h2v3h3v2h-3v3h-2v-3h-3z",
}

func colourOf(key int) string { return palette[key%len(palette)] }
func glyphOf(key int) string  { return glyphs[(key+key/len(palette))%len(glyphs)] }

// Positions of the axes of a panel, in the units of the picture's viewBox.
const (
	panelWidth, panelHeight   = 400, 260
	left, right, top, bottom  = 64.0, 390.0, 30.0, 216.0
	labelBelow, axisNameBelow = 16, 36
)

// panelSVG draws a panel in the page's colours, with a label for screen readers. Both axes are
// logarithmic.
func panelSVG(p panel) template.HTML {
	xs, lo, hi := extent(p)
	ys := ticks(lo, hi)
	x := scale(xs[0]/1.1, xs[len(xs)-1]*1.1, left, right)
	y := scale(ys[0], ys[len(ys)-1], bottom, top)
	var b strings.Builder
	name := template.HTMLEscapeString(p.title)
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s"><text x="%g" y="18" class="title">%[3]s</text>`, panelWidth, panelHeight, name, left)
	for _, v := range ys {
		fmt.Fprintf(&b, `<path class="grid" d="M%g,%.1fH%g"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`, left, y(v), right, left-6, y(v)+4, p.y.text(v))
	}
	for _, v := range xs {
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`, x(v), bottom+labelBelow, p.x.text(v))
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">%s</text>`, (left+right)/2, bottom+axisNameBelow, p.x.label)
	for _, l := range slices.Backward(p.lines) { // draws the first line last, on top
		width := 1.8
		if p.first && l.key == 0 {
			width = 2.8
		}
		var path, points strings.Builder
		for i, at := range l.points {
			fmt.Fprintf(&path, "%c%.1f,%.1f", "ML"[min(i, 1)], x(at.x), y(at.y))
			fmt.Fprintf(&points, `<path d="%s" fill="%s" transform="translate(%.1f %.1f)"/>`, glyphOf(l.key), colourOf(l.key), x(at.x), y(at.y))
		}
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="%g"/>%s`, path.String(), colourOf(l.key), width, points.String())
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // its texts are escaped above
}

// scale returns a function that maps a value between lo and hi logarithmically to a position
// between from and to.
func scale(lo, hi, from, to float64) func(v float64) float64 {
	return func(v float64) float64 { return from + (to-from)*math.Log(v/lo)/math.Log(hi/lo) }
}

// glyphSVG draws the symbol of a line for the legend.
func glyphSVG(key int) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg viewBox="-11 -5 22 10" width="22" height="10" aria-hidden="true"><path d="M-11,0H11" stroke="%[1]s" stroke-width="2"/><path d="%[2]s" fill="%[1]s"/></svg>`, colourOf(key), glyphOf(key))) //nolint:gosec // both are constants of this file
}

// extent returns the ranges of values that the axes of a panel must show.
func extent(p panel) (xs []float64, lo, hi float64) {
	lo, hi = math.Inf(1), 0
	for _, l := range p.lines {
		for _, pt := range l.points {
			xs = append(xs, pt.x)
			lo, hi = min(lo, pt.y), max(hi, pt.y)
		}
	}
	slices.Sort(xs)
	return spaced(slices.Compact(xs), p.x.room), lo, hi
}

// spaced omits values whose labels would overlap: there is room for so many labels.
func spaced(xs []float64, room int) (kept []float64) {
	least := math.Log(xs[len(xs)-1]/xs[0]) / float64(room)
	for i, x := range xs {
		last := xs[len(xs)-1]
		if i == 0 || i == len(xs)-1 || math.Log(x/kept[len(kept)-1]) >= least && math.Log(last/x) >= least {
			kept = append(kept, x)
		}
	}
	return kept
}

// ticks returns about five round numbers from lo to hi and a little beyond.
func ticks(lo, hi float64) (at []float64) {
	decades := math.Log10(hi / lo)
	steps := []float64{1, 2, 5}
	if decades > 1.9 {
		steps = []float64{1}
	}
	for e := math.Floor(math.Log10(lo)) - 1; e <= math.Ceil(math.Log10(hi))+1; e++ {
		for _, s := range steps {
			at = append(at, s*math.Pow(10, e))
		}
	}
	first, last := 0, len(at)-1
	for first+1 < len(at) && at[first+1] <= lo {
		first++
	}
	for last-1 > first && at[last-1] >= hi {
		last--
	}
	return at[first : last+1]
}
