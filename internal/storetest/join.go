package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var joinChecks = []check{
	{"completes when all are there, with what each said of itself", joinCompletes, []Feature{Collect}},
	{"of one completes at once", joinAlone, []Feature{Collect}},
	{"of many gives each rank its node's ranks, and the members on request", joinMany, []Feature{Collect}},
	{"that times out names the missing, and the rank may come again", joinTimeout, []Feature{Collect}},
	{"that times out does so for all at the earliest deadline", joinOutcome, []Feature{Collect, Attempts, Status}},
	{"that is cancelled is withdrawn", joinCancelled, []Feature{Collect}},
	{"that is cancelled fails for all who are there", joinCancelledForAll, []Feature{Collect, Attempts, Status}},
	{"a later try of a claim replaces the earlier one", joinClaimed, []Feature{Collect, Attempts, Status}},
	{"a second one of a rank is ErrConflict with who holds it", joinTwice, []Feature{Collect}},
	{"as a rank that is active is ErrConflict and names its process", joinHeld, []Feature{Collect}},
	{"another world size is ErrMismatch for all at once", joinSize, []Feature{Collect}},
	{"a rank out of range is ErrInvalid", joinRange, []Feature{Collect}},
	{"another run is another group", joinRun, []Feature{Collect}},
	{"two groups in the same sessions do not meet", joinOverlap, []Feature{Collect}},
	{"generations never repeat", joinGenerations, []Feature{Collect}},
	{"of the survivors completes when all are there or gone", joinSurvivors, []Feature{Collect}},
	{"of the survivors, a later try of a claim replaces the earlier one", joinSurvivorsClaimed, []Feature{Collect, Attempts, Status}},
	{"a generation that never was is ErrStale", joinNever, []Feature{Collect}},
	{"as a member of another session is ErrDenied", joinDenied, []Feature{Collect, Sessions}},
	{"a session that is not a member learns nothing of a generation", joinNoMember, []Feature{Collect, Sessions}},
	{"a session that ends withdraws its ranks", joinWithdrawn, []Feature{Collect, Sessions}},
}

func joinCompletes(t *testing.T, w *world) {
	const n = 5
	memberships := make([]store.Formed, n)
	allGood(t, together(n, func(i int) (_ [][]byte, err error) {
		memberships[i], err = w.store().Join(w.ctx, applicant("g", i, n), fmt.Appendf(nil, "member %d", i))
		return nil, err
	}))
	for _, r := range memberships {
		same(t, "members", texts(r.Members), []string{"member 0", "member 1", "member 2", "member 3", "member 4"})
		same(t, "generation", r.Generation, memberships[0].Generation)
	}
	for i, r := range memberships {
		same(t, "rank", r.Rank, i)
		same(t, "size, host and nodes", []int{r.Size, r.Host, r.Nodes}, []int{n, -1, 1})
		same(t, "id", r.ID != 0 && r.ID == memberships[0].ID, true)
	}
	same(t, "generation is 0", memberships[0].Generation == 0, false)
}

func joinAlone(t *testing.T, w *world) {
	r := w.group(1)
	goesOn(t, r, 1)
}

// joinMany forms a group that is too large for members in the answer. Its ranks are on nodes of 3.
func joinMany(t *testing.T, w *world) {
	const n, host = wire.MaxInline + 5, 4
	s := w.store()
	member := func(i int) []byte {
		return wire.AppendMember(nil, &wire.Member{Node: uint64(i / 3), PID: uint32(i), Hosts: i == host})
	}
	memberships := make([]store.Formed, n)
	allGood(t, together(n, func(i int) (_ [][]byte, err error) {
		memberships[i], err = s.Join(w.ctx, applicant("g", i, n), member(i))
		return nil, err
	}))
	for i, m := range memberships {
		same(t, "rank, size, host and nodes", []int{m.Rank, m.Size, m.Host, m.Nodes}, []int{i, n, host, (n + 2) / 3})
		same(t, "members", m.Members == nil, true)
		for other := range n {
			same(t, fmt.Sprintf("node of %d and %d", i, other), m.Local.Has(other), i/3 == other/3)
		}
	}
	c := func(rank int) wire.Contribution {
		return wire.Contribution{Generation: memberships[0].Generation, Rank: rank}
	}
	all := func(rank int) {
		t.Helper()
		got, err := s.Members(w.ctx, c(rank), 0, 0)
		good(t, err)
		same(t, "all", len(got), n)
		for i, b := range got {
			same(t, "member", b, member(i))
		}
	}
	all(0)
	some, err := s.Members(w.ctx, c(7), 60, 2)
	good(t, err)
	same(t, "some", some, [][]byte{member(60), member(61)})
	some, err = s.Members(w.ctx, c(7), n-1, 2)
	good(t, err)
	same(t, "the last", some, [][]byte{member(n - 1)})
	_, err = s.Members(w.ctx, c(7), n+1, 0)
	is(t, err, store.ErrInvalid)
	_, err = s.Members(w.ctx, c(7), -1, 0)
	is(t, err, store.ErrInvalid)

	// A rank that has left is still listed, and gets nothing any more; a group that was aborted still answers.
	good(t, s.Leave(w.ctx, c(1)))
	_, err = s.Members(w.ctx, c(1), 0, 0)
	is(t, err, store.ErrClosed)
	aborts := c(2)
	aborts.No, aborts.Reason = wire.CodeAborted, "enough"
	good(t, s.Leave(w.ctx, aborts))
	all(0)
}

