package core_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// statusOf returns a whole status, read page by page.
func statusOf(m *core.Machine, now core.Time, prefix string) (*wire.Status, error) {
	all, gen, rank := new(wire.Status), uint64(0), 0
	for {
		page := m.Status(now, prefix, gen, rank)
		names, rows := wire.AppendStatus(nil, nil, &page.Status)
		if err := all.Parse(names, rows); err != nil || !page.More {
			return all, err
		}
		if page.Generation < gen || page.Generation == gen && page.Rank <= rank {
			return nil, fmt.Errorf("after (%d, %d) comes (%d, %d)", gen, rank, page.Generation, page.Rank)
		}
		gen, rank = page.Generation, page.Rank
	}
}

// TestStatusOfAnyPlace checks pages that begin at ranks and generations that are none: a viewer may
// ask for them.
func TestStatusOfAnyPlace(t *testing.T) {
	r := newRig(t)
	s := r.session()
	rep := r.does(s, wire.Request{Op: wire.OpJoin, ID: 1, Group: wire.Contribution{Group: "g", Size: 1}})
	for _, gen := range []uint64{rep.Rev, 0, rep.Rev + 1, math.MaxUint64} {
		for _, rank := range []int{-1, 1, 2, math.MaxInt, math.MinInt} {
			page := r.m.Status(r.now, "", gen, rank)
			require.False(t, page.More, "%d, %d", gen, rank)
		}
	}
}

func (r *rig) status(prefix string) *wire.Status {
	r.tb.Helper()
	s, err := statusOf(r.m, r.now, prefix)
	if err != nil {
		r.tb.Fatal(err)
	}
	return s
}

func ranksOf(spans ...int) wire.Ranks {
	var r wire.Ranks
	for i := 0; i < len(spans); i += 2 {
		r.AddSpan(spans[i], spans[i+1])
	}
	return r
}

// TestStatusOfLargeFormingGroup checks that the number of ranks that have joined is reported for
// all groups, and the details of no more ranks than fit a page, since other calls wait while a page
// is made.
func TestStatusOfLargeFormingGroup(t *testing.T) {
	const groups, came = 30, 100
	r := newRig(t)
	c := &crew{rig: r, sessions: make([]uint64, came+1)}
	for rank := range came {
		c.sessions[rank] = r.session()
	}
	for g := range groups {
		for rank := range came {
			c.waits(c.sessions[rank], c.joining(fmt.Sprintf("new %02d", g), rank))
		}
	}
	described := 0
	page := c.m.Status(c.now, "", 0, 0)
	require.Len(t, page.Groups, groups)
	for _, g := range page.Groups {
		require.Equal(t, ranksOf(0, came-1), g.Records[0].Arrived)
		described += len(g.Ranks)
	}
	require.Greater(t, described, 900)
	require.LessOrEqual(t, described, 1024)
}

// TestStatusOfFailures checks that the last failures are reported for a group, and for a closed
// one.
func TestStatusOfFailures(t *testing.T) {
	w := newCrew(t, 2)
	for seq := range uint64(10) {
		w.timesOut(w.voting(0, barrier(seq+1), ""))
		w.cast(1, barrier(seq+1), "") // gets the failure too
	}
	w.timesOut(w.asking(1, 0))
	v := w.status("").Groups[0].Failures
	require.Len(t, v, 8)
	require.Equal(t, []any{"barrier", uint64(4), wire.CodeTimeout}, []any{v[0].Verb, v[0].Seq, v[0].Failure.Code})
	require.Equal(t, []any{"recv of rank 0", time.Duration(0), []int{1}}, []any{v[7].Verb, v[7].Ago, v[7].Failure.Missing})
	require.NotEmpty(t, v[0].Failure.Doing)
	require.Empty(t, w.status("w").Groups[0].Failures[0].Failure.Doing, "what ranks do elsewhere may be above the prefix")

	for rank := range 2 {
		w.does(w.sessions[rank], wire.Request{Op: wire.OpLost})
		w.pass(time.Second)
	}
	over := w.status("").Groups
	require.Len(t, over, 1)
	require.Equal(t, []any{w.gen, time.Second, wire.CodeLost, []int{0}}, []any{over[0].Generation, over[0].Ended, over[0].Revoked.Failure.Code, over[0].Revoked.Failure.Lost})
	require.Len(t, over[0].Failures, 8)
}

// TestStatusForgets checks that successes leave no history, and that the history of failures is
// bounded.
func TestStatusForgets(t *testing.T) {
	r := newRig(t)
	for i := range 20 {
		w := newCrewOn(r, fmt.Sprintf("group %d", i), 2)
		w.cast(0, barrier(1), "")
		w.cast(1, barrier(1), "")
		for rank := range 2 {
			w.does(w.sessions[rank], wire.Request{Op: wire.OpGoodbye})
		}
	}
	require.Empty(t, r.status("").Groups)
	for i := range 20 {
		w := newCrewOn(r, fmt.Sprintf("group %d", i), 2)
		req := w.request(wire.OpLeave, 0)
		req.Group.No, req.Group.Reason = wire.CodeAborted, strings.Repeat("x", 1000)
		w.does(w.sessions[0], req)
		for rank := range 2 {
			w.does(w.sessions[rank], wire.Request{Op: wire.OpGoodbye})
		}
	}
	groups := r.status("").Groups
	require.Len(t, groups, 16)
	require.Equal(t, "group 4", groups[0].Name)
	require.Len(t, groups[0].Revoked.Failure.Reason, 512)
}

// BenchmarkStatus measures a whole status, and how long other calls wait for a page of it.
func BenchmarkStatus(b *testing.B) {
	large := newCrewOn(newRig(b), "large", 10_000)
	for rank := range 9_999 {
		large.cast(rank, barrier(1), "")
	}
	many := newRig(b)
	for i := range 10_000 {
		newCrewOn(many, fmt.Sprint(i), 1)
	}
	keys := newRig(b)
	for i := range 1_000_000 {
		keys.does(core.Local, wire.Request{Op: wire.OpSet, Key: fmt.Sprint(i), Value: []byte{}})
	}
	for name, r := range map[string]*rig{"10000 ranks": large.rig, "10000 groups": many, "1000000 keys": keys} {
		b.Run(name, func(b *testing.B) {
			var pages []time.Duration
			bytes := 0
			for b.Loop() {
				bytes = 0
				for gen, rank, more := uint64(0), 0, true; more; {
					began := time.Now()
					page := r.m.Status(r.now, "", gen, rank)
					_, rows := wire.AppendStatus(nil, nil, &page.Status)
					pages = append(pages, time.Since(began))
					bytes += len(rows)
					gen, rank, more = page.Generation, page.Rank, page.More
				}
			}
			slices.Sort(pages)
			b.ReportMetric(float64(pages[len(pages)/2].Nanoseconds()), "ns/page")
			b.ReportMetric(float64(bytes), "bytes")
		})
	}
}
