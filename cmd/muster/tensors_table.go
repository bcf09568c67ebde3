package main

import (
	"bufio"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// The widths to which columns are padded at most.
const (
	nameMost  = 60
	shapeMost = 30
)

// tensorTable prints rows for people.
type tensorTable struct {
	out *bufio.Writer
	ink ink
}

// dimensions formats a shape, as 4096×4096.
func dimensions(shape []int) string {
	if len(shape) == 0 {
		return "scalar"
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(shape), "[]"), " ", "×")
}

func (t *tensorTable) print(m *model, rows []*tensorRow) error {
	lines := [][4]string{{"NAME", "DTYPE", "SHAPE", "BYTES"}}
	for _, r := range rows {
		lines = append(lines, [4]string{printable(r.name), r.info.DType.String(), dimensions(r.info.Shape), bytesText(r.bytes())})
	}
	var width [4]int
	for _, line := range lines {
		for i, cell := range line {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for i, line := range lines {
		text := fmt.Sprintf("%-*s  %-*s  %-*s  %*s", min(width[0], nameMost), line[0], width[1], line[1], min(width[2], shapeMost), line[2], width[3], line[3])
		switch {
		case len(rows) == 0:
			continue
		case i == 0:
			text = t.ink.bold(text)
		}
		if _, err := fmt.Fprintln(t.out, text); err != nil {
			return err
		}
	}
	t.totals(rows)
	t.metadata(m)
	return t.out.Flush()
}

func (t *tensorTable) totals(rows []*tensorRow) {
	var parameters, bytes int64
	for _, r := range rows {
		parameters += r.elements
		bytes += r.bytes()
	}
	text := fmt.Sprintf("%s, %s, %s", count(int64(len(rows)), "tensor"), count(parameters, "parameter"), count(bytes, "byte"))
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
