package timeline

import (
	"bufio"
	"cmp"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// PictureOptions are the options of a picture. Zero fields have defaults.
type PictureOptions struct {
	Width    int           // of the picture, in pixels; default 1200, minimum 600
	From, To time.Duration // the part to show, counted from the first event; To 0 is the end
	Title    string        // default: the number of ranks and verbs
}

// Positions in the picture, in pixels.
const (
	marginLeft   = 104
	marginRight  = 190 // space for the bars of how long the others waited for each row
	marginTop    = 76
	legendHeight = 64
)

// picture is a picture that is being drawn.
type picture struct {
	*bufio.Writer
	t          *Timeline
	from       time.Time
	span       time.Duration
	width      float64
	rows       map[*Row]int
	high, bar  float64 // height of a row, and of a bar in it
	whole      float64 // total height of the rows
	summary    Summary
	causedMost time.Duration
}

// The kinds of shapes in a row.
const (
	works = iota
	waits
	alone
	kinds
)

var kindClass = [kinds]string{"k", "w", "a"}

// SVG draws a row for each rank. It shows the verbs that the rank called together with others, the
// part of them spent waiting, and in red the time during which all others waited for this rank
// alone. A line is the end of a verb, across the ranks that called it. Bars on the right show how
// long the others waited for each rank. Events narrower than two pixels are drawn as a shade: the
// part of a pixel's time that they take.
func (t *Timeline) SVG(w io.Writer, o *PictureOptions) error {
	if o == nil {
		o = &PictureOptions{}
	}
	p, err := t.picture(w, o)
	if err != nil {
		return err
	}
	p.begin(o.Title)
	p.axis()
	p.labels()
	p.lines()
	for _, r := range t.Rows {
		p.row(r)
	}
	p.blame()
	p.legend()
	p.print("</svg>\n")
	return p.Flush()
}

func (t *Timeline) picture(w io.Writer, o *PictureOptions) (*picture, error) {
	width := max(cmp.Or(o.Width, 1200), 600)
	to := cmp.Or(o.To, t.End.Sub(t.Start))
	if o.From < 0 || to < o.From || o.To < 0 {
		return nil, fmt.Errorf("timeline: from %v to %v is no part of a trace", o.From, to)
	}
	p := &picture{
		Writer: bufio.NewWriter(w), t: t, from: t.Start.Add(o.From), span: max(to-o.From, time.Microsecond),
		width: float64(width - marginLeft - marginRight), rows: map[*Row]int{}, summary: t.Summary(),
	}
	for i, r := range t.Rows {
		p.rows[r] = i
	}
	for _, r := range p.summary.Ranks {
		p.causedMost = max(p.causedMost, r.Caused)
	}
	n := float64(len(t.Rows))
	p.high = math.Round(min(max(900/n, 4), 38)*2) / 2
	p.bar = max(math.Round(p.high*0.58), 2)
	p.whole = p.high * n
	return p, nil
}

// print ignores the error of p, a bufio.Writer, which keeps its first error.
func (p *picture) print(format string, args ...any) { _, _ = fmt.Fprintf(p, format, args...) }

// x returns the horizontal position of a time.
func (p *picture) x(t time.Time) float64 {
	return marginLeft + p.width*float64(t.Sub(p.from))/float64(p.span)
}

// y returns the vertical position of the middle of a row.
func (p *picture) y(r *Row) float64 { return marginTop + p.high*(float64(p.rows[r])+0.5) }

// style has both themes; a picture that is shown by itself uses the system's.
const style = `<style>
.mt{--bg:#ffffff;--fg:#1d2433;--dim:#6b7385;--rule:#e6e9ef;--line:#a9b2c3;--k:#3f7fd6;--w:#f3cf7d;--a:#d8343f;--dot:#b9c1cf}
@media (prefers-color-scheme:dark){.mt{--bg:#14171f;--fg:#e7eaf1;--dim:#98a1b3;--rule:#262b37;--line:#4d5669;--k:#5b9bf0;--w:#7d6a35;--a:#ff5c66;--dot:#3c4456}}
.mt text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--fg)}
.mt .h{font-size:16px;font-weight:600}.mt .d{fill:var(--dim)}.mt .n{font-variant-numeric:tabular-nums}
.mt .e{text-anchor:end}.mt .m{text-anchor:middle}.mt .b{fill:var(--bg)}.mt .s{stroke:var(--rule);stroke-width:1}
.mt .k{fill:var(--k)}.mt .w{fill:var(--w)}.mt .a{fill:var(--a)}.mt .f{stroke:var(--a);stroke-width:2.2;fill:none}
.mt .ks{stroke:var(--k)}.mt .ws{stroke:var(--w)}.mt .as{stroke:var(--a)}
.mt .l{stroke:var(--line);stroke-width:1}.mt .lf{stroke:var(--a);stroke-width:1.4}.mt .q{stroke:var(--a);stroke-width:1.2;stroke-dasharray:3 3}
.mt .t{stroke:var(--dot);stroke-width:1}.mt rect:hover{filter:brightness(1.12)}
</style>
`

func (p *picture) begin(title string) {
	width, height := p.width+marginLeft+marginRight, marginTop+p.whole+legendHeight
	if title == "" {
		title = fmt.Sprintf("%s, %s together", count(len(p.t.Rows), "rank"), count(p.summary.Records, "verb"))
	}
	p.print(`<svg class="mt" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img" aria-label="%s">`+"\n%s",
		width, height, width, height, escaped(title), style)
	p.print(`<rect class="b" width="100%%" height="100%%"/><text class="h" x="16" y="28">%s</text>`+"\n", escaped(title))
	sub := fmt.Sprintf("%s in all; the ranks waited %s for each other", short(p.summary.Took), short(p.summary.Lost))
	if n := p.summary.Failed; n > 0 {
		sub += fmt.Sprintf("; %s failed", count(n, "verb"))
	}
	p.print(`<text class="d" x="16" y="46">%s</text>`+"\n", sub)
}

// axis draws the time axis.
func (p *picture) axis() {
	step := niceStep(p.span, p.width/90)
	offset := p.from.Sub(p.t.Start)
	bottom := marginTop + p.whole
	first := (offset + step - 1) / step * step
	for n := range (offset+p.span-first)/step + 1 {
		at := first + n*step
		x := p.x(p.t.Start.Add(at))
		p.print(`<path class="s" d="M%.1f %d V%.1f"/><text class="d n m" x="%.1f" y="%d">%s</text>`+"\n", x, marginTop-4, bottom, x, marginTop-9, tick(at, step))
	}
}

// niceStep returns a step of 1, 2 or 5 times a power of ten, such that a span has about n of them.
func niceStep(span time.Duration, n float64) time.Duration {
	least := time.Duration(float64(span) / n)
	for step := time.Duration(1); ; step *= 10 {
		for _, k := range []time.Duration{1, 2, 5} {
			if step*k >= least {
				return step * k
			}
		}
	}
}

// tick formats a time of the axis, in the unit of the step.
func tick(at, step time.Duration) string {
	switch {
	case at == 0:
		return "0"
	case step >= time.Second:
		return fmt.Sprintf("%d s", at/time.Second)
	case step >= time.Millisecond && at >= time.Second:
		return fmt.Sprintf("%g s", at.Seconds())
	case step >= time.Millisecond:
		return fmt.Sprintf("%d ms", at/time.Millisecond)
	case step >= time.Microsecond:
		return fmt.Sprintf("%g ms", float64(at)/1e6)
	}
	return fmt.Sprintf("%g µs", float64(at)/1e3)
}

// labels draws the ranks, as many as fit.
func (p *picture) labels() {
	every := int(math.Ceil(13 / p.high))
	for i, r := range p.t.Rows {
		y := p.y(r)
		p.print(`<path class="s" d="M%d %.1f H%.1f"/>`, marginLeft, y, marginLeft+p.width)
		if i%every == 0 || r == p.summary.Ranks[0].Row && p.causedMost > 0 {
			p.print(`<text class="n e" x="%d" y="%.1f">%s<title>%s</title></text>`+"\n", marginLeft-10, y+4, r.label(),
				escaped(fmt.Sprintf("pid %d on %s; its clock was %s", r.PID, r.Host, r.clockText())))
		}
	}
}

// clockText describes the correction of a row's clock.
func (r *Row) clockText() string {
	switch {
	case r.Unaligned:
		return "its own: it has no verb in common with the others"
	case r.Clock < 0:
		return short(-r.Clock) + " behind"
	}
	return short(r.Clock) + " ahead"
}

// lineGap is the minimum distance of lines.
const lineGap = 6

// lines draws the ends of verbs. If not all fit, it draws those that failed, or that had the
// longest waits.
func (p *picture) lines() {
	best := map[int]*Record{}
	for _, rec := range p.t.Records {
		x := p.x(rec.End)
		if rec.Inner || len(rec.Calls) < 2 || x < marginLeft || x > marginLeft+p.width {
			continue
		}
		at := int(x / lineGap)
		if old := best[at]; old == nil || rec.Failed && !old.Failed || rec.Failed == old.Failed && rec.Waited > old.Waited {
			best[at] = rec
		}
	}
	ats := make([]int, 0, len(best))
	for at := range best {
		ats = append(ats, at)
	}
	slices.Sort(ats)
	for _, at := range ats {
		rec := best[at]
		top, bottom := math.Inf(1), 0.0
		for _, c := range rec.Calls {
			top, bottom = min(top, p.y(c.Row)), max(bottom, p.y(c.Row))
		}
		class := "l"
		if rec.Failed {
			class = "lf"
		}
		p.print(`<path class="%s" d="M%.1f %.1f V%.1f"><title>%s</title></path>`+"\n", class, p.x(rec.End), top-p.bar/2-2, bottom+p.bar/2+2, escaped(rec.text()))
	}
}

// blame draws how long the others waited for each row.
func (p *picture) blame() {
	left := marginLeft + p.width + 16
	p.print(`<text class="d" x="%.1f" y="%d">the others waited for it</text>`+"\n", left, marginTop-9)
	if p.causedMost == 0 {
		return
	}
	every := int(math.Ceil(13 / p.high))
	for _, r := range p.summary.Ranks {
		if r.Caused == 0 {
			continue
		}
		y, wide := p.y(r.Row), 70*float64(r.Caused)/float64(p.causedMost)
		class := "w"
		if r.Caused >= p.causedMost/2 && r.Caused >= p.summary.Lost/time.Duration(len(p.t.Rows)) {
			class = "a"
		}
		p.print(`<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="1.5"/>`, class, left, y-p.bar/2, max(wide, 1), p.bar)
		if p.rows[r.Row]%every == 0 || r.Row == p.summary.Ranks[0].Row {
			p.print(`<text class="n" x="%.1f" y="%.1f">%s · %d×</text>`, left+wide+6, y+4, short(r.Caused), r.Last)
		}
		p.print("\n")
	}
}

func (p *picture) legend() {
	y, x := marginTop+p.whole+34, float64(marginLeft)
	entry := func(mark, text string) {
		p.print(mark, x, y-9)
		p.print(`<text class="d" x="%.1f" y="%.1f">%s</text>`+"\n", x+22, y, text)
		x += 40 + 6.2*float64(len(text))
	}
	box := `<rect class="%s" x="%%.1f" y="%%.1f" width="16" height="10" rx="1.5"/>`
	entry(fmt.Sprintf(box, "w"), "waits for others")
	entry(fmt.Sprintf(box, "k"), "is in a verb")
	entry(fmt.Sprintf(box, "a"), "the others wait for it alone")
	entry(`<path class="l" transform="translate(%.1f %.1f)" d="M8 -2 V12"/>`, "a verb ends")
	entry(`<path class="f" transform="translate(%.1f %.1f)" d="M4 1 l8 8 m0 -8 l-8 8"/>`, "failed")
	if slices.ContainsFunc(p.t.Rows, func(r *Row) bool { return r.Truncated }) {
		entry(`<path class="q" transform="translate(%.1f %.1f)" d="M8 -2 V12"/>`, "did not close its group")
	}
}

// text describes a record.
func (rec *Record) text() string {
	s := rec.String()
	switch {
	case rec.Last >= 0 && rec.Waited > 0:
		s += fmt.Sprintf(": rank %d came last, the others waited %s", rec.Calls[rec.Last].Of().Rank, short(rec.Waited))
	case rec.Absent != nil:
		s += fmt.Sprintf(": %s did not come, the others waited %s", rec.Absent.label(), short(rec.Waited))
	}
	if rec.Failed {
		s += "; failed"
	}
	return s
}

// String returns the record's name, such as "barrier #3 of world".
func (rec *Record) String() string {
	s := strings.TrimPrefix(rec.Op, "pgroup.")
	if rec.Seq > 0 {
		s += fmt.Sprintf(" #%d", rec.Seq)
	}
	if rec.Channel != "" && rec.Channel != shutdown {
		s += " on " + rec.Channel
	}
	return s + " of " + rec.Group
}

// escaped returns s as XML text, which cannot contain most control characters, even escaped.
func escaped(s string) string {
	return html.EscapeString(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0xfffe || r == 0xffff {
			return utf8.RuneError
		}
		return r
	}, s))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// short formats a duration with three significant digits.
func short(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}} {
		if d >= u.unit {
			f := float64(d) / float64(u.unit)
			return fmt.Sprintf("%.*f %s", max(0, 2-int(math.Log10(f))), f, u.name)
		}
	}
	return "0 s"
}
