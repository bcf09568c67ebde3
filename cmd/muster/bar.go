package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

// bar shows progress on a terminal. If the output is not a terminal, it shows nothing.
type bar struct {
	out   io.Writer
	width func() int // current width of the terminal; 0: not a terminal
	text  func(done, total int64, took time.Duration) string
	start time.Time // of the first show
	drawn time.Time // of the last drawing
	shown bool
}

// newBar returns a bar that shows a number of bytes.
func newBar(w io.Writer) *bar {
	b := &bar{out: w, width: func() int { return widthOf(w) }, text: barLine}
	if os.Getenv("TERM") == "dumb" {
		b.width = func() int { return 0 }
	}
	return b
}

// newCountBar returns a bar that shows a count, with a text such as "ranks have started".
func newCountBar(w io.Writer, what string) *bar {
	b := newBar(w)
	b.text = func(done, total int64, took time.Duration) string { return countLine(done, total, took, what) }
	return b
}

// drawEvery is the time between two drawings: terminals are slow, and more would not be readable.
const drawEvery = 50 * time.Millisecond

// show draws the bar, unless it was drawn less than drawEvery ago. If total is 0, it is unknown.
func (b *bar) show(done, total int64) {
	width, now := b.width(), time.Now()
	if total > 0 {
		done = min(done, total) // the total may be an estimate that is too low
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

// clear removes the bar.
func (b *bar) clear() {
	if b.shown {
		_, _ = fmt.Fprint(b.out, "\r\x1b[K")
		b.shown = false
	}
}

// barLine returns the text beside a bar that shows bytes. When all bytes are written, it says that
// they are still being synced to the disk.
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

// countLine returns the text beside a bar that counts items. The estimate of the time left assumes
// that all items take about as long.
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
