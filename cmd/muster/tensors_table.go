package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/muster-pg/muster/cmd/muster/internal/tensorstats"
	"golang.org/x/term"
)

const (
	nameLeast = 20 // minimum width of names, in a narrow terminal
	nameMost  = 60 // width to which names are padded in files and pipes
	shapeMost = 30
	numberLen = 9  // -1.23e-05
	noteLeast = 14 // minimum width of notes, so that a NaN is visible in a narrow terminal
)

// column is a column of a table.
type column struct {
	head  string
	width int
	left  bool // aligned
	// columns are dropped in a narrow terminal in this order, equal numbers together; 0: never
	drop int
	cell func(r *tensorRow) string
}

// tensorTable prints rows for people, as they become ready.
type tensorTable struct {
	out     *bufio.Writer
	ink     ink
	width   int // width of the terminal; 0: no limit
	notes   int // part of the width that is reserved for notes
	rows    []*tensorRow
	columns []column
}

// newTensorTable returns a table that is printed to out, which writes to where.
func newTensorTable(where io.Writer, out *bufio.Writer, rows []*tensorRow, noStats bool) *tensorTable {
	t := &tensorTable{out: out, ink: inkOf(where), width: widthOf(where), rows: rows}
	t.columns = []column{
		{head: "NAME", left: true, cell: func(r *tensorRow) string { return printable(r.name) }},
		{head: "DTYPE", left: true, cell: func(r *tensorRow) string { return r.info.DType.String() }},
		{head: "SHAPE", left: true, drop: 6, cell: func(r *tensorRow) string { return dimensions(r.info.Shape) }},
		{head: "BYTES", drop: 1, cell: func(r *tensorRow) string { return bytesText(r.bytes()) }},
	}
	for i := range t.columns {
		t.columns[i].width = longest(t.columns[i], rows)
	}
	if !noStats {
		t.notes = noteLeast
		t.columns = append(t.columns,
			number("MIN", 5, func(s *tensorstats.Spread) float64 { return s.Min }),
			column{head: "", width: len(tensorstats.Spread{}.Bins), left: true, drop: 4, cell: picture},
			number("MAX", 5, func(s *tensorstats.Spread) float64 { return s.Max }),
			number("MEAN", 2, func(s *tensorstats.Spread) float64 { return s.Mean }),
			number("STD", 3, func(s *tensorstats.Spread) float64 { return s.Std }),
		)
	}
	t.fit()
	return t
}

// widthOf returns the width of a terminal, or 0 if w is not one.
func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			return width
		}
	}
	return 0
}

func longest(c column, rows []*tensorRow) int {
	n := len(c.head)
	for _, r := range rows {
		n = max(n, utf8.RuneCountInString(c.cell(r)))
	}
	return n
}

func number(head string, drop int, of func(*tensorstats.Spread) float64) column {
	return column{head: head, width: numberLen, drop: drop, cell: func(r *tensorRow) string {
		if r.stats == nil || r.stats.Spread == nil {
			return "-"
		}
		return strconv.FormatFloat(of(r.stats.Spread), 'g', 3, 64)
	}}
}

// dimensions formats a shape, as 4096×4096.
func dimensions(shape []int) string {
	if len(shape) == 0 {
		return "scalar"
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(shape), "[]"), " ", "×")
}

// picture draws the bins as bars. A bin with any element is visible.
func picture(r *tensorRow) string {
	if r.stats == nil || r.stats.Spread == nil {
		return ""
	}
	bars := []rune("▁▂▃▄▅▆▇█")
	bins := r.stats.Bins
	most := float64(slices.Max(bins[:]))
	var s strings.Builder
	for _, n := range bins {
		if n == 0 {
			s.WriteByte(' ')
			continue
		}
		s.WriteRune(bars[int(math.Ceil(float64(n)/most*float64(len(bars))))-1])
	}
	return s.String()
}

// fit makes the table fit into the terminal: first it shortens names, then it drops columns.
func (t *tensorTable) fit() {
	name := &t.columns[0]
	if t.width == 0 {
		name.width = min(name.width, nameMost)
		t.columns[2].width = min(t.columns[2].width, shapeMost)
		return
	}
	for {
		over := t.total() + t.notes - t.width
		if over <= 0 {
			return
		}
		if short := name.width - over; short >= nameLeast {
			name.width = short
			return
		}
		next := t.dropNext()
		if next == 0 {
			name.width = max(1, name.width-over)
			return
		}
		t.columns = slices.DeleteFunc(t.columns, func(c column) bool { return c.drop == next })
		name = &t.columns[0]
	}
}

