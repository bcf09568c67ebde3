package core_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

// TestWhatTookConnections checks that a timeout error names the reason for which the missing ranks
// lost their connections, and that they may reconnect.
func TestWhatTookConnections(t *testing.T) {
	w := newCrew(t, 4)
	misses := func(seq uint64) string { return w.timesOut(w.voting(0, barrier(seq), "")).Reason }
	cut := func(rank int, why string) {
		w.does(w.sessions[rank], wire.Request{Op: wire.OpLost, TTL: time.Minute, Value: []byte(why)})
	}
	same(t, "all are there", misses(1), "")
	cut(1, "")
	same(t, "one connection is no relay", misses(2), "")
	cut(1, "relay a")
	cut(2, "relay a")
	same(t, "some", misses(3), "2 of them: relay a")
	cut(3, "relay b")
	same(t, "two relays", misses(4), "2 of them: relay a; 1 of them: relay b")
	cut(3, "relay a")
	same(t, "all", misses(5), "relay a")
	isCode(t, w.does(w.sessions[0], w.sending()), wire.CodeOK)
	same(t, "of a message", w.timesOut(w.asking(1, 0)).Reason, "relay a")
}

// TestLargeFailuresAreBounded checks how many of the missing ranks an error describes, and how many
// a status names.
func TestLargeFailuresAreBounded(t *testing.T) {
	w := newCrew(t, 200)
	v := w.timesOut(w.voting(0, barrier(1), ""))
	same(t, "missing", len(v.Missing), 199)
	same(t, "described", len(v.Doing), 16)
	shown := w.status("").Groups[0].Failures[0]
	same(t, "named by a status", len(shown.Failure.Missing), 64)
	same(t, "and not named", shown.Unnamed, 135)
}

// TestMissingRanksAreBounded checks what a join of the largest size costs when it times out: its
// size is a number that one peer has sent, and the store's lock is held meanwhile.
func TestMissingRanksAreBounded(t *testing.T) {
	r := newRig(t)
	s := r.session()
	ticket := r.waits(s, wire.Request{Op: wire.OpJoin, Timeout: time.Second, Group: wire.Contribution{Group: "world", Rank: 1, Size: 1 << 20}})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r.pass(time.Second)
	runtime.ReadMemStats(&after)
	v := r.answer(ticket).Failure
	same(t, "named", len(v.Missing), 1024)
	require.Equal(t, []int{0, 2}, v.Missing[:2])
	same(t, "reason", v.Reason, "1048575 ranks are missing, of which the first 1024 are named")
	if n := after.TotalAlloc - before.TotalAlloc; n > 256<<10 {
		t.Errorf("it allocates %d bytes", n)
	}
}
