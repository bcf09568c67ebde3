package core_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// TestChannelsAndStreamsAreLimited opens one channel and one stream more than a group may have:
// only that call is refused, and the existing ones still work.
func TestChannelsAndStreamsAreLimited(t *testing.T) {
	w := newCrew(t, 2)
	w.m.SetBounds(core.Bounds{Channels: 3, Streams: 2})
	on := func(name string, seq uint64) wire.Contribution {
		c := barrier(seq)
		c.Channel = name
		return c
	}
	meets := func(name string, seq uint64) {
		t.Helper()
		first, _ := w.cast(0, on(name, seq), "")
		_, last := w.cast(1, on(name, seq), "")
		isCode(t, last, wire.CodeOK)
		isCode(t, w.answer(first), wire.CodeOK)
	}
	for _, name := range []string{"a", "b", "c"} {
		meets(name, 1)
	}
	for rank := range 2 {
		_, rep := w.cast(rank, on("d", 1), "")
		isCode(t, rep, wire.CodeFull)
		require.Contains(t, rep.Detail, "the limit is 3 channels")
	}
	meets("b", 2)
	for rank := range 2 { // space for another one
		done := w.request(wire.OpCloseChannel, rank)
		done.Group.Channel = "a"
		isCode(t, w.does(w.sessions[rank], done), wire.CodeOK)
	}
	meets("d", 1)

	isCode(t, w.does(w.sessions[0], w.sending()), wire.CodeOK)
	w.waits(w.sessions[0], w.asking(1, 0))
	third := w.sending()
	third.Group.Channel = "tag"
	rep := w.does(w.sessions[0], third)
	isCode(t, rep, wire.CodeFull)
	require.Contains(t, rep.Detail, "the limit is 2 streams")
	isCode(t, w.does(w.sessions[0], w.sending()), wire.CodeOK)
}
