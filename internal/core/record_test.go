package core_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

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