func joinTimeout(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	start := time.Now()
	_, err := b.Join(w.within(soon), applicant("g", 1, 2), nil)
	is(t, err, store.ErrTimeout)
	is(t, err, context.DeadlineExceeded)
	inTime(t, "join", start, soon)
	same(t, "missing", failureOf(t, err).Missing, []int{0})
	allGood(t, together(2, func(i int) ([][]byte, error) {
		_, err := []*store.Store{a, b}[i].Join(w.ctx, applicant("g", i, 2), nil)
		return nil, err
	}))
}

// forming waits until present ranks are in the attempt to form a group.
func forming(t *testing.T, w *world, present int) {
	t.Helper()
	until(t, w.ctx, "ranks are in the attempt", func() bool {
		st, err := w.store().Status(w.ctx, "")
		good(t, err)
		return len(st.Groups) > 0 && st.Groups[0].Generation == 0 && st.Groups[0].Present == present
	})
}

func joinOutcome(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	long := laterErr(t, func() error { _, err := a.Join(w.ctx, applicant("g", 0, 4), nil); return err })
	forming(t, w, 1)
	_, err := b.Join(w.within(soon), applicant("g", 1, 4), nil)
	is(t, err, store.ErrTimeout)
	other := (<-long).err
	is(t, other, store.ErrTimeout)
	is(t, other, context.DeadlineExceeded)
	same(t, "missing", failureOf(t, err).Missing, []int{2, 3})
	same(t, "the failure of rank 0", *failureOf(t, other), *failureOf(t, err))
}

func joinCancelledForAll(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	ctx, cancel := context.WithCancel(w.ctx)
	waiting := laterErr(t, func() error { _, err := a.Join(ctx, applicant("g", 0, 3), nil); return err })
	other := laterErr(t, func() error { _, err := b.Join(w.ctx, applicant("g", 1, 3), nil); return err })
	forming(t, w, 2)
	cancel()
	is(t, (<-waiting).err, store.ErrCancelled)
	v := failureOf(t, (<-other).err)
	same(t, "code", v.Code, wire.CodeCancelled)
	same(t, "by", v.By, 0)
	same(t, "missing", v.Missing, []int{2})
}

func joinClaimed(t *testing.T, w *world) {
	a, b, c := w.store(), w.store(), w.store()
	token := []byte("a token that is hard to guess")
	claimed := func(s *store.Store, try uint64) error {
		_, err := s.JoinAs(w.ctx, store.Claim{Token: token, Try: try}, applicant("g", 0, 2), fmt.Appendf(nil, "try %d", try))
		return err
	}
	stale := laterErr(t, func() error { return claimed(a, 1) })
	forming(t, w, 1)
	again := laterErr(t, func() error { return claimed(b, 2) })
	is(t, (<-stale).err, store.ErrConflict)
	is(t, claimed(c, 1), store.ErrConflict) // an earlier claim that arrived late
	r, err := c.Join(w.ctx, applicant("g", 1, 2), []byte("other"))
	good(t, err)
	same(t, "members", texts(r.Members), []string{"try 2", "other"})
	good(t, (<-again).err)

	// Once the group has formed, a newer try makes its rank leave, and the next attempt is open.
	next := laterErr(t, func() error { return claimed(a, 3) })
	vote := barrier(1)
	vote.Generation, vote.Rank = r.Generation, 1
	_, err = c.Collect(w.ctx, vote, nil)
	is(t, err, store.ErrLeft)
	same(t, "left", failureOf(t, err).Left, []int{0})
	good(t, c.Leave(w.ctx, wire.Contribution{Generation: r.Generation, Rank: 1}))
	_, err = c.Join(w.ctx, applicant("g", 1, 2), nil)
	good(t, err)
	good(t, (<-next).err)
}

