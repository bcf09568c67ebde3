package benchreport

import (
	"image/color"
	"io"
	"math"
	"slices"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// Colours of what is not a line. Those of the SVG are replaced by the page's own.
var (
	inkColour  = color.RGBA{0x17, 0x19, 0x1c, 0xff}
	dimColour  = color.RGBA{0x5b, 0x62, 0x6c, 0xff}
	gridColour = color.RGBA{0xd9, 0xdd, 0xe3, 0xff}
)

// palette can be told apart by who does not see all colours, on light ground and on dark. Each has a glyph of its own, too.
var palette = []color.RGBA{
	{0x2f, 0x6f, 0xdb, 0xff}, {0xd9, 0x5f, 0x0e, 0xff}, {0x0e, 0x9a, 0x73, 0xff}, {0xc2, 0x5d, 0x9c, 0xff}, {0xb0, 0x8a, 0x00, 0xff}, {0x3a, 0x9f, 0xd0, 0xff}, {0x7d, 0x7d, 0x85, 0xff},
}

var glyphs = []draw.GlyphDrawer{
	draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.CrossGlyph{},
}

const (
	panelWidth, panelHeight = vg.Length(300), vg.Length(200)
	small, large            = 9, 11
)

func face(size vg.Length, bold bool) font.Font {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
	if bold {
		f.Weight = xfont.WeightBold
	}
	return f
}

// picture is a panel, ready to be drawn.
func picture(p panel) *plot.Plot {
	pl := plot.New()
	pl.BackgroundColor = color.Transparent
	pl.Title.Text, pl.Title.Padding = p.title, 6
	pl.Title.TextStyle.Font, pl.Title.TextStyle.Color = face(large, true), inkColour
	xs, lo, hi := extent(p)
	dress(&pl.X, p.x, xs)
	ys := ticks(lo, hi)
	dress(&pl.Y, p.y, ys)
	pl.X.Min, pl.X.Max = xs[0]/1.1, xs[len(xs)-1]*1.1
	pl.Y.Min, pl.Y.Max = ys[0], ys[len(ys)-1]
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color, grid.Horizontal.Width = nil, gridColour, 0.5
	pl.Add(grid)
	for _, l := range slices.Backward(p.lines) { // the first one on top
		pl.Add(curves(l, p.first && l.key == 0)...)
	}
	return pl
}

// curves are a line and its points.
func curves(l line, first bool) []plot.Plotter {
	xys := make(plotter.XYs, len(l.points))
	for i, pt := range l.points {
		xys[i] = plotter.XY{X: pt.x, Y: pt.y}
	}
	width := vg.Length(1.4)
	if first {
		width = 2.2
	}
	return []plot.Plotter{
		&plotter.Line{XYs: xys, LineStyle: draw.LineStyle{Color: colourOf(l.key), Width: width}},
		&plotter.Scatter{XYs: xys, GlyphStyle: glyphOf(l.key)},
	}
}

func colourOf(key int) color.RGBA { return palette[key%len(palette)] }

func glyphOf(key int) draw.GlyphStyle {
	return draw.GlyphStyle{Color: colourOf(key), Radius: 2.8, Shape: glyphs[(key+key/len(palette))%len(glyphs)]}
}

func dress(a *plot.Axis, as axis, at []float64) {
	a.Scale = plot.LogScale{}
	a.Label.Text, a.Label.TextStyle.Font, a.Label.TextStyle.Color = as.label, face(small, false), dimColour
	a.Width, a.Tick.Width = 0, 0
	a.Tick.Length = 2
	a.Tick.Label.Font, a.Tick.Label.Color = face(small, false), dimColour
	all := make(plot.ConstantTicks, len(at))
	for i, v := range at {
		all[i] = plot.Tick{Value: v, Label: as.text(v)}
	}
	a.Tick.Marker = all
}

// extent is all that a panel's axes have to show.
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

// spaced leaves out values whose labels would touch: there is room for so many.
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

// ticks are round numbers from lo to hi and a little beyond, about five.
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

// PNG writes a picture of all plots. There have to be some.
func PNG(w io.Writer, runs []Run) error {
	s := sheet{sections: sections(runs), columns: 3}
	s.measure()
	const dpi = 144
	img := vgimg.NewWith(vgimg.UseWH(s.width, s.height), vgimg.UseDPI(dpi), vgimg.UseBackgroundColor(color.White))
	s.draw(draw.New(img), heading(runs[0]))
	_, err := vgimg.PngCanvas{Canvas: img}.WriteTo(w)
	return err
}

// sheet is where plots are put on a picture.
type sheet struct {
	sections      []section
	columns       int
	width, height vg.Length
}

const (
	margin, gap = vg.Length(20), vg.Length(16)
	headHeight  = vg.Length(34)
	partHeight  = vg.Length(44) // title, and what is below the legend
	keyHeight   = vg.Length(14)
)

func (s *sheet) measure() {
	most := 2 // room for legends
	for _, sec := range s.sections {
		most = max(most, min(len(sec.panels), s.columns))
	}
	s.columns = most
	s.width = 2*margin + vg.Length(s.columns)*(panelWidth+gap) - gap
	s.height = 2*margin + headHeight
	for _, sec := range s.sections {
		_, keys := s.keys(sec)
		rows := vg.Length((len(sec.panels) + s.columns - 1) / s.columns)
		s.height += partHeight + keys + rows*(panelHeight+gap)
	}
}

func (s *sheet) draw(c draw.Canvas, title string) {
	y := s.height - margin - 14
	c.FillText(style(15, true, inkColour), vg.Point{X: margin, Y: y}, title)
	y -= headHeight - 14
	for _, sec := range s.sections {
		c.FillText(style(12, true, inkColour), vg.Point{X: margin, Y: y - 12}, sec.title)
		c.FillText(style(small, false, dimColour), vg.Point{X: margin, Y: y - 25}, sec.about)
		y -= partHeight - 3
		y -= s.legend(c, sec, y) + 3
		for i, p := range sec.panels {
			col := vg.Length(i % s.columns)
			if i > 0 && col == 0 {
				y -= panelHeight + gap
			}
			x := margin + col*(panelWidth+gap)
			picture(p).Draw(draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{Min: vg.Point{X: x, Y: y - panelHeight}, Max: vg.Point{X: x + panelWidth, Y: y}}})
		}
		y -= panelHeight + gap
	}
}

