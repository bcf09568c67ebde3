package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var statusChecks = []check{
	{"an empty store has a status", statusEmpty, []Feature{Status}},
	{"a barrier that waits shows the ranks that arrived and the missing", statusBarrier, []Feature{Status, Collect}},
	{"a group that forms shows the missing ranks", statusJoin, []Feature{Status, Collect}},
	{"a recv that waits is shown with its rank", statusRecv, []Feature{Status, Collect, Streams}},
	{"a failure is in the status", statusFailure, []Feature{Status, Collect}},
	{"a rank that left has left", statusLeft, []Feature{Status, Collect}},
	{"a rank that is lost is lost", statusLost, []Feature{Status, Collect, Loss}},
	{"below a prefix there is only what is below it", statusPrefix, []Feature{Status, Collect}},
	{"keys that are waited for are shown", statusKeys, []Feature{Status, Wait, Waiters}},
	{"many ranks come in pages, each once", statusMany, []Feature{Status, Collect, Crowds}},
	{"it changes nothing", statusPure, []Feature{Status, Watch}},
}

// sees returns the status of the test's group, or nil if there is none.
func sees(t *testing.T, w *world, s *store.Store) *store.GroupStatus {
	t.Helper()
	all, err := s.Status(w.ctx, "")
	good(t, err)
	i := slices.IndexFunc(all.Groups, func(g store.GroupStatus) bool { return g.Name == "group" })
	if i < 0 {
		return nil
	}
	return &all.Groups[i]
}

// comes returns the group's status once is reports true for it.
func comes(t *testing.T, w *world, s *store.Store, what string, is func(*store.GroupStatus) bool) (g *store.GroupStatus) {
	t.Helper()
	until(t, w.ctx, what, func() bool {
		g = sees(t, w, s)
		return g != nil && is(g)
	})
	return g
}

func statusEmpty(t *testing.T, w *world) {
	s, err := w.store().Status(w.ctx, "")
	good(t, err)
	same(t, "groups", len(s.Groups), 0)
}

func statusBarrier(t *testing.T, w *world) {
	ranks := w.group(4)
	goesOn(t, ranks, 1)
	var waiting []<-chan outcome
	for _, n := range []int{0, 1, 3} {
		waiting = append(waiting, ranks[n].collectLater(t, w.ctx, barrier(2)))
	}
	g := comes(t, w, w.store(), "three of four have come", func(g *store.GroupStatus) bool { return len(g.Records) == 1 && g.Records[0].Arrived.Count == 3 })
	r := g.Records[0]
	same(t, "verb", r.Verb, "barrier")
	same(t, "number", r.Seq, 2)
	same(t, "who has come", r.Arrived.First(9), []int{0, 1, 3})
	same(t, "who is missing", r.Missing.First(9), []int{2})
	same(t, "it has a deadline", r.Remaining > 0 && r.Remaining < time.Hour, !w.lacks(Waiters))
	same(t, "ranks", len(g.Ranks), 4)
	same(t, "name of the missing one", g.Ranks[2].Label, label(2))
	same(t, "its last call", []any{g.Ranks[2].Verb, g.Ranks[2].Seq}, []any{"barrier", uint64(1)})
	same(t, "generation", g.Generation, ranks[0].gen)
	allGood(t, []outcome{ranks[2].collect(w.ctx, barrier(2)), <-waiting[0], <-waiting[1], <-waiting[2]})
	comes(t, w, w.store(), "it is decided", func(g *store.GroupStatus) bool { return g.Open == 0 && len(g.Records) == 0 })
}

func statusJoin(t *testing.T, w *world) {
	joins := func(n int) <-chan outcome {
		s := w.store()
		return later(t, func() ([][]byte, error) {
			_, err := s.Join(w.ctx, applicant("group", n, 3), nil)
			return nil, err
		})
	}
	first := joins(1)
	g := comes(t, w, w.store(), "one has come", func(g *store.GroupStatus) bool { return g.Present == 1 })
	same(t, "generation", g.Generation, 0)
	same(t, "size", g.Size, 3)
	same(t, "who is missing", g.Records[0].Missing.First(9), []int{0, 2})
	same(t, "who has come", g.Ranks[0].Label, label(1))
	second, third := joins(0), joins(2)
	allGood(t, []outcome{<-first, <-second, <-third})
	comes(t, w, w.store(), "all have come", func(g *store.GroupStatus) bool { return g.Generation > 0 && g.Present == 3 })
}

