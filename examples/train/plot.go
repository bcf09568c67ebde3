package main

import (
	"errors"
	"fmt"
	"html"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The size of a chart with its labels, and of the space around its lines, in pixels.
const (
	chartWidth, chartHeight        = 640., 280.
	left, right, above, underneath = 85., 20., 30., 45.
)

var colors = []string{"#c0392b", "#2471a3", "#1e8449", "#b7950b", "#6c3483", "#566573"}

// chart is a plot of lines over one axis. Both axes contain 0.
type chart struct {
	x, y  string // labels
	lines []line
}

type line struct {
	name    string // in the legend; "" is not there
	xs, ys  []float64
	color   int
	width   float64
	crosses bool // at the points, instead of a line
}

// checkPlot returns an error if the name of a file is not that of a picture.
func checkPlot(file string) error {
	if strings.ToLower(filepath.Ext(file)) != ".svg" {
		return fmt.Errorf("%q should end in .svg", file)
	}
	return nil
}

// drawCurves draws the curves, and below them the difference of each from the first.
func drawCurves(file string, curves []*curve) error {
	loss := chart{y: "loss of the batch, nats"}
	diff := chart{x: "step", y: "difference from " + curves[0].name}
	// curves drawn earlier are thicker, so that they stay visible below later ones
	const thin, step = 1, 0.8
	for i, c := range curves {
		loss.lines = append(loss.lines, line{name: c.name, xs: steps(c.losses), ys: c.losses, color: i, width: thin + step*float64(len(curves)-1-i)})
	}
	// draws curves that are equal to the first one above those that are not
	for i, c := range slices.Backward(curves) {
		ys := minus(c.losses, curves[0].losses)
		diff.lines = append(diff.lines, line{xs: steps(ys), ys: ys, color: i, width: thin + step*float64(i)})
	}
	return save(file, loss, diff)
}

// steps returns the numbers of the steps of which ys are values.
func steps(ys []float64) []float64 {
	xs := make([]float64, len(ys))
	for i := range xs {
		xs[i] = float64(i + 1)
	}
	return xs
}

// minus returns a-b, with the length of the shorter one.
func minus(a, b []float64) []float64 {
	d := make([]float64, min(len(a), len(b)))
	for i := range d {
		d[i] = a[i] - b[i]
	}
	return d
}

// drawMembers draws the loss over time, and below it a line for each worker from its first step to its
// last, with a cross if it did not complete the last step of all, and the size of the view.
func drawMembers(file string, logs [][]entry) error {
	if len(logs) == 0 {
		return errors.New("there are no logs to draw")
	}
	slices.SortFunc(logs, func(a, b []entry) int { return a[0].at.Compare(b[0].at) })
	begin, last := logs[0][0].at, 0
	byStep := map[int]entry{}
	for _, l := range logs {
		for _, e := range l {
			byStep[e.step], last = e, max(last, e.step)
		}
	}
	seconds := func(e entry) float64 { return e.at.Sub(begin).Seconds() }
	losses := line{width: 1}
	view, killed := line{name: "in the view", width: 1}, line{name: "killed", crosses: true}
	for _, step := range slices.Sorted(maps.Keys(byStep)) {
		e := byStep[step]
		losses.xs, losses.ys = append(losses.xs, seconds(e)), append(losses.ys, e.loss)
		if n := len(view.ys); n > 0 { // the size changes at once
			view.xs, view.ys = append(view.xs, seconds(e)), append(view.ys, view.ys[n-1])
		}
		view.xs, view.ys = append(view.xs, seconds(e)), append(view.ys, float64(e.size))
	}
	members := chart{x: "seconds", y: "workers", lines: []line{view}}
	for i, l := range logs {
		y, from, to := -float64(i+1)/2, l[0], l[len(l)-1]
		life := line{xs: []float64{seconds(from), seconds(to)}, ys: []float64{y, y}, color: 1, width: 1}
		if i == 0 {
			life.name = "life of a process"
		}
		members.lines = append(members.lines, life)
		if to.step < last {
			killed.xs, killed.ys = append(killed.xs, seconds(to)), append(killed.ys, y)
		}
	}
	if len(killed.xs) > 0 {
		members.lines = append(members.lines, killed)
	}
	return save(file, chart{y: "loss of the batch, nats", lines: []line{losses}}, members)
}

// save writes charts to an SVG file, one below the other.
func save(file string, charts ...chart) error {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="11">`+"\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n", chartWidth, chartHeight*float64(len(charts)))
	for i, c := range charts {
		fmt.Fprintf(&b, "<g transform=\"translate(0 %g)\">\n", chartHeight*float64(i))
		c.draw(&b)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return os.WriteFile(file, []byte(b.String()), 0o600)
}

func (c chart) draw(b *strings.Builder) {
	text := func(x, y float64, more, s string) {
		fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, more, html.EscapeString(s))
	}
	var x, y axis
	for _, l := range c.lines {
		x.cover(l.xs)
		y.cover(l.ys)
	}
	atX := func(v float64) float64 { return left + x.part(v)*(chartWidth-left-right) }
	atY := func(v float64) float64 { return chartHeight - underneath - y.part(v)*(chartHeight-above-underneath) }
	for _, v := range x.ticks() {
		fmt.Fprintf(b, "<path d=\"M%.1f,%gV%g\" stroke=\"#ddd\"/>\n", atX(v), above, chartHeight-underneath)
		text(atX(v), chartHeight-underneath+16, `text-anchor="middle"`, fmt.Sprintf("%.4g", v))
	}
	for _, v := range y.ticks() {
		fmt.Fprintf(b, "<path d=\"M%g,%.1fH%g\" stroke=\"#ddd\"/>\n", left, atY(v), chartWidth-right)
		text(left-6, atY(v)+4, `text-anchor="end"`, fmt.Sprintf("%.4g", v))
	}
	text(chartWidth/2, chartHeight-10, `text-anchor="middle"`, c.x)
	text(14, chartHeight/2, fmt.Sprintf(`text-anchor="middle" transform="rotate(-90 14 %g)"`, chartHeight/2), c.y)
	legend := left
	for _, l := range c.lines {
		color, path := colors[l.color%len(colors)], ""
		for i := range l.xs {
			switch px, py := atX(l.xs[i]), atY(l.ys[i]); {
			case l.crosses:
				path += fmt.Sprintf("M%.1f,%.1fl8,8m0,-8l-8,8", px-4, py-4)
			case i == 0:
				path += fmt.Sprintf("M%.1f,%.1f", px, py)
			default:
				path += fmt.Sprintf("L%.1f,%.1f", px, py)
			}
		}
		fmt.Fprintf(b, "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"%g\"/>\n", path, color, max(l.width, 1))
		if l.name != "" {
			text(legend, above-10, fmt.Sprintf(`fill=%q`, color), l.name)
			legend += 20 + 7*float64(len(l.name))
		}
	}
}

// axis is the range of the values on an axis.
type axis struct{ from, to float64 }

func (a *axis) cover(values []float64) {
	for _, v := range values {
		a.from, a.to = min(a.from, v), max(a.to, v)
	}
}

// part returns the place of v on the axis, from 0 to 1.
func (a *axis) part(v float64) float64 {
	if a.to == a.from {
		return 0.5
	}
	return (v - a.from) / (a.to - a.from)
}

// ticks returns 4 to 16 round numbers on the axis.
func (a *axis) ticks() (all []float64) {
	if a.to == a.from {
		return []float64{a.from}
	}
	step := math.Pow(10, math.Floor(math.Log10(a.to-a.from)))
	if (a.to-a.from)/step < 4 {
		step /= 4
	}
	for n := math.Ceil(a.from / step); n*step <= a.to; n++ {
		all = append(all, n*step)
	}
	return all
}
