package timeline_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/muster-pg/muster/internal/timeline"
	"github.com/muster-pg/muster/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var began = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// job is what some ranks really did, from which their files are made.
type job struct {
	id   uint64
	size int
	// the first so many ranks have one each, the others are on that of rank 0
	hosts int
	// how far a rank's clock is ahead, at a true time
	clock  func(rank int, at time.Duration) time.Duration
	events [][]trace.Event                    // by rank, in true time
	raw    func(rank int, file []byte) []byte // modifies a file
}

func newJob(id uint64, size int) *job {
	return &job{id: id, size: size, hosts: size, events: make([][]trace.Event, size)}
}

// meets adds a verb that all ranks come to, each after its own time, and that is decided when the
// last one has come.
func (j *job) meets(op string, seq uint64, came ...time.Duration) {
	decided, last := came[0], 0
	for rank, at := range came {
		if at > decided {
			decided, last = at, rank
		}
	}
	for rank, at := range came {
		e := trace.Event{Op: op, Group: "world", Generation: 1, ID: j.id, Seq: seq, Rank: rank, Size: j.size, Last: last}
		// answers take time
		e.Start, e.End = began.Add(at), began.Add(decided+time.Duration(20+7*rank)*time.Microsecond)
		if rank != last {
			e.Waited = e.Duration()
		}
		if !strings.HasPrefix(op, "pgroup.") {
			e.ID, e.Last, e.Waited = 0, -1, 0
		}
		j.events[rank] = append(j.events[rank], e)
	}
}

// steps adds n barriers, a second each, to which rank late comes 100 ms after the others.
func (j *job) steps(n, late int) *job {
	for seq := range n {
		came := make([]time.Duration, j.size)
		for rank := range came {
			came[rank] = time.Duration(seq+1)*time.Second + time.Duration(rand.IntN(1000))*time.Microsecond
		}
		came[late] += 100 * time.Millisecond
		j.meets("pgroup.barrier", uint64(seq+1), came...)
	}
	return j
}

// file returns a rank's events, with times of its clock.
func (j *job) file(t *testing.T, rank int) *timeline.File {
	t.Helper()
	f, err := timeline.Read(fmt.Sprintf("rank%d.json", rank), bytes.NewReader(j.bytes(rank)))
	require.NoError(t, err)
	return f
}

func (j *job) bytes(rank int) []byte {
	ahead := func(at time.Time) time.Duration {
		if j.clock == nil {
			return 0
		}
		return j.clock(rank, at.Sub(began))
	}
	var b bytes.Buffer
	start := began.Add(ahead(began))
	host := fmt.Sprintf("node-%d", rank)
	if rank >= j.hosts {
		host = "node-0"
	}
	fmt.Fprintf(&b, `[`+"\n"+`{"name":"muster","ph":"M","pid":%d,"tid":0,"args":{"version":1,"start":"%d","host":"%s"}}`, 1000+rank, start.UnixNano(), host)
	for _, e := range j.events[rank] {
		begin, end := e.Start.Add(ahead(e.Start)), e.End.Add(ahead(e.End))
		family, name, _ := strings.Cut(e.Op, ".")
		more := ""
		if e.Last >= 0 {
			more += fmt.Sprintf(`,"last":%d`, e.Last)
		}
		if e.Err != nil {
			more += fmt.Sprintf(`,"error":%q`, e.Err)
		}
		if e.ID != 0 {
			more += fmt.Sprintf(`,"id":"%x"`, e.ID)
		}
		fmt.Fprintf(&b, ",\n"+`{"name":%q,"cat":%q,"ph":"X","pid":%d,"tid":1,"ts":%.3f,"dur":%.3f,"args":{"group":%q,"generation":%d,"seq":%d,"rank":%d,"size":%d,"waited":%.3f%s}}`,
			name, family, 1000+rank, micros(begin.Sub(start)), micros(end.Sub(begin)), e.Group, e.Generation, e.Seq, e.Rank, e.Size, micros(e.Waited), more)
	}
	b.WriteString("\n]\n")
	if j.raw != nil {
		return j.raw(rank, b.Bytes())
	}
	return b.Bytes()
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

func (j *job) files(t *testing.T) (all []*timeline.File) {
	t.Helper()
	for rank := range j.size {
		all = append(all, j.file(t, rank))
	}
	return all
}

func merge(t *testing.T, files []*timeline.File) *timeline.Timeline {
	t.Helper()
	tl, err := timeline.Merge(files...)
	require.NoError(t, err)
	return tl
}

// TestReadIsTheInverse checks that Read reads the output of trace.Chrome.
func TestReadIsTheInverse(t *testing.T) {
	var b bytes.Buffer
	c := trace.Chrome(&b)
	want := trace.Event{
		Op: "pgroup.barrier", Group: "a \"b\" é", Channel: "\x00ch", Generation: 7, ID: 1<<63 + 9, Seq: 3, Rank: 1, Size: 4, Last: 0, Bytes: 12,
		Start: time.Now(), Waited: 1234567 * time.Nanosecond, Err: errors.New("gone\n"),
	}
	want.End = want.Start.Add(2 * time.Millisecond)
	c.Record(t.Context(), want)
	store := trace.Event{Op: "store.get", Rank: -1, Last: -1, Start: want.Start, End: want.End}
	c.Record(t.Context(), store)
	require.NoError(t, c.Close())
	f, err := timeline.Read("x.json", &b)
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), f.PID)
	require.False(t, f.Truncated)
	require.Len(t, f.Events, 2)
	for i, want := range []trace.Event{want, store} {
		got := f.Events[i]
		require.WithinDuration(t, want.Start, got.Start, time.Microsecond)
		require.WithinDuration(t, want.End, got.End, time.Microsecond)
		got.Start, got.End = want.Start, want.End
		require.Equal(t, want, got)
	}
}

