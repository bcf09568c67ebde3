package core_test

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

func TestStreamBounds(t *testing.T) {
	for name, c := range map[string]struct {
		payload string
		room    int
	}{"64 messages": {"message", 64}, "16 MiB": {strings.Repeat("x", 4<<20), 4}, "alone, any is taken": {strings.Repeat("x", 16<<20), 1}} {
		t.Run(name, func(t *testing.T) {
			w := newCrew(t, 2)
			for range c.room {
				isCode(t, w.does(w.sessions[0], w.sending(0, 1, c.payload, 0)), wire.CodeOK)
			}
			var waiting [3]core.Ticket
			isCode(t, w.does(w.sessions[0], w.sending(0, 1, c.payload, 0)), wire.CodeWouldBlock)
			for i := range waiting {
				waiting[i] = w.waits(w.sessions[0], w.room(0, 1, len(c.payload)))
			}
			w.does(w.sessions[1], w.asking(0, 1, 1))
			// the two joins: reading the first acknowledges nothing
			same(t, "answered", len(w.answers), 2)
			w.call(w.sessions[1], w.asking(0, 1, 2))
			for _, ticket := range waiting { // all of them, since any may have gone
				isCode(t, w.answer(ticket), wire.CodeOK)
			}
			same(t, "position", w.does(w.sessions[0], w.sending(0, 1, c.payload, 0)).N, int64(c.room+1))
		})
	}
}

// TestStreamOfALostRank checks that messages which a failed rank had sent are received before its
// failure, in another rank's inbox, and that messages which waited for space were never sent.
func TestStreamOfALostRank(t *testing.T) {
	w := newCrew(t, 3)
	w.m.SetBounds(core.Bounds{StreamMessages: 2})
	for range 2 {
		w.does(w.sessions[2], w.sending(2, 0, "message", 0))
	}
	isCode(t, w.does(w.sessions[2], w.sending(2, 0, "never sent", 0)), wire.CodeWouldBlock)
	w.waits(w.sessions[2], w.room(2, 0, 10))
	other := w.waits(w.sessions[1], w.asking(2, 1, 1))
	w.does(w.sessions[2], wire.Request{Op: wire.OpLost})
	isCode(t, w.answer(other), wire.CodeLost)
	for pos := range uint64(2) {
		isCode(t, w.does(w.sessions[0], w.asking(2, 0, pos+1)), wire.CodeOK)
	}
	rep := w.does(w.sessions[0], w.asking(2, 0, 3))
	isCode(t, rep, wire.CodeLost)
	sameRanks(t, "lost", rep.Failure.Lost, []int{2})
}

func TestStreamExpiresBehindOneThatDoesNot(t *testing.T) {
	w := newCrew(t, 2)
	w.does(w.sessions[0], w.sending(0, 1, "forever", 0))
	w.does(w.sessions[0], w.sending(0, 1, "short", time.Millisecond))
	w.pass(time.Millisecond)
	isCode(t, w.does(w.sessions[1], w.asking(0, 1, 1)), wire.CodeOK)
	rep := w.does(w.sessions[1], w.asking(0, 1, 2))
	isCode(t, rep, wire.CodeExpired)
	contains(t, rep.Detail, "message 2 from rank 0")
}

func TestStreamHasOneReader(t *testing.T) {
	w := newCrew(t, 2)
	first := w.waits(w.sessions[1], w.asking(0, 1, 1))
	isCode(t, w.does(w.sessions[1], w.asking(0, 1, 1)), wire.CodeConflict)
	for _, bad := range []uint64{0, 2} {
		want := wire.CodeInvalid
		if bad == 0 {
			want = wire.CodeStale
		}
		isCode(t, w.does(w.sessions[1], w.asking(0, 1, bad)), want)
	}
	isCode(t, w.does(w.sessions[1], w.asking(2, 1, 1)), wire.CodeInvalid)
	w.does(w.sessions[1], wire.Request{Op: wire.OpCancel, ID: first.ID})
	isCode(t, w.answer(first), wire.CodeCancelled)
	same(t, "waiters", w.m.Holdings().Waiters, 0)
}

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
		contains(t, rep.Detail, "the limit is 3 channels")
	}
	meets("b", 2)
	for rank := range 2 { // space for another one
		done := w.request(wire.OpCloseChannel, rank)
		done.Group.Channel = "a"
		isCode(t, w.does(w.sessions[rank], done), wire.CodeOK)
	}
	meets("d", 1)

	isCode(t, w.does(w.sessions[0], w.sending(0, 1, "message", 0)), wire.CodeOK)
	w.waits(w.sessions[0], w.asking(1, 0, 1))
	third := w.sending(0, 1, "message", 0)
	third.Group.Channel = "tag"
	rep := w.does(w.sessions[0], third)
	isCode(t, rep, wire.CodeFull)
	contains(t, rep.Detail, "the limit is 2 streams")
	isCode(t, w.does(w.sessions[0], w.sending(0, 1, "message", 0)), wire.CodeOK)

	for _, s := range w.sessions { // they end with the group
		w.does(s, wire.Request{Op: wire.OpGoodbye})
	}
	same(t, "channels", w.m.Holdings().Channels, 0)
	same(t, "streams", w.m.Holdings().Streams, 0)
}