func statusRecv(t *testing.T, w *world) {
	ranks := w.group(2)
	waiting := later(t, func() ([][]byte, error) { o := ranks[1].recv(w.ctx, 0, "tag", 1); return o.values, o.err })
	g := comes(t, w, w.store(), "it waits", func(g *store.GroupStatus) bool { return len(g.Ranks[1].Waits) == 1 })
	r := g.Ranks[1].Waits[0]
	want := store.WaitStatus{Verb: "recv", Peer: 0, Tag: "tag", Waited: r.Waited}
	if w.lacks(Waiters) {
		want.Tag = ""
	}
	same(t, "what it waits in", r, want)
	good(t, ranks[0].send(w.ctx, 1, "tag", "x"))
	good(t, (<-waiting).err)
}

func statusFailure(t *testing.T, w *world) {
	ranks := w.group(2)
	// a timeout that is long enough for a slow engine to report the missing ranks
	is(t, ranks[0].collect(w.within(10*soon), barrier(1)).err, store.ErrTimeout)
	g := comes(t, w, w.store(), "the failed record", func(g *store.GroupStatus) bool { return len(g.Failures) == 1 })
	v := g.Failures[0]
	same(t, "of", []any{v.Verb, v.Seq}, []any{"barrier", uint64(1)})
	same(t, "code", v.Failure.Code, wire.CodeTimeout)
	same(t, "missing", v.Failure.Missing, []int{1})
	c := ranks[1].asMember()
	c.No, c.Reason = wire.CodeAborted, "no more data"
	good(t, ranks[1].Leave(w.ctx, c))
	g = sees(t, w, w.store())
	if g.Revoked == nil {
		t.Fatal("an aborted group is not over")
	}
	same(t, "reason", g.Revoked.Failure.Reason, "no more data")
}

func statusLeft(t *testing.T, w *world) {
	ranks := w.group(2)
	good(t, ranks[1].Leave(w.ctx, ranks[1].asMember()))
	g := sees(t, w, w.store())
	same(t, "present", g.Present, 1)
	same(t, "the one that left", g.Ranks[1].Gone, wire.CodeLeft)
	same(t, "the other one", g.Ranks[0].Gone, wire.CodeOK)
}

func statusLost(t *testing.T, w *world) {
	ranks := w.group(3)
	w.Cut(ranks[1].engine)
	g := comes(t, w, ranks[0].Store, "it is lost", func(g *store.GroupStatus) bool { return g.Ranks[1].Gone == wire.CodeLost })
	same(t, "over", g.Revoked.Failure.Lost, []int{1})
	for _, n := range []int{0, 2} {
		w.Cut(ranks[n].engine)
	}
	g = comes(t, w, w.store(), "the group is over", func(g *store.GroupStatus) bool { return g.Ended >= 0 })
	same(t, "over", g.Revoked.Failure.Code, wire.CodeLost)
}

func statusPrefix(t *testing.T, w *world) {
	for _, name := range []string{"a/one", "b/one", "a/two"} {
		w.join([]*rank{{Store: w.store(), w: w}}, name)
	}
	below := func(s *store.Store, prefix string) (names []string) {
		all, err := s.Status(w.ctx, prefix)
		good(t, err)
		for _, g := range all.Groups {
			names = append(names, g.Name)
		}
		slices.Sort(names)
		same(t, "of the whole store", all.Server == nil, true)
		return names
	}
	same(t, "by argument", below(w.store(), "a/"), []string{"a/one", "a/two"})
	same(t, "by Prefix", below(store.Prefix(w.store(), "a/"), ""), []string{"one", "two"})
	same(t, "by both", below(store.Prefix(w.store(), "a/"), "t"), []string{"two"})
	same(t, "for a reader", below(store.Prefix(store.ReadOnly(w.store()), "b/"), ""), []string{"one"})
}

func statusKeys(t *testing.T, w *world) {
	s := w.store()
	waiting := later(t, func() ([][]byte, error) { return s.Wait(w.ctx, "model/ready") })
	var keys []store.KeyStatus
	until(t, w.ctx, "it waits", func() bool {
		all, err := w.store().Status(w.ctx, "model/")
		good(t, err)
		keys = all.Keys
		return len(keys) > 0
	})
	keys[0].Waited = 0
	same(t, "keys", keys, []store.KeyStatus{{Key: "model/ready", Calls: 1}})
	w.set(w.store(), "model/ready")
	good(t, (<-waiting).err)
}

func statusMany(t *testing.T, w *world) {
	const size = 2500
	s := w.store()
	allGood(t, together(size, func(n int) ([][]byte, error) {
		_, err := s.Join(w.ctx, applicant("group", n, size), nil)
		return nil, err
	}))
	g := sees(t, w, w.store())
	same(t, "ranks", len(g.Ranks), size)
	for n := range size {
		same(t, "rank", g.Ranks[n].Rank, n)
		same(t, "label", g.Ranks[n].Label, label(n))
	}
}

func statusPure(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "k")
	before := w.revision(s)
	for range 3 {
		_, err := s.Status(w.ctx, "")
		good(t, err)
	}
	same(t, "revision", w.revision(s), before)
	holds(t, w, s, "k", "k")
}
