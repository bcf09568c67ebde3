package storetest

import (
	"context"
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var closeChecks = []check{
	{"every call afterwards is ErrClosed", closedCalls, nil},
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
