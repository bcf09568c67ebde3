package benchreport

import (
	"bytes"
	_ "embed" // the page
	"fmt"
	"html/template"
	"io"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{"size": Size, "latency": Latency, "rate": Rate}).Parse(pageText))

// heading returns the heading of a run.
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

// sheetOf is the template's data for a section.
type sheetOf struct {
	Title, About string
	Keys         []key
	Panels       []template.HTML
}

type key struct {
	Name  string
	Glyph template.HTML
}

// HTML writes a page that loads no other files.
func HTML(w io.Writer, runs []Run) error {
	rows, by := Compare(runs)
	data := struct {
		Heading  string
		Runs     []Run
		Others   []Run
		Sections []sheetOf
		Rows     []Comparison
		By       string
		Foreign  bool // whether some figures come from another machine
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
			of.Panels = append(of.Panels, panelSVG(p))
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
