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

// chain returns the status of a group in which rank 0 waits for rank 1, and rank 1 for rank 2,
// which is in no call.
func chain() *store.Status {
	return &store.Status{Groups: []store.GroupStatus{{
		Name: "train", Generation: 7, Size: 4, Present: 4, Age: time.Hour, Ended: -1, Open: 1,
		Records: []store.RecordStatus{{Verb: "barrier", Seq: 42, Root: -1, Age: 41 * time.Second, Remaining: 19 * time.Second, Arrived: ranks(0, 0, 3, 3), Missing: ranks(1, 2)}},
		Ranks: []store.RankStatus{
			{Rank: 0, Label: "pid 1 on a", Session: 1, Verb: "barrier", Seq: 42, Ago: 41 * time.Second},
			{Rank: 1, Label: "pid 2 on a", Session: 2, Verb: "recv", Ago: 30 * time.Second, LastSeen: 200 * time.Millisecond, Waits: []store.WaitStatus{{Verb: "recv", Peer: 2, Tag: "grads", Waited: 30 * time.Second}}},
			{Rank: 2, Label: "pid 3 on b", Session: 3, Verb: "barrier", Seq: 41, Ago: 50 * time.Second, LastSeen: 4 * time.Second},
			{Rank: 3, Label: "pid 4 on b", Session: 4, Verb: "barrier", Seq: 42, Ago: 40 * time.Second, LastSeen: -1},
		},
		Failures: []store.FailureStatus{{Verb: "barrier", Seq: 12, Ago: time.Minute, Failure: wire.Failure{Code: wire.CodeTimeout, By: -1, Missing: []int{0, 1, 2, 5}, Waited: 5 * time.Second}}},
	}}}
}

// TestBlame checks that only the rank at the end of a chain is blamed, not the ranks that wait
// themselves.
func TestBlame(t *testing.T) {
	v := status.Of(chain(), nil)
	require.Equal(t, []status.Blame{{
		Who:   status.Who{Rank: 2, Label: "pid 3 on b", Doing: "in no call; its last was barrier #41, 50 s ago", LastSeen: 4},
		Group: "train", Generation: 7, What: "barrier #42", For: 41,
	}}, v.Blame)
	long := chain()
	long.Groups[0].Records[0].Seq = 501
	require.Equal(t, "in no call; its last at the store was barrier #41 (the store does not see those in shared memory), 50 s ago", status.Of(long, nil).Blame[0].Doing)
	w := v.Waiting[0]
	require.Equal(t, []any{"verb", "barrier #42", 41.0, 19.0, 4, 2, 2}, []any{w.Kind, w.What, w.For, w.Remaining, w.Size, w.Arrived, w.Missing})
	require.Equal(t, []status.Span{{0, 0}, {3, 3}}, w.Present)
	require.Equal(t, "in recv from rank 2 with tag grads for 30 s", w.Ranks[0].Doing)
	require.True(t, w.Ranks[0].Waits)
	require.Equal(t, []any{"message", "rank 1: recv from rank 2 with tag grads"}, []any{v.Waiting[1].Kind, v.Waiting[1].What})
	var states []string
	for _, r := range v.Groups[0].Ranks {
		states = append(states, r.State)
	}
	require.Equal(t, []string{"waits", "waits", "awaited", "waits"}, states)
	require.Equal(t, "missing ranks 0–2, 5, after 5.0 s", v.Failures[0].Why)
	require.Equal(t, "waiting", v.Groups[0].State)
}

