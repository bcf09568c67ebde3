package wire_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

// aStatus returns a status with every field set.
func aStatus() *wire.Status {
	failure := wire.Failure{
		Code: wire.CodeTimeout, Missing: []int{2}, Doing: []string{"in no call"}, Lost: []int{3}, Left: []int{4}, By: -1, Reason: "x", Waited: time.Second,
	}
	return &wire.Status{
		Server: &wire.ServerStatus{
			Up: 1, Durable: true, Sessions: 2, Calls: 3, Groups: 4, Keys: 5, Bytes: 6, In: 7, Out: 8, Ops: []int64{0, 9},
			Latency: []wire.Bucket{{UpTo: 10, Count: 11}}, LatencySum: 12,
			Conns: 13, Accepted: 14, Refused: 15, Dropped: 16, LostSessions: 17, Watches: 18, History: 19, Compacted: 20,
			LogBytes: 21, Syncs: []wire.Bucket{{UpTo: 22, Count: 23}}, SyncSum: 24, SyncPending: 25, Loop: "epoll",
		},
		Replication: &wire.ReplicationStatus{
			Leading: true, Leader: "a:1", Term: 26, LeadingFor: 27, Standbys: []wire.StandbyStatus{{Addr: "b:1", Lag: 28, Seen: 29}},
		},
		Groups: []wire.GroupStatus{
			{
				Name: "train", Run: "r", Generation: 7, Size: 5, Present: 4, Age: 12, Ended: -1, Open: 1,
				Revoked: &wire.FailureStatus{Ago: 13, Failure: failure, Unnamed: 1},
				Ranks: []wire.RankStatus{{
					Rank: 0, Label: "pid 1 on a", Session: 14, Gone: wire.CodeLost, Verb: "recv", Seq: 15, Ago: 16, LastSeen: -1,
					Waits:    []wire.WaitStatus{{Verb: "recv", Peer: 1, Tag: "t", Waited: 17}},
					Progress: &wire.Phase{ID: 3, Name: "load", Done: 12, Total: 48, Stall: 60, Ago: 18},
				}},
				Records: []wire.RecordStatus{{
					Channel: "c", Seq: 18, Verb: "barrier", Root: -1, Age: 19, Remaining: 20,
					Arrived: wire.Ranks{Count: 3, Spans: []wire.Span{{First: 0, Last: 1}, {First: 4, Last: 4}}},
					Missing: wire.Ranks{Count: 1, Spans: []wire.Span{{First: 2, Last: 2}}},
				}},
				Failures: []wire.FailureStatus{{Channel: "c", Seq: 17, Verb: "gather", Ago: 21, Failure: failure}},
			},
			{Name: "b", Size: 1, Ended: 22},
		},
		Keys: []wire.KeyStatus{{Key: "ready", Calls: 23, Waited: 24}},
	}
}

func TestStatusComesAsItWent(t *testing.T) {
	want := aStatus()
	names, rows := wire.AppendStatus(nil, nil, want)
	require.Equal(t, []string{"train", "b", "ready"}, names)
	var got wire.Status
	require.NoError(t, got.Parse(names, rows))
	require.Equal(t, want, &got)
}

// TestStatusInPages checks that a page may end within a group.
func TestStatusInPages(t *testing.T) {
	var got wire.Status
	for _, page := range []wire.Status{
		{Groups: []wire.GroupStatus{{Name: "a", Size: 2, Ranks: []wire.RankStatus{{Rank: 0}}}}},
		{Groups: []wire.GroupStatus{{Ranks: []wire.RankStatus{{Rank: 1}}}, {Name: "b", Size: 1}}},
	} {
		names, rows := wire.AppendStatus(nil, nil, &page)
		require.NoError(t, got.Parse(names, rows))
	}
	require.Equal(t, []wire.GroupStatus{{Name: "a", Size: 2, Ranks: []wire.RankStatus{{Rank: 0}, {Rank: 1}}}, {Name: "b", Size: 1}}, got.Groups)
}

// TestStatusOfALaterVersion checks that fields after the known ones, and rows of unknown kinds, are
// skipped.
func TestStatusOfALaterVersion(t *testing.T) {
	rows := unhex(t, "09 03000000 616263"+ // an unknown kind
		"06 10000000 02000000 0300000000000000 deadbeef") // a key with an additional field
	var got wire.Status
	require.NoError(t, got.Parse([]string{"k"}, rows))
	require.Equal(t, wire.Status{Keys: []wire.KeyStatus{{Key: "k", Calls: 2, Waited: 3}}}, got)
}

