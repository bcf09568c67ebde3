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
			isCode(t, w.does(w.sessions[0], w.sending(0, 1, c.payload, 0)), wire.CodeNoRoom)
			for i := range waiting {
				waiting[i] = w.waits(w.sessions[0], w.room(0, 1, len(c.payload)))
			}
			w.does(w.sessions[1], w.asking(0, 1, 1))
			same(t, "answered", len(w.answers), 2) // the two joins: reading the first acknowledges nothing
			w.call(w.sessions[1], w.asking(0, 1, 2))
			for _, ticket := range waiting { // all of them, since any may have gone
				isCode(t, w.answer(ticket), wire.CodeOK)
			}
			same(t, "position", w.does(w.sessions[0], w.sending(0, 1, c.payload, 0)).N, int64(c.room+1))
		})
	}
}

// TestStreamOfALostRank shows that what it had sent comes before the news of its loss, in another rank's inbox, and that what waited
// for room was never sent.
func TestStreamOfALostRank(t *testing.T) {
	w := newCrew(t, 3)
	w.m.SetBounds(core.Bounds{StreamMessages: 2})
	for range 2 {
		w.does(w.sessions[2], w.sending(2, 0, "message", 0))
	}
	isCode(t, w.does(w.sessions[2], w.sending(2, 0, "never sent", 0)), wire.CodeNoRoom)
	w.waits(w.sessions[2], w.room(2, 0, 10))
	other := w.waits(w.sessions[1], w.asking(2, 1, 1))
	w.does(w.sessions[2], wire.Request{Op: wire.OpLost})
	isCode(t, w.answer(other), wire.CodeLost)
	for pos := range uint64(2) {
		isCode(t, w.does(w.sessions[0], w.asking(2, 0, pos+1)), wire.CodeOK)
	}
	rep := w.does(w.sessions[0], w.asking(2, 0, 3))
	isCode(t, rep, wire.CodeLost)
	sameRanks(t, "lost", rep.Verdict.Lost, []int{2})
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
