package core_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

func numbered(n, acked uint64, req wire.Request) wire.Request {
	req.Number, req.Acked = n, acked
	return req
}

func adding(delta int64) wire.Request { return wire.Request{Op: wire.OpAdd, Key: "n", Add: delta} }

// TestNumbers checks how many answers are kept for a client that does not acknowledge them, and that
// a skip uses a number.
func TestNumbers(t *testing.T) {
	r := newRig(t)
	r.m.SetBounds(core.Bounds{Unacked: 3})
	s := r.session()
	add := func(n, acked uint64) *wire.Reply { return r.does(s, numbered(n, acked, adding(1))) }
	for n := range int64(3) {
		same(t, "sum", add(uint64(n+1), 0).N, n+1)
	}
	isCode(t, add(4, 0), wire.CodeFull)
	same(t, "kept", r.m.Kept(s), 3)
	same(t, "sum", add(4, 2).N, 4)
	same(t, "kept", r.m.Kept(s), 2)
	same(t, "a skip of what was done", r.does(s, numbered(4, 2, wire.Request{Op: wire.OpSkip})).N, 4)
	isCode(t, r.does(s, numbered(5, 4, wire.Request{Op: wire.OpSkip})), wire.CodeOK)
	isCode(t, add(5, 4), wire.CodeOK) // it was skipped
	same(t, "an answer that no client can have received", add(6, 99).N, 5)
}

// TestLeaseEndsInPortions checks that the entries of a lease that has ended are not seen, and that one
// tick removes a portion of them.
func TestLeaseEndsInPortions(t *testing.T) {
	r := newRig(t)
	lease := uint64(r.does(core.Local, wire.Request{Op: wire.OpGrant, TTL: time.Second}).N)
	const n = 300
	for i := range n {
		req := set(fmt.Sprint("key ", i), "value")
		req.Lease = lease
		isCode(t, r.does(core.Local, req), wire.CodeOK)
	}
	r.does(core.Local, wire.Request{Op: wire.OpRevoke, Lease: lease})
	isCode(t, r.does(core.Local, get("key 0")), wire.CodeNotFound)
	same(t, "listed", len(r.does(core.Local, list("", "", 0)).Keys), 0)
	same(t, "there, and not seen", r.m.Keys(), n)
	isCode(t, r.does(core.Local, set("key 2", "again")), wire.CodeOK)
	r.m.Tick(r.now)
	same(t, "after a tick", r.m.Keys(), n-32)
	r.pass(0)
	same(t, "left", r.m.Keys(), 1)
}

// TestTimersOfOneTime checks that events that are due at one time happen in the order in which they
// were scheduled, whatever else exists: after a restart the calls that only read are gone.
func TestTimersOfOneTime(t *testing.T) {
	var want string
	for others := range 6 {
		r := newRig(t)
		w := newCrewOn(r, "world", 6)
		reader := r.session()
		for rank := range 6 {
			for range others {
				req := waitFor("key")
				req.Timeout = time.Millisecond + time.Duration(rank%2)
				r.waits(reader, req)
			}
			r.does(w.sessions[rank], wire.Request{Op: wire.OpLost, TTL: time.Millisecond})
		}
		vote := r.waits(w.sessions[5], w.voting(5, barrier(1), ""))
		r.pass(2 * time.Millisecond)
		lost := fmt.Sprint(r.answer(vote).Failure.Lost)
		if want == "" {
			want = lost
		}
		same(t, fmt.Sprintf("lost first, beside %d", others), lost, want)
	}
}
