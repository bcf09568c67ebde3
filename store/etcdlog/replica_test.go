package etcdlog_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

// load is a load on the store while processes fail, until end: ranks of a group in barriers and
// all-gathers, adds, a lease, and a watch.
type load struct {
	t       testing.TB
	ctx     context.Context // context of operations that last as long as the load
	over    atomic.Bool
	running sync.WaitGroup
	rounds  atomic.Int64 // rounds of all ranks
	added   atomic.Int64 // by adds that succeeded
	lease   *store.Lease
	check   *store.Store
}

// pace is the pause between two calls of a loop of the load. A watch that is interrupted for 10 s must
// find fewer changes than the store keeps, and the load must leave processor time for other tests.
const pace = 5 * time.Millisecond

// newLoad starts n ranks, and holds a lease of ttl. dial makes the connection of client i. The load
// ends with ctx at the latest.
func newLoad(ctx context.Context, t testing.TB, n int, ttl time.Duration, dial func(i int) *store.Store) *load {
	t.Helper()
	l := &load{t: t, ctx: ctx, check: dial(0)}
	for i := range n {
		l.running.Go(func() { l.fails(fmt.Sprint("rank ", i), l.rank(i, n, dial(i))) })
		l.running.Go(func() { l.fails("adds", l.adds(dial(i))) })
	}
	var err error
	holder := dial(n)
	l.lease, err = holder.Lease(bounded(t), ttl)
	require.NoError(t, err)
	require.NoError(t, holder.Set(bounded(t), "held", []byte("by a lease"), &store.SetOptions{Lease: l.lease}))
	l.running.Go(func() { l.fails("watch", l.watch(dial(n+1))) })
	t.Cleanup(func() { l.over.Store(true) })
	return l
}

func (l *load) fails(who string, err error) {
	if err != nil {
		l.t.Errorf("%s: %v", who, err)
		l.over.Store(true)
	}
}

// rank runs rounds until rank 0 sends that a round is the last one.
func (l *load) rank(rank, n int, s *store.Store) error {
	ctx := l.ctx
	g, err := pgroup.Create(ctx, pgroup.Config{Rank: rank, Size: n, Store: s, Host: "node", Timeout: 2 * testTimeout})
	if err != nil {
		return err
	}
	defer g.Close()
	for round := int64(0); ; round++ {
		if rank == 0 {
			<-time.After(pace)
		}
		mine := []int64{round, int64(rank), 0}
		if rank == 0 && l.over.Load() {
			mine[2] = 1
		}
		all, err := pgroup.AllGather(ctx, g, mine)
		if err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		for i, v := range all {
			if v[0] != round || v[1] != int64(i) {
				return fmt.Errorf("round %d: rank %d has %v of rank %d", round, rank, v, i)
			}
		}
		if err := g.Barrier(ctx); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		l.rounds.Add(1)
		if all[0][2] == 1 {
			return g.Shutdown(ctx)
		}
	}
}

// adds counts, and checks that each add takes effect exactly once.
func (l *load) adds(s *store.Store) error {
	for !l.over.Load() {
		if _, err := s.Add(bounded(l.t), "count", 1); err != nil {
			return err
		}
		l.added.Add(1)
		<-time.After(pace)
	}
	return nil
}

// watch sets a key repeatedly, and checks that its watch returns all values in order.
func (l *load) watch(s *store.Store) error {
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	after, err := s.Revision(ctx)
	if err != nil {
		return err
	}
	n, sets := 0, make(chan error, 1)
	go func() {
		defer close(sets)
		for i := 0; !l.over.Load(); i++ {
			if _, err := s.Wait(ctx, "watched/turn "+fmt.Sprint(i)); err != nil {
				sets <- err
				return
			}
		}
	}()
	set := func() error { return s.Set(ctx, "watched/turn "+fmt.Sprint(n), nil, nil) }
	if err := set(); err != nil {
		return err
	}
	for e, err := range s.Watch(ctx, "watched/", after) {
		if err != nil {
			return err
		}
		if want := fmt.Sprint("watched/turn ", n); e.Key != want {
			return fmt.Errorf("the watch brought %q, want %q", e.Key, want)
		}
		n++
		<-time.After(pace)
		if err := set(); err != nil {
			return err
		}
		if l.over.Load() {
			n++
			return errors.Join(set(), <-sets) // the watch may wait for one more change
		}
	}
	return errors.New("the watch has ended")
}

