package python_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/internal/timeline"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
)

// TestTraceOfEveryVerbAcrossLanguages checks that the trace files of a Go rank and a Python rank
// have the same contents if the ranks make the same calls.
func TestTraceOfEveryVerbAcrossLanguages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there yet")
	ctx := bounded(t)
	m := create(t, 2, testcluster.Serve(t, new(store.Server)), kw{"trace_dir": dir, "host": "node/1"}, pgroup.Config{TraceDir: dir, Host: "node/1"})
	g, p := m.gs[0], m.ps[1]
	both := func(inGo func() error, verb string, args ...any) {
		m.each(func(int) error { return inGo() }, func(_ int, p *rank) error {
			_, err := p.do("group", verb, args...)
			return err
		})
	}
	both(func() error { return g.Barrier(ctx) }, "barrier")
	both(func() error { _, err := pgroup.Broadcast(ctx, g, 1, []byte("hello")); return err }, "broadcast_bytes", raw("hello"), 1)
	both(func() error { _, err := pgroup.AllGather(ctx, g, 7); return err }, "all_gather", 7)
	both(func() error { _, err := pgroup.Gather(ctx, g, 0, 7); return err }, "gather", 7, 0)
	both(func() error { _, err := pgroup.Scatter(ctx, g, 0, []int{1, 2}); return err }, "scatter", nil, 0)
	both(func() error { _, err := pgroup.AllToAll(ctx, g, []int{1, 2}); return err }, "all_to_all", []int{1, 2})
	both(func() error { _, err := pgroup.AllReduce(ctx, g, pgroup.Sum, int64(1), 2); return err }, "all_reduce", []int{1, 2})
	both(func() error { _, err := g.Expired(ctx); return err }, "expired")

	p.must("new", "channel", "side")
	for range 2 {
		require.NoError(t, pgroup.Send(ctx, g.Channel("side"), 1, []byte("to 1")))
		require.Equal(t, raw("to 1"), p.must("side", "recv", 0))
		p.must("side", "send", raw("to 0"), 0)
		got, err := pgroup.Recv[[]byte](ctx, g.Channel("side"), 1)
		require.NoError(t, err)
		require.Equal(t, "to 0", string(got))
	}

	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, g.Barrier(soon), pgroup.ErrTimeout)
	_ = p.fails("Timeout", "group", "barrier")
	_, err := pgroup.Scatter(ctx, g, 0, []int{1, 2, 3})
	require.ErrorIs(t, err, pgroup.ErrInvalid)
	_ = p.fails("Invalid", "group", "scatter", nil, 0)
	both(func() error { return g.Shutdown(ctx) }, "shutdown")

	names, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{
		fmt.Sprintf("%s/rank0-node_1-%d.json", dir, os.Getpid()),
		fmt.Sprintf("%s/rank1-node_1-%d.json", dir, p.cmd.Process.Pid),
	}, names)
	files, err := timeline.ReadDir(dir)
	require.NoError(t, err)
	require.False(t, files[1].Truncated)
	require.Equal(t, files[0].Host, files[1].Host)
	require.Equal(t, withoutIdentity(files[0]), withoutIdentity(files[1]))
	for _, e := range files[1].Events {
		require.LessOrEqual(t, e.Waited, e.Duration())
		require.Equal(t, []int{1, 2}, []int{e.Rank, e.Size})
	}

	b, err := os.ReadFile(names[1])
	require.NoError(t, err)
	var lines []map[string]any
	require.NoError(t, json.Unmarshal(b, &lines), "it is JSON as a whole")
	require.Contains(t, string(b), `{"name":"rank 1 of 2"}`)
	require.Contains(t, string(b), `{"name":"pgroup \u00b7 world"}`)
}

// withoutIdentity returns the events of a file without the fields that differ between ranks: the identity of
// the rank, and times.
func withoutIdentity(f *timeline.File) (all []string) {
	rank, peer := regexp.MustCompile(`on rank \d|by rank \d`), regexp.MustCompile(`from \d`)
	for i := range f.Events {
		e := &f.Events[i]
		last, size := e.Last, e.Bytes
		switch e.Op {
		case "pgroup.recv":
			last = -1 // the peer
		case "pgroup.gather", "pgroup.scatter":
			size = 0 // the root's
		}
		says := ""
		if e.Err != nil {
			says = rank.ReplaceAllString(e.Err.Error(), "on rank N")
		}
		all = append(all, fmt.Sprintf("%s of %s %q, generation %d, id %x, #%d, last %d, %d bytes, waits %t: %s",
			e.Op, e.Group, peer.ReplaceAllString(e.Channel, "from N"), e.Generation, e.ID, e.Seq, last, size, e.Op == "pgroup.recv" && e.Waited > 0, says))
	}
	slices.Sort(all)
	return all
}

