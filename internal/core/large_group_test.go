package core_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// TestLargeGroupForms checks that a group of 100,000 sessions, 8 on each node, forms in seconds, and
// that a join is at most 1 KiB in both directions together.
func TestLargeGroupForms(t *testing.T) {
	const onNode, most, limit = 8, 1 << 10, 20 * time.Second
	ranks := 100_000
	if underRace {
		ranks = 10_000
	}
	c := &crew{rig: newRig(t)}
	for range ranks {
		c.sessions = append(c.sessions, c.session())
	}
	tickets, sizes := make([]core.Ticket, ranks), make([]int, ranks)
	began := time.Now()
	for rank, s := range c.sessions {
		req := c.joining("world", rank)
		req.Value = wire.AppendMember(nil, &wire.Member{Node: 1 + uint64(rank/onNode), PID: uint32(rank), Hosts: rank == 0, Host: fmt.Sprint("node-", rank/onNode)})
		sizes[rank] = len(wire.AppendRequest(nil, &req))
		tickets[rank], _ = c.call(s, req)
	}
	for rank, at := range tickets {
		rep := c.answer(at)
		if sizes[rank] += len(wire.AppendReply(nil, wire.OpJoin, at.ID, rep)); sizes[rank] > most {
			t.Fatalf("the join of rank %d has %d bytes, more than %d", rank, sizes[rank], most)
		}
		f, err := wire.ParseFormed(rep, rank)
		if err != nil || f.Size != ranks || f.Rank != rank || f.Host != 0 || f.Local.Below(ranks) != onNode || !f.Local.Has(rank/onNode*onNode) {
			t.Fatalf("rank %d: %+v, %v", rank, f, err)
		}
	}
	if took := time.Since(began); took > limit {
		t.Errorf("%d ranks took %v, more than %v", ranks, took, limit)
	} else {
		t.Logf("%v", took)
	}
}

// TestStallOfALargeGroup checks that a stall is at least twice the time between two reports, which is
// longer in a group of many ranks.
func TestStallOfALargeGroup(t *testing.T) {
	c := newCrew(t, 5000) // each reports once in 10 s
	report := c.request(wire.OpProgress, 1)
	report.Phase = wire.Phase{ID: 1, Name: "loading"}
	c.does(c.sessions[1], report)
	at := c.waits(c.sessions[0], c.voting(0, wire.Contribution{Seq: 1, Verb: "barrier", Root: -1, Want: wire.WantNothing, Stall: time.Second}, ""))
	c.pass(20*time.Second + 500*time.Millisecond - 1)
	if rep := c.answers[at]; rep != nil {
		t.Fatalf("after %v: %s", c.now, say{rep})
	}
	c.pass(1)
	if rep := c.answer(at); rep.Code != wire.CodeStalled {
		t.Fatal(say{rep})
	}
}
