package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// ink colours text if the output is a terminal.
type ink bool

func inkOf(w io.Writer) ink {
	f, ok := w.(*os.File)
	return ink(ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}

func (k ink) in(code, s string) string {
	if !k {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (k ink) bold(s string) string   { return k.in("1", s) }
func (k ink) dim(s string) string    { return k.in("2", s) }
func (k ink) red(s string) string    { return k.in("1;31", s) }
func (k ink) yellow(s string) string { return k.in("33", s) }
func (k ink) green(s string) string  { return k.in("1;32", s) }

// rank returns s in the colour of a rank.
func (k ink) rank(rank int, s string) string {
	colours := []string{"36", "35", "33", "32", "34", "96", "95", "93", "92", "94"}
	return k.in(colours[rank%len(colours)], s)
}

// report is output for people.
type report struct {
	io.Writer
	ink
}

// line prints a line. A bufio.Writer keeps the error until Flush.
func (r *report) line(format string, args ...any) { _, _ = fmt.Fprintf(r, format+"\n", args...) }

// short formats a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d < time.Microsecond:
		return fmt.Sprintf("%d ns", d.Nanoseconds())
	case d < time.Millisecond:
		return digits(float64(d)/float64(time.Microsecond)) + " µs"
	case d < time.Second:
		return digits(float64(d)/float64(time.Millisecond)) + " ms"
	case d < time.Minute:
		return digits(d.Seconds()) + " s"
	}
	return d.Round(time.Second).String()
}

func digits(x float64) string {
	switch {
	case x < 10:
		return fmt.Sprintf("%.2f", x)
	case x < 100:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}