func TestStatusThatMeansNothing(t *testing.T) {
	for what, c := range map[string]struct {
		names []string
		rows  string
		err   error
	}{
		"a rank of no group":     {nil, "03 00000000", wire.ErrStatus},
		"a failure of no group":  {nil, "05 00000000", wire.ErrStatus},
		"a key without a name":   {nil, "06 0c000000 02000000 0300000000000000", wire.ErrStatus},
		"a name of nothing":      {[]string{"k"}, "", wire.ErrStatus},
		"a row that is cut":      {nil, "09 03000000 6162", wire.ErrTruncated},
		"a key without a time":   {[]string{"k"}, "06 04000000 02000000", wire.ErrTruncated},
		"a row without a length": {nil, "01", wire.ErrTruncated},
	} {
		t.Run(what, func(t *testing.T) {
			require.ErrorIs(t, new(wire.Status).Parse(c.names, unhex(t, c.rows)), c.err)
		})
	}
	names, rows := wire.AppendStatus(nil, nil, aStatus())
	for n := range rows { // cut anywhere it is an error, or has fewer rows
		if err := new(wire.Status).Parse(names, rows[:n]); err == nil {
			t.Errorf("%d of %d bytes, and all of its names", n, len(rows))
		}
	}
}

func TestRanks(t *testing.T) {
	var r wire.Ranks
	r.AddSpan(3, 2)
	require.Zero(t, r)
	for _, rank := range []int{0, 1, 2, 5} {
		r.Add(rank)
	}
	r.AddSpan(6, 9)
	require.Equal(t, wire.Ranks{Count: 8, Spans: []wire.Span{{0, 2}, {5, 9}}}, r)
	require.Equal(t, []int{0, 1, 2, 5}, r.First(4))
	require.Len(t, r.First(100), 8)
	var many wire.Ranks
	for rank := range 10_000 {
		many.Add(2 * rank)
	}
	require.Equal(t, 10_000, many.Count)
	require.Len(t, many.Spans, wire.StatusSpans)
}

// FuzzStatus checks that any input is a status or an error, and that a status is the same after a
// round trip.
func FuzzStatus(f *testing.F) {
	names, rows := wire.AppendStatus(nil, nil, aStatus())
	f.Add(names[0], names[1], names[2], rows)
	f.Fuzz(func(t *testing.T, a, b, c string, rows []byte) {
		for n := range 4 {
			var s, again wire.Status
			if s.Parse([]string{a, b, c}[:n], rows) != nil || slices.ContainsFunc(s.Groups, func(g wire.GroupStatus) bool { return g.Size <= 0 }) {
				continue // a size of 0 marks a group that continues from the previous page
			}
			names, rows := wire.AppendStatus(nil, nil, &s)
			require.NoError(t, again.Parse(names, rows))
			require.Equal(t, s, again)
		}
	})
}

// TestGoldenStatus checks the bytes of a page, of which the golden file has those of the reply.
func TestGoldenStatus(t *testing.T) {
	i := slices.IndexFunc(golden.Replies, func(g goldenReply) bool { return g.Name == "status" })
	names, rows := wire.AppendStatus(nil, nil, aStatus())
	require.Equal(t, wire.Reply{Keys: names, Value: rows, Nums: []int64{8, 1024}}, golden.Replies[i].Reply)
}

func TestPhaseText(t *testing.T) {
	for want, f := range map[string]wire.Phase{
		"its last phase has ended":        {Name: "load"},
		"load":                            {ID: 1, Name: "load"},
		"load, 12 done":                   {ID: 1, Name: "load", Done: 12},
		"unnamed, 0 of 3 (0%)":            {ID: 1, Total: 3},
		"load, 2 of 3 (66%)":              {ID: 1, Name: "load", Done: 2, Total: 3},
		"load, 999 of 1000 (99%)":         {ID: 1, Name: "load", Done: 999, Total: 1000},
		"load, 9000000000000 of 1 (100%)": {ID: 1, Name: "load", Done: 9e12, Total: 1},
	} {
		require.Equal(t, want, f.String())
	}
}