// more waits until the ranks have run that many more rounds.
func (l *load) more(rounds int64) {
	l.t.Helper()
	until := l.rounds.Load() + rounds
	testcluster.Eventually(l.t, testTimeout, func() bool { return l.rounds.Load() >= until || l.over.Load() }, "the ranks go on")
}

// end ends the load, and checks its results.
func (l *load) end() {
	l.t.Helper()
	l.over.Store(true)
	l.running.Wait()
	n, err := l.check.Add(bounded(l.t), "count", 0)
	assert.NoError(l.t, err)
	assert.Equal(l.t, l.added.Load(), n, "of adds that succeeded")
	assert.NoError(l.t, l.lease.Err())
	v, err := l.check.Get(bounded(l.t), "held")
	assert.NoError(l.t, err)
	assert.Equal(l.t, "by a lease", string(v))
	l.t.Logf("%d rounds of ranks, %d adds", l.rounds.Load(), n)
}

// ways returns a dial function whose clients reach the replicas by their addresses, by etcd, and
// through a relay that uses etcd.
func (r *replicas) ways(t testing.TB, members []*member) func(i int) *store.Store {
	c := &etcdlog.Cluster{Endpoints: addresses(members), Root: r.options.Root}
	relay, err := store.NewRelay(within(t, testTimeout), "muster://"+r.addrs(), &store.DialOptions{Wait: true, Resolve: c.Leader, WaitReplaced: c.WaitReplaced})
	require.NoError(t, err)
	t.Cleanup(func() { _ = relay.Close() })
	at := serve(t, relay)
	return func(i int) *store.Store {
		switch i % 3 {
		case 0:
			return r.dial(t)
		case 1:
			return r.open(t, members[0].client)
		}
		return open(t, "muster://"+at)
	}
}

// TestKilledLeader kills the leader again and again under load. Nothing is lost, and the end of the
// leader's process is detected at once: no client waits for the failure timeout. With MUSTER_SOAK=1
// it kills 200 leaders, over an etcd of three members.
func TestKilledLeader(t *testing.T) {
	takeovers, ctx, count := 10, bounded(t), 1
	if os.Getenv("MUSTER_SOAK") != "" {
		takeovers, ctx, count = 200, t.Context(), 3
	}
	members := etcdBehind(t, count, func(peer string) string { return peer })
	r := newReplicas(t, members, etcdlog.Options{OutageTimeout: time.Second}, 0, func(int) []string { return addresses(members) })
	r.leader(t)
	l := newLoad(ctx, t, 4, 5*time.Second, r.ways(t, members))
	took := r.takeovers(t, l, takeovers, []*store.Store{r.dial(t), r.open(t, members[0].client)}, func(p *launch.Process) { testcluster.Kill(t, p) })
	require.Less(t, took[takeovers/2], etcdFailureTimeout/2)
	require.Less(t, took[takeovers-1], 3*time.Second)
}

// takeovers ends the leader n times, and then the load. It returns how long the next changes took, the
// shortest first.
func (r *replicas) takeovers(t *testing.T, l *load, n int, clients []*store.Store, end func(*launch.Process)) (took []time.Duration) {
	t.Helper()
	l.more(20)
	for i := range n {
		leader, s := r.leader(t), clients[i%len(clients)]
		_, err := s.Add(bounded(t), "takeovers", 1)
		require.NoError(t, err)
		end(r.procs[leader])
		began := time.Now()
		count, err := s.Add(bounded(t), "takeovers", 1)
		require.NoError(t, err)
		took = append(took, time.Since(began))
		require.EqualValues(t, 2*i+2, count)
		<-r.procs[leader].Done()
		r.restart(t, leader)
		l.more(20)
		<-time.After(rand.N(500 * time.Millisecond))
	}
	l.end()
	slices.Sort(took)
	t.Logf("%d takeovers took %v to %v; median %v, p99 %v", n, took[0], took[n-1], took[n/2], took[n*99/100])
	return took
}

// TestLeaderEnds checks that a leader that gets SIGTERM hands over at once, without failure
// detection.
func TestLeaderEnds(t *testing.T) {
	r, members := threeReplicas(t)
	r.leader(t)
	l := newLoad(bounded(t), t, 2, 5*time.Second, r.ways(t, members))
	var ended []*launch.Process
	took := r.takeovers(t, l, 5, []*store.Store{r.dial(t)}, func(p *launch.Process) {
		require.NoError(t, p.Signal(syscall.SIGTERM))
		ended = append(ended, p)
	})
	for _, p := range ended {
		require.NoError(t, p.Err())
	}
	require.Less(t, took[len(took)/2], etcdFailureTimeout)
}

