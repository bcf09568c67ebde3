package core_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// TestDoing checks what the error about a missing rank reports as that rank's current call.
func TestDoing(t *testing.T) {
	for name, c := range map[string]struct {
		does func(w *crew) // rank 2
		want string
	}{
		"nothing yet": {func(*crew) {}, "no call since it joined 1.5s ago"},
		"a recv":      {func(w *crew) { w.waits(w.sessions[2], w.asking(0, 2, 1)) }, "in recv from rank 0 for 1.5s"},
		"a send that waits": {func(w *crew) {
			for range 64 {
				w.does(w.sessions[2], w.sending(2, 1, "message", 0))
			}
			w.waits(w.sessions[2], w.room(2, 1, 7))
		}, "in send to rank 1 for 1.5s"},
		"a send that is done": {func(w *crew) { w.does(w.sessions[2], w.sending(2, 1, "message", 0)) }, "in no call; its last was send, 1.5s ago"},
		"another verb on a channel": {func(w *crew) {
			v := broadcast(1, 1)
			v.Channel = "loss"
			w.cast(2, v, "")
		}, "in broadcast(root 1) on channel loss #1 for 1.5s"},
		"a verb that is done": {func(w *crew) {
			v := broadcast(1, 2)
			v.Channel = "loss"
			w.cast(2, v, "payload")
		}, "in no call; its last was broadcast #1, 1.5s ago"},
		"another group": {func(w *crew) {
			sub := &crew{rig: w.rig, sessions: w.sessions[1:]}
			sub.sessions = append([]uint64{w.session()}, sub.sessions[1:]...)
			for rank := range sub.sessions {
				req := sub.joining("pair", rank)
				req.Group.Label = []string{"pid 7", "pid 2"}[rank]
				_, rep := sub.call(sub.sessions[rank], req)
				if rep != nil {
					sub.gen = rep.Rev
				}
			}
			sub.cast(1, barrier(1), "")
		}, `in barrier #1 of group "pair" for 1.5s`},
		"shrink":                 {func(w *crew) { w.waits(w.sessions[2], w.shrinking(2)) }, "in shrink for 1.5s"},
		"following is no call":   {func(w *crew) { w.waits(w.sessions[2], w.request(wire.OpFollow, 2)) }, "no call since it joined 1.5s ago"},
		"waiting for keys is no": {func(w *crew) { w.waits(w.sessions[2], waitFor("key")) }, "no call since it joined 1.5s ago"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newCrew(t, 3)
			c.does(w)
			w.pass(500 * time.Millisecond)
			var last core.Ticket
			for rank := range 2 {
				req := w.voting(rank, barrier(1), "")
				req.Timeout = time.Second
				last = w.waits(w.sessions[rank], req)
			}
			w.pass(time.Second)
			v := w.answer(last).Failure
			sameRanks(t, "missing", v.Missing, []int{2})
			same(t, "doing", strings.Join(v.Doing, "; "), c.want)
			same(t, "waited", v.Waited, time.Second)
		})
	}
}

// TestDoingInSharedMemory checks that a rank is not described as far behind because it shares memory,
// in which operations are decided that the store does not see.
func TestDoingInSharedMemory(t *testing.T) {
	w := newCrew(t, 3)
	w.cast(2, broadcast(33, 2), "payload")
	req := w.voting(0, barrier(501), "")
	req.Timeout = time.Second
	ticket := w.waits(w.sessions[0], req)
	w.pass(time.Second)
	same(t, "doing", w.answer(ticket).Failure.Doing[1], "in no call; its last at the store was broadcast #33 (the store does not see those in shared memory), 1s ago")
}

func (c *crew) shrinking(rank int) wire.Request {
	req := c.request(wire.OpJoin, rank)
	req.Value = []byte("survivor")
	return req
}

// TestWhatTookConnections checks that a timeout error names the reason for which the missing ranks
// lost their connections, and that they may reconnect.
func TestWhatTookConnections(t *testing.T) {
	w := newCrew(t, 4)
	misses := func(seq uint64) string {
		req := w.voting(0, barrier(seq), "")
		req.Timeout = time.Second
		ticket := w.waits(w.sessions[0], req)
		w.pass(time.Second)
		return w.answer(ticket).Failure.Reason
	}
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
	isCode(t, w.does(w.sessions[0], w.sending(0, 1, "message", 0)), wire.CodeOK)
	req := w.asking(1, 0, 1)
	req.Timeout = time.Second
	ticket := w.waits(w.sessions[0], req)
	w.pass(time.Second)
	same(t, "of a message", w.answer(ticket).Failure.Reason, "relay a")
}