// TestBlameOfSeveralJobs checks that each job that hangs has its own blamed ranks, however many
// another job has, and even if its group has the same name and has not formed.
func TestBlameOfSeveralJobs(t *testing.T) {
	all := new(store.Status)
	job := func(run string, generation uint64, missing wire.Ranks) {
		all.Groups = append(all.Groups, store.GroupStatus{
			Name: "train", Run: run, Generation: generation, Size: 64, Ended: -1, Open: 1,
			Records: []store.RecordStatus{{Verb: "create", Root: -1, Age: time.Minute - time.Duration(len(all.Groups))*time.Second, Missing: missing}},
		})
	}
	job("large", 0, ranks(1, 63))
	job("forming", 0, ranks(1, 1))
	job("formed", 7, ranks(1, 1))
	job("", 8, ranks(1, 1))
	v := status.Of(all, &status.Options{Address: "muster://h:1", Version: "muster v1"})
	culprits := map[string]int{}
	for _, b := range v.Blame {
		culprits[b.Run]++
	}
	require.Equal(t, map[string]int{"large": 16, "forming": 1, "formed": 1, "": 1}, culprits)
	require.Equal(t, []string{"muster://h:1", "muster v1"}, []string{v.Address, v.Version})
}

// TestDeadlock checks that ranks that wait for each other are not blamed.
func TestDeadlock(t *testing.T) {
	s := chain()
	s.Groups[0].Records[0].Missing, s.Groups[0].Records[0].Arrived = ranks(2, 2), ranks(0, 1, 3, 3)
	s.Groups[0].Ranks[2].Waits = []store.WaitStatus{{Verb: "send", Peer: 0, Waited: time.Second}}
	s.Groups[0].Ranks[1].Waits = nil
	v := status.Of(s, nil)
	require.Empty(t, v.Blame)
	require.Equal(t, "in send to rank 0 for 1.0 s", v.Waiting[0].Ranks[0].Doing)
}

// TestElsewhere checks that a missing rank is described by the call of another group in which it
// waits.
func TestElsewhere(t *testing.T) {
	s := chain()
	s.Groups = append(s.Groups, store.GroupStatus{
		Name: "pair", Generation: 8, Size: 2, Present: 2, Ended: -1, Open: 1,
		Records: []store.RecordStatus{{Verb: "broadcast", Channel: "\x00x", Seq: 1, Root: 1, Age: 45 * time.Second, Arrived: ranks(0, 0), Missing: ranks(1, 1)}},
		Ranks: []store.RankStatus{
			{Rank: 0, Label: "pid 3 on b", Session: 3, Verb: "broadcast", Seq: 1},
			{Rank: 1, Label: "pid 9 on c", Session: 9, Ago: time.Minute},
		},
	})
	v := status.Of(s, nil)
	require.Equal(t, `broadcast(root 1) #1 on "\x00x"`, v.Waiting[0].What)
	require.Equal(t, `in broadcast(root 1) #1 on "\x00x" of group "pair" for 45 s`, v.Waiting[1].Ranks[1].Doing)
	require.Len(t, v.Blame, 1)
	require.Equal(t, "no call since it joined 1 min 0 s ago", v.Blame[0].Doing)
}

// TestElsewhereOfTheHost checks two special cases. A rank 0 that hosts the store has the store's
// session, which is 0, in all of its groups. Ranks that are goroutines of one process share the
// session and the label, so it is unknown which of them waits.
func TestElsewhereOfTheHost(t *testing.T) {
	s := &store.Status{Groups: []store.GroupStatus{
		{
			Name: "world", Generation: 1, Size: 3, Present: 3, Ended: -1, Open: 1,
			Records: []store.RecordStatus{{Verb: "barrier", Seq: 2, Root: -1, Age: 50 * time.Second, Arrived: ranks(2, 2), Missing: ranks(0, 1)}},
			Ranks:   []store.RankStatus{{Rank: 0, Label: "pid 1 on a"}, {Rank: 1, Label: "pid 2 on a", Session: 2}, {Rank: 2, Label: "pid 3 on a", Session: 3}},
		},
		{
			Name: "world/pair", Generation: 2, Size: 2, Present: 2, Ended: -1, Open: 1,
			Records: []store.RecordStatus{{Verb: "barrier", Seq: 1, Root: -1, Age: 45 * time.Second, Arrived: ranks(0, 0), Missing: ranks(1, 1)}},
			Ranks:   []store.RankStatus{{Rank: 0, Label: "pid 1 on a"}, {Rank: 1, Label: "pid 2 on a", Session: 2}},
		},
	}}
	v := status.Of(s, nil)
	require.Equal(t, `in barrier #1 of group "world/pair" for 45 s`, v.Waiting[0].Ranks[0].Doing)
	require.Equal(t, 1, v.Blame[0].Rank)

	s.Groups[0].Ranks[1] = store.RankStatus{Rank: 1, Label: "pid 1 on a"}
	v = status.Of(s, nil)
	require.Equal(t, "no call since it joined 0.0 s ago", v.Waiting[0].Ranks[0].Doing)
}