// TestClocks checks the correction of clocks: those of four hosts are wrong by seconds, one runs 80
// µs a second too fast, and one jumps. All are corrected to a fraction of a millisecond.
func TestClocks(t *testing.T) {
	j := newJob(7, 5).steps(120, 2)
	j.hosts = 4 // rank 4 is on the host of rank 0
	j.clock = func(rank int, at time.Duration) time.Duration {
		return []time.Duration{0, 3700 * time.Millisecond, -12*time.Second + at*80/1_000_000, 45 * time.Minute, 0}[rank]
	}
	tl := merge(t, j.files(t))
	for rank, r := range tl.Rows {
		require.Equal(t, rank, r.Rank)
		require.False(t, r.Unaligned)
		require.InDelta(t, j.clock(rank, time.Minute), r.Clock, float64(time.Millisecond), "rank %d", rank)
		require.Len(t, r.Events, 120)
		for i := range r.Events {
			want, got := j.events[rank][i], r.Events[i]
			require.WithinDuration(t, want.Start, got.Start, 600*time.Microsecond, "rank %d, barrier %d", rank, i)
			require.WithinDuration(t, want.End, got.End, 600*time.Microsecond)
		}
	}
	s := tl.Summary()
	require.Equal(t, 120, s.Records)
	require.Equal(t, 2, s.Ranks[0].Row.Rank)
	require.Equal(t, 120, s.Ranks[0].Last)
	require.InDelta(t, 120*4*0.1, s.Ranks[0].Caused.Seconds(), 0.6)
	require.InDelta(t, 120*0.1, s.Ranks[1].Waited.Seconds(), 0.3)
	require.Zero(t, s.Ranks[1].Caused)
	require.NotNil(t, s.Ranks[0].Worst)
	require.Equal(t, s.Lost, s.Ranks[0].Caused)
}

// TestClocksDespiteLateAnswers checks that a few answers that were very late do not shift a clock.
func TestClocksDespiteLateAnswers(t *testing.T) {
	j := newJob(7, 2).steps(30, 0)
	for i := 0; i < 30; i += 4 {
		j.events[1][i].End = j.events[1][i].End.Add(400 * time.Millisecond)
	}
	tl := merge(t, j.files(t))
	require.Less(t, tl.Rows[1].Clock.Abs(), time.Millisecond)
}

// TestClocksByWayOfOthers checks the clocks of ranks 2 and 3, which have no verb with rank 0, but
// with rank 1.
func TestClocksByWayOfOthers(t *testing.T) {
	a := newJob(7, 2).steps(5, 0)
	b := newJob(8, 3).steps(5, 1)
	b.clock = func(rank int, _ time.Duration) time.Duration {
		return []time.Duration{2 * time.Second, time.Minute, -time.Minute}[rank]
	}
	a.clock = func(rank int, _ time.Duration) time.Duration { return time.Duration(rank) * 2 * time.Second }
	shared, other := a.file(t, 1), b.file(t, 0) // one process, in two groups
	other.Host, other.PID = shared.Host, shared.PID
	third, fourth := b.file(t, 1), b.file(t, 2)
	third.PID, fourth.PID = 3003, 3004
	shared.Events = append(shared.Events, other.Events...)
	tl := merge(t, []*timeline.File{a.file(t, 0), shared, third, fourth})
	require.Len(t, tl.Rows, 4)
	var clocks []float64
	for _, r := range tl.Rows {
		require.False(t, r.Unaligned)
		clocks = append(clocks, r.Clock.Seconds())
	}
	require.InDeltaSlice(t, []float64{0, 2, 60, -60}, sorted(clocks, tl), 0.01)
}