// etcdFailureTimeout is the default of etcdlog.Options.
const etcdFailureTimeout = 700 * time.Millisecond

// TestFrozenLeader checks that a leader that was stopped for longer than all timeouts returns no
// stale data when it continues. Its clients, with default timeouts, have moved to another leader
// meanwhile, and no rank is lost. Clients that find the leader in etcd move at once.
func TestFrozenLeader(t *testing.T) {
	t.Parallel()
	r, members := threeReplicas(t)
	leader := r.leader(t)
	ways := r.ways(t, members)
	l := newLoad(bounded(t), t, 4, time.Minute, ways)
	l.more(20)
	s, other, relayed := ways(0), ways(1), ways(2)
	require.NoError(t, s.Set(bounded(t), "key", []byte("old"), nil))
	front := r.args[leader].Front

	// The frozen process finds these requests in its sockets when it continues.
	asked, err := store.Dial(bounded(t), front, &store.DialOptions{LivenessTimeout: time.Hour})
	require.NoError(t, err)
	t.Cleanup(func() { _ = asked.Close() })
	testcluster.Freeze(t, r.procs[leader])
	ask := map[string]func(ctx context.Context) (string, error){
		"get": func(ctx context.Context) (string, error) {
			v, err := asked.Get(ctx, "key")
			return string(v), err
		},
		"set": func(ctx context.Context) (string, error) { return "set", asked.Set(ctx, "key", []byte("late"), nil) },
		"new connection": func(ctx context.Context) (string, error) {
			s, err := store.Dial(ctx, front, nil)
			if err != nil {
				return "", err
			}
			defer s.Close()
			v, err := s.Get(ctx, "key")
			return string(v), err
		},
	}
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	type answer struct {
		name, value string
		err         error
	}
	answers := make(chan answer, len(ask))
	for name, f := range ask {
		go func() {
			v, err := f(ctx)
			answers <- answer{name, v, err}
		}()
	}
	r.leader(t, leader)
	frozen := time.Now()
	// The client watches the leader key.
	require.NoError(t, other.Set(bounded(t), "key", []byte("new"), nil))
	require.NoError(t, relayed.Set(bounded(t), "key", []byte("new"), nil))
	// The time for a busy machine; the liveness timeout is 10 s.
	require.Less(t, time.Since(frozen), 6*time.Second)
	// This takes the liveness timeout.
	require.NoError(t, s.Set(bounded(t), "key", []byte("new"), nil))
	l.more(20)
	began := time.Now()
	testcluster.Thaw(t, r.procs[leader])
	await := time.After(2 * time.Second)
	for left := len(ask); left > 0; {
		select {
		case a := <-answers:
			left--
			t.Logf("%s: %q, %v, after %v", a.name, a.value, a.err, time.Since(began).Round(time.Millisecond))
			require.Error(t, a.err, "%s was answered by a leader that was replaced", a.name)
		case <-await:
			cancel() // repeated calls get nothing from a standby
			await = nil
		}
	}
	v, err := s.Get(bounded(t), "key")
	require.NoError(t, err)
	require.Equal(t, "new", string(v))
	l.end()
}

// TestRunEnds checks that a replica in this process ends with its context, as a leader, as a
// standby, and without an etcd.
func TestRunEnds(t *testing.T) {
	members := etcd(t)
	o := etcdlog.Options{Root: newRoot(), OutageTimeout: 300 * time.Millisecond}
	type replica struct {
		end   func()
		leads chan *store.Memory
	}
	begin := func() replica {
		leads := make(chan *store.Memory, 10)
		// A Unix socket has no host on which to listen for standbys.
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
		require.NoError(t, err)
		return replica{run(t, &etcdlog.Replica{Client: client(t, members), Options: o, Listener: l, OnLead: func(m *store.Memory) { leads <- m }}), leads}
	}
	one := begin()
	m := <-one.leads
	require.NotNil(t, m)
	two := begin()
	require.NoError(t, store.New(m).Set(bounded(t), "key", []byte("v"), nil))
	one.end()
	require.Nil(t, <-one.leads)
	m = <-two.leads
	has(t, store.New(m), "key", []byte("v"))
	three := begin()
	testcluster.Kill(t, members[0].Process)
	require.Nil(t, <-two.leads)
	require.ErrorIs(t, m.Err(), store.ErrUnavailable)
	_, err := store.New(m).Get(bounded(t), "key")
	require.ErrorIs(t, err, store.ErrUnavailable)
	two.end()
	three.end()
	members[0].start(t)
	four := begin()
	has(t, store.New(<-four.leads), "key", []byte("v"))
	four.end()
}
