package pgroup_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

func TestMain(m *testing.M) {
	// A process that pgrouptest has started watches its parent until it ends.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/muster-pg/muster/pgroup/pgrouptest.exitWithParent.func1"))
}

// place is the store that the ranks of a test use.
type place func(t *testing.T) func(rank int) pgroup.Config

// all is a place where the ranks have one configuration.
func all(c pgroup.Config) place {
	return func(*testing.T) func(int) pgroup.Config { return func(int) pgroup.Config { return c } }
}

// with is a place like p, whose configurations edit changes.
func (p place) with(edit func(c *pgroup.Config)) place {
	return func(t *testing.T) func(int) pgroup.Config {
		config := p(t)
		return func(rank int) pgroup.Config {
			c := config(rank)
			c.Rank = rank
			edit(&c)
			return c
		}
	}
}

// anyStore returns the configuration of the store of testcluster.Store.
func anyStore(t *testing.T) func(int) pgroup.Config {
	open := testcluster.Store(t)
	return func(int) pgroup.Config { return pgroup.Config{Store: open()} }
}

// inMemory uses one store that all ranks of this process share, also in a bubble.
func inMemory(t *testing.T) func(int) pgroup.Config {
	s := store.New(new(store.Memory))
	t.Cleanup(func() { _ = s.Close() })
	return func(int) pgroup.Config { return pgroup.Config{Store: s} }
}

// hosted uses a store that rank 0 hosts, and the others connect to.
func hosted(t *testing.T) func(int) pgroup.Config { return hostedAt(testcluster.Listen(t)) }

func hostedAt(l net.Listener) func(int) pgroup.Config {
	return func(rank int) pgroup.Config {
		if rank == 0 {
			return pgroup.Config{Listener: l}
		}
		return pgroup.Config{Address: l.Addr().String()}
	}
}

// served uses a store in the memory of this process, that no rank hosts.
func served(t *testing.T) func(int) pgroup.Config {
	url := "muster://" + serve(t)
	return func(int) pgroup.Config { return pgroup.Config{Address: url} }
}

// serve serves a store until the end of the test, and returns its address.
func serve(t *testing.T) string {
	t.Helper()
	return testcluster.Serve(t, new(store.Server))
}

// relayed uses a store that no rank hosts, which the ranks reach through two relays.
func relayed(t *testing.T) func(int) pgroup.Config {
	url := "muster://" + serve(t)
	relays := []string{relay(t, url), relay(t, url)}
	return func(rank int) pgroup.Config { return pgroup.Config{Address: "muster://" + relays[rank%2]} }
}

// relay runs a relay of the store at url until the end of the test, and returns its address.
func relay(t *testing.T, url string) string {
	t.Helper()
	r, err := store.NewRelay(t.Context(), url, nil)
	require.NoError(t, err)
	return testcluster.Serve(t, &store.Server{Engine: r})
}

// hooked returns a store in memory that carries out requests by way of do.
func hooked(t *testing.T, do func(ctx context.Context, req *wire.Request, rep *wire.Reply, next store.Engine) error) *store.Store {
	t.Helper()
	s := store.New(hook{new(store.Memory), do})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

type hook struct {
	store.Engine
	do func(ctx context.Context, req *wire.Request, rep *wire.Reply, next store.Engine) error
}

func (h hook) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	return h.do(ctx, req, rep, h.Engine)
}

var places = map[string]place{"store": anyStore, "hosted": hosted, "relayed": relayed}

// everywhere runs body on each rank of groups of each size, in each kind of place.
func everywhere(t *testing.T, body func(t *testing.T, g *pgroup.Group), sizes ...int) {
	if sizes == nil {
		sizes = []int{1, 2, 4, 7}
	}
	for _, n := range sizes {
		for name, at := range places {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) { ranks(t, n, at, body) })
		}
		t.Run(fmt.Sprintf("memory/%d", n), func(t *testing.T) { ranksInMemory(t, n, body) })
	}
}

// ranksInMemory is ranks with a group whose operations are decided in shared memory.
func ranksInMemory(t *testing.T, n int, body func(t *testing.T, g *pgroup.Group)) {
	t.Helper()
	gs := create(t, n, hosted)
	shareMemory(t, gs)
	together(n, func(rank int) { body(t, gs[rank]) })
}

// shareMemory makes the operations of ranks of this process be decided in shared memory.
func shareMemory(t *testing.T, gs []*pgroup.Group) {
	t.Helper()
	if err := pgroup.ShareMemory(gs); err != nil {
		t.Skip("SKIPPED: ", err)
	}
}

// ranks runs body on each of n ranks.
func ranks(t *testing.T, n int, at place, body func(t *testing.T, g *pgroup.Group)) {
	t.Helper()
	gs := create(t, n, at)
	together(n, func(rank int) { body(t, gs[rank]) })
}

// create returns a group of n ranks, which are closed at the end of the test.
func create(t *testing.T, n int, at place) []*pgroup.Group {
	t.Helper()
	config := at(t)
	gs := make([]*pgroup.Group, n)
	t.Cleanup(func() { closeAll(gs) })
	together(n, func(rank int) {
		c := config(rank)
		c.Rank, c.Size = rank, n
		if c.Timeout == 0 {
			c.Timeout = 20 * time.Second
		}
		g, err := pgroup.Create(t.Context(), c)
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
			return
		}
		gs[rank] = g
	})
	if t.Failed() {
		t.FailNow()
	}
	return gs
}

func closeAll(gs []*pgroup.Group) {
	together(len(gs), func(rank int) {
		if gs[rank] != nil {
			_ = gs[rank].Close()
		}
	})
}

// together calls f for each rank at once, and returns when all have returned.
func together(n int, f func(rank int)) {
	var wg sync.WaitGroup
	for rank := range n {
		wg.Go(func() { f(rank) })
	}
	wg.Wait()
}

// later calls f in a goroutine, and sends its error.
func later(f func() error) <-chan error {
	err := make(chan error, 1)
	go func() { err <- f() }()
	return err
}

func ok(t *testing.T, g *pgroup.Group, what string, err error) {
	t.Helper()
	assert.NoError(t, err, "rank %d: %s", g.Rank(), what)
}

func equal[T any](t *testing.T, g *pgroup.Group, what string, got, want T) {
	t.Helper()
	assert.Equal(t, want, got, "rank %d: %s", g.Rank(), what)
}

// rankError checks that err is a *RankError that matches target and has all of these words, and
// returns its Failure.
func rankError(t *testing.T, g *pgroup.Group, err, target error, words ...string) *wire.Failure {
	t.Helper()
	re, is := errors.AsType[*pgroup.RankError](err)
	if !is || re.Failure == nil || !errors.Is(err, target) {
		t.Errorf("rank %d: got %v, want a RankError that is %v", g.Rank(), err, target)
		return &wire.Failure{}
	}
	for _, w := range words {
		assert.ErrorContains(t, err, w, "rank %d: %q does not say %q", g.Rank(), err, w)
	}
	return re.Failure
}

// upTo returns the numbers 0 … n-1.
func upTo(n int) []int {
	vs := make([]int, n)
	for i := range vs {
		vs[i] = i
	}
	return vs
}

var within = testcluster.Within

// ended waits until ctx has ended.
func ended(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Error("the context has not ended")
	}
}