func TestGroupsThatComeGoAndFail(t *testing.T) {
	lost := store.FailureStatus{Ago: time.Second, Failure: wire.Failure{Code: wire.CodeLost, By: -1, Lost: []int{1}, Reason: "pid 2 on a"}}
	clash := wire.Failure{Code: wire.CodeMismatch, By: -1, Clash: []wire.Contribution{{Rank: 0, Verb: "gather", Type: "int"}, {Rank: 1, Verb: "barrier"}}}
	s := &store.Status{
		Groups: []store.GroupStatus{
			{Name: "new", Size: 3, Present: 1, Ended: -1, Open: 1, Records: []store.RecordStatus{{Verb: "create", Root: -1, Age: time.Second, Arrived: ranks(1, 1), Missing: ranks(0, 0, 2, 2)}}, Ranks: []store.RankStatus{{Rank: 1, Label: "pid 1", Session: 1, Verb: "create", LastSeen: -1}}},
			{Name: "idle", Generation: 1, Size: 1, Present: 1, Ended: -1, Ranks: []store.RankStatus{{Rank: 0, Verb: "send", Ago: time.Second}}},
			{Name: "ill", Generation: 2, Size: 2, Present: 1, Ended: -1, Revoked: &lost, Ranks: []store.RankStatus{{Rank: 0}, {Rank: 1, Gone: wire.CodeLost}}},
			{Name: "dead", Generation: 3, Size: 2, Ended: 5 * time.Second, Failures: []store.FailureStatus{{Verb: "gather", Seq: 3, Channel: "c", Ago: 6 * time.Second, Unnamed: 2, Failure: clash}}},
			{Name: "aborted", Generation: 4, Size: 2, Ended: 5 * time.Second, Revoked: &store.FailureStatus{Ago: 7 * time.Second, Failure: wire.Failure{Code: wire.CodeAborted, By: 1, Left: []int{0, 1}, Reason: "no more data"}}},
		},
		Keys: []store.KeyStatus{{Key: "ready", Calls: 3, Waited: 2 * time.Hour}},
	}
	v := status.Of(s, nil)
	var states, why []string
	for _, g := range v.Groups {
		states, why = append(states, g.State), append(why, g.Why)
	}
	require.Equal(t, []string{"forming", "idle", "failed", "closed", "closed"}, states)
	require.Equal(t, []string{"", "", "lost rank 1, pid 2 on a", "and 2 more, rank 0 called gather int, rank 1 called barrier", "by rank 1: no more data, left ranks 0, 1"}, why)
	require.Equal(t, []string{"key ready", "create"}, []string{v.Waiting[0].What, v.Waiting[1].What})
	require.Equal(t, status.Who{Rank: 0, Doing: "has not joined", LastSeen: -1}, v.Waiting[1].Ranks[0])
	require.Equal(t, "in no call; its last was send, 1.0 s ago", v.Groups[1].Ranks[0].Doing)
	require.Equal(t, "lost", v.Groups[2].Ranks[1].State)
	require.Equal(t, []string{"ill: the group lost", "dead: gather #3 on c mismatch", "aborted: the group aborted"}, []string{
		v.Failures[0].Group + ": " + v.Failures[0].What + " " + v.Failures[0].Code,
		v.Failures[1].Group + ": " + v.Failures[1].What + " " + v.Failures[1].Code,
		v.Failures[2].Group + ": " + v.Failures[2].What + " " + v.Failures[2].Code,
	})

	few := status.Of(s, &status.Options{Groups: 2, Ranks: 1})
	require.Equal(t, []string{"ill", "new"}, []string{few.Groups[0].Name, few.Groups[1].Name})
	require.Equal(t, 3, few.More)
	require.Equal(t, "lost", few.Groups[0].Ranks[0].State)
	require.Equal(t, 1, few.Groups[0].More)
}

