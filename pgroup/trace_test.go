package pgroup_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
)

// seen is the trace of each rank of a group.
type seen []*testcluster.Events

// traced returns a place like at, with a sink for each rank.
func traced(n int, at place) (place, seen) {
	sinks := make(seen, n)
	for i := range sinks {
		sinks[i] = new(testcluster.Events)
	}
	return at.with(func(c *pgroup.Config) { c.Trace = sinks[c.Rank] }), sinks
}

// one returns the only event of an op on a rank.
func (s seen) one(t *testing.T, rank int, op string) trace.Event {
	t.Helper()
	var found []trace.Event
	for _, e := range s[rank].All() {
		if e.Op == op && (e.Group == "world" || op == "pgroup.sub") {
			found = append(found, e)
		}
	}
	require.Len(t, found, 1, "%s of rank %d", op, rank)
	return found[0]
}

func TestTraceOfVerbs(t *testing.T) {
	for name, at := range places {
		t.Run(name, func(t *testing.T) {
			const n = 3
			at, sinks := traced(n, at)
			gs := create(t, n, at)
			together(n, func(rank int) { everyVerb(t, gs[rank]) })

			for rank := range n {
				for i, verb := range []string{"barrier", "broadcast", "allgather", "gather", "scatter", "alltoall", "allreduce"} {
					e := sinks.one(t, rank, "pgroup."+verb)
					require.Equal(t, trace.Event{
						Op: "pgroup." + verb, Group: "world", Generation: gs[0].Generation(), ID: sinks.one(t, 0, "pgroup.create").ID, Seq: uint64(i + 1),
						Rank: rank, Size: n, Last: e.Last, Bytes: e.Bytes, Start: e.Start, End: e.End, Waited: e.Waited,
					}, e)
					require.Equal(t, sinks.one(t, 0, "pgroup."+verb).Last, e.Last, "all get the same of %s", verb)
					require.GreaterOrEqual(t, e.Last, 0, verb)
					require.LessOrEqual(t, e.Waited, e.Duration())
					require.Equal(t, e.Last == rank, e.Waited == 0, "the last rank has not waited")
				}
				require.EqualValues(t, 1, sinks.one(t, rank, "pgroup.broadcast").Last, "its root")
				require.EqualValues(t, 5, sinks.one(t, rank, "pgroup.broadcast").Bytes)
				require.EqualValues(t, 16, sinks.one(t, rank, "pgroup.allreduce").Bytes)
				for _, verb := range []string{"create", "split", "sub", "shutdown", "close", "send", "recv", "expire"} {
					require.NoError(t, sinks.one(t, rank, "pgroup."+verb).Err)
				}
				recv := sinks.one(t, rank, "pgroup.recv")
				require.Equal(t, []any{(rank + n - 1) % n, uint64(1), int64(7)}, []any{recv.Last, recv.Seq, recv.Bytes})
				require.NotZero(t, sinks.one(t, rank, "pgroup.sub").ID)
				require.NotEqual(t, sinks.one(t, rank, "pgroup.create").ID, sinks.one(t, rank, "pgroup.sub").ID)
			}
		})
	}
}

// everyVerb calls each verb once, and closes g and the groups and channels that it derived from it.
func everyVerb(t *testing.T, g *pgroup.Group) {
	ctx, n := t.Context(), g.Size()
	ok(t, g, "barrier", g.Barrier(ctx))
	_, err := pgroup.Broadcast(ctx, g, 1, []byte("hello"))
	ok(t, g, "broadcast", err)
	_, err = pgroup.AllGather(ctx, g, g.Rank())
	ok(t, g, "allgather", err)
	_, err = pgroup.Gather(ctx, g, 0, g.Rank())
	ok(t, g, "gather", err)
	_, err = pgroup.Scatter(ctx, g, 2, make([]int, n))
	ok(t, g, "scatter", err)
	_, err = pgroup.AllToAll(ctx, g, make([]int, n))
	ok(t, g, "alltoall", err)
	_, err = pgroup.AllReduce(ctx, g, pgroup.Sum, 1, 2)
	ok(t, g, "allreduce", err)
	ok(t, g, "send", pgroup.Send(ctx, g, (g.Rank()+1)%n, []byte("message")))
	_, err = pgroup.Recv[[]byte](ctx, g, (g.Rank()+n-1)%n)
	ok(t, g, "recv", err)
	_, err = g.Expired(ctx)
	ok(t, g, "expire", err)
	half, err := g.Split(ctx, 0, 0)
	ok(t, g, "split", err)
	ok(t, g, "shutdown", g.Shutdown(ctx))
	if half != nil {
		ok(t, g, "close", half.Shutdown(ctx))
	}
}

func TestTraceOfFailures(t *testing.T) {
	at, sinks := traced(2, anyStore)
	gs := create(t, 2, at)
	err := gs[0].Barrier(within(t, 20*time.Millisecond))
	require.ErrorIs(t, err, pgroup.ErrTimeout)
	e := sinks.one(t, 0, "pgroup.barrier")
	require.Equal(t, err, e.Err)
	require.Equal(t, 1, e.Last, "the one that did not come")
	require.Positive(t, e.Waited)

	require.ErrorIs(t, gs[1].Barrier(t.Context()), pgroup.ErrTimeout)
	_, err = pgroup.Scatter(t.Context(), gs[0], 0, []int{1})
	require.ErrorIs(t, err, pgroup.ErrInvalid)
	e = sinks.one(t, 0, "pgroup.scatter")
	require.Equal(t, err, e.Err)
	require.Zero(t, e.Last, "itself")
	require.Zero(t, e.Waited)
	require.ErrorIs(t, pgroup.Send(t.Context(), gs[0], 5, 1), pgroup.ErrInvalid)
	require.ErrorIs(t, sinks.one(t, 0, "pgroup.send").Err, pgroup.ErrInvalid)
	_, err = pgroup.Recv[int](t.Context(), gs[0], 5)
	require.ErrorIs(t, err, pgroup.ErrInvalid)
	require.Equal(t, -1, sinks.one(t, 0, "pgroup.recv").Last, "no rank of the group")
	cause := errors.New("no more")
	gs[0].Abort(cause)
	require.Equal(t, cause, sinks.one(t, 0, "pgroup.abort").Err)

	lonely := new(testcluster.Events)
	_, err = pgroup.Create(within(t, 20*time.Millisecond), pgroup.Config{Size: 2, Store: store.New(new(store.Memory)), Trace: lonely})
	require.ErrorIs(t, err, pgroup.ErrTimeout)
	e = lonely.All()[0]
	require.Equal(t, []any{"pgroup.create", 1, err}, []any{e.Op, e.Last, e.Err})
}

