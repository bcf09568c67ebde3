package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// liveEvery is the time between updates of the live view.
const liveEvery = time.Second

// live shows who waits for whom until Ctrl-C or the timeout.
func (r *remote) live(cmd *cobra.Command, ranks bool) error {
	if !term.IsTerminal(int(os.Stdout.Fd())) {
		return &exit{code: exitUsage, text: `--watch needs a terminal; without it, "muster who" prints it once`}
	}
	others, err := r.findOne()
	if err != nil {
		return err
	}
	return r.do(cmd, func(ctx context.Context, s *store.Store) error {
		if err := visible(ctx, s); err != nil {
			return err
		}
		title := redacted(r.url)
		if others > 0 {
			title += fmt.Sprintf(" · %d more on this host: muster who", others)
		}
		return (&liveView{store: s, title: title, ink: inkOf(os.Stdout), ranks: ranks}).show(ctx, os.Stdout)
	})
}

// liveView is the state of who --watch.
type liveView struct {
	store *store.Store
	title string
	ink   ink
	ranks bool

	view *status.View // the last one
	err  error        // of the last request
}

// Control sequences of terminals. Lines that are too long for the terminal are cut off by it.
const (
	enterScreen = "\x1b[?1049h\x1b[?7l\x1b[?25l" // the alternate screen, without wrapping and cursor
	leaveScreen = "\x1b[?25h\x1b[?7h\x1b[?1049l"
	toTop       = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

// show draws the view on a terminal until ctx is done or a signal ends it.
func (l *liveView) show(ctx context.Context, out *os.File) error {
	shown, stop := untilSignal(ctx)
	defer stop()
	_, _ = io.WriteString(out, enterScreen)
	defer func() { _, _ = io.WriteString(out, leaveScreen) }()
	for {
		l.look(shown)
		_, height, err := term.GetSize(int(out.Fd()))
		if err != nil {
			return err
		}
		if _, err := io.WriteString(out, toTop+strings.Join(l.lines(height), clearLine+"\r\n")+clearLine+clearRest); err != nil {
			return err
		}
		select {
		case <-time.After(liveEvery):
		case <-shown.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return &exit{code: exitTimeout, err: ctx.Err(), text: "the time given by --timeout is over"}
			}
			return nil
		}
	}
}

// look requests the status of the store.
func (l *liveView) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	now, err := status.Fetch(ctx, l.store, nil)
	if l.err = err; err == nil {
		l.view = status.Of(now, &status.Options{Ranks: 256, Groups: 200})
	}
}

// lines returns what a terminal of the given height shows: the head, and the longest waits.
func (l *liveView) lines(height int) []string {
	lines := []string{l.head()}
	if l.view != nil {
		var b strings.Builder
		(&whoPrinter{report{&b, l.ink}, l.ranks}).print(l.view)
		lines = append(lines, strings.Split(strings.TrimRight(b.String(), "\n"), "\n")...)
	}
	if room := max(height-1, 1); len(lines) > height {
		more := l.ink.dim(fmt.Sprintf("%d more lines: muster who", len(lines)-room))
		lines = append(lines[:room], more)
	}
	return lines
}

// head returns the first line: the store, and whether it answers.
func (l *liveView) head() string {
	head := l.ink.bold("muster") + " " + l.title
	if l.err != nil {
		head += " · " + l.ink.red("the store does not answer: "+oneLine(l.err.Error()))
	}
	return head
}

// duration converts a number of seconds.
func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
