package pgroup_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/wire"
)

// TestTwoGroupsAtOneAddress forms two groups of the same processes at one address: the second uses
// the server of the first, and keeps it running.
func TestTwoGroupsAtOneAddress(t *testing.T) {
	addr := testcluster.Port(t)
	named := func(name string) place { return all(pgroup.Config{Name: name, Address: addr}) }
	one := create(t, 4, named("one"))
	two := create(t, 3, named("two"))
	equal(t, two[1], "host", members(t, two[1])[0].Addr, addr)
	together(4, func(rank int) { ok(t, one[rank], "shutdown", one[rank].Shutdown(t.Context())) })
	together(3, func(rank int) { ok(t, two[rank], "barrier", two[rank].Barrier(t.Context())) })
	closeAll(two)
	create(t, 2, named("three")) // the address is free again
}

func TestSub(t *testing.T) {
	everywhere(t, func(t *testing.T, g *pgroup.Group) {
		ctx := t.Context()
		if list := []int{3, 0, 2}; slices.Contains(list, g.Rank()) {
			for range 3 { // another group with the same arguments
				sub, err := g.Sub(ctx, "trainers", list...)
				if err != nil {
					t.Errorf("rank %d: %v", g.Rank(), err)
					return
				}
				equal(t, g, "rank", sub.Rank(), slices.Index(list, g.Rank()))
				equal(t, g, "name", sub.Name(), "world/trainers")
				equal(t, g, "newer", sub.Generation() > g.Generation(), true)
				got, err := pgroup.AllGather(ctx, sub, g.Rank())
				ok(t, g, "allgather", err)
				equal(t, g, "allgather", got, list)
				ok(t, g, "shutdown", sub.Shutdown(ctx))
			}
		}
		ok(t, g, "the parent's sequence is as it was", g.Barrier(ctx))
	}, 4, 7)
}

// TestLargeSub makes a group whose list of ranks is too long for its name.
func TestLargeSub(t *testing.T) {
	const n = 100
	ranks(t, n, anyStore, func(t *testing.T, g *pgroup.Group) {
		sub, err := g.Sub(t.Context(), "all", upTo(n)...)
		if ok(t, g, "sub", err); err == nil {
			ok(t, g, "shutdown", sub.Shutdown(t.Context()))
		}
	})
}

