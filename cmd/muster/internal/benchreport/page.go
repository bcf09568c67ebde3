package benchreport

import (
	"bytes"
	_ "embed" // the page
	"fmt"
	"html/template"
	"io"
	"regexp"
	"strings"

	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{"size": Size, "latency": Latency, "rate": Rate}).Parse(pageText))

// heading is what the first run is.
func heading(r Run) string {
	text := r.Name
	if r.Version != "" && r.Version != r.Name {
		text = r.Version
	}
	if r.Cores > 0 {
		text += fmt.Sprintf(" on %d cores", r.Cores)
	}
	return text
}

// sheetOf is what the template shows of a section.
type sheetOf struct {
	Title, About string
	Keys         []key
	Panels       []template.HTML
}

type key struct {
	Name  string
	Glyph template.HTML
}

// HTML writes a page that needs nothing else.
func HTML(w io.Writer, runs []Run) error {
	rows, by := Compare(runs)
	data := struct {
		Heading  string
		Runs     []Run
		Others   []Run
		Sections []sheetOf
		Rows     []Comparison
		By       string
		Foreign  bool // figures that this machine has not made
	}{Heading: heading(runs[0]), Runs: runs, Others: runs[1:], Rows: rows, By: by}
	for _, r := range runs[1:] {
		data.Foreign = data.Foreign || r.Cores != runs[0].Cores
	}
	for _, s := range sections(runs) {
		of := sheetOf{Title: s.title, About: s.about}
		for i, name := range s.lines {
			of.Keys = append(of.Keys, key{name, glyphSVG(i)})
		}
		for _, p := range s.panels {
			svg, err := panelSVG(p)
			if err != nil {
				return err
			}
			of.Panels = append(of.Panels, svg)
		}
		data.Sections = append(data.Sections, of)
	}
	var b bytes.Buffer
	if err := page.Execute(&b, data); err != nil {
		return err
	}
	_, err := b.WriteTo(w)
	return err
}

var (
	head  = regexp.MustCompile(`(?s)^.*?<svg width="[^"]*" height="[^"]*" viewBox="([^"]*)"[^>]*>`)
	fonts = regexp.MustCompile(`font-family:Liberation Sans;font-variant:[a-z]*;font-weight:([a-z]*);font-style:normal`)
)

// panelSVG is a panel in the page's colours, as large as there is room, and with a name for who does not see it.
func panelSVG(p panel) (template.HTML, error) {
	c := vgsvg.New(panelWidth, panelHeight)
	picture(p).Draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	s := head.ReplaceAllString(b.String(), `<svg viewBox="$1" role="img" aria-label="`+template.HTMLEscapeString(p.title)+`">`)
	s = fonts.ReplaceAllString(s, `font-weight:$1`)
	for from, to := range map[string]string{"#17191C": "var(--text)", "#5B626C": "var(--dim)", "#D9DDE3": "var(--line)"} {
		s = strings.ReplaceAll(s, from, to)
	}
	return template.HTML(s), nil
}

// glyphSVG is what a line looks like, for the legend.
func glyphSVG(key int) template.HTML {
	c := vgsvg.New(22, 10)
	d := draw.New(c)
	d.StrokeLine2(draw.LineStyle{Color: colourOf(key), Width: 2}, 0, 5, 22, 5)
	d.DrawGlyph(glyphOf(key), d.Center())
	var b bytes.Buffer
	_, _ = c.WriteTo(&b) // a buffer takes all
	return template.HTML(head.ReplaceAllString(b.String(), `<svg viewBox="$1" width="22" height="10" aria-hidden="true">`))
}
