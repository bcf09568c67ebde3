package python_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
	m.verbs(ctx)
	m.both(func(g *pgroup.Group) error { _, err := pgroup.Broadcast(ctx, g, 1, []byte("hello")); return err }, "broadcast_bytes", raw("hello"), 1)
	m.both(func(g *pgroup.Group) error { _, err := g.Expired(ctx); return err }, "expired")

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
	m.both(func(g *pgroup.Group) error { return g.Shutdown(ctx) }, "shutdown")

	names, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{
		fmt.Sprintf("%s/rank0-node_1-%d.json", dir, os.Getpid()),
		fmt.Sprintf("%s/rank1-node_1-%d.json", dir, p.Cmd.Process.Pid),
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
	first := firstOf(files[1], "pgroup.barrier")
	require.Equal(t, first.Last == 1, first.Waited == 0, "who came last has waited for nobody")
	job, err := timeline.Merge(files...)
	require.NoError(t, err)
	require.Len(t, job.Rows, 2)
	i := slices.IndexFunc(job.Records, func(rec *timeline.Record) bool { return rec.Op == "pgroup.barrier" })
	require.Len(t, job.Records[i].Calls, 2, "it is one record of both ranks")
}

// firstOf returns the first event of an operation.
func firstOf(f *timeline.File, op string) trace.Event {
	return f.Events[slices.IndexFunc(f.Events, func(e trace.Event) bool { return e.Op == op })]
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
