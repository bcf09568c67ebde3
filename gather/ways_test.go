package gather_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

func TestMain(m *testing.M) { testcluster.Leaks(m) }

// way is how data is transferred; all tests of this package run over each of them.
type way struct {
	name      string
	apart     bool // each rank on a separate host
	mixed     bool // ranks 0 and 1 on one host, the others on another
	tls       bool
	dir       bool
	allocated bool // tensors are allocated in Options.Arena
}

func ways() []way {
	all := []way{{name: "TCP", apart: true}, {name: "TLS", apart: true, tls: true}, {name: "directory", dir: true}}
	if arena, err := shm.NewArena(nil); err == nil {
		_ = arena.Close()
		all = append(all, way{name: "memory"}, way{name: "memory, in an arena", allocated: true}, way{name: "mixed", mixed: true})
	}
	return all
}

// rank is one rank of a test.
type rank struct {
	*testing.T
	way
	ctx   context.Context
	group *pgroup.Group
	ga    *gather.Gatherer
	arena *shm.Arena // if tensors are allocated there
}

// overAll runs f on n ranks, over each way.
func overAll(t *testing.T, n int, f func(r *rank)) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) { w.run(t, n, gather.Options{}, f) })
	}
}

// overAllAtOnce is overAll for tests that wait: all ways run at once.
func overAllAtOnce(t *testing.T, n int, f func(r *rank)) {
	t.Parallel()
	named := map[string]way{}
	for _, w := range ways() {
		named[w.name] = w
	}
	testcluster.AtOnce(t, maps.All(named), func(t *testing.T, w way) { w.run(t, n, gather.Options{}, f) })
}

func (w way) run(t *testing.T, n int, o gather.Options, f func(r *rank)) {
	t.Helper()
	job{way: w, n: n, o: o}.run(t, f)
}

// job is a group of n ranks, in this process.
type job struct {
	way
	n     int
	name  string       // of the group
	runID string       // pgroup.Config.Run
	meet  *store.Store // nil: one of testcluster.Store
	o     gather.Options
	span  time.Duration // the time limit of the whole job; 0: half a minute
	trace trace.Sink    // nil: none
}

// run runs f on each rank.
func (j job) run(t *testing.T, f func(r *rank)) {
	t.Helper()
	open := testcluster.Store(t)
	if j.meet != nil {
		open = func() *store.Store { return j.meet }
	}
	var files *store.TLSFiles
	if j.tls {
		dir := t.TempDir()
		_, err := certs.Make(dir, certs.Options{})
		require.NoError(t, err)
		files = &store.TLSFiles{CA: dir + "/ca.pem", Cert: dir + "/client.pem", Key: dir + "/client-key.pem"}
	}
	if j.dir && j.o.Dir == "" {
		j.o.Dir = t.TempDir()
	}
	j.span = cmp.Or(j.span, 30*time.Second)
	var ranks sync.WaitGroup
	for i := range j.n {
		ranks.Go(func() {
			ctx := testcluster.Within(t, j.span)
			g, err := pgroup.Create(ctx, pgroup.Config{
				Name: j.name, Run: j.runID, Rank: i, Size: j.n, Store: open(), Host: j.host(i), TLS: files, Timeout: j.span, Trace: j.trace,
			})
			if !assert.NoError(t, err) {
				return
			}
			defer func() { _ = g.Close() }()
			(&rank{T: t, way: j.way, ctx: ctx, group: g}).play(j.o, f)
		})
	}
	ranks.Wait()
}

// play runs f on one rank. If it fails, the others do not wait for it.
func (r *rank) play(o gather.Options, f func(r *rank)) {
	defer func() {
		if r.Failed() {
			r.group.Abort(errors.New("the test has failed"))
		}
	}()
	if r.allocated {
		arena, err := shm.NewArena(&shm.Options{Segment: 1 << 20})
		require.NoError(r, err)
		defer func() { assert.NoError(r, arena.Close()) }()
		r.arena, o.Arena = arena, arena
	}
	ga, err := gather.Open(r.ctx, r.group, &o)
	require.NoError(r, err)
	defer func() { assert.NoError(r, ga.Close()) }()
	r.ga = ga
	f(r)
}

func (w way) host(i int) string {
	switch {
	case w.apart:
		return fmt.Sprintf("node %d", i)
	case w.mixed:
		return fmt.Sprintf("node %d", i/2)
	}
	return "node"
}

// me returns this rank's number.
func (r *rank) me() int { return r.group.Rank() }

// pid returns the process of a rank.
func (r *rank) pid(rank int) int {
	members, err := r.group.Members(context.Background())
	require.NoError(r, err)
	return members[rank].PID
}

// tensor returns a tensor whose elements identify the rank of and the index.
func (r *rank) tensor(of int, shape ...int) *tensor.Tensor {
	if r.arena == nil {
		return filled(of, shape...)
	}
	t, err := tensor.NewIn(r.arena, tensor.F32, shape...)
	require.NoError(r, err)
	copy(t.Data, filled(of, shape...).Data)
	return t
}

// gather gathers a tensor of each of ranks, which must succeed.
func (r *rank) gather(ranks []int, mine *tensor.Tensor) *gather.Result[*tensor.Tensor] {
	r.Helper()
	res, err := gather.Tensors(r.ctx, r.ga, ranks, mine)
	require.NoError(r, err, "rank %d", r.me())
	return res
}

func filled(of int, shape ...int) *tensor.Tensor {
	t := tensor.New(tensor.F32, shape...)
	v, err := tensor.View[float32](t)
	if err != nil {
		panic(err)
	}
	for i := range v {
		v[i] = float32(of)*1000 + float32(i%997)
	}
	return t
}

// equal compares a received tensor with the expected one.
func equal(t *testing.T, want, got *tensor.Tensor) {
	t.Helper()
	if got == nil {
		assert.Fail(t, "no tensor", "want %v", want)
		return
	}
	assert.Equal(t, want.DType, got.DType)
	assert.True(t, slices.Equal(want.Shape, got.Shape), "want %v, got %v", want, got)
	assert.True(t, string(want.Data) == string(got.Data), "other bytes than were given")
}

// rankError returns err as the error that every rank gets; it fails the test and returns nil if err
// is another one.
func (r *rank) rankError(err error) *pgroup.RankError {
	r.Helper()
	re, ok := errors.AsType[*pgroup.RankError](err)
	if !assert.True(r, ok, "rank %d got %v, want a *RankError", r.me(), err) {
		return &pgroup.RankError{Failure: new(wire.Failure)}
	}
	assert.Equal(r, r.me(), re.Rank)
	assert.Equal(r, r.group.Size(), re.Size)
	assert.Equal(r, r.group.Name(), re.Group)
	return re
}

// sharing skips a test on systems without shared memory.
func sharing(t testing.TB) {
	t.Helper()
	arena, err := shm.NewArena(nil)
	if errors.Is(err, shm.ErrUnsupported) {
		t.Skip("SKIPPED: no shared memory on this system: ", err)
	}
	require.NoError(t, err)
	require.NoError(t, arena.Close())
}
