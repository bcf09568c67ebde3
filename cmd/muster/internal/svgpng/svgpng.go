// Package svgpng paints the pictures of package timeline as PNG. Of SVG it knows what those are made of, and no more: rectangles, straight
// lines, text, and one style sheet, whose first colours count, which are those of the light theme.
package svgpng

import (
	"encoding/xml"
	"errors"
	"fmt"
	"image/color"
	"io"
	"maps"
	"math"
	"regexp"
	"strconv"
	"strings"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/font/liberation"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/vgimg"
)

const (
	mostPixels  = 150e6 // 600 MB
	sharpPixels = 10e6  // of a picture that gets two for each
)

// painter is one picture being painted. Its unit is the SVG's, and its y goes up.
type painter struct {
	*vgimg.Canvas
	width, height float64
	fonts         *font.Cache
	colour        map[string]color.NRGBA       // by the names of the style sheet
	class         map[string]map[string]string // its rules
}

// Write paints svg.
func Write(w io.Writer, svg io.Reader) error {
	p := &painter{fonts: font.NewCache(liberation.Collection()), colour: map[string]color.NRGBA{}, class: map[string]map[string]string{}}
	for d := xml.NewDecoder(svg); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) && p.Canvas != nil {
			_, err := vgimg.PngCanvas{Canvas: p.Canvas}.WriteTo(w)
			return err
		}
		if start, isStart := tok.(xml.StartElement); isStart {
			err = p.element(d, start)
		}
		if err != nil {
			return fmt.Errorf("svgpng: %w", err)
		}
	}
}

// element is one of the SVG, with what its attributes and its classes say.
type element map[string]string

// number is the first one of an attribute; 0 if there is none.
func (e element) number(name string) float64 {
	first, _, _ := strings.Cut(e[name], " ")
	n, _ := strconv.ParseFloat(first, 64)
	return n
}

func (p *painter) element(d *xml.Decoder, start xml.StartElement) error {
	e := element{}
	for _, a := range start.Attr {
		e[a.Name.Local] = a.Value
	}
	for class := range strings.FieldsSeq(e["class"]) {
		maps.Copy(e, p.class[class])
	}
	if start.Name.Local == "svg" {
		return p.begin(e.number("width"), e.number("height"))
	}
	var inner struct {
		Text string `xml:",chardata"`
	}
	if err := d.DecodeElement(&inner, &start); err != nil {
		return err
	}
	switch name := start.Name.Local; {
	case p.Canvas == nil:
		return errors.New("there is no svg around " + name)
	case name == "style":
		p.style(inner.Text)
	case name == "text":
		p.text(e, inner.Text)
	case name == "rect":
		p.rect(e)
	case name == "path":
		p.path(e)
	}
	return nil
}

func (p *painter) begin(width, height float64) error {
	if width < 1 || height < 1 || width*height > mostPixels {
		return fmt.Errorf("%g × %g pixels are no PNG: take .svg, or a smaller --width", width, height)
	}
	dpi := 72
	if width*height <= sharpPixels {
		dpi = 144
	}
	p.width, p.height = width, height
	p.Canvas = vgimg.NewWith(vgimg.UseWH(vg.Length(width), vg.Length(height)), vgimg.UseDPI(dpi))
	return nil
}

var (
	colours  = regexp.MustCompile(`--(\w+):#([0-9a-f]{6})`)
	rules    = regexp.MustCompile(`\.mt \.(\w+)\{([^}]*)\}`)
	commands = regexp.MustCompile(`([MVHhlm])([^MVHhlm]*)`)
)

func (p *painter) style(css string) {
	for _, m := range colours.FindAllStringSubmatch(css, -1) {
		if n, err := strconv.ParseUint(m[2], 16, 24); err == nil && p.colour[m[1]].A == 0 {
			p.colour[m[1]] = color.NRGBA{uint8(n >> 16), uint8(n >> 8), uint8(n), 0xff}
		}
	}
	for _, m := range rules.FindAllStringSubmatch(css, -1) {
		p.class[m[1]] = map[string]string{}
		for rule := range strings.SplitSeq(m[2], ";") {
			name, v, _ := strings.Cut(rule, ":")
			p.class[m[1]][name] = v
		}
	}
}

// ink takes the colour of e's fill or stroke, which is "var(--name)"; text without one has fg.
func (p *painter) ink(e element, name string) {
	c, ok := p.colour[strings.TrimSuffix(strings.TrimPrefix(e[name], "var(--"), ")")]
	if !ok {
		c = p.colour["fg"]
	}
	if e["opacity"] != "" {
		c.A = uint8(math.Round(e.number("opacity") * 0xff))
	}
	p.SetColor(c)
}

func (p *painter) at(x, y float64) vg.Point {
	return vg.Point{X: vg.Length(x), Y: vg.Length(p.height - y)}
}

func (p *painter) rect(e element) {
	x, y, width, height := e.number("x"), e.number("y"), e.number("width"), e.number("height")
	if e["width"] == "100%" {
		width, height = p.width, p.height
	}
	p.ink(e, "fill")
	p.Fill(vg.Rectangle{Min: p.at(x, y+height), Max: p.at(x+width, y)}.Path())
}

func (p *painter) text(e element, s string) {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: 12}
	if e["font-size"] == "16px" {
		f.Size, f.Weight = 16, xfont.WeightBold
	}
	face, at := p.fonts.Lookup(f, f.Size), p.at(e.number("x"), e.number("y"))
	at.X -= face.Width(s) * map[string]vg.Length{"end": 1, "middle": 0.5}[e["text-anchor"]]
	p.ink(e, "fill")
	p.FillString(face, at, s)
}

func (p *painter) path(e element) {
	var path vg.Path
	var x, y, dx, dy float64
	_, _ = fmt.Sscanf(e["transform"], "translate(%g %g)", &dx, &dy) // none is none
	for _, m := range commands.FindAllStringSubmatch(e["d"], -1) {
		var a, b float64
		_, _ = fmt.Sscan(m[2], &a, &b) // some have one number
		switch m[1] {
		case "M":
			x, y = a+dx, b+dy
		case "V":
			y = a + dy
		case "H":
			x = a + dx
		default:
			x, y = x+a, y+b
		}
		if strings.EqualFold(m[1], "m") {
			path.Move(p.at(x, y))
		} else {
			path.Line(p.at(x, y))
		}
	}
	p.ink(e, "stroke")
	p.SetLineWidth(vg.Length(e.number("stroke-width")))
	var dashes []vg.Length
	if dash := e.number("stroke-dasharray"); dash > 0 {
		dashes = []vg.Length{vg.Length(dash), vg.Length(dash)}
	}
	p.SetLineDash(dashes, 0)
	p.Stroke(path)
}
