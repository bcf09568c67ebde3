package timeline_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/timeline"
)

// TestKilledRankIsBlamed checks that a rank that was killed is blamed for the verb that failed
// because of it, and that it did not come to: its trace is there.
func TestKilledRankIsBlamed(t *testing.T) {
	j := newJob(7, 3).steps(2, 0)
	j.meets("pgroup.barrier", 3, 3*time.Second, 3100*time.Millisecond, 4*time.Second)
	j.events[2] = j.events[2][:2]
	for rank := range 2 {
		e := &j.events[rank][2]
		e.Err, e.Last, e.Waited = errors.New("lost rank 2"), 2, e.Duration()
	}
	tl := merge(t, j.files(t))
	s := tl.Summary()
	require.Equal(t, 2, s.Ranks[0].Row.Rank)
	require.Equal(t, 1, s.Ranks[0].Last)
	require.InDelta(t, 1.9, s.Ranks[0].Caused.Seconds(), 0.01)
	require.Equal(t, "barrier #3 of world", s.Ranks[0].Worst.String())
	require.Equal(t, s.Ranks[0].Row, s.Ranks[0].Worst.Blamed())
	require.Zero(t, s.Absent)
}

// TestRanksOfOneProcess checks that ranks that are goroutines of one process have a row each. A
// process makes one job of groups that have no rank in common.
func TestRanksOfOneProcess(t *testing.T) {
	a, b := newJob(7, 3).steps(4, 1).files(t), newJob(8, 2).steps(4, 0).files(t)
	files := []*timeline.File{a[0], b[0], a[1], b[1], a[2]}
	for i, f := range files {
		f.Host, f.PID, f.Process, f.Start = "node", 1, "p", f.Start.Add(time.Duration(i))
	}
	tl := merge(t, files)
	require.Len(t, tl.Rows, 3)
	for rank, r := range tl.Rows {
		require.Equal(t, rank, r.Rank)
	}
	require.Equal(t, []*timeline.File{a[0], b[0]}, tl.Rows[0].Files)
	s := tl.Summary()
	require.Equal(t, 1, s.Ranks[0].Row.Rank)
	require.Equal(t, 4, s.Ranks[0].Last)
	require.Len(t, timeline.Jobs(files), 1)

	// In containers with the same host name, whose process ids count from 1, they are several
	// processes.
	a[1].Process, a[2].Process = "q", "r"
	tl = merge(t, a)
	require.Len(t, tl.Rows, 3)
}

// TestGroupsOfOneName checks hosts that each have their own group, all with the same name: the
// events of other packages do not say which group is meant.
func TestGroupsOfOneName(t *testing.T) {
	all, a, b := newJob(9, 4), newJob(7, 2), newJob(8, 2)
	all.meets("pgroup.create", 0, 0, 0, 0, time.Millisecond)
	for n, j := range []*job{a, b} {
		at := time.Duration(n+1) * time.Second
		j.meets("pgroup.create", 0, at, at+time.Millisecond)
		j.meets("collective.allreduce", 1, at+time.Second, at+1500*time.Millisecond)
	}
	var files []*timeline.File
	for rank, f := range all.files(t) {
		own := []*job{a, b}[rank/2].file(t, rank%2)
		for i := range f.Events {
			f.Events[i].Group = "another"
		}
		own.Host, own.PID, own.Process, f.Process = f.Host, f.PID, fmt.Sprint(rank), fmt.Sprint(rank)
		files = append(files, f, own)
	}
	tl := merge(t, files)
	var lost []time.Duration
	for _, rec := range tl.Records {
		if rec.Op == "collective.allreduce" {
			require.Len(t, rec.Calls, 2)
			lost = append(lost, rec.Waited.Round(time.Millisecond))
		}
	}
	require.Equal(t, []time.Duration{500 * time.Millisecond, 500 * time.Millisecond}, lost)
}

func TestTheSameFileTwice(t *testing.T) {
	files := newJob(7, 2).steps(2, 0).files(t)
	_, err := timeline.Merge(files[0], files[1], files[1])
	require.EqualError(t, err, "timeline: rank1.json and rank1.json are the same trace")
}

func TestTimesThatCannotBe(t *testing.T) {
	good := string(newJob(7, 2).steps(2, 0).bytes(0))
	for _, ts := range []string{"1e300", "-1e300", "9.2e15"} {
		_, err := timeline.Read("a.json", strings.NewReader(strings.Replace(good, `"ts":2`, `"ts":`+ts+`,"x":2`, 1)))
		require.ErrorIs(t, err, timeline.ErrFormat, ts)
	}
	// Clocks that are not synchronized, and that the timeline cannot correct here.
	files := newJob(7, 2).steps(2, 0).files(t)
	files[1].Events = nil
	other := newJob(0, 2).steps(1, 0).file(t, 1)
	other.Events[0].Start = time.Unix(0, -1<<63)
	other.Events[0].End = time.Unix(0, 1<<63-1)
	var b bytes.Buffer
	require.NoError(t, merge(t, []*timeline.File{files[0], other}).Chrome(&b))
	require.True(t, json.Valid(b.Bytes()))
}

// TestEmptyFiles checks that a truncated file of one rank, as a full disk leaves it, does not hide
// the others.
func TestEmptyFiles(t *testing.T) {
	dir := t.TempDir()
	j := newJob(7, 3).steps(2, 0)
	for rank, part := range []int{1 << 20, 0, 40} {
		b := j.bytes(rank)
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("rank%d.json", rank)), b[:min(len(b), part)], 0o600))
	}
	files, err := timeline.ReadDir(dir)
	require.ErrorIs(t, err, timeline.ErrEmpty)
	require.ErrorContains(t, err, "rank1.json")
	require.ErrorContains(t, err, "rank2.json")
	require.Len(t, files, 1)
}

// TestChromeDoesNotOverlap checks that events do not overlap in a row, even those that follow at
// once on a clock that is slow: Perfetto drops events without a duration, and nests events of a row
// that overlap.
func TestChromeDoesNotOverlap(t *testing.T) {
	j := newJob(7, 2)
	for seq := range 40 {
		at := time.Duration(seq) * time.Second
		j.meets("pgroup.barrier", uint64(seq+1), at+time.Microsecond, at+time.Second-100*time.Microsecond)
	}
	for seq := range 39 {
		j.events[0][seq].End = j.events[0][seq+1].Start
	}
	j.events[1][0].Start = j.events[1][0].End
	j.clock = func(rank int, at time.Duration) time.Duration { return -at * time.Duration(rank) / 10_000 }
	var b bytes.Buffer
	require.NoError(t, merge(t, []*timeline.File{j.file(t, 1), j.file(t, 0)}).Chrome(&b))
	var all []struct {
		Ph, Name string
		PID, TID int
		TS       float64
		Dur      *float64
	}
	require.NoError(t, json.Unmarshal(b.Bytes(), &all))
	end := map[int]float64{}
	process := map[int]int{} // by row
	n := 0
	for _, e := range all {
		if e.TID != 0 {
			if of, known := process[e.TID]; known {
				require.Equal(t, of, e.PID, "rows are known by their numbers alone")
			}
			process[e.TID] = e.PID
			require.Greater(t, e.TID, 1, "the numbers of processes")
		}
		require.Equal(t, e.Ph == "X", e.Dur != nil, e.Name)
		if e.Ph == "X" {
			require.GreaterOrEqual(t, e.TS, end[e.PID]-0.0005, "the %d. event", n)
			end[e.PID] = e.TS + *e.Dur
			n++
		}
	}
	require.Equal(t, 80, n)
}