// TestSubAgain has a rank that calls Sub after another's deadline: the other one retries, and the
// subgroup forms.
func TestSubAgain(t *testing.T) {
	ranks(t, 2, anyStore, func(t *testing.T, g *pgroup.Group) {
		if g.Rank() == 0 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			_, err := g.Sub(ctx, "late", 1, 0)
			cancel()
			assert.ErrorIs(t, err, pgroup.ErrTimeout)
			ok(t, g, "send", pgroup.Send(t.Context(), g, 1, true))
		} else {
			_, err := pgroup.Recv[bool](t.Context(), g, 0)
			ok(t, g, "recv", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for range 2 { // the second is another group
			sub, err := g.Sub(ctx, "late", 1, 0)
			ok(t, g, "sub", err)
			if err == nil {
				ok(t, g, "barrier", sub.Barrier(ctx))
				defer sub.Close()
			}
		}
	})
}

func TestSubOutlivesItsParent(t *testing.T) {
	for name, at := range places {
		t.Run(name, func(t *testing.T) {
			parents := create(t, 2, at)
			subs := make([]*pgroup.Group, 2)
			together(2, func(rank int) {
				sub, err := parents[rank].Sub(t.Context(), "sub", 0, 1)
				ok(t, parents[rank], "sub", err)
				subs[rank] = sub
			})
			closeAll(parents)
			together(2, func(rank int) { ok(t, subs[rank], "barrier", subs[rank].Barrier(t.Context())) })
			closeAll(subs)
		})
	}
}

func TestSubRefusesBadLists(t *testing.T) {
	ranks(t, 2, anyStore, func(t *testing.T, g *pgroup.Group) {
		for word, list := range map[string][]int{
			"rank 7 of a group of 2": {0, 1, 7}, "rank -1 of a group of 2": {-1}, "twice": {0, 1, 0}, "not in it": {1 - g.Rank()},
		} {
			_, err := g.Sub(t.Context(), "s", list...)
			says(t, err, pgroup.ErrInvalid, word)
		}
		_, err := g.Sub(t.Context(), strings.Repeat("n", 3000), 0, 1)
		assert.ErrorIs(t, err, pgroup.ErrInvalid)
		_, err = g.Sub(t.Context(), "none")
		assert.ErrorIs(t, err, pgroup.ErrInvalid)
	})
}

func TestSplit(t *testing.T) {
	everywhere(t, func(t *testing.T, g *pgroup.Group) {
		color := g.Rank() % 3
		if color == 2 {
			color = -1
		}
		for range 2 {
			half, err := g.Split(t.Context(), color, -g.Rank())
			ok(t, g, "split", err)
			if color < 0 {
				equal(t, g, "no color", half, nil)
				continue
			}
			if half == nil {
				return
			}
			got, err := pgroup.AllGather(t.Context(), half, g.Rank())
			ok(t, g, "allgather", err)
			var want []int
			for r := g.Size() - 1; r >= 0; r-- { // by key
				if r%3 == color {
					want = append(want, r)
				}
			}
			equal(t, g, "allgather", got, want)
			equal(t, g, "name", half.Name(), fmt.Sprintf("world/%d", color))
			ok(t, g, "close", half.Close())
		}
		ok(t, g, "barrier", g.Barrier(t.Context()))
	})
}

// members returns the members of g.
func members(t *testing.T, g *pgroup.Group) []pgroup.Member {
	t.Helper()
	ms, err := g.Members(t.Context())
	ok(t, g, "members", err)
	return ms
}

// TestMembers checks what ranks know of each other, in a group whose join brings the members and in one that is
// too large for that, and in the groups of their survivors. The ranks take turns on the nodes.
func TestMembers(t *testing.T) {
	for size, nodes := range map[int]int{5: 2, 70: 18} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			gs := create(t, size, place(served).with(func(c *pgroup.Config) { c.Host = fmt.Sprintf("node-%d", c.Rank%nodes) }))
			check := func(g *pgroup.Group, first int) {
				equal(t, g, "nodes", g.NodeCount(), nodes)
				equal(t, g, "local rank", g.LocalRank(), g.Rank()/nodes)
				equal(t, g, "no rank", g.SameNode(-1) || g.SameNode(size), false)
				known := members(t, g)
				equal(t, g, "size", len(known), g.Size())
				for rank, m := range known {
					host := fmt.Sprintf("node-%d", (first+rank)%nodes)
					equal(t, g, "member", m, pgroup.Member{Rank: rank, LocalRank: rank / nodes, Node: rank % nodes, PID: os.Getpid(), Host: host})
					equal(t, g, "same node", g.SameNode(rank), rank%nodes == g.Rank()%nodes)
				}
				known[0].Host = "" // a copy
				equal(t, g, "host", members(t, g)[0].Host, fmt.Sprintf("node-%d", first))
			}
			together(size, func(rank int) { check(gs[rank], 0) })
			ok(t, gs[0], "close", gs[0].Close())
			_, err := gs[0].Members(t.Context())
			assert.NoError(t, err, "what it knows needs no request")
			together(size-1, func(i int) {
				g, err := gs[1+i].Shrink(t.Context())
				if ok(t, gs[1+i], "shrink", err); err != nil {
					return
				}
				gs[1+i] = g
				equal(t, g, "rank", g.Rank(), i)
				check(g, 1)
			})
		})
	}
}

// TestMembersFail checks the errors of a request for members.
func TestMembersFail(t *testing.T) {
	gs := create(t, 66, all(pgroup.Config{Store: malformed(t, wire.OpMembers)}))
	_, err := gs[1].Members(t.Context())
	assert.ErrorContains(t, err, "the entry of rank 65: malformed member: another version of muster?")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = gs[2].Members(ctx)
	re, _ := errors.AsType[*pgroup.RankError](err)
	if assert.NotNil(t, re, err) {
		assert.Equal(t, "members", re.Op)
		assert.ErrorIs(t, err, context.Canceled)
	}
	ok(t, gs[3], "close", gs[3].Close())
	_, err = gs[3].Members(t.Context())
	assert.ErrorIs(t, err, pgroup.ErrClosed)
}

func TestStoreIsTheGroupsOwn(t *testing.T) {
	for name, at := range places {
		t.Run(name, func(t *testing.T) {
			one, two := create(t, 2, at), create(t, 2, at)
			together(2, func(rank int) {
				g := one[rank]
				if rank == 0 {
					ok(t, g, "set", g.Store().Set(t.Context(), "key", []byte("one"), nil))
					ok(t, g, "set", two[rank].Store().Set(t.Context(), "key", []byte("two"), nil))
				}
				v, err := g.Store().Wait(t.Context(), "key")
				ok(t, g, "wait", err)
				if err == nil {
					equal(t, g, "wait", string(v[0]), "one")
				}
				ok(t, g, "close", g.Store().Close())
				assert.ErrorIs(t, g.Store().Set(t.Context(), "key", nil, nil), pgroup.ErrClosed)
				ok(t, g, "barrier", g.Barrier(t.Context()))
			})
		})
	}
}