// TestTraceOfGoAndPython runs a job of Go and Python ranks that are traced
// through the environment variable, with one clock an hour ahead: the merged timeline has a row for
// each rank, and names the rank that the others waited for.
func TestTraceOfGoAndPython(t *testing.T) {
	const n = 3
	dir, ctx, addr := t.TempDir(), bounded(t), testcluster.Serve(t, new(store.Server))
	m := &mixed{t: t, gs: make([]*pgroup.Group, n), ps: []*rank{nil, start(t), start(t)}}
	m.each(func(r int) (err error) {
		m.gs[r], err = pgroup.Create(ctx, pgroup.Config{Size: n, Address: "muster://" + addr, Run: "r", TraceDir: dir})
		return err
	}, func(r int, p *rank) error {
		_, err := p.do("new", "from_env", kw{"RANK": fmt.Sprint(r), "WORLD_SIZE": fmt.Sprint(n), "MUSTER_STORE": "muster://" + addr, "MUSTER_RUN": "r", "MUSTER_TRACE": dir})
		return err
	})
	status, err := store.Dial(ctx, addr, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = status.Close() })
	for last := range n {
		before := func(r int) error {
			if r != last {
				return nil
			}
			return came(ctx, status, n-1)
		}
		m.each(func(r int) error { return errors.Join(before(r), m.gs[r].Barrier(ctx)) }, func(r int, p *rank) error {
			if err := before(r); err != nil {
				return err
			}
			_, err := p.do("group", "barrier")
			return err
		})
	}
	m.each(func(r int) error { return m.gs[r].Shutdown(ctx) }, func(_ int, p *rank) error { _, err := p.do("group", "shutdown"); return err })

	files, err := timeline.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, n)
	for _, e := range barriers(files[1]) {
		require.Equal(t, int(e.Seq)-1, e.Last, "Python has received it from the store")
		require.Equal(t, e.Last == 1, e.Waited == 0, "who came last has waited for nobody")
	}
	files[2] = elsewhere(t, files[2], time.Hour)
	job, err := timeline.Merge(files...)
	require.NoError(t, err)
	require.Len(t, job.Rows, n)
	for r, row := range job.Rows {
		require.Equal(t, r, row.Rank)
		require.False(t, row.Unaligned)
		require.False(t, row.Truncated)
	}
	require.InDelta(t, time.Hour, job.Rows[2].Clock, float64(10*time.Second))
	require.Less(t, job.End.Sub(job.Start), 10*time.Minute, "rows are beside each other")

	laggards := []int{}
	for _, rec := range job.Records {
		require.Len(t, rec.Calls, n, "%s is of all ranks", rec.Op)
		if rec.Op == "pgroup.barrier" {
			laggards = append(laggards, rec.Last)
		}
	}
	require.Equal(t, []int{0, 1, 2}, laggards)
}

func barriers(f *timeline.File) []trace.Event {
	return slices.DeleteFunc(slices.Clone(f.Events), func(e trace.Event) bool { return e.Op != "pgroup.barrier" })
}

// came returns when so many ranks have voted in the current verb.
func came(ctx context.Context, s *store.Store, ranks int) error {
	for {
		now, err := s.Status(ctx, "")
		if err != nil {
			return err
		}
		for _, g := range now.Groups {
			for _, r := range g.Records {
				if r.Arrived.Count == ranks {
					return nil
				}
			}
		}
		<-time.After(time.Millisecond)
	}
}

// elsewhere returns the file that its process would have written on another host, whose clock is
// ahead.
func elsewhere(t *testing.T, f *timeline.File, ahead time.Duration) *timeline.File {
	t.Helper()
	b, err := os.ReadFile(f.Name)
	require.NoError(t, err)
	first, rest, ok := strings.Cut(string(b), "}}")
	require.True(t, ok)
	host, err := json.Marshal(f.Host)
	require.NoError(t, err)
	for _, change := range [][2]string{
		{fmt.Sprint(f.Start.UnixNano()), fmt.Sprint(f.Start.Add(ahead).UnixNano())},
		{`"host":` + string(host), `"host":"elsewhere"`},
	} {
		require.Equal(t, 1, strings.Count(first, change[0]), first)
		first = strings.ReplaceAll(first, change[0], change[1])
	}
	f, err = timeline.Read(f.Name, strings.NewReader(first+"}}"+rest))
	require.NoError(t, err)
	return f
}

