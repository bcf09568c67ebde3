package timeline

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// shades are, for each kind, the part of each pixel's time that it takes.
type shades [kinds][]float64

// least is the width in pixels from which on an event has a bar of its own.
const least = 2

// rowsWithBars is the maximum number of rows that have bars with tooltips. Pictures with more rows
// have shades only, or the file would be too large to open.
const rowsWithBars = 256

// steps is the number of different shades.
const steps = 6

// row draws the events of one rank.
func (p *picture) row(r *Row) {
	var s shades
	for k := range s {
		s[k] = make([]float64, int(math.Ceil(p.width))+1)
	}
	y := p.y(r)
	for i := range r.Events {
		e := &r.Events[i]
		if e.Inner || isQuick(e.Op) {
			continue
		}
		waited := e.Start.Add(e.Wait)
		p.bars(&s, waits, y, e.Start, waited, e.text)
		p.bars(&s, works, y, waited, e.End, e.text)
	}
	for _, rec := range p.t.Records {
		if rec.Inner || rec.Blamed() != r {
			continue
		}
		if rec.Absent != nil {
			p.bars(&s, alone, y, rec.Alone, rec.End, rec.text)
		} else if e := rec.Calls[rec.Last].Of(); len(rec.Calls) > 1 && e.Start.After(rec.Alone) {
			p.bars(&s, alone, y, rec.Alone, e.Start, func() string { return e.text() + "\n" + rec.text() })
		}
	}
	for k := range s {
		p.shade(kindClass[k], y, s[k])
	}
	for i := range r.Events {
		if e := &r.Events[i]; e.Err != nil && !e.Inner {
			p.cross(y, e)
		}
	}
	if r.Truncated {
		p.cut(r, y)
	}
}

// isQuick reports whether an operation is left out of the picture: one that waits for no other
// rank, or as long as a group is active.
func isQuick(op string) bool {
	return op == "pgroup.close" || op == "pgroup.abort" || op == "pgroup.expire" || strings.HasPrefix(op, "store.")
}

// bars draws a bar, or adds to the shades if the bar would be too narrow.
func (p *picture) bars(s *shades, kind int, y float64, from, to time.Time, text func() string) {
	a, b := p.x(from)-marginLeft, p.x(to)-marginLeft
	a, b = max(a, 0), min(b, p.width)
	if b <= a {
		return
	}
	if b-a < least || len(p.rows) > rowsWithBars {
		for at := a; at < b; {
			next := min(math.Floor(at)+1, b)
			s[kind][int(at)] += next - at
			at = next
		}
		return
	}
	p.print(`<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="1.5"><title>%s</title></rect>`+"\n",
		kindClass[kind], marginLeft+a, y-p.bar/2, b-a, p.bar, escaped(text()))
}

// shade draws the pixels of a kind: a path for each shade, of strokes as high as a bar.
func (p *picture) shade(class string, y float64, of []float64) {
	step := func(i int) int {
		if of[i] == 0 {
			return 0
		}
		return min(max(int(math.Ceil(of[i]*steps)), 1), steps)
	}
	var paths [steps + 1]strings.Builder
	for i := 0; i < len(of); {
		n, end := step(i), i+1
		for end < len(of) && step(end) == n {
			end++
		}
		fmt.Fprintf(&paths[n], "M%d %.1fh%d", marginLeft+i, y, end-i)
		i = end
	}
	for n := 1; n <= steps; n++ {
		if paths[n].Len() > 0 {
			p.print(`<path class="%ss" stroke-width="%.1f" opacity="%.2f" d="%s"/>`+"\n", class, p.bar, float64(n)/steps, paths[n].String())
		}
	}
}

// cross marks an event that failed.
func (p *picture) cross(y float64, e *Event) {
	x, r := p.x(e.End), min(5, p.bar/2)
	if x < marginLeft || x > marginLeft+p.width {
		return
	}
	p.print(`<path class="f" d="M%.1f %.1f l%.1f %.1f m0 %.1f l%.1f %.1f"><title>%s</title></path>`+"\n",
		x-r, y-r, 2*r, 2*r, -2*r, -2*r, 2*r, escaped(e.text()))
}

// cut marks the place where a trace without an end stops.
func (p *picture) cut(r *Row, y float64) {
	last := p.t.Start
	for i := range r.Events {
		if r.Events[i].End.After(last) {
			last = r.Events[i].End
		}
	}
	if x := p.x(last); x >= marginLeft && x <= marginLeft+p.width {
		p.print(`<path class="q" d="M%.1f %.1f V%.1f"><title>%s did not close its group: its trace ends here</title></path>`+"\n",
			x+3, y-p.high*0.45, y+p.high*0.45, escaped("the trace of "+r.label()))
	}
}

// text describes an event.
func (e *Event) text() string {
	var b strings.Builder
	b.WriteString(strings.TrimPrefix(e.Op, "pgroup."))
	if e.Seq > 0 {
		fmt.Fprintf(&b, " #%d", e.Seq)
	}
	if e.Group != "" {
		fmt.Fprintf(&b, " of %s, rank %d of %d", e.Group, e.Rank, e.Size)
	}
	fmt.Fprintf(&b, "\n%s", short(e.Duration()))
	if e.Wait > 0 {
		fmt.Fprintf(&b, ", of it %s for others", short(e.Wait))
	}
	if e.Last >= 0 && e.Last != e.Rank {
		fmt.Fprintf(&b, " (rank %d)", e.Last)
	}
	if e.Bytes > 0 {
		fmt.Fprintf(&b, ", %d bytes", e.Bytes)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, "\n%v", e.Err)
	}
	return b.String()
}
