package storetest

import (
	"slices"
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var goodbyeChecks = []check{
	{"calls that need a rank that left fail at once", leftReported, []Feature{Collect}},
	{"calls that wait for a rank fail when it leaves", leftWaiting, []Feature{Collect}},
	{"a vote cast before it left stands", leftVoted, []Feature{Collect}},
	{"who does not need the rank that left goes on", leftNotNeeded, []Feature{Collect}},
	{"what a rank gave before it left can be read", leftGave, []Feature{Collect}},
	{"a rank that left has no more calls", leftOver, []Feature{Collect}},
	{"a session that is closed has left", leftByClose, []Feature{Collect, Sessions}},
	{"an abort ends what waits, and all that comes, with its reason", abortEnds, []Feature{Collect}},
	{"an abort is reported to followers", abortFollowed, []Feature{Collect}},
	{"a follow ends with its context, and the group goes on", followEnds, []Feature{Collect}},
}

func leftReported(t *testing.T, w *world) {
	ranks := w.group(3)
	good(t, ranks[1].Leave(w.ctx, ranks[1].asMember()))
	out := fromAll([]*rank{ranks[0], ranks[2]}, barrier(1))
	v := agreed(t, out...)
	is(t, out[0].err, store.ErrLeft)
	same(t, "left", v.Left, []int{1})
	same(t, "lost", len(v.Lost), 0)
}

func leftWaiting(t *testing.T, w *world) {
	ranks := w.group(3)
	zero := ranks[0].calls(t, ranks[1], barrier(1))
	two := ranks[2].calls(t, ranks[1], barrier(1))
	good(t, ranks[1].Leave(w.ctx, ranks[1].asMember()))
	v := agreed(t, <-zero, <-two)
	same(t, "code", v.Code, wire.CodeLeft)
	same(t, "left", v.Left, []int{1})
}

func leftVoted(t *testing.T, w *world) {
	ranks := w.group(3)
	c := allGather(1)
	own := ranks[1].calls(t, ranks[0], c)
	good(t, ranks[1].Leave(w.ctx, ranks[1].asMember()))
	if o := <-own; o.err == nil {
		t.Fatal("the vote of a rank that left was answered with success")
	}
	for _, o := range fromAll([]*rank{ranks[0], ranks[2]}, c) {
		good(t, o.err)
		same(t, "values", texts(o.values), []string{"rank 0", "rank 1", "rank 2"})
	}
}

func leftNotNeeded(t *testing.T, w *world) {
	ranks := w.group(3)
	good(t, ranks[2].Leave(w.ctx, ranks[2].asMember()))
	for seq := range uint64(500) { // also records for which an acknowledgement would be missing
		good(t, ranks[0].collect(w.ctx, broadcast(seq+1, 0)).err)
		good(t, ranks[1].collect(w.ctx, broadcast(seq+1, 0)).err)
	}
}

func leftGave(t *testing.T, w *world) {
	ranks := w.group(3)
	good(t, ranks[0].collect(w.ctx, broadcast(1, 0)).err)
	good(t, ranks[0].Leave(w.ctx, ranks[0].asMember()))
	for _, r := range ranks[1:] {
		o := r.collect(w.ctx, broadcast(1, 0))
		good(t, o.err)
		same(t, "values", texts(o.values), []string{"rank 0"})
	}
	o := ranks[1].collect(w.ctx, broadcast(2, 0))
	is(t, o.err, store.ErrLeft)
}

func leftOver(t *testing.T, w *world) {
	ranks := w.group(2)
	r := ranks[1]
	good(t, r.Leave(w.ctx, r.asMember()))
	for _, err := range []error{
		r.collect(w.ctx, barrier(1)).err, r.Leave(w.ctx, r.asMember()), r.Follow(w.ctx, r.asMember()), r.send(w.ctx, 0, "", "x"), r.recv(w.ctx, 0, "", 1).err,
	} {
		is(t, err, store.ErrClosed)
	}
}

func leftByClose(t *testing.T, w *world) {
	ranks := w.group(3)
	zero := ranks[0].calls(t, ranks[1], barrier(1))
	good(t, ranks[2].Close())
	v := agreed(t, <-zero, ranks[1].collect(w.ctx, barrier(1)))
	same(t, "left", v.Left, []int{2})
	same(t, "lost", len(v.Lost), 0)
}

// abort lets a rank abort its group.
func (r *rank) abort(t *testing.T, reason string) {
	t.Helper()
	c := r.asMember()
	c.No, c.Reason = wire.CodeAborted, reason
	good(t, r.Leave(r.w.ctx, c))
}

func abortEnds(t *testing.T, w *world) {
	ranks := w.group(3)
	zero := ranks[0].calls(t, ranks[1], barrier(1))
	recv := later(t, func() ([][]byte, error) { o := ranks[2].recv(w.ctx, 0, "", 1); return o.values, o.err })
	ranks[1].abort(t, "the disk is full")
	for _, o := range []outcome{<-zero, <-recv, ranks[1].collect(w.ctx, barrier(1)), ranks[2].collect(w.ctx, barrier(1))} {
		is(t, o.err, store.ErrAborted)
		v := failureOf(t, o.err)
		same(t, "by", v.By, 1)
		same(t, "reason", v.Reason, "the disk is full")
		names(t, o.err, "the disk is full")
	}
	over(t, w, ranks, store.ErrAborted)
	is(t, ranks[2].send(w.ctx, 0, "", "x"), store.ErrAborted)
}

func abortFollowed(t *testing.T, w *world) {
	ranks := w.group(2)
	following := []<-chan outcome{
		laterErr(t, func() error { return ranks[0].Follow(w.ctx, ranks[0].asMember()) }),
		laterErr(t, func() error { return ranks[1].Follow(w.ctx, ranks[1].asMember()) }),
	}
	goesOn(t, ranks, 1)
	for _, ch := range following {
		stillWaits(t, "follow", ch)
	}
	ranks[0].abort(t, "enough")
	v := agreed(t, <-following[0], <-following[1])
	same(t, "by", v.By, 0)
	same(t, "reason", v.Reason, "enough")
}

func followEnds(t *testing.T, w *world) {
	ranks := w.group(2)
	is(t, ranks[0].Follow(w.within(soon/4), ranks[0].asMember()), store.ErrTimeout)
	goesOn(t, ranks, 1)
}

var lossChecks = []check{
	{"is reported at once to waiting calls, and revokes", lossReported, []Feature{Collect, Loss, Sessions}},
	{"a vote cast before it stands", lossVoted, []Feature{Collect, Loss, Sessions}},
	{"what the lost rank gave can be read", lossGave, []Feature{Collect, Loss, Sessions}},
	{"is reported to followers", lossFollowed, []Feature{Collect, Loss, Sessions}},
	{"the survivors can go on among themselves", lossShrink, []Feature{Collect, Loss, Sessions}},
	{"of survivors, others survive again, and are lost again", lossOfSurvivors, []Feature{Collect, Loss, Sessions}},
	{"a new process can join as the failed rank", lossRejoin, []Feature{Collect, Loss, Sessions}},
	{"a rank that waits for the membership is withdrawn", lossJoin, []Feature{Collect, Loss, Sessions, Status}},
	{"a lost sender's messages come before its loss", lossStream, []Feature{Collect, Loss, Sessions, Streams}},
	{"ends a send that waits for the lost rank", lossSend, []Feature{Collect, Loss, Sessions, Streams}},
	{"keys stay", lossKeys, []Feature{Loss, Sessions}},
}

func lossReported(t *testing.T, w *world) {
	ranks := w.group(4)
	zero := ranks[0].calls(t, ranks[1], barrier(1))
	recv := later(t, func() ([][]byte, error) { o := ranks[1].recv(w.ctx, 3, "", 1); return o.values, o.err })
	w.Cut(ranks[3].engine)
	a := <-zero
	is(t, a.err, store.ErrLost)
	is(t, (<-recv).err, store.ErrLost)
	late := ranks[2].collect(w.ctx, barrier(1))
	same(t, "lost", agreed(t, a, late).Lost, []int{3})
	over(t, w, ranks[:3], store.ErrLost)
}

func lossVoted(t *testing.T, w *world) {
	ranks := w.group(3)
	ranks[2].calls(t, ranks[0], allGather(1))
	zero := ranks[0].calls(t, ranks[1], allGather(1))
	following := laterErr(t, func() error { return ranks[1].Follow(w.ctx, ranks[1].asMember()) })
	w.Cut(ranks[2].engine)
	is(t, (<-following).err, store.ErrLost)
	stillWaits(t, "rank 0", zero)
	for _, o := range []outcome{ranks[1].collect(w.ctx, allGather(1)), <-zero} {
		good(t, o.err)
		same(t, "values", texts(o.values), []string{"rank 0", "rank 1", "rank 2"})
	}
	is(t, ranks[0].collect(w.ctx, barrier(2)).err, store.ErrLost)
}

func lossGave(t *testing.T, w *world) {
	ranks := w.group(3)
	good(t, ranks[1].collect(w.ctx, broadcast(1, 1)).err)
	w.lose(ranks[1], ranks[0])
	o := ranks[0].collect(w.ctx, broadcast(1, 1))
	good(t, o.err)
	same(t, "values", texts(o.values), []string{"rank 1"})
	is(t, ranks[0].collect(w.ctx, broadcast(2, 1)).err, store.ErrLost)
}

// lose cuts r's session, and returns when the store has notified other.
func (w *world) lose(r, other *rank) {
	w.t.Helper()
	w.Cut(r.engine)
	is(w.t, other.Follow(w.ctx, other.asMember()), store.ErrLost)
}

func lossFollowed(t *testing.T, w *world) {
	ranks := w.group(2)
	following := laterErr(t, func() error { return ranks[0].Follow(w.ctx, ranks[0].asMember()) })
	goesOn(t, ranks, 1)
	stillWaits(t, "follow", following)
	w.Cut(ranks[1].engine)
	o := <-following
	is(t, o.err, store.ErrLost)
	same(t, "lost", failureOf(t, o.err).Lost, []int{1})
}

func lossShrink(t *testing.T, w *world) {
	ranks := w.group(3)
	w.lose(ranks[0], ranks[1])
	memberships := make([]store.Formed, 2)
	now := ranks[1:]
	allGood(t, together(2, func(i int) (_ [][]byte, err error) {
		memberships[i], err = now[i].Join(w.ctx, now[i].asMember(), nil)
		return nil, err
	}))
	for i, r := range now {
		same(t, "membership", memberships[i], renumbered(memberships[0], i))
		r.gen, r.n = memberships[0].Generation, i
	}
	goesOn(t, now, 1)
}

// renumbered returns m as another rank of the same node gets it.
func renumbered(m store.Formed, rank int) store.Formed {
	m.Rank = rank
	return m
}

// lossOfSurvivors checks groups whose ranks change with each generation: rank 0 of each is lost, so
// that no rank keeps its number.
func lossOfSurvivors(t *testing.T, w *world) {
	now := w.group(5)
	for len(now) > 2 {
		w.lose(now[0], now[1])
		now = now[1:]
		memberships := make([]store.Formed, len(now))
		allGood(t, together(len(now), func(i int) (_ [][]byte, err error) {
			memberships[i], err = now[i].Join(w.ctx, now[i].asMember(), nil)
			return nil, err
		}))
		for i, r := range now {
			same(t, "membership", memberships[i], renumbered(memberships[0], i))
			r.gen, r.n = memberships[0].Generation, i
		}
		goesOn(t, now, 1)
	}
	good(t, now[0].Leave(w.ctx, now[0].asMember()))
	o := now[1].collect(w.ctx, barrier(2))
	is(t, o.err, store.ErrLeft)
	same(t, "left", failureOf(t, o.err).Left, []int{0})
}

func lossRejoin(t *testing.T, w *world) {
	ranks := w.group(2)
	w.lose(ranks[1], ranks[0])
	old := ranks[0].gen
	good(t, ranks[0].Leave(w.ctx, ranks[0].asMember()))
	e := w.engine()
	again := []*rank{ranks[0], {Store: store.New(e), engine: e, w: w, n: 1}}
	w.join(again, "group")
	same(t, "generation is new", again[0].gen > old, true)
	goesOn(t, again, 1)
}

func lossJoin(t *testing.T, w *world) {
	e, s := w.engine(), w.store()
	lost := laterErr(t, func() error { _, err := store.New(e).Join(w.ctx, applicant("g", 0, 3), nil); return err })
	missing := func(want ...int) func() bool {
		return func() bool {
			_, err := s.Join(w.within(soon/4), applicant("g", 1, 3), nil)
			return slices.Equal(failureOf(t, err).Missing, want)
		}
	}
	forming(t, w, 1)
	stillWaits(t, "rank 0", lost)
	w.Cut(e)
	until(t, w.ctx, "rank 0 is withdrawn", missing(0, 2))
}

func lossStream(t *testing.T, w *world) {
	ranks := w.group(2)
	for _, m := range []string{"one", "two"} {
		good(t, ranks[0].send(w.ctx, 1, "", m))
	}
	w.lose(ranks[0], ranks[1])
	ranks[1].gets(t, 0, "", 1, "one")
	ranks[1].gets(t, 0, "", 2, "two")
	o := ranks[1].recv(w.ctx, 0, "", 3)
	is(t, o.err, store.ErrLost)
	same(t, "lost", failureOf(t, o.err).Lost, []int{0})
}

func lossSend(t *testing.T, w *world) {
	ranks := w.group(2)
	sent := 0
	filling := laterErr(t, func() error {
		for {
			if err := ranks[0].send(w.ctx, 1, "", "x"); err != nil {
				return err
			}
			sent++
		}
	})
	ranks[0].seen(t, ranks[1], "send")
	w.Cut(ranks[1].engine)
	is(t, (<-filling).err, store.ErrLost)
	same(t, "sent", sent > 0, true)
}

func lossKeys(t *testing.T, w *world) {
	e, s := w.engine(), w.store()
	w.set(store.New(e), "key")
	w.Cut(e)
	holds(t, w, s, "key", "key")
}
