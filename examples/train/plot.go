package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const (
	plotWidth  = 16 * vg.Centimeter
	plotHeight = 14 * vg.Centimeter
)

// plotFormat returns the format of a file, from its name.
func plotFormat(file string) (string, error) {
	format := strings.ToLower(strings.TrimPrefix(filepath.Ext(file), "."))
	if !slices.Contains([]string{"svg", "png", "pdf"}, format) {
		return "", fmt.Errorf("%q should end in .svg, .png or .pdf", file)
	}
	return format, nil
}

// drawCurves draws the curves, and below them the difference of each from the first.
func drawCurves(file string, curves []*curve) error {
	format, err := plotFormat(file)
	if err != nil {
		return err
	}
	loss, diff := plot.New(), plot.New()
	loss.Y.Label.Text = "loss of the batch, nats"
	loss.Legend.Top = true
	diff.X.Label.Text = "step"
	diff.Y.Label.Text = "difference from " + curves[0].name
	// curves drawn earlier are thicker, so that they stay visible below later ones
	const thin, step = vg.Length(0.8), vg.Length(0.6)
	for i, c := range curves {
		line, err := addLine(loss, c.losses, i, thin+step*vg.Length(len(curves)-1-i))
		if err != nil {
			return err
		}
		loss.Legend.Add(c.name, line)
	}
	// draws curves that are equal to the first one above those that are not
	for i, c := range slices.Backward(curves) {
		if _, err := addLine(diff, minus(c.losses, curves[0].losses), i, thin+step*vg.Length(i)); err != nil {
			return err
		}
	}
	loss.X.Min, loss.Y.Min, diff.X.Min = 0, 0, 0
	return save(file, format, loss, diff)
}

func addLine(p *plot.Plot, ys []float64, color int, width vg.Length) (*plotter.Line, error) {
	points := make(plotter.XYs, len(ys))
	for i, y := range ys {
		points[i] = plotter.XY{X: float64(i + 1), Y: y}
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return nil, err
	}
	line.Color, line.Width = plotutil.Color(color), width
	p.Add(line)
	return line, nil
}

// minus returns a-b, with the length of the shorter one.
func minus(a, b []float64) []float64 {
	d := make([]float64, min(len(a), len(b)))
	for i := range d {
		d[i] = a[i] - b[i]
	}
	return d
}

// save draws one plot above the other.
func save(file, format string, above, below *plot.Plot) error {
	c, err := draw.NewFormattedCanvas(plotWidth, plotHeight, format)
	if err != nil {
		return err
	}
	tiles := draw.Tiles{Cols: 1, Rows: 2, PadTop: vg.Points(6), PadBottom: vg.Points(6), PadRight: vg.Points(12), PadLeft: vg.Points(6), PadY: vg.Points(12)}
	for i, part := range plot.Align([][]*plot.Plot{{above}, {below}}, tiles, draw.New(c)) {
		[]*plot.Plot{above, below}[i].Draw(part[0])
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = c.WriteTo(f)
	return errors.Join(err, f.Close())
}

// drawMembers draws the loss over time, and below it a line for each worker from its first step to its
// last, with a cross if it did not complete the last step of all, and the size of the view.
func drawMembers(file string, logs [][]entry) error {
	format, err := plotFormat(file)
	if err != nil {
		return err
	}
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
	var losses, sizes, ends plotter.XYs
	for _, step := range slices.Sorted(maps.Keys(byStep)) {
		e := byStep[step]
		losses = append(losses, plotter.XY{X: seconds(e), Y: e.loss})
		sizes = append(sizes, plotter.XY{X: seconds(e), Y: float64(e.size)})
	}
	loss, members := plot.New(), plot.New()
	loss.Y.Label.Text = "loss of the batch, nats"
	members.X.Label.Text, members.Y.Label.Text = "seconds", "workers"
	if _, err := addXYs(loss, losses, 0); err != nil {
		return err
	}
	view, err := addXYs(members, sizes, 0)
	if err != nil {
		return err
	}
	view.StepStyle = plotter.PostStep
	members.Legend.Add("in the view", view)
	var life *plotter.Line
	for i, l := range logs {
		y, from, to := -float64(i+1)/2, l[0], l[len(l)-1]
		if life, err = addXYs(members, plotter.XYs{{X: seconds(from), Y: y}, {X: seconds(to), Y: y}}, 1); err != nil {
			return err
		}
		if to.step < last {
			ends = append(ends, plotter.XY{X: seconds(to), Y: y})
		}
	}
	members.Legend.Add("life of a process", life)
	if len(ends) > 0 {
		crosses, err := plotter.NewScatter(ends)
		if err != nil {
			return err
		}
		crosses.Shape, crosses.Color = draw.CrossGlyph{}, plotutil.Color(0)
		members.Add(crosses)
		members.Legend.Add("killed", crosses)
	}
	members.Legend.Left = true
	members.Y.Max = float64(sizes[0].Y) + 4 // room for the legend
	loss.X.Min, loss.Y.Min, members.X.Min = 0, 0, 0
	members.X.Max = loss.X.Max
	members.Y.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 1, Label: "1"}, {Value: 2, Label: "2"}, {Value: 3, Label: "3"}, {Value: 4, Label: "4"}}
	return save(file, format, loss, members)
}

func addXYs(p *plot.Plot, points plotter.XYs, color int) (*plotter.Line, error) {
	line, err := plotter.NewLine(points)
	if err != nil {
		return nil, err
	}
	line.Color = plotutil.Color(color)
	p.Add(line)
	return line, nil
}
