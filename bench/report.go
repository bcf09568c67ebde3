package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"text/tabwriter"
)

// report is the result of a run: rows of figures, and how busy the machine was meanwhile.
type report struct {
	Command string   `json:"command"`
	CPUs    int      `json:"cpus"`
	Go      string   `json:"go"`
	Before  string   `json:"loadavg_before"`
	After   string   `json:"loadavg_after"`
	Notes   []string `json:"notes,omitempty"`
	Rows    []row    `json:"rows"`
	columns []string
}

// row is one line of the table.
type row struct {
	Name    []string           `json:"name"` // what was measured, and of which system
	Figures map[string]float64 `json:"figures"`
}

func newReport(command string, columns ...string) *report {
	return &report{Command: command, CPUs: runtime.NumCPU(), Go: runtime.Version(), Before: loadAverage(), columns: columns}
}

func (r *report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

func (r *report) add(figures map[string]float64, name ...string) {
	for k, v := range figures {
		if math.IsNaN(v) || math.IsInf(v, 0) { // JSON has no such number
			delete(figures, k)
		}
	}
	r.Rows = append(r.Rows, row{name, figures})
}

func (r *report) write(w io.Writer, asJSON bool) error {
	r.After = loadAverage()
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return r.writeText(w)
}

func (r *report) writeText(w io.Writer) error {
	fmt.Fprintf(w, "bench %s: %s, %d CPUs, load before %s, after %s\n", r.Command, r.Go, r.CPUs, r.Before, r.After)
	for _, n := range r.Notes {
		fmt.Fprintln(w, n)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	width := 0
	for _, x := range r.Rows {
		width = max(width, len(x.Name))
	}
	for range width {
		fmt.Fprint(t, "\t")
	}
	for _, c := range r.columns {
		fmt.Fprint(t, c, "\t")
	}
	fmt.Fprintln(t)
	for _, x := range r.Rows {
		r.writeRow(t, x)
	}
	return t.Flush()
}

func (r *report) writeRow(w io.Writer, x row) {
	for _, n := range x.Name {
		fmt.Fprint(w, n, "\t")
	}
	for _, c := range r.columns {
		if v, ok := x.Figures[c]; ok {
			fmt.Fprint(w, figure(v))
		}
		fmt.Fprint(w, "\t")
	}
	fmt.Fprintln(w)
}

// figure formats v with three significant digits.
func figure(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
