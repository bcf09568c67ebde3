package pgroup_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// These tests check failures of vLLM's StatelessProcessGroup, by their numbers. Of the other
// ones, scenarios check 1 (messages.txt), 2 and 3 (timeout.txt), 4 (collectives.txt), 5 (mismatch.txt)
// and 6 (wait.txt), and tests 7 (TestConfigErrorsNameTheField, TestRankOutOfRange) and 12
// (TestTwoGroupsAtOneAddress).

// linked returns a place like at, with connections of ranks that can be cut.
func linked(at place, links []testcluster.Links) place {
	return at.with(func(c *pgroup.Config) { c.Dial = &store.DialOptions{Dial: links[c.Rank].Dial} })
}

// TestFailure08ADeadRankIsNamed checks failure 8: if rank 0 dies, the others fail with "Broken
// pipe"; if any other rank dies, the rest hang until the timeout.
func TestFailure08ADeadRankIsNamed(t *testing.T) {
	for _, dead := range []int{2, 0} {
		t.Run(fmt.Sprint(dead), func(t *testing.T) {
			links := make([]testcluster.Links, 4)
			var through sync.WaitGroup
			through.Add(4)
			ranks(t, 4, linked(hosted, links), func(t *testing.T, g *pgroup.Group) {
				ok(t, g, "barrier", g.Barrier(t.Context()))
				var rest *pgroup.Group // without the rank that hosts the store
				if g.Rank() != 0 {
					var err error
					rest, err = g.Sub(t.Context(), "rest", 1, 2, 3)
					ok(t, g, "sub", err)
				}
				through.Done()
				through.Wait()
				switch {
				case g.Rank() == dead && dead == 0:
					pgroup.KillHost(g)
					return
				case g.Rank() == dead:
					links[dead].Cut()
					return
				}
				start := time.Now()
				err := g.Barrier(t.Context())
				v := rankError(t, g, err, pgroup.ErrLost, "barrier #2", fmt.Sprintf("lost rank %d", dead))
				equal(t, g, "lost", v.Lost, []int{dead})
				assert.LessOrEqual(t, time.Since(start), time.Second)
				ended(t, g.Context())
				rankError(t, g, context.Cause(g.Context()), pgroup.ErrLost, fmt.Sprintf("lost rank %d", dead))
				rankError(t, g, pgroup.Send(t.Context(), g, 3, 1), pgroup.ErrLost)
				_, err = pgroup.Recv[int](t.Context(), g, dead)
				rankError(t, g, err, pgroup.ErrLost)
				_, err = g.Sub(t.Context(), "late", upTo(4)...)
				rankError(t, g, err, pgroup.ErrLost, `sub "late" of group "world"`)
				if dead == 0 {
					rankError(t, rest, rest.Barrier(t.Context()), pgroup.ErrUnavailable, `which rank 0 of "`)
				}
			})
		})
	}
}

// TestFailure08ExternalStoreNamesNoRank checks that the failure of a store which no rank hosts
// names no rank.
func TestFailure08ExternalStoreNamesNoRank(t *testing.T) {
	links := make([]testcluster.Links, 2)
	var through sync.WaitGroup
	through.Add(2)
	ranks(t, 2, linked(served, links), func(t *testing.T, g *pgroup.Group) {
		ok(t, g, "barrier", g.Barrier(t.Context()))
		through.Done()
		through.Wait()
		if g.Rank() == 1 {
			return
		}
		links[0].Cut()
		err := g.Barrier(t.Context())
		v := rankError(t, g, err, pgroup.ErrUnavailable, "127.0.0.1:")
		equal(t, g, "blamed", len(v.Lost)+len(v.Left)+len(v.Missing), 0)
	})
}

// TestFailure09OneRoundTripAVerb checks failure 9: costs grow with N². Ours are one round trip for
// each rank and verb.
func TestFailure09OneRoundTripAVerb(t *testing.T) {
	const n = 16
	var mu sync.Mutex
	calls := map[wire.Op]int{}
	s := hooked(t, func(ctx context.Context, req *wire.Request, rep *wire.Reply, next store.Engine) error {
		mu.Lock()
		calls[req.Op]++
		mu.Unlock()
		return next.Do(ctx, req, rep)
	})
	gs := create(t, n, all(pgroup.Config{Store: s}))
	together(n, func(rank int) {
		g := gs[rank]
		ok(t, g, "barrier", g.Barrier(t.Context()))
		_, err := pgroup.AllGather(t.Context(), g, rank)
		ok(t, g, "allgather", err)
		_, err = pgroup.AllToAll(t.Context(), g, upTo(n))
		ok(t, g, "alltoall", err)
	})
	assert.Equal(t, map[wire.Op]int{wire.OpCollect: 3 * n, wire.OpJoin: calls[wire.OpJoin]}, calls)
}

// TestFailure10NothingIsOpen checks failure 10: it binds wildcard addresses.
func TestFailure10NothingIsOpen(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", "[::]:0", ":0"} {
		_, err := pgroup.Create(t.Context(), pgroup.Config{Size: 1, Address: addr})
		says(t, err, store.ErrInsecure, "MUSTER_INSECURE=1")
		create(t, 1, all(pgroup.Config{Address: addr, Insecure: true}))
	}
}

// TestFailure11NoPortIsProbed checks failure 11: it probes a free port, closes it, and binds it
// again; IPv6 was broken in its copies.
func TestFailure11NoPortIsProbed(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("SKIPPED: no IPv6 on this machine: ", err)
	}
	six := func(*testing.T) func(int) pgroup.Config { return hostedAt(l) }
	ranks(t, 3, six, func(t *testing.T, g *pgroup.Group) { ok(t, g, "barrier", g.Barrier(t.Context())) })
	g, err := pgroup.Create(t.Context(), pgroup.Config{Size: 1, Address: "[::1]:0"})
	require.NoError(t, err)
	if addr := members(t, g)[0].Addr; !strings.HasPrefix(addr, "[::1]:") || strings.HasSuffix(addr, ":0") {
		t.Errorf("it listens at %s", addr)
	}
	_ = g.Close()
}

// TestFailure13LateReaderGetsExpired checks failure 13: messages expire only when their rank sends
// again, and a late reader hangs.
func TestFailure13LateReaderGetsExpired(t *testing.T) {
	edit := func(c *pgroup.Config) { c.Expiry = time.Hour }
	bubble(t, edit, func(t *testing.T, g *pgroup.Group) {
		if g.Rank() == 0 {
			ok(t, g, "send", pgroup.Send(t.Context(), g, 1, "old"))
			time.Sleep(2 * time.Hour)
			n, err := g.Expired(t.Context())
			ok(t, g, "expire", err)
			equal(t, g, "expired", n, 1)
			return
		}
		time.Sleep(150 * time.Minute)
		_, err := pgroup.Recv[string](t.Context(), g, 0)
		rankError(t, g, err, pgroup.ErrExpired, "message 1 from rank 0")
	})
}