// TestNothing checks that empty lists are encoded as empty lists, for programs.
func TestNothing(t *testing.T) {
	b, err := json.Marshal(status.Of(new(store.Status), nil))
	require.NoError(t, err)
	require.JSONEq(t, `{"blame":[],"waiting":[],"groups":[],"failures":[]}`, string(b))
}

// TestUnknown checks that what a store does not report is omitted or -1, and not 0.
func TestUnknown(t *testing.T) {
	now := chain()
	g := &now.Groups[0]
	g.Age, g.Records[0].Age, g.Failures[0].Ago = -1, -1, -1
	for i := range g.Ranks {
		g.Ranks[i].Ago = -1
	}
	g.Ranks[3].Verb = ""
	now.Groups = append(now.Groups, store.GroupStatus{Name: "over", Generation: 1, Age: -1, Ended: 0})
	now.Server = &store.ServerStatus{Up: -1, Sessions: -1, Calls: -1, Keys: 7, Bytes: -1}
	v := status.Of(now, nil)
	require.Equal(t, []any{-1.0, int64(-1), int64(-1), int64(7), int64(-1)}, []any{v.Server.Up, v.Server.Sessions, v.Server.Calls, v.Server.Keys, v.Server.Bytes})
	require.Equal(t, []float64{-1, -1, -1}, []float64{v.Groups[0].Age, v.Failures[0].Ago, v.Waiting[1].For})
	require.Equal(t, "in no call; its last was barrier #41", v.Groups[0].Ranks[2].Doing)
	require.Equal(t, "in barrier #42", v.Groups[0].Ranks[0].Doing)
	require.Equal(t, []any{"closed", 0.0}, []any{v.Groups[1].State, v.Groups[1].Ended})
}

func TestServer(t *testing.T) {
	now := &store.Status{Server: &store.ServerStatus{Up: 12 * time.Second, Sessions: 3, Calls: 2, Keys: 7, Bytes: 99, Durable: true, Groups: 1}}
	s := status.Of(now, nil).Server
	require.Equal(t, []any{12.0, true, int64(3), int64(2), int64(1), int64(7), int64(99)}, []any{s.Up, s.Durable, s.Sessions, s.Calls, s.Groups, s.Keys, s.Bytes})
	for pending, want := range map[time.Duration]float64{0: 0, 99 * time.Millisecond: 0, 3 * time.Second: 3} {
		now.Server.SyncPending = pending
		require.Equal(t, want, status.Of(now, nil).Server.DiskStalled)
	}
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
	v := status.Of(&store.Status{Groups: []store.GroupStatus{g}}, &status.Options{Waits: 1})
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
	v := status.Of(&store.Status{Groups: []store.GroupStatus{g}}, &status.Options{Ranks: 256, Groups: 100, Waits: 60, Failures: 50})
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

// TestNamesOfViews checks that the group of a view of package membership has the name of its job.
func TestNamesOfViews(t *testing.T) {
	for in, want := range map[string]string{
		"membership/train/group/train view 3":                                  "job train, view 3",
		"jobs/membership/a%2Fview%201/group/a%2Fview 1 view 3/sub":             "jobs/job a/view 1, view 3/sub",
		"membership/muster-run%2Fx/group/muster-run%2Fx view 2/attempt-1/pair": "nodes of job x/pair",
		"membership/train/group/other view 3":                                  "membership/train/group/other view 3",
		"membership/train/group/train view 3x":                                 "membership/train/group/train view 3x",
		"world":                                                                "world",
	} {
		s := chain()
		s.Groups[0].Name = in
		require.Equal(t, want, status.Of(s, nil).Groups[0].Name)
	}
}
