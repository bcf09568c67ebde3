package main_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	muster "github.com/muster-pg/muster/cmd/muster"
	"github.com/muster-pg/muster/store"
)

// TestWhoLiveView checks the lines of who --watch: the store, what fits into the terminal, and the last
// view while the store does not answer.
func TestWhoLiveView(t *testing.T) {
	t.Parallel()
	s := store.New(new(store.Memory))
	defer s.Close()
	l := muster.NewLiveView(s, "muster://127.0.0.1:7070")
	stuck(t, s, "train")
	l.Look(t.Context())
	lines := l.Lines(100)
	require.Equal(t, "muster muster://127.0.0.1:7070", lines[0])
	require.Contains(t, lines[1], "train waits for rank 1 (pid 7 on node-b)")
	require.Contains(t, lines[len(lines)-1], "1 call that waits")
	few := l.Lines(3)
	require.Len(t, few, 3)
	require.Equal(t, lines[:2], few[:2])
	require.Equal(t, "muster who", few[2][strings.LastIndex(few[2], "muster"):])
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.Look(ctx)
	lost := l.Lines(100)
	assert.Contains(t, lost[0], "does not answer")
	assert.Equal(t, lines[1], lost[1], "the last view stays")
}