// sorted returns the clocks of the rows in the order 0, 1, third, fourth, by their processes.
func sorted(clocks []float64, tl *timeline.Timeline) []float64 {
	out := make([]float64, 4)
	for i, r := range tl.Rows {
		out[map[int]int{1000: 0, 1001: 1, 3003: 2, 3004: 3}[r.PID]] = clocks[i]
	}
	return out
}

// TestRecordsOfOtherPackages checks verbs for which the store does not report the last rank: it is
// the one that began last, and the verbs that implement them are not counted again.
func TestRecordsOfOtherPackages(t *testing.T) {
	j := newJob(7, 3)
	j.meets("pgroup.create", 0, 0, time.Millisecond, 2*time.Millisecond)
	j.meets("collective.allreduce", 1, 100*time.Millisecond, 300*time.Millisecond, 110*time.Millisecond)
	j.meets("collective.broadcast", 2, 400*time.Millisecond, 600*time.Millisecond, 410*time.Millisecond)
	j.meets("dataparallel.allreduce_gradients", 1, 99*time.Millisecond, 299*time.Millisecond, 109*time.Millisecond)
	for rank := range j.events {
		j.events[rank][3].End = j.events[rank][3].End.Add(5 * time.Millisecond)
	}
	tl := merge(t, j.files(t))
	s := tl.Summary()
	require.Equal(t, 3, s.Records, "the allreduce is part of the strategy's")
	require.Equal(t, 1, s.Ranks[0].Row.Rank)
	require.Equal(t, 1, s.Ranks[0].Last)
	require.InDelta(t, 0.39, s.Ranks[0].Caused.Seconds(), 0.001)
	for _, r := range tl.Records {
		require.Equal(t, r.Op == "collective.allreduce", r.Inner, r.Op)
		require.Equal(t, r.Op == "collective.broadcast", r.Last < 0, r.Op)
	}
}

// TestSomeRanksAreMissing checks that the present ranks are evaluated as far as possible.
func TestSomeRanksAreMissing(t *testing.T) {
	files := newJob(7, 4).steps(10, 2).files(t)
	tl := merge(t, []*timeline.File{files[0], files[3]})
	require.Len(t, tl.Rows, 2)
	s := tl.Summary()
	require.Zero(t, s.Ranks[0].Last)
	require.InDelta(t, 2, s.Absent.Seconds(), 0.05)
	require.Equal(t, s.Lost, s.Absent)
}

func TestTruncated(t *testing.T) {
	j := newJob(7, 2).steps(10, 0)
	whole := j.bytes(1)
	for _, cut := range []int{len(whole) - 3, len(whole) - 30, len(whole) / 2, bytes.IndexByte(whole[2:], '\n') + 2} {
		j.raw = func(rank int, b []byte) []byte { return b[:len(b)-rank*(len(b)-cut)] }
		f := j.file(t, 1)
		require.True(t, f.Truncated)
		require.Less(t, len(f.Events), 11)
		tl := merge(t, []*timeline.File{j.file(t, 0), f})
		require.True(t, tl.Rows[1].Truncated || tl.Rows[0].Truncated)
	}
}

