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
	"github.com/muster-pg/muster/status"
	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

func newTop() *cobra.Command {
	var r remote
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show who waits for whom, live",
		Long: `Show who waits for whom, live, and the store's rates: the same as "muster who --watch". Without
--store and MUSTER_STORE it shows the store of the "muster run" of this user on this host. Arrow and
Page keys scroll, r shows every rank, space pauses, q quits.`,
		Example: `  muster top
  muster top --store muster://$MASTER_ADDR:$MASTER_PORT --every 5s`,
		Args: operands(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return usagef(cmd, "--every must be 100ms or more")
			}
			return r.top(cmd, every)
		},
	}
	r.flags(cmd, 0)
	cmd.Flags().DurationVar(&every, "every", time.Second, "`time` between updates")
	return cmd
}

// top shows who waits for whom until the user quits.
func (r *remote) top(cmd *cobra.Command, every time.Duration) error {
	if widthOf(os.Stdout) == 0 {
		return &exit{code: exitUsage, text: `a terminal is needed to show it live; "muster who" prints it once`}
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
		m := newTopModel(ctx, s, title, every, inkOf(os.Stdout))
		_, err := tea.NewProgram(m, tea.WithContext(ctx)).Run()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return &exit{code: exitTimeout, err: err, text: "the time given by --timeout is over"}
		}
		return err
	})
}

// topModel is the state of top.
type topModel struct {
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

func newTopModel(ctx context.Context, s *store.Store, url string, every time.Duration, k ink) *topModel {
	return &topModel{
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
func (m *topModel) look() tea.Msg {
	v, err := m.watch.View(m.ctx)
	return seen{v, err}
}

// again is the message that it is time for the next request.
type again struct{}

// Init implements tea.Model.
func (m *topModel) Init() tea.Cmd { return m.look }

// Update implements tea.Model.
func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case seen:
		if m.err = msg.err; m.err == nil {
			m.view = msg.view
		}
		return m, tea.Tick(m.every, func(time.Time) tea.Msg { return again{} })
	case again:
		if m.paused {
			return m, tea.Tick(m.every, func(time.Time) tea.Msg { return again{} })
		}
		return m, m.look
	case tea.KeyPressMsg:
		return m, m.press(msg.String())
	}
	return m, nil
}

func (m *topModel) press(key string) tea.Cmd {
	page := max(m.height-2, 1)
	switch key {
	case "q", "esc", "ctrl+c":
		return tea.Quit
	case "space":
		m.paused = !m.paused
	case "r":
		m.ranks = !m.ranks
	case "down", "j":
		m.from++
	case "up", "k":
		m.from--
	case "pgdown":
		m.from += page
	case "pgup":
		m.from -= page
	case "home", "g":
		m.from = 0
	case "end", "G":
		m.from = len(m.lines())
	}
	m.from = max(0, min(m.from, len(m.lines())-page))
	return nil
}

// lines returns all lines, of which the screen shows a part.
func (m *topModel) lines() []string {
	if m.view == nil {
		return nil
	}
	var b strings.Builder
	(&whoPrinter{&b, m.ink, m.ranks}).print(m.view)
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
}

// View implements tea.Model.
func (m *topModel) View() tea.View {
	lines := m.lines()
	from := max(0, min(m.from, len(lines)-1))
	room := max(m.height-2, 1)
	shown := append([]string{m.head()}, lines[from:min(len(lines), from+room)]...)
	for len(shown) < room+1 {
		shown = append(shown, "")
	}
	foot := "q quits · ↑↓ scroll · r ranks · space pauses"
	if rest := len(lines) - from - room; rest > 0 {
		foot += fmt.Sprintf(" · %d more below", rest)
	}
	shown = append(shown, m.ink.dim(foot))
	for i := range shown {
		shown[i] = ansi.Truncate(shown[i], m.width, "…")
	}
	v := tea.NewView(strings.Join(shown, "\n"))
	v.AltScreen = true
	return v
}

// head returns the first line: the store and its activity.
func (m *topModel) head() string {
	parts := []string{m.ink.bold("muster") + " " + m.url}
	switch {
	case m.err != nil:
		parts = append(parts, m.ink.red("the store does not answer: "+oneLine(m.err.Error())))
	case m.paused:
		parts = append(parts, m.ink.red("stopped"))
	case m.view == nil:
		parts = append(parts, "asking…")
	}
	if m.err == nil && m.view != nil && m.view.Server != nil && m.view.Server.Rates != nil {
		r := m.view.Server.Rates
		parts = append(parts, fmt.Sprintf("%.0f ops/s · in %s/s · out %s/s", r.Ops, bytesText(int64(r.In)), bytesText(int64(r.Out))))
		if r.P99 > 0 {
			parts = append(parts, fmt.Sprintf("p50 %s, p99 %s", short(duration(r.P50)), short(duration(r.P99))))
		}
	}
	return strings.Join(parts, " · ")
}

// duration converts a number of seconds.
func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
