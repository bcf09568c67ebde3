package main_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/exp/teatest/v2"
	"github.com/stretchr/testify/assert"

	muster "github.com/muster-pg/muster/cmd/muster"
	"github.com/muster-pg/muster/store"
)

// TestTop runs the complete program on a terminal of 100 × 20.
func TestWhoWatch(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	s := dial(t, url)
	tm := teatest.NewTestModel(t, muster.NewLiveView(t.Context(), s, url, 100*time.Millisecond), teatest.WithInitialTermSize(100, 20))
	shows := func(texts ...string) {
		t.Helper()
		for _, text := range texts {
			teatest.WaitFor(t, tm.Output(), func(b []byte) bool { return strings.Contains(ansi.Strip(string(b)), text) }, teatest.WithDuration(limit))
		}
	}
	shows("nothing waits")
	stuck(t, dial(t, url), "train")
	shows("train waits for rank 1 (pid 7 on node-b)")
	tm.Type("r")
	shows("pid 7 on node-a")
	tm.Type("q")
	tm.WaitFinished(t, teatest.WithFinalTimeout(limit))
	if _, err := io.ReadAll(tm.FinalOutput(t)); err != nil {
		t.Error(err)
	}
}

// live is the model without a terminal.
type live struct {
	t *testing.T
	tea.Model
}

// send sends the model a message, and executes the command that follows a key press. Other commands
// are ticks, which would wait.
func (m *live) send(msg tea.Msg) (quit bool) {
	m.t.Helper()
	next, cmd := m.Update(msg)
	m.Model = next
	if _, key := msg.(tea.KeyPressMsg); !key || cmd == nil {
		return false
	}
	_, quit = cmd().(tea.QuitMsg)
	return quit
}

// looks lets the model request the status of the store.
func (m *live) looks() {
	m.t.Helper()
	m.send(m.Init()())
}

func (m *live) lines() []string { return strings.Split(m.View().Content, "\n") }

func (m *live) press(keys ...string) (quit bool) {
	codes := map[string]rune{"down": tea.KeyDown, "up": tea.KeyUp, "pgdown": tea.KeyPgDown, "pgup": tea.KeyPgUp, "home": tea.KeyHome, "end": tea.KeyEnd, "space": tea.KeySpace, "esc": tea.KeyEscape}
	for _, k := range keys {
		msg := tea.KeyPressMsg{Code: rune(k[0]), Text: k}
		if c, ok := codes[k]; ok {
			msg = tea.KeyPressMsg{Code: c}
		}
		quit = m.send(msg)
	}
	return quit
}

func TestWhoLiveView(t *testing.T) {
	t.Parallel()
	s := store.New(new(store.Memory))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	m := &live{t, muster.NewLiveView(ctx, s, "muster://127.0.0.1:7070", time.Hour)}
	assert.Equal(t, "muster muster://127.0.0.1:7070 · asking…", m.lines()[0])
	stuck(t, s, "train")
	m.looks()
	m.looks()
	m.send(tea.WindowSizeMsg{Width: 60, Height: 10})
	lines := m.lines()
	if len(lines) != 10 || !strings.Contains(lines[0], "ops/s") || !strings.HasPrefix(lines[1], "train waits for rank 1") || !strings.Contains(lines[9], "q quits") {
		t.Errorf("%q", lines)
	}
	for _, l := range lines {
		if n := ansi.StringWidth(l); n > 60 {
			t.Errorf("%d wide: %q", n, l)
		}
	}
	m.send(tea.WindowSizeMsg{Width: 60, Height: 5})
	first := m.lines()[1]
	if m.press("down", "down"); m.lines()[1] == first {
		t.Error("it does not scroll")
	}
	if m.press("up", "up", "up"); m.lines()[1] != first {
		t.Errorf("it does not scroll back: %q", m.lines())
	}
	m.press("end", "pgdown")
	if last := m.lines()[3]; !strings.Contains(last, "1 call that waits") {
		t.Errorf("the end is %q", m.lines())
	}
	m.press("pgup", "home")
	assert.Equal(t, first, m.lines()[1], "home is %q", m.lines())
	if m.press("space"); !strings.Contains(m.lines()[0], "paused") {
		t.Errorf("%q", m.lines()[0])
	}
	m.press("space")
	cancel()
	m.looks()
	if lines := m.lines(); !strings.Contains(lines[0], "does not answer") || lines[1] != first {
		t.Errorf("what was there is not there any more: %q", lines)
	}
	for _, k := range []string{"q", "esc"} {
		assert.True(t, m.press(k), "%s does not end it", k)
	}
	assert.ErrorIs(t, ctx.Err(), context.Canceled)
}
