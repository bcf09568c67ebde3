package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	nameMost  = 60 // width to which names are padded
	shapeMost = 30
)

// column is a column of a table.
type column struct {
	head  string
	width int
	left  bool // aligned
	cell  func(r *tensorRow) string
}

// tensorTable prints rows for people.
type tensorTable struct {
	out     *bufio.Writer
	ink     ink
	rows    []*tensorRow
	columns []column
}

// newTensorTable returns a table that is printed to out, which writes to where.
func newTensorTable(where io.Writer, out *bufio.Writer, rows []*tensorRow) *tensorTable {
	t := &tensorTable{out: out, ink: inkOf(where), rows: rows}
	t.columns = []column{
		{head: "NAME", width: nameMost, left: true, cell: func(r *tensorRow) string { return printable(r.name) }},
		{head: "DTYPE", width: shapeMost, left: true, cell: func(r *tensorRow) string { return r.info.DType.String() }},
		{head: "SHAPE", width: shapeMost, left: true, cell: func(r *tensorRow) string { return dimensions(r.info.Shape) }},
		{head: "BYTES", width: shapeMost, cell: func(r *tensorRow) string { return bytesText(r.bytes()) }},
	}
	for i := range t.columns {
		c := &t.columns[i]
		c.width = min(c.width, longest(*c, rows))
	}
	return t
}

func longest(c column, rows []*tensorRow) int {
	n := len(c.head)
	for _, r := range rows {
		n = max(n, utf8.RuneCountInString(c.cell(r)))
	}
	return n
}

// dimensions formats a shape, as 4096×4096.
func dimensions(shape []int) string {
	if len(shape) == 0 {
		return "scalar"
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(shape), "[]"), " ", "×")
}

func (t *tensorTable) print(m *model) error {
	if len(t.rows) > 0 {
		fmt.Fprintln(t.out, t.ink.bold(t.line(func(c column) string { return c.head })))
	}
	for _, r := range t.rows {
		if _, err := fmt.Fprintln(t.out, t.line(func(c column) string { return c.cell(r) })); err != nil {
			return err
		}
	}
	t.totals()
	t.metadata(m)
	return t.out.Flush()
}

// line formats a row.
func (t *tensorTable) line(cell func(c column) string) string {
	var cells []string
	for _, c := range t.columns {
		if c.left {
			cells = append(cells, padRight(cell(c), c.width))
		} else {
			cells = append(cells, padLeft(cell(c), c.width))
		}
	}
	return strings.TrimRight(strings.Join(cells, "  "), " ")
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
	fmt.Fprintln(t.out, t.ink.bold(text))
}

func count(n int64, what string) string {
	if n == 1 {
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
				fmt.Fprintln(t.out, t.ink.dim(line))
			}
			seen[line] = true
		}
	}
}
