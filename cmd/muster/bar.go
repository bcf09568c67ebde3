package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

// bar shows on a terminal how far something is. Elsewhere it shows nothing.
type bar struct {
	out   io.Writer
	width func() int // of the terminal now; 0: it is none
	text  func(done, total int64, took time.Duration) string
	start time.Time // of the first showing
	drawn time.Time // at last
	shown bool
}

// newBar is one of bytes.
func newBar(w io.Writer) *bar {
	b := &bar{out: w, width: func() int { return widthOf(w) }, text: barLine}
	if os.Getenv("TERM") == "dumb" {
		b.width = func() int { return 0 }
	}
	return b
}

// newCountBar is one of what has been done, as "ranks have started".
func newCountBar(w io.Writer, what string) *bar {
	b := newBar(w)
	b.text = func(done, total int64, took time.Duration) string { return countLine(done, total, took, what) }
	return b
}

// drawEvery is how often it is drawn: a terminal is slow, and so are people.
const drawEvery = 50 * time.Millisecond

// show draws it anew, unless it has been a moment ago. A total of 0 is one that nobody knows.
func (b *bar) show(done, total int64) {
	width, now := b.width(), time.Now()
	if total > 0 {
		done = min(done, total) // who counts may have been told too little
	}
	if width == 0 || b.shown && now.Sub(b.drawn) < drawEvery && (done < total || total == 0) {
		return
	}
	if b.start.IsZero() {
		b.start = now
	}
	b.drawn = now
	line := b.text(done, total, now.Sub(b.start))
	const least, most = 10, 40
	room := min(width-1-utf8.RuneCountInString(line), most)
	if room >= least && total > 0 {
		full := int(float64(room) * float64(done) / float64(total))
		line = strings.Repeat("█", full) + strings.Repeat("░", room-full) + line
	}
	if r := []rune(strings.TrimSpace(line)); len(r) >= width {
		line = string(r[:width-1])
	}
	_, _ = fmt.Fprintf(b.out, "\r\x1b[K%s", line)
	b.shown = true
}

// clear takes it away.
func (b *bar) clear() {
	if b.shown {
		_, _ = fmt.Fprint(b.out, "\r\x1b[K")
		b.shown = false
	}
}

// barLine is what stands behind the bar: all is on the disk only after the last byte.
func barLine(done, total int64, took time.Duration) string {
	if total == 0 {
		return " " + bytesText(done)
	}
	line := fmt.Sprintf(" %3d %%  %s of %s", int(100*float64(done)/float64(total)), bytesText(done), bytesText(total))
	rate := float64(done) / took.Seconds()
	switch {
	case done >= total:
		return line + "  to the disk"
	case done == 0 || took < time.Second/5:
		return line
	}
	left := time.Duration(float64(total-done) / rate * float64(time.Second))
	return line + fmt.Sprintf("  %s GB/s  %s left", digits(rate/1e9), left.Round(time.Second))
}

// countLine is that of things that take about as long each.
func countLine(done, total int64, took time.Duration, what string) string {
	if total == 0 {
		return fmt.Sprintf(" %d %s", done, what)
	}
	line := fmt.Sprintf(" %3d %%  %d of %d %s", 100*done/total, done, total, what)
	if done == 0 || done >= total || took < time.Second {
		return line
	}
	left := time.Duration(float64(took) / float64(done) * float64(total-done))
	return line + fmt.Sprintf("  %s left", left.Round(time.Second))
}