func joinCancelled(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	ctx, cancel := context.WithCancel(w.ctx)
	waiting := laterErr(t, func() error { _, err := a.Join(ctx, applicant("g", 0, 2), nil); return err })
	lacksKey(t, w, b, "key")
	cancel()
	is(t, (<-waiting).err, context.Canceled)
	_, err := b.Join(w.within(soon), applicant("g", 1, 2), nil)
	same(t, "missing", failureOf(t, err).Missing, []int{0})
}

// joinTwice accepts either order of the two sessions: the other one gets the error.
func joinTwice(t *testing.T, w *world) {
	first := make(chan outcome, 2)
	for _, who := range []string{"alice", "bob"} {
		c := applicant("g", 0, 2)
		c.Label = who
		s := w.store()
		laterErr(t, func() error {
			_, err := s.Join(w.ctx, c, nil)
			first <- outcome{[][]byte{[]byte(who)}, err}
			return nil
		})
	}
	o := <-first
	is(t, o.err, store.ErrConflict)
	names(t, o.err, map[string]string{"alice": "bob", "bob": "alice"}[string(o.values[0])])
	_, err := w.store().Join(w.ctx, applicant("g", 1, 2), nil)
	good(t, err)
	good(t, (<-first).err)
}

func joinHeld(t *testing.T, w *world) {
	ranks := w.group(2)
	_, err := w.store().Join(w.ctx, applicant("group", 1, 2), nil)
	is(t, err, store.ErrConflict)
	names(t, err, label(1))
	goesOn(t, ranks, 1)
}

// joinSize accepts either order of the two ranks: both get the error.
func joinSize(t *testing.T, w *world) {
	out := together(2, func(i int) ([][]byte, error) {
		_, err := w.store().Join(w.ctx, applicant("g", i, 3-i), nil)
		return nil, err
	})
	for _, o := range out {
		is(t, o.err, store.ErrMismatch)
		names(t, o.err, label(0), label(1), "3", "2")
	}
	agreed(t, out...)
}

func joinRange(t *testing.T, w *world) {
	s := w.store()
	for _, c := range [][2]int{{-1, 2}, {2, 2}, {7, 4}, {0, 0}, {0, -1}, {-1, -1}} {
		_, err := s.Join(w.ctx, applicant("g", c[0], c[1]), nil)
		is(t, err, store.ErrInvalid)
	}
}

func joinRun(t *testing.T, w *world) {
	out := make([]uint64, 4)
	allGood(t, together(4, func(i int) ([][]byte, error) {
		c := applicant("g", i%2, 2)
		c.Run = []string{"monday", "tuesday"}[i/2]
		membership, err := w.store().Join(w.ctx, c, nil)
		out[i] = membership.Generation
		return nil, err
	}))
	same(t, "first run", out[0], out[1])
	same(t, "second run", out[2], out[3])
	same(t, "both are one", out[0] == out[2], false)
}

func joinOverlap(t *testing.T, w *world) {
	one := w.group(4)
	two := make([]*rank, 3)
	for i := range two {
		r := *one[3-i] // with other numbers
		r.n = i
		two[i] = &r
	}
	w.join(two, "other")
	late := one[3].collectLater(t, w.ctx, allGather(1))
	out := fromAll(two, allGather(1))
	allGood(t, out)
	same(t, "of the second group", texts(out[0].values), []string{"rank 0", "rank 1", "rank 2"})
	allGood(t, fromAll(one[:3], allGather(1)))
	same(t, "of the first group", texts((<-late).values), []string{"rank 0", "rank 1", "rank 2", "rank 3"})
}

func joinGenerations(t *testing.T, w *world) {
	var seen []uint64
	ranks := w.group(2)
	for range 3 {
		for _, g := range seen {
			same(t, "generation is new", ranks[0].gen > g, true)
		}
		seen = append(seen, ranks[0].gen)
		for _, r := range ranks {
			good(t, r.Leave(w.ctx, r.asMember()))
		}
		w.join(ranks, "group")
	}
}

