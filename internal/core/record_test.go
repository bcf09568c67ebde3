package core_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// TestRanksThatDoNotWait checks that a root is held only for the records before it: ranks that have
// gone on to later records without waiting for its answer must not prevent it from going on, since
// those records wait for it.
func TestRanksThatDoNotWait(t *testing.T) {
	w := newCrew(t, 2)
	w.m.SetBounds(core.Bounds{AheadRecords: 2})
	var held []core.Ticket
	for seq := range uint64(6) {
		if ticket, rep := w.cast(0, broadcast(seq+1, 0), "payload"); rep == nil {
			held = append(held, ticket)
		}
	}
	same(t, "held", len(held), 4)
	for seq := range uint64(6) {
		if _, rep := w.cast(1, broadcast(seq+1, 0), ""); rep != nil {
			isCode(t, rep, wire.CodeOK)
		}
	}
	for _, ticket := range held {
		isCode(t, w.answer(ticket), wire.CodeOK)
	}
}

// TestOverrun checks the end of a generation in which one rank has stopped, while the others
// continue to fail.
func TestOverrun(t *testing.T) {
	w := newCrew(t, 3)
	_, other := w.cast(2, wire.Contribution{Verb: "barrier", Seq: 1, Root: -1, Want: wire.WantNothing, Channel: "other"}, "")
	same(t, "waits", other == nil, true)
	for seq := range uint64(1024) {
		no := barrier(seq + 1)
		no.No, no.Reason = wire.CodeTimeout, "too late"
		_, rep := w.cast(0, no, "")
		isCode(t, rep, wire.CodeTimeout)
	}
	same(t, "records", w.m.Records(w.gen, "", 0), 1024)
	_, rep := w.cast(0, barrier(1025), "")
	isCode(t, rep, wire.CodeFull)
	sameRanks(t, "missing", rep.Failure.Missing, []int{1, 2})
	contains(t, rep.Failure.Reason, "1024 records behind")
	contains(t, rep.Failure.Doing[1], "in barrier on channel other #1")
	_, first := w.cast(1, barrier(1), "")
	isCode(t, first, wire.CodeTimeout) // a decided outcome is still delivered
	_, rep = w.cast(1, barrier(2000), "")
	isCode(t, rep, wire.CodeFull)
}

func TestTooManyBytesTogether(t *testing.T) {
	w := newCrew(t, 18)
	payload := make([]byte, wire.MaxValue)
	var rep *wire.Reply
	for rank := range 17 {
		req := w.voting(rank, allGather(), "")
		req.Value = payload
		_, rep = w.call(w.sessions[rank], req)
	}
	isCode(t, rep, wire.CodeTooLarge)
	_, late := w.cast(17, allGather(), "payload")
	same(t, "a late rank receives the same", late.Failure, rep.Failure)
	_, rep = w.cast(17, barrier(2), "")
	same(t, "the group goes on", rep == nil, true)
}

// TestEqualAnswersAreOne checks that equal answers share memory, so that a server can encode them
// once for all.
func TestEqualAnswersAreOne(t *testing.T) {
	for name, v := range map[string]wire.Contribution{"barrier": barrier(1), "all-gather": allGather(), "broadcast": broadcast(1, 3)} {
		t.Run(name, func(t *testing.T) {
			w := newCrew(t, 4)
			tickets := make([]core.Ticket, 4)
			for rank := range 4 {
				tickets[rank], _ = w.cast(rank, v, "payload")
			}
			for _, ticket := range tickets[1:3] {
				same(t, "answer", w.answer(ticket), w.answer(tickets[0]))
			}
		})
	}
}

func TestCallsInUse(t *testing.T) {
	r := newRig(t)
	s := r.session()
	r.waits(s, wire.Request{Op: wire.OpWait, ID: 7, Keys: []string{"a"}})
	// it comes again, and continues to wait
	r.waits(s, wire.Request{Op: wire.OpWait, ID: 7, Keys: []string{"a"}})
	isCode(t, r.does(s, wire.Request{Op: wire.OpWatch, ID: 7, After: 1}), wire.CodeInvalid)
	isCode(t, r.does(s, wire.Request{Op: wire.OpPing, ID: 7}), wire.CodeOK)
	r.does(s, wire.Request{Op: wire.OpGoodbye})
	isCode(t, r.does(s, wire.Request{Op: wire.OpPing}), wire.CodeDenied)
	isCode(t, r.does(s+1, wire.Request{Op: wire.OpPing}), wire.CodeDenied)
	isCode(t, r.does(core.Local, wire.Request{Op: 250}), wire.CodeUnsupported)
	r.does(core.Local, wire.Request{Op: wire.OpLost}) // this process never fails
	isCode(t, r.does(core.Local, wire.Request{Op: wire.OpPing}), wire.CodeOK)
}

// TestLastVoterIsReported checks that N of a success is 1 + the rank whose vote decided, after a
// restart too.
func TestLastVoterIsReported(t *testing.T) {
	w := newCrew(t, 3)
	tickets := []core.Ticket{w.waits(w.sessions[2], w.voting(2, barrier(1), "")), w.waits(w.sessions[0], w.voting(0, barrier(1), ""))}
	_, decides := w.call(w.sessions[1], w.voting(1, barrier(1), ""))
	require.EqualValues(t, 2, decides.N)
	for _, ticket := range tickets {
		require.EqualValues(t, 2, w.answers[ticket].N)
	}
	shot := w.m.Snapshot()
	shot.Stop()
	m, err := core.Restore(core.Limits{}, shot.State, func(func(core.Entry, error) bool) {})
	require.NoError(t, err)
	again := &crew{rig: &rig{tb: t, m: m, now: w.now, answers: map[core.Ticket]*wire.Reply{}}, sessions: w.sessions, gen: w.gen}
	_, rep := again.call(w.sessions[0], w.voting(0, barrier(1), "")) // it asks again
	require.EqualValues(t, 2, rep.N)
}

// TestCancelAtADeadline checks that a cancel whose caller reports that its deadline has passed
// counts as that deadline, for all ranks, even before the store's own clock has reached it.
func TestCancelAtADeadline(t *testing.T) {
	late := wire.Contribution{No: wire.CodeTimeout}
	w := newCrew(t, 2)
	for rank, end := range []wire.Contribution{late, {No: wire.CodeCancelled, Reason: "stop"}} {
		c := barrier(1)
		c.Channel = fmt.Sprint(rank)
		req := w.voting(0, c, "")
		req.Timeout = time.Minute
		held := w.waits(w.sessions[0], req)
		w.does(w.sessions[0], wire.Request{Op: wire.OpCancel, ID: held.ID, Group: end})
		rep := w.answer(held)
		isCode(t, rep, end.No)
		same(t, "reason", rep.Failure.Reason, end.Reason)
		if end.No == wire.CodeTimeout {
			sameRanks(t, "missing", rep.Failure.Missing, []int{1})
			same(t, "by", rep.Failure.By, -1)
		}
		_, rep = w.cast(1, c, "")
		isCode(t, rep, end.No)
	}
	held := w.waits(w.sessions[1], w.asking(0, 1))
	w.does(w.sessions[1], wire.Request{Op: wire.OpCancel, ID: held.ID, Group: late})
	isCode(t, w.answer(held), wire.CodeTimeout)
	join := w.waits(w.sessions[0], w.joining("next", 0))
	w.does(w.sessions[0], wire.Request{Op: wire.OpCancel, ID: join.ID, Group: late})
	rep := w.answer(join)
	isCode(t, rep, wire.CodeTimeout)
	sameRanks(t, "missing", rep.Failure.Missing, []int{1})
}
