package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

// liveEvery is the time between updates of the live view.
const liveEvery = time.Second

// live shows who waits for whom until the user quits.
func (r *remote) live(cmd *cobra.Command) error {
	if widthOf(os.Stdout) == 0 {
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
		l := newLiveView(ctx, s, title, liveEvery, inkOf(os.Stdout))
		_, err := tea.NewProgram(l, tea.WithContext(ctx)).Run()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return &exit{code: exitTimeout, err: err, text: "the time given by --timeout is over"}
		}
		return err
	})
}

// liveView is the state of who --watch.
type liveView struct {
	ctx   context.Context
	watch *status.Watch
	url   string
	every time.Duration
	ink   ink

	view          *status.View
	err           error
	width, height int
	from          int // first line that is shown
	ranks, paused bool
}

func newLiveView(ctx context.Context, s *store.Store, url string, every time.Duration, k ink) *liveView {
	return &liveView{
		ctx: ctx, watch: status.NewWatch(s, 0, &status.Options{Ranks: 256, Groups: 200}), url: url, every: every, ink: k,
		width: 80, height: 24,
	}
}

// seen is the message with the result of a request to the store.
type seen struct {
	view *status.View
	err  error
}

// look requests the status of the store.
func (l *liveView) look() tea.Msg {
	v, err := l.watch.View(l.ctx)
	return seen{v, err}
}

// again is the message that it is time for the next request.
type again struct{}

// Init implements tea.Model.
func (l *liveView) Init() tea.Cmd { return l.look }

// Update implements tea.Model.
func (l *liveView) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		l.width, l.height = msg.Width, msg.Height
	case seen:
		if l.err = msg.err; l.err == nil {
			l.view = msg.view
		}
		return l, tea.Tick(l.every, func(time.Time) tea.Msg { return again{} })
	case again:
		if l.paused {
			return l, tea.Tick(l.every, func(time.Time) tea.Msg { return again{} })
		}
		return l, l.look
	case tea.KeyPressMsg:
		return l, l.press(msg.String())
	}
	return l, nil
}

func (l *liveView) press(key string) tea.Cmd {
	page := max(l.height-2, 1)
	switch key {
	case "q", "esc", "ctrl+c":
		return tea.Quit
	case "space":
		l.paused = !l.paused
	case "r":
		l.ranks = !l.ranks
	case "down", "j":
		l.from++
	case "up", "k":
		l.from--
	case "pgdown":
		l.from += page
	case "pgup":
		l.from -= page
	case "home", "g":
		l.from = 0
	case "end", "G":
		l.from = len(l.lines())
	}
	l.from = max(0, min(l.from, len(l.lines())-page))
	return nil
}

// lines returns all lines, of which the screen shows a part.
func (l *liveView) lines() []string {
	if l.view == nil {
		return nil
	}
	var b strings.Builder
	(&whoPrinter{&b, l.ink, l.ranks}).print(l.view)
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
}

// View implements tea.Model.
func (l *liveView) View() tea.View {
	lines := l.lines()
	from := max(0, min(l.from, len(lines)-1))
	room := max(l.height-2, 1)
	shown := append([]string{l.head()}, lines[from:min(len(lines), from+room)]...)
	for len(shown) < room+1 {
		shown = append(shown, "")
	}
	foot := "q quits · ↑↓ scroll · r ranks · space pauses"
	if rest := len(lines) - from - room; rest > 0 {
		foot += fmt.Sprintf(" · %d more below", rest)
	}
	shown = append(shown, l.ink.dim(foot))
	for i := range shown {
		shown[i] = ansi.Truncate(shown[i], l.width, "…")
	}
	v := tea.NewView(strings.Join(shown, "\n"))
	v.AltScreen = true
	return v
}

// head returns the first line: the store and its activity.
func (l *liveView) head() string {
	parts := []string{l.ink.bold("muster") + " " + l.url}
	switch {
	case l.err != nil:
		parts = append(parts, l.ink.red("the store does not answer: "+oneLine(l.err.Error())))
	case l.paused:
		parts = append(parts, l.ink.red("paused"))
	case l.view == nil:
		parts = append(parts, "asking…")
	}
	if l.err == nil && l.view != nil && l.view.Server != nil && l.view.Server.Rates != nil {
		r := l.view.Server.Rates
		parts = append(parts, fmt.Sprintf("%.0f ops/s · in %s/s · out %s/s", r.Ops, bytesText(int64(r.In)), bytesText(int64(r.Out))))
		if r.P99 > 0 {
			parts = append(parts, fmt.Sprintf("p50 %s, p99 %s", short(duration(r.P50)), short(duration(r.P99))))
		}
	}
	return strings.Join(parts, " · ")
}

// duration converts a number of seconds.
func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