func joinSurvivors(t *testing.T, w *world) {
	ranks := w.group(4)
	good(t, ranks[1].Leave(w.ctx, ranks[1].asMember()))
	memberships := make([]store.Formed, 4)
	shrink := func(i int) (err error) {
		memberships[i], err = ranks[i].Join(w.ctx, ranks[i].asMember(), fmt.Appendf(nil, "was %d", i))
		return err
	}
	early := []<-chan outcome{
		later(t, func() ([][]byte, error) { return nil, shrink(0) }),
		later(t, func() ([][]byte, error) { return nil, shrink(3) }),
	}
	good(t, ranks[2].Leave(w.ctx, ranks[2].asMember()))
	for i, ch := range early {
		good(t, (<-ch).err)
		same(t, "rank", memberships[3*i].Rank, i)
		same(t, "size", memberships[3*i].Size, 2)
		same(t, "members", texts(memberships[3*i].Members), []string{"was 0", "was 3"})
		same(t, "generation is new", memberships[3*i].Generation > ranks[0].gen, true)
	}
	old := ranks[0].collect(w.ctx, barrier(1))
	is(t, old.err, store.ErrStale)
	now := []*rank{ranks[0], ranks[3]}
	for i, r := range now {
		r.gen, r.n = memberships[0].Generation, i
	}
	goesOn(t, now, 1)
}

// joinSurvivorsClaimed checks a rank that tries again and is the only one in the attempt: its
// earlier try leaves the attempt empty.
func joinSurvivorsClaimed(t *testing.T, w *world) {
	ranks := w.group(2)
	try := func(n uint64) <-chan outcome {
		return laterErr(t, func() error {
			_, err := ranks[0].JoinAs(w.ctx, store.Claim{Token: []byte("a token that is hard to guess"), Try: n}, ranks[0].asMember(), nil)
			return err
		})
	}
	stale := try(1)
	until(t, w.ctx, "the earlier try waits", func() bool {
		st, err := w.store().Status(w.ctx, "")
		good(t, err)
		return len(st.Groups) > 0 && st.Groups[0].Open > 0
	})
	again := try(2)
	is(t, (<-stale).err, store.ErrConflict)
	r, err := ranks[1].Join(w.ctx, ranks[1].asMember(), nil)
	good(t, err)
	same(t, "rank", r.Rank, 1)
	good(t, (<-again).err)
}

func joinNever(t *testing.T, w *world) {
	s := w.store()
	c := barrier(1)
	c.Generation = 12345
	_, err := s.Collect(w.ctx, c, nil)
	is(t, err, store.ErrStale)
	is(t, s.Leave(w.ctx, c), store.ErrStale)
	is(t, s.Follow(w.ctx, c), store.ErrStale)
	_, err = s.Join(w.ctx, wire.Contribution{Generation: 12345}, nil)
	is(t, err, store.ErrStale)
}

func joinDenied(t *testing.T, w *world) {
	ranks := w.group(2)
	thief := *ranks[1]
	thief.n = 0
	is(t, thief.collect(w.ctx, barrier(1)).err, store.ErrDenied)
	is(t, thief.Leave(w.ctx, thief.asMember()), store.ErrDenied)
	is(t, thief.send(w.ctx, 1, "", "x"), store.ErrDenied)
	is(t, thief.recv(w.ctx, 1, "", 1).err, store.ErrDenied)
	goesOn(t, ranks, 1)
}

// joinNoMember sends requests for a group from a session that is not in it: the answers are those
// for a generation that never existed.
func joinNoMember(t *testing.T, w *world) {
	ranks := w.group(2)
	s := w.store()
	ops := []wire.Op{wire.OpLeave, wire.OpFollow, wire.OpCollect, wire.OpSend, wire.OpRecv, wire.OpExpired, wire.OpJoin, wire.OpMembers}
	if !w.lacks(Channels) {
		ops = append(ops, wire.OpCloseChannel, wire.OpAck)
	}
	for _, op := range ops {
		ask := func(gen uint64, n int) (why string) {
			c := barrier(1)
			c.Generation, c.Rank = gen, n
			err := s.Do(w.ctx, &wire.Request{Op: op, Group: c, Value: []byte{}}, new(wire.Reply))
			is(t, err, store.ErrStale)
			return strings.ReplaceAll(err.Error(), fmt.Sprint(gen), "N")
		}
		for _, n := range []int{0, 1, 2, -1} {
			same(t, op.String()+" is refused", ask(ranks[0].gen, n), ask(987654321, n))
		}
	}
	goesOn(t, ranks, 1)
}

func joinWithdrawn(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	waiting := laterErr(t, func() error { _, err := a.Join(w.ctx, applicant("g", 0, 2), nil); return err })
	lacksKey(t, w, a, "key")
	good(t, a.Close())
	is(t, (<-waiting).err, store.ErrClosed)
	_, err := b.Join(w.within(soon), applicant("g", 1, 2), nil)
	same(t, "missing", failureOf(t, err).Missing, []int{0})
}