func TestWrongInput(t *testing.T) {
	good := string(newJob(7, 2).steps(2, 0).bytes(0))
	head, rest, _ := strings.Cut(good, ",\n")
	for name, c := range map[string]struct{ in, want string }{
		"empty":         {"", "it is empty"},
		"text":          {"hello\n", "line 1"},
		"other JSON":    {`{"traceEvents":[]}` + "\n", "does not begin as trace.Chrome has it"},
		"another trace": {"[\n" + `{"name":"x","ph":"X","ts":1,"dur":2}` + "\n]", "does not begin"},
		"newer":         {strings.Replace(good, `"version":1`, `"version":9`, 1), "version 9"},
		"no start":      {strings.Replace(good, `"start":"`, `"start":"x`, 1), "no number of nanoseconds"},
		"broken amid":   {head + ",\n{\"name\":\n" + rest, "line 3"},
		"no rank":       {strings.ReplaceAll(good, `"rank":0,"size":2`, `"rank":5,"size":2`), "rank 5 of 2"},
		"no id":         {strings.ReplaceAll(good, `"id":"7"`, `"id":"x"`), "is no number"},
		"endless":       {head + ",\n" + strings.Repeat(" ", 17<<20), "a line of more than 16 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := timeline.Read("a.json", strings.NewReader(c.in))
			require.ErrorIs(t, err, timeline.ErrFormat)
			require.ErrorContains(t, err, "a.json")
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err := timeline.Merge()
	require.Error(t, err)
	_, err = timeline.ReadFile(filepath.Join(t.TempDir(), "none.json"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = timeline.Read("a.json", io.MultiReader(strings.NewReader(good), broken{}))
	require.ErrorIs(t, err, io.ErrClosedPipe)
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestJobs(t *testing.T) {
	first, second := newJob(7, 2).steps(3, 0).files(t), newJob(8, 2).steps(3, 0).files(t)
	for _, f := range second {
		f.Start = f.Start.Add(time.Hour)
	}
	_, err := timeline.Merge(first[0], second[1])
	require.ErrorIs(t, err, timeline.ErrJobs)
	jobs := timeline.Jobs([]*timeline.File{first[0], second[0], second[1], first[1]})
	require.Equal(t, [][]*timeline.File{second, first}, jobs)

	again := newJob(7, 2).steps(3, 0).file(t, 1)
	again.PID = 99
	_, err = timeline.Merge(first[0], first[1], again)
	require.ErrorContains(t, err, "rank 1 of group \"world\" is there twice, in rank1.json and rank1.json")

	// A process that was in two groups makes them one job.
	bridge := newJob(7, 3).file(t, 2)
	bridge.Events = []trace.Event{{ID: 8, Size: 1}, {ID: 7, Size: 1}}
	require.Len(t, timeline.Jobs(append(append(first, second...), bridge)), 1)
}

func TestReadDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a[b]*")
	require.NoError(t, os.Mkdir(dir, 0o755))
	_, err := timeline.ReadDir(dir)
	require.ErrorIs(t, err, timeline.ErrFormat)
	j := newJob(7, 3).steps(2, 0)
	for rank := range 3 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("rank%d-h-1.json", rank)), j.bytes(rank), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "merged.json"), []byte("[]"), 0o600))
	files, err := timeline.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 3)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rank9.json"), []byte("[]"), 0o600))
	_, err = timeline.ReadDir(dir)
	require.ErrorIs(t, err, timeline.ErrFormat)
	_, err = timeline.ReadDir(filepath.Join(dir, "rank9.json"))
	require.Error(t, err)
}

func TestFullDisk(t *testing.T) {
	require.ErrorIs(t, merge(t, newJob(7, 2).steps(2, 0).files(t)).Chrome(full{}), io.ErrShortWrite)
}

func TestNoEvents(t *testing.T) {
	tl := merge(t, newJob(7, 1).files(t))
	require.Equal(t, -1, tl.Rows[0].Rank)
	require.Zero(t, tl.Summary().Records)
}

// full is a disk without space.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// TestChrome checks a trace of all ranks, on one clock, with a process for each.
func TestChrome(t *testing.T) {
	j := newJob(7, 2).steps(3, 1)
	j.clock = func(rank int, _ time.Duration) time.Duration { return time.Duration(rank) * time.Hour }
	var b bytes.Buffer
	require.NoError(t, merge(t, j.files(t)).Chrome(&b))
	var all []struct {
		Name, Ph string
		PID      int
		TS, Dur  float64
		Args     map[string]any
	}
	require.NoError(t, json.Unmarshal(b.Bytes(), &all))
	ends := map[float64][]float64{}
	for _, e := range all {
		switch {
		case e.Ph == "X":
			require.GreaterOrEqual(t, e.TS, 0.0)
			ends[e.Args["seq"].(float64)] = append(ends[e.Args["seq"].(float64)], e.TS+e.Dur)
		case e.Name == "process_name":
			require.Equal(t, fmt.Sprintf("rank %d (pid %d on node-%d)", e.PID, 1000+e.PID, e.PID), e.Args["name"])
		}
	}
	require.Len(t, ends, 3)
	for _, of := range ends {
		require.InDelta(t, of[0], of[1], 500, "µs")
	}
}

// FuzzRead checks that any file is read or refused, and that a file that is read can be merged.
func FuzzRead(f *testing.F) {
	j := newJob(7, 2).steps(2, 0)
	f.Add(j.bytes(0))
	f.Add(j.bytes(1)[:300])
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := timeline.Read("fuzz.json", bytes.NewReader(b))
		if err != nil {
			return
		}
		tl, err := timeline.Merge(file)
		if err != nil {
			return
		}
		require.NoError(t, tl.Chrome(io.Discard))
	})
}
