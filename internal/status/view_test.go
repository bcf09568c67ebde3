package status_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

func ranks(spans ...int) (r wire.Ranks) {
	for i := 0; i < len(spans); i += 2 {
		r.AddSpan(spans[i], spans[i+1])
	}
	return r
}

// TestNothing checks that empty lists are encoded as empty lists, for programs.
func TestNothing(t *testing.T) {
	b, err := json.Marshal(status.Of(new(store.Status), status.Options{Address: "muster://h:1", Version: "muster v1"}))
	require.NoError(t, err)
	require.JSONEq(t, `{"address":"muster://h:1","version":"muster v1","blame":[],"waiting":[],"groups":[],"failures":[],"elastic_jobs":[]}`, string(b))
}

// TestFalseListsOfRanks checks that false lists of ranks cannot block a viewer: visiting all of
// these ranks would take 2^51 steps.
func TestFalseListsOfRanks(t *testing.T) {
	all := wire.Ranks{Count: 1 << 30}
	for range 1 << 12 {
		all.Spans = append(all.Spans, wire.Span{First: -1 << 31, Last: 1<<31 - 1})
	}
	g := store.GroupStatus{Size: 1<<31 - 1, Ended: -1, Generation: 1, Open: 1}
	for range 1 << 7 {
		g.Records = append(g.Records, store.RecordStatus{Verb: "barrier", Arrived: all, Missing: all})
	}
	v := status.Of(&store.Status{Groups: []store.GroupStatus{g}}, status.Options{Waits: 1})
	require.Equal(t, []int{1, 1<<7 - 1}, []int{len(v.Waiting), v.MoreWaiting})
}

// TestManyWaitsOfFailedRanks checks that the data for a page stays small, whatever the store
// contains.
func TestManyWaitsOfFailedRanks(t *testing.T) {
	const size = 10_000
	g := store.GroupStatus{Name: "train", Generation: 1, Size: size, Ended: -1, Open: 1}
	g.Records = []store.RecordStatus{{Verb: "barrier", Root: -1, Age: time.Minute, Arrived: ranks(0, 0), Missing: ranks(1, size-1)}}
	for i := range size {
		r := store.RankStatus{Rank: i, LastSeen: -1}
		switch {
		case i < 100 || i%4 == 1:
			r.Gone = wire.CodeLost
		default:
			r.Waits = []store.WaitStatus{{Verb: "recv", Peer: 1, Waited: time.Duration(i)}}
		}
		g.Ranks = append(g.Ranks, r)
		g.Failures = append(g.Failures, store.FailureStatus{Verb: "barrier", Ago: time.Duration(i)})
	}
	v := status.Of(&store.Status{Groups: []store.GroupStatus{g}}, status.Options{Ranks: 256, Groups: 100, Waits: 60, Failures: 50})
	require.Equal(t, "barrier", v.Waiting[0].What)
	require.Equal(t, []status.Span{{0, 99}, {101, 101}}, v.Waiting[0].Gone[:2])
	require.Len(t, v.Waiting[0].Gone, 256)
	require.Empty(t, v.Waiting[1].Gone, "a message is not for all")
	require.Equal(t, []int{60, 7426 - 60, 50, size - 50}, []int{len(v.Waiting), v.MoreWaiting, len(v.Failures), v.MoreFailures})
	b, err := json.Marshal(v)
	require.NoError(t, err)
	require.Less(t, len(b), 1<<17)
}

func TestShort(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0.0 s": 0, "9.9 s": 9900 * time.Millisecond, "10 s": 10 * time.Second, "59 s": 59*time.Second + 999*time.Millisecond,
		"1 min 0 s": time.Minute, "2 h 5 min": 2*time.Hour + 5*time.Minute + 59*time.Second,
	} {
		require.Equal(t, want, status.Short(d))
	}
}
