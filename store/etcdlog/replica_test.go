package etcdlog_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/linear"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

// load is a load on the store while processes fail, until end: ranks of a group in barriers and
// all-gathers, and as many clients, whose calls must be linearizable.
type load struct {
	t       testing.TB
	over    atomic.Bool
	running sync.WaitGroup
	rounds  atomic.Int64 // rounds of all ranks
	history *linear.History
}

// newLoad starts n ranks and n other clients. dial makes the connection of client i.
func newLoad(t testing.TB, n int, dial func(i int) *store.Store) *load {
	t.Helper()
	l := &load{t: t, history: linear.NewHistory()}
	for i := range n {
		l.running.Go(func() { l.fails(fmt.Sprint("rank ", i), l.rank(i, n, dial(i))) })
		l.running.Go(func() { l.calls(dial(i + 1)) })
	}
	t.Cleanup(func() {
		l.over.Store(true)
		l.running.Wait()
	})
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
	ctx := l.t.Context()
	g, err := pgroup.Create(ctx, pgroup.Config{Rank: rank, Size: n, Store: s, Host: "node", Timeout: 2 * testTimeout})
	if err != nil {
		return err
	}
	defer g.Close()
	for round := int64(0); ; round++ {
		if rank == 0 {
			<-time.After(5 * time.Millisecond) // other tests need processor time, too
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

// period is the time after which clients switch to other keys, so that the history of each key is
// short.
const period = 2 * time.Second

// calls makes calls of a client, of which some end before they have an answer.
func (l *load) calls(s *store.Store) {
	chance, began := rand.New(rand.NewPCG(rand.Uint64(), 0)), time.Now()
	c := l.history.Client(s, chance)
	for !l.over.Load() {
		one, cancel := context.WithTimeout(l.t.Context(), time.Duration(20+chance.IntN(3000))*time.Millisecond)
		c.Call(one, fmt.Sprintf("key %d of %d", chance.IntN(3), time.Since(began)/period))
		cancel()
		<-time.After(time.Duration(chance.IntN(10)) * time.Millisecond)
	}
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
	n, unknown := l.history.Counts()
	l.t.Logf("%d rounds of ranks; %d calls, %d of them with an unknown outcome", l.rounds.Load(), n, unknown)
	assert.Greater(l.t, n, 20)
	assert.Empty(l.t, l.history.Check())
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
	takeovers := testcluster.Form(10, 200)
	members := etcdBehind(t, testcluster.Form(1, 3), nil)
	r := newReplicas(t, members, etcdlog.Options{OutageTimeout: time.Second}, 0, func(int) []string { return addresses(members) })
	r.leader(t)
	l := newLoad(t, 4, r.ways(t, members))
	l.more(20)
	clients := []*store.Store{r.dial(t), r.open(t, members[0].client)}
	var took []time.Duration
	for i := range takeovers {
		leader, s := r.leader(t), clients[i%len(clients)]
		_, err := s.Add(bounded(t), "takeovers", 1)
		require.NoError(t, err)
		testcluster.Kill(t, r.procs[leader])
		began := time.Now()
		count, err := s.Add(bounded(t), "takeovers", 1)
		require.NoError(t, err)
		took = append(took, time.Since(began))
		require.EqualValues(t, 2*i+2, count)
		r.restart(t, leader)
		l.more(20)
		<-time.After(rand.N(500 * time.Millisecond))
	}
	l.end()
	slices.Sort(took)
	t.Logf("%d takeovers took %v to %v; median %v, p99 %v", takeovers, took[0], took[takeovers-1], took[takeovers/2], took[takeovers*99/100])
	const failureTimeout = 700 * time.Millisecond // the default
	require.Less(t, took[takeovers/2], failureTimeout/2)
	require.Less(t, took[takeovers-1], 3*time.Second)
}

// TestFrozenLeader checks that clients, with default timeouts, move to another leader when theirs is
// stopped, and that no rank is lost when it continues. Clients that find the leader in etcd move at
// once. TestSimulation checks what a leader that continues answers.
func TestFrozenLeader(t *testing.T) {
	t.Parallel()
	r, members := threeReplicas(t)
	leader := r.leader(t)
	ways := r.ways(t, members)
	l := newLoad(t, 4, ways)
	l.more(20)
	found, relayed := ways(1), ways(2)
	testcluster.Freeze(t, r.procs[leader])
	r.leader(t, leader)
	frozen := time.Now()
	require.NoError(t, found.Set(bounded(t), "key", nil, nil))
	require.NoError(t, relayed.Set(bounded(t), "key", nil, nil))
	// The time for a busy machine; the liveness timeout is 10 s.
	require.Less(t, time.Since(frozen), 6*time.Second)
	l.more(20)
	testcluster.Thaw(t, r.procs[leader])
	l.more(20)
	l.end()
}

// TestRunEnds checks that a replica in this process ends with its context, as a leader, as a
// standby, and without an etcd. It checks the log levels of changes of the leader, too: an orderly
// handover is not logged as a warning; a replaced leader is one, but not an error of the store.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	var log testcluster.Log
	o := etcdlog.Options{Root: newRoot(), OutageTimeout: 3 * time.Second, FailureTimeout: 5 * time.Second, Logger: log.Logger()} // longer than a slow disk stalls etcd
	type replica struct {
		end   func()
		leads chan *store.Memory
	}
	begin := func(l net.Listener) replica {
		leads := make(chan *store.Memory, 10)
		return replica{run(t, &etcdlog.Replica{Client: client(t, members), Options: o, Listener: l, OnLead: func(m *store.Memory) { leads <- m }}), leads}
	}
	one := begin(testcluster.Listen(t))
	m := <-one.leads
	require.NotNil(t, m)
	two := begin(testcluster.Listen(t))
	require.NoError(t, store.New(m).Set(bounded(t), "key", []byte("v"), nil))
	one.end()
	require.Nil(t, <-one.leads)
	m = <-two.leads
	has(t, store.New(m), "key", []byte("v"))
	require.Contains(t, log.String(), "handing over the leadership")
	require.NotContains(t, log.String(), "level=WARN")

	_, err := client(t, members).Delete(t.Context(), o.Root+"leader")
	require.NoError(t, err)
	require.Nil(t, <-two.leads)
	m = <-two.leads
	require.Regexp(t, "level=WARN .*"+etcdlog.ErrReplaced.Error(), log.String())
	require.NotContains(t, log.String(), "level=ERROR")

	// A Unix socket has no host on which to listen for standbys.
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	require.NoError(t, err)
	three := begin(socket)
	testcluster.Kill(t, members[0].Process)
	require.Nil(t, <-two.leads)
	require.ErrorIs(t, m.Err(), store.ErrUnavailable)
	_, err = store.New(m).Get(bounded(t), "key")
	require.ErrorIs(t, err, store.ErrUnavailable)
	two.end()
	three.end()
	members[0].start(t)
	four := begin(testcluster.Listen(t))
	has(t, store.New(<-four.leads), "key", []byte("v"))
	four.end()
}
