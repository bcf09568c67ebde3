package storetest

import (
	"fmt"
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var joinChecks = []check{
	{"of many gives each rank its node's ranks, and the members on request", joinMany, []Feature{Collect}},
	{"generations never repeat", joinGenerations, []Feature{Collect}},
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

	// A rank that has left is still listed, and gets nothing more; a group that was aborted still answers.
	good(t, s.Leave(w.ctx, c(1)))
	_, err = s.Members(w.ctx, c(1), 0, 0)
	is(t, err, store.ErrClosed)
	aborts := c(2)
	aborts.No, aborts.Reason = wire.CodeAborted, "enough"
	good(t, s.Leave(w.ctx, aborts))
	all(0)
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