// TestTraceOfAKilledPythonRank checks that the file of a killed rank can be read as far as it was
// written, and that events are written soon.
func TestTraceOfAKilledPythonRank(t *testing.T) {
	dir := t.TempDir()
	p := start(t)
	p.must("new", "join", 0, 1, testcluster.Serve(t, new(store.Server)), kw{"trace_dir": dir})
	read := func() *timeline.File {
		files, err := timeline.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, files, 1)
		require.True(t, files[0].Truncated)
		return files[0]
	}
	p.must("group", "barrier")
	for len(barriers(read())) == 0 { // without a call that makes it write
		<-time.After(time.Millisecond)
	}
	p.must("group", "barrier")
	_ = p.fails("Timeout", "group", "recv", 0, kw{"timeout": 0.01})
	p.kill()
	_ = p.cmd.Wait()
	f := read()
	require.Len(t, barriers(f), 2, "a failure is written at once, and what was before it")
	failed := f.Events[len(f.Events)-1]
	require.Equal(t, "pgroup.recv", failed.Op)
	require.ErrorContains(t, failed.Err, "timed out")
}

// TestTraceThatCannotBeWritten checks that, as in Go, a trace directory in which no file can be
// created is an error before anything else is done.
func TestTraceThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := pgroup.Create(t.Context(), pgroup.Config{Size: 1, TraceDir: file})
	require.ErrorContains(t, err, "Config.TraceDir")
	p := start(t)
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		e := p.fails("Invalid", "new", "join", 0, 1, "nobody.invalid:1", kw{"trace_dir": dir})
		require.Regexp(t, `^pgroup: trace_dir \(MUSTER_TRACE\) "`+regexp.QuoteMeta(dir)+`": (File exists|Not a directory): is it a directory that rank 0 may write to\?$`, e.Text)
	}
	e := p.fails("InvalidType", "new", "join", 0, 1, "nobody.invalid:1", kw{"trace_dir": 1})
	require.Contains(t, e.Text, "trace_dir")
}

// TestTraceOfAGroupThatDoesNotForm checks that the trace of a group that fails to form
// names the missing ranks.
func TestTraceOfAGroupThatDoesNotForm(t *testing.T) {
	dir := t.TempDir()
	_ = start(t).fails("Timeout", "new", "join", 0, 2, testcluster.Serve(t, new(store.Server)), kw{"trace_dir": dir, "timeout": 2})
	files, err := timeline.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 1)
	require.False(t, files[0].Truncated)
	require.Len(t, files[0].Events, 1)
	e := files[0].Events[0]
	require.Equal(t, []any{"pgroup.create", "world", 0, 2, 1}, []any{e.Op, e.Group, e.Rank, e.Size, e.Last})
	require.ErrorContains(t, e.Err, "missing rank 1")
}

// TestTraceOfSurvivors checks that a group that shrinks continues in the same file, with a new
// number for its generation.
func TestTraceOfSurvivors(t *testing.T) {
	dir := t.TempDir()
	m := create(t, 3, testcluster.Serve(t, new(store.Server)), kw{"trace_dir": dir}, pgroup.Config{TraceDir: dir})
	require.NoError(t, m.gs[0].Close())
	_, err := pgroup.AllGather(bounded(t), m.gs[2], 1)
	require.ErrorIs(t, err, pgroup.ErrLeft)
	_ = m.ps[1].fails("Left", "group", "all_gather", 1)
	m.gs, m.ps = m.gs[1:], m.ps[1:]
	var rest *pgroup.Group
	m.each(func(r int) (err error) {
		rest, err = m.gs[r].Shrink(bounded(t))
		return errors.Join(err, m.gs[r].Close())
	}, func(_ int, p *rank) error { _, err := p.do("new", "shrink"); return err })
	m.each(func(int) error { return rest.Shutdown(bounded(t)) }, func(_ int, p *rank) error { _, err := p.do("group", "shutdown"); return err })
	files, err := timeline.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 3)
	of := func(f *timeline.File, op string) trace.Event {
		return f.Events[slices.IndexFunc(f.Events, func(e trace.Event) bool { return e.Op == op })]
	}
	python, inGo := of(files[1], "pgroup.shrink"), of(files[2], "pgroup.shrink")
	require.Equal(t, []any{0, 2, 1, 2}, []any{python.Rank, python.Size, inGo.Rank, inGo.Size})
	require.Equal(t, inGo.ID, python.ID)
	require.NotEqual(t, of(files[1], "pgroup.create").ID, python.ID)
	require.Equal(t, 0, of(files[1], "pgroup.allgather").Last, "who left")
	require.NotZero(t, python.ID)
	require.False(t, files[1].Truncated)
}