// dropNext returns the drop number of the columns to drop next; 0 if none can be dropped.
func (t *tensorTable) dropNext() (next int) {
	for _, c := range t.columns {
		if c.drop > 0 && (next == 0 || c.drop < next) {
			next = c.drop
		}
	}
	return next
}

const gap = 2 // between columns

func (t *tensorTable) total() int {
	n := -gap
	for _, c := range t.columns {
		n += c.width + gap
	}
	return n
}

func (t *tensorTable) print(m *model) error {
	if len(t.rows) > 0 {
		fmt.Fprintln(t.out, t.ink.bold(t.line(func(c column) string { return c.head })))
	}
	for _, r := range t.rows {
		if err := flushWhen(t.out, r); err != nil {
			return err
		}
		if r.err != nil {
			return flushed(t.out, r.err)
		}
		line := t.line(func(c column) string { return c.cell(r) })
		if note, bad := t.note(r); note != "" && (t.width == 0 || t.width > t.total()+gap) {
			note = t.cut(strings.Repeat(" ", gap)+note, t.width-t.total())
			if bad {
				note = t.ink.red(note)
			}
			line = padRight(line, t.total()) + note
		}
		if _, err := fmt.Fprintln(t.out, line); err != nil {
			return err
		}
	}
	t.totals()
	t.metadata(m)
	return t.out.Flush()
}

// line formats a row, without its note.
func (t *tensorTable) line(cell func(c column) string) string {
	var cells []string
	for _, c := range t.columns {
		text := cell(c)
		if t.width > 0 {
			text = middle(text, c.width)
		}
		if c.left {
			cells = append(cells, padRight(text, c.width))
		} else {
			cells = append(cells, padLeft(text, c.width))
		}
	}
	return t.cut(strings.TrimRight(strings.Join(cells, strings.Repeat(" ", gap)), " "), t.width)
}

// note counts the special values of a row; bad reports whether some of them indicate an error.
func (t *tensorTable) note(r *tensorRow) (s string, bad bool) {
	if r.stats == nil {
		return "", false
	}
	var notes []string
	for _, c := range []struct {
		n    int64
		what string
	}{{r.stats.NaN, "NaN"}, {r.stats.Inf, "Inf"}, {r.stats.Zeros, "zero"}} {
		if c.n > 0 {
			notes = append(notes, count(c.n, c.what))
		}
	}
	return strings.Join(notes, ", "), r.stats.NaN+r.stats.Inf > 0
}

func (t *tensorTable) totals() {
	var parameters, bytes int64
	for _, r := range t.rows {
		parameters += r.elements
		bytes += r.bytes()
	}
	text := fmt.Sprintf("%s, %s, %s", count(int64(len(t.rows)), "tensor"), count(parameters, "parameter"), count(bytes, "byte"))
	if bytes >= 1<<10 {
		text += " (" + bytesText(bytes) + ")"
	}
	fmt.Fprintln(t.out, t.ink.bold(t.cut(text, t.width)))
}

func count(n int64, what string) string {
	if n == 1 || what == "NaN" || what == "Inf" {
		return fmt.Sprintf("%d %s", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// metadata prints the metadata of all files. Equal entries are printed once.
func (t *tensorTable) metadata(m *model) {
	seen := map[string]bool{}
	for _, f := range m.Files() {
		for _, k := range slices.Sorted(maps.Keys(f.Metadata)) {
			line := fmt.Sprintf("metadata %s = %s", preview([]byte(k)), preview([]byte(f.Metadata[k])))
			if !seen[line] {
				fmt.Fprintln(t.out, t.ink.dim(t.cut(line, t.width)))
			}
			seen[line] = true
		}
	}
}

// cut shortens s at its end. If the table's width is 0, the output is no terminal and s is not cut.
func (t *tensorTable) cut(s string, width int) string {
	if t.width == 0 || utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:width-1]) + "…"
}

// middle shortens s in the middle, because names differ at their ends.
func middle(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	head := (width - 1) / 3 // the end is more informative
	return string(r[:head]) + "…" + string(r[len(r)-(width-1-head):])
}
