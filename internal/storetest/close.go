package storetest

import (
	"context"
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var closeChecks = []check{
	{"every call afterwards is ErrClosed", closedCalls, nil},
	{"ends a join", closeJoin, []Feature{Collect}},
	{"ends the calls of a group", closeGroup, []Feature{Collect}},
	{"ends a recv", closeRecv, []Feature{Collect, Streams}},
}

func closedCalls(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "key")
	good(t, s.Close())
	all := requests()
	all["keys"] = []wire.Request{{Op: wire.OpGet, Key: "key"}, {Op: wire.OpSet, Key: "key", Value: []byte{}}}
	for f, reqs := range all {
		for _, req := range reqs {
			if !w.lacks(f) {
				t.Run(string(f)+"/"+req.Op.String(), func(t *testing.T) { closedCall(t, s, req) })
			}
		}
	}
}

func closedCall(t *testing.T, s *store.Store, req wire.Request) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	is(t, s.Do(ctx, &req, new(wire.Reply)), store.ErrClosed)
}

// closeEnds asserts that closing s ends call, which would otherwise not return.
func closeEnds(t *testing.T, w *world, s *store.Store, call func() error) {
	t.Helper()
	waiting := laterErr(t, call)
	for range 10 { // lets the call reach its wait; it is ErrClosed in any case
		_, err := s.Get(w.ctx, "missing")
		is(t, err, store.ErrNotFound)
	}
	stillWaits(t, "the call", waiting)
	good(t, s.Close())
	is(t, (<-waiting).err, store.ErrClosed)
}

func closeJoin(t *testing.T, w *world) {
	s := w.store()
	closeEnds(t, w, s, func() error {
		_, err := s.Join(w.ctx, applicant("g", 0, 2), nil)
		return err
	})
}

func closeGroup(t *testing.T, w *world) {
	r := w.group(2)[0]
	following := laterErr(t, func() error { return r.Follow(w.ctx, r.asMember()) })
	closeEnds(t, w, r.Store, func() error { return r.collect(w.ctx, barrier(1)).err })
	is(t, (<-following).err, store.ErrClosed)
}

func closeRecv(t *testing.T, w *world) {
	r := w.group(2)[0]
	closeEnds(t, w, r.Store, func() error { return r.recv(w.ctx, 1, "", 1).err })
}
