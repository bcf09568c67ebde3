package store_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// process is a durable server in a separate process, which can be killed and started again at the
// same address.
type process struct {
	*launch.Process
	addr, arg string
}

// newProcess starts a server with a reconnect timeout; 0 is the default.
func newProcess(t *testing.T, grace time.Duration) *process {
	t.Helper()
	p := &process{addr: testcluster.Port(t)}
	p.arg = fmt.Sprint(t.TempDir(), " ", p.addr, " ", grace)
	p.start(t)
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	p.Process, _ = testcluster.Addressed(t, "server", p.arg)
}

func (p *process) kill(t *testing.T) { testcluster.Kill(t, p.Process) }

// TestKillNine kills a durable server again and again while a group works. No call of a rank fails, each
// change is made exactly once, and a lease lives.
func TestKillNine(t *testing.T) {
	t.Parallel()
	const kills, ranks = 6, 8
	p := newProcess(t, 0)
	ctx := bounded(t)
	var stores []*store.Store
	for range ranks {
		stores = append(stores, dial(t, p.addr))
	}
	g := teamOf(t, stores...)
	holder, watcher := dial(t, p.addr), dial(t, p.addr)
	lease, err := holder.Lease(ctx, 10*time.Second)
	require.NoError(t, err)
	require.NoError(t, holder.Set(ctx, "held", []byte("by lease"), &store.SetOptions{Lease: lease}))
	sum := func() int64 {
		n, err := watcher.Add(ctx, "sum", 0)
		assert.NoError(t, err)
		return n
	}
	g.rounds(func() {
		for range kills {
			before := sum()
			for ctx.Err() == nil && sum() < before+10*ranks { // some work between two kills
			}
			p.kill(t)
			p.start(t)
		}
	})
	holds(t, holder, "held", "by lease")
	require.NoError(t, lease.Err())
	require.NoError(t, lease.Close(ctx))
	_, err = holder.Get(ctx, "held")
	require.ErrorIs(t, err, store.ErrNotFound)
}

// TestRestartsDoNotRenewTheTimeToReconnect kills a durable server more often than the reconnect
// timeout passes. A process that died with the first server is declared lost all the same, and a
// client that reconnects each time is not.
func TestRestartsDoNotRenewTheTimeToReconnect(t *testing.T) {
	t.Parallel()
	const grace, every, most = 3 * time.Second, 2 * time.Second, 60 * time.Second
	p := newProcess(t, grace)
	proxy := testcluster.NewProxy(t, p.addr)
	dead, err := store.Dial(t.Context(), proxy.Addr(), nil)
	require.NoError(t, err)
	defer dead.Close()
	s := dial(t, p.addr)
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	var wg sync.WaitGroup
	var membership store.Formed
	for rank, s := range []*store.Store{s, dead} {
		wg.Go(func() {
			r, err := s.Join(ctx, wire.Contribution{Group: "g", Rank: rank, Size: 2, Label: fmt.Sprint("rank ", rank)}, nil)
			assert.NoError(t, err)
			if rank == 0 {
				membership = r
			}
		})
	}
	wg.Wait()
	over := make(chan error, 1)
	go func() { over <- s.Follow(ctx, wire.Contribution{Generation: membership.Generation}) }()
	p.kill(t)
	proxy.Refuse(true)
	proxy.Cut(testcluster.RST)
	for began, restarts := time.Now(), 0; ; restarts++ {
		p.start(t)
		select {
		case err := <-over:
			require.ErrorIs(t, err, store.ErrLost)
			e, _ := errors.AsType[*store.Error](err)
			require.Equal(t, []int{1}, e.Failure.Lost)
			require.NotZero(t, restarts)
			t.Logf("lost after %v and %d restarts", time.Since(began), restarts)
			return
		case <-time.After(every):
			p.kill(t)
		}
	}
}

// TestAStoreThatDoesNotComeBack checks that calls to a durable store that is down end with their
// contexts, and that the error says since when the client is not connected.
func TestAStoreThatDoesNotComeBack(t *testing.T) {
	p := newProcess(t, 0)
	s := dial(t, p.addr)
	works(t, s)
	p.kill(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := s.Set(ctx, "k", nil, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, p.addr+": not connected for")
	p.start(t)
	works(t, s)
}