func style(size vg.Length, bold bool, c color.Color) text.Style {
	return text.Style{Color: c, Font: face(size, bold), Handler: plot.DefaultTextHandler}
}

var keyStyle = style(small, false, inkColour)

const keyLine = vg.Length(18) // of a key, before its name

// keys are where the keys of a legend are, below each other where there is no room beside, and the height of all.
func (s *sheet) keys(sec section) (at []vg.Point, height vg.Length) {
	x, y := margin, vg.Length(0)
	for _, name := range sec.lines {
		width := keyLine + 5 + keyStyle.Width(name)
		if x > margin && x+width > s.width-margin {
			x, y = margin, y-keyHeight
		}
		at = append(at, vg.Point{X: x, Y: y})
		x += width + gap
	}
	return at, keyHeight - y
}

func (s *sheet) legend(c draw.Canvas, sec section, y vg.Length) vg.Length {
	places, height := s.keys(sec)
	for key, at := range places {
		at.Y += y
		c.StrokeLine2(draw.LineStyle{Color: colourOf(key), Width: 2}, at.X, at.Y+3, at.X+keyLine, at.Y+3)
		c.DrawGlyph(glyphOf(key), vg.Point{X: at.X + keyLine/2, Y: at.Y + 3})
		c.FillText(keyStyle, vg.Point{X: at.X + keyLine + 5, Y: at.Y}, sec.lines[key])
	}
	return height
}