func TestDoingOfManyIsBounded(t *testing.T) {
	w := newCrew(t, 100)
	req := w.voting(0, barrier(1), "")
	req.Timeout = time.Second
	ticket := w.waits(w.sessions[0], req)
	w.pass(time.Second)
	v := w.answer(ticket).Failure
	same(t, "missing", len(v.Missing), 99)
	same(t, "described", len(v.Doing), 16)
}

// TestShrink checks a second shrink, and that a caller gets the new generation once.
func TestShrink(t *testing.T) {
	w := newCrew(t, 4)
	w.does(w.sessions[1], wire.Request{Op: wire.OpLost})
	zero := w.waits(w.sessions[0], w.shrinking(0))
	follow := w.does(w.sessions[2], w.request(wire.OpFollow, 2))
	isCode(t, follow, wire.CodeLost)
	two := w.waits(w.sessions[2], w.shrinking(2))
	w.does(w.sessions[3], wire.Request{Op: wire.OpLost}) // the last rank that it waited for
	for _, ticket := range []core.Ticket{zero, two} {
		rep := w.answer(ticket)
		isCode(t, rep, wire.CodeOK)
		same(t, "members", texts(rep.Values), "survivor,survivor")
	}
	same(t, "ranks", w.answer(zero).N*10+w.answer(two).N, 12)
	_, rep := w.cast(0, barrier(1), "")
	isCode(t, rep, wire.CodeStale)
	next := &crew{rig: w.rig, sessions: []uint64{w.sessions[0], w.sessions[2]}, gen: w.answer(zero).Rev}
	next.cast(0, barrier(1), "")
	_, rep = next.cast(1, barrier(1), "")
	isCode(t, rep, wire.CodeOK)
	same(t, "generations", w.m.Groups(), 1)
}

func TestConflictNamesTheHolderOfARank(t *testing.T) {
	w := newCrew(t, 2)
	s := w.session()
	rep := w.does(s, w.joining("world", 1))
	isCode(t, rep, wire.CodeConflict)
	contains(t, rep.Detail, "rank 1 is held by pid 1, in generation 1")
	w.waits(s, w.joining("next", 0))
	rep = w.does(w.sessions[0], w.joining("next", 0))
	isCode(t, rep, wire.CodeConflict)
	contains(t, rep.Detail, "rank 0 is held by pid 0, which waits for the others")
	other := w.joining("next", 1)
	other.Group.Size = 3
	rep = w.does(w.sessions[1], other)
	isCode(t, rep, wire.CodeMismatch)
	contains(t, rep.Failure.Reason, "rank 0 (pid 0) has a world size of 2, rank 1 (pid 1) has 3")
	same(t, "rendezvouses", w.m.Holdings().Forming, 0)
	for _, bad := range []wire.Contribution{{Rank: -1, Size: 2}, {Rank: 2, Size: 2}, {Rank: 0, Size: 0}, {Rank: 0, Size: 1<<20 + 1}} {
		isCode(t, w.does(s, wire.Request{Op: wire.OpJoin, Group: bad}), wire.CodeInvalid)
	}
}

func TestExpireCountsUnread(t *testing.T) {
	w := newCrew(t, 2)
	for i := range 4 {
		w.does(w.sessions[0], w.sending(0, 1, "message", time.Duration(i+1)*time.Millisecond))
	}
	isCode(t, w.does(w.sessions[1], w.asking(0, 1, 1)), wire.CodeOK)
	w.pass(3 * time.Millisecond)
	same(t, "expired, the first was read", w.does(w.sessions[0], w.request(wire.OpExpired, 0)).N, 2)
	same(t, "since then", w.does(w.sessions[0], w.request(wire.OpExpired, 0)).N, 0)
	isCode(t, w.does(w.sessions[1], w.asking(0, 1, 2)), wire.CodeExpired)
	isCode(t, w.does(w.sessions[1], w.asking(0, 1, 4)), wire.CodeOK)
	isCode(t, w.does(w.sessions[1], w.request(wire.OpExpired, 0)), wire.CodeDenied)
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
	sameRanks(t, "the first", v.Missing[:2], []int{0, 2})
	same(t, "reason", v.Reason, "1048575 ranks are missing, of which the first 1024 are named")
	if n := after.TotalAlloc - before.TotalAlloc; n > 256<<10 {
		t.Errorf("it allocates %d bytes", n)
	}
}