// TestTraceOfGroupsWithOneName checks that groups of the same name and generation on two stores are
// different in the trace.
func TestTraceOfGroupsWithOneName(t *testing.T) {
	ids := map[uint64]bool{}
	for run := range 3 {
		sinks := seen{{}}
		g, err := pgroup.Create(t.Context(), pgroup.Config{Size: 1, Run: fmt.Sprint(run), Trace: sinks[0]})
		require.NoError(t, err)
		require.NoError(t, g.Close())
		ids[sinks.one(t, 0, "pgroup.create").ID] = true
	}
	require.Len(t, ids, 3)
}

func TestTraceDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "traces")
	gs := create(t, 2, place(anyStore).with(func(c *pgroup.Config) { c.TraceDir, c.Host = dir, "node/1" }))
	subs := make([]*pgroup.Group, 2)
	together(2, func(rank int) {
		var err error
		subs[rank], err = gs[rank].Sub(t.Context(), "both", 0, 1)
		ok(t, gs[rank], "sub", err)
		ok(t, gs[rank], "shutdown", gs[rank].Shutdown(t.Context()))
		ok(t, subs[rank], "barrier", subs[rank].Barrier(t.Context()))
		_ = subs[rank].Close()
	})
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2)
	for rank, f := range files {
		require.Equal(t, fmt.Sprintf("rank%d-node_1-%d.json", rank, os.Getpid()), f.Name())
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		for _, verb := range []string{"create", "sub", "shutdown", "barrier"} {
			require.Contains(t, string(b), `"name":"`+verb+`"`)
		}
		require.True(t, strings.HasSuffix(string(b), "\n]\n"), "it is whole")
	}

	again, err := pgroup.Create(t.Context(), pgroup.Config{Size: 1, TraceDir: dir, Host: "node/1"})
	require.NoError(t, err)
	require.NoError(t, again.Close())
	require.FileExists(t, filepath.Join(dir, fmt.Sprintf("rank0-node_1-%d-1.json", os.Getpid())))

	_, err = pgroup.Create(t.Context(), pgroup.Config{Size: 1, TraceDir: filepath.Join(dir, files[0].Name())})
	require.ErrorContains(t, err, "Config.TraceDir")
}

// hangs is a file on a server that stops answering after the first write.
type hangs struct {
	begun bool
	free  chan struct{}
}

func (h *hangs) Write(p []byte) (int, error) {
	if h.begun {
		<-h.free
	}
	h.begun = true
	return len(p), nil
}

func TestTraceWhoseFileHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := os.CreateTemp(t.TempDir(), "")
		require.NoError(t, err)
		var logged strings.Builder
		w, began := &hangs{free: make(chan struct{})}, time.Now()
		pgroup.EndTrace(f, w, slog.New(slog.NewTextHandler(&logged, nil)))
		require.Equal(t, 5*time.Second, time.Since(began))
		require.Contains(t, logged.String(), "not within 5s")
		require.Contains(t, logged.String(), f.Name())
		close(w.free)
	})
}

// discard is a sink that allocates nothing.
type discard struct{}

func (discard) Record(context.Context, trace.Event) {}

// TestNoTraceAllocatesNothing checks that a nil sink costs nothing: the limits are the allocations
// of a verb without any trace in the code.
func TestNoTraceAllocatesNothing(t *testing.T) {
	alone := func(sink trace.Sink) *pgroup.Group {
		g, err := pgroup.Create(t.Context(), pgroup.Config{Size: 1, Trace: sink})
		require.NoError(t, err)
		t.Cleanup(func() { _ = g.Close() })
		return g
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	kib := make([]byte, 1024)
	for name, c := range map[string]struct {
		verb func(g *pgroup.Group) error
		want float64
	}{
		"barrier":   {func(g *pgroup.Group) error { return g.Barrier(ctx) }, 7},
		"allgather": {func(g *pgroup.Group) error { _, err := pgroup.AllGather(ctx, g, kib); return err }, 14},
		"send and recv": {func(g *pgroup.Group) error {
			err := pgroup.Send(ctx, g, 0, kib)
			_, recvErr := pgroup.Recv[[]byte](ctx, g, 0)
			return errors.Join(err, recvErr)
		}, 12},
	} {
		without, with := alone(nil), alone(discard{})
		run := func(g *pgroup.Group) float64 {
			return testing.AllocsPerRun(200, func() { require.NoError(t, c.verb(g)) })
		}
		if got := run(without); got > c.want {
			t.Errorf("%s: %v allocations, before there was a trace it was %v", name, got, c.want)
		}
		if got := run(with); got > c.want+4 {
			t.Errorf("%s: %v allocations with a sink that makes none, and %v without", name, got, c.want)
		}
	}
}
