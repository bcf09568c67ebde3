package store_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// team is a group in which each rank has its own session.
type team struct {
	t      *testing.T
	stores []*store.Store
	gen    uint64
}

// teamOf returns a group of stores, after all of them have joined.
func teamOf(t *testing.T, stores ...*store.Store) *team {
	t.Helper()
	g := &team{t: t, stores: stores}
	g.all(func(rank int, s *store.Store) error {
		c := wire.Contribution{Group: "team", Run: "r", Rank: rank, Size: len(stores), Label: "rank " + strconv.Itoa(rank)}
		membership, err := s.Join(bounded(t), c, nil)
		if rank == 0 {
			g.gen = membership.Generation
		}
		return err
	})
	return g
}

// each calls do in all ranks concurrently, and returns the error of each rank.
func (g *team) each(do func(rank int, s *store.Store) error) []error {
	errs := make([]error, len(g.stores))
	var wg sync.WaitGroup
	for rank, s := range g.stores {
		wg.Go(func() { errs[rank] = do(rank, s) })
	}
	wg.Wait()
	return errs
}

// all calls do in all ranks concurrently, and fails the test if a rank returns an error.
func (g *team) all(do func(rank int, s *store.Store) error) {
	g.t.Helper()
	for rank, err := range g.each(do) {
		require.NoError(g.t, err, "rank %d", rank)
	}
}

// gather runs an all-gather of rank, which contributes a payload with seq, rank and word. It checks
// the payloads of all ranks, and returns the word of rank 0.
func (g *team) gather(ctx context.Context, rank int, seq uint64, word string) (string, error) {
	c := wire.Contribution{Generation: g.gen, Rank: rank, Seq: seq, Verb: "all-gather", Root: -1, Want: wire.WantAll}
	values, err := g.stores[rank].Collect(ctx, c, fmt.Appendf(nil, "%d of %d:%s", seq, rank, word))
	if err != nil {
		return "", err
	}
	for other := range g.stores {
		if len(values) != len(g.stores) || !strings.HasPrefix(string(values[other]), fmt.Sprintf("%d of %d:", seq, other)) {
			return "", fmt.Errorf("#%d: %q", seq, values)
		}
	}
	_, word, _ = strings.Cut(string(values[0]), ":")
	return word, nil
}

func (g *team) barrier(ctx context.Context, rank int, seq uint64) error {
	_, err := g.stores[rank].Collect(ctx, barrier(g.gen, rank, seq), nil)
	return err
}

// rounds runs adds, all-gathers and barriers in all ranks. After 20 rounds it calls hit
// concurrently, and it stops 20 rounds after hit has returned. It checks that each add was counted
// exactly once.
func (g *team) rounds(hit func()) {
	g.t.Helper()
	const before, after = 20, 20
	ctx, rounds := bounded(g.t), 0
	began, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		<-began
		hit()
	}()
	g.all(func(rank int, s *store.Store) error {
		for i, left := 1, after; ; i++ {
			word := ""
			if rank == 0 {
				if rounds = i; i == before {
					close(began)
				}
				select {
				case <-over:
					if left--; left == 0 {
						word = "last"
					}
				default:
				}
			}
			if _, err := s.Add(ctx, "sum", 1); err != nil {
				return err
			}
			word, err := g.gather(ctx, rank, uint64(2*i-1), word)
			if err != nil {
				return err
			}
			if err := g.barrier(ctx, rank, uint64(2*i)); err != nil || word == "last" {
				return err
			}
		}
	})
	<-over
	sum, err := g.stores[0].Add(ctx, "sum", 0)
	require.NoError(g.t, err)
	require.EqualValues(g.t, rounds*len(g.stores), sum, "each is counted once")
}

// behind returns n clients of the relay at addr, and m clients connected to s directly.
func behind(t *testing.T, s *service, addr string, n, m int) (stores []*store.Store) {
	t.Helper()
	for range n {
		stores = append(stores, dial(t, addr))
	}
	for range m {
		stores = append(stores, s.client(t))
	}
	return stores
}

// patient returns a server at which sessions wait for their clients.
func patient() *store.Server {
	return &store.Server{Limits: store.ServerLimits{ReconnectTimeout: comesBack}}
}

// soon returns a server with a liveness timeout of one second, for tests that wait until a silent peer is
// detected.
func soon(grace time.Duration) *store.Server {
	return &store.Server{Limits: store.ServerLimits{ReconnectTimeout: grace, LivenessTimeout: time.Second}}
}

// TestARelayIsFrozen checks that sessions survive a relay that is stopped for a moment, or for
// longer than the liveness timeout.
func TestARelayIsFrozen(t *testing.T) {
	t.Parallel()
	for name, long := range map[string]time.Duration{"a moment": 300 * time.Millisecond, "long": 1500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, soon(comesBack), tcp)
			p := newProcess(t, "relay", s.addr)
			g := teamOf(t, behind(t, s, p.addr, 4, 2)...)
			g.rounds(func() {
				testcluster.Freeze(t, p.Process)
				<-time.After(long)
				testcluster.Thaw(t, p.Process)
			})
		})
	}
}

// TestOtherWays checks that sessions resume over another path: through another relay, and by a
// direct connection to the store.
func TestOtherWays(t *testing.T) {
	t.Parallel()
	s := serve(t, patient(), tcp)
	first, second := newProcess(t, "relay", s.addr), newProcess(t, "relay", s.addr)
	g := teamOf(t, behind(t, s, first.addr+","+second.addr+","+s.addr, 4, 0)...)
	g.rounds(func() {
		first.kill(t)
		second.kill(t)
	})
}

// without runs barrier seq in all ranks but one, and returns their errors.
func (g *team) without(ctx context.Context, absent int, seq uint64) []error {
	errs := g.each(func(rank int, _ *store.Store) error {
		if rank == absent {
			return nil
		}
		return g.barrier(ctx, rank, seq)
	})
	return slices.Delete(errs, absent, absent+1)
}

// TestASilentRankBehindARelay checks that a rank that does not answer its relay is lost in time, alone and
// by its own name, although the relay answers the store, and even if it has nothing else to send.
func TestASilentRankBehindARelay(t *testing.T) {
	t.Parallel()
	const liveness = 3 * time.Second
	for name, others := range map[string]int{"a busy relay": 6, "a quiet relay": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, &store.Server{Limits: store.ServerLimits{LivenessTimeout: liveness}}, tcp)
			r := relay(t, s.addr, new(store.Server), tcp)
			proxy := testcluster.NewProxy(t, r.addr)
			g := teamOf(t, append(behind(t, s, r.addr, others, 1), dial(t, proxy.Addr()))...)
			g.goesOn(1)
			silent := others + 1
			proxy.Blackhole(true)
			began := time.Now()
			for _, err := range g.without(bounded(t), silent, 2) {
				require.Equal(t, fmt.Sprint("rank ", silent), lost(t, err, silent).Reason)
			}
			require.Less(t, time.Since(began), 4*liveness)
			proxy.Cut(testcluster.RST)
		})
	}
}

// TestAFrozenRelayIsNamed checks that errors name a frozen relay, although the ranks behind it run:
// those ranks are lost together, with the relay as the reason, and no rank of another relay is
// lost. When the relay runs again, the lost ranks get ErrSessionLost.
func TestAFrozenRelayIsNamed(t *testing.T) {
	t.Parallel()
	s := serve(t, soon(100*time.Millisecond), tcp)
	frozen, other := newProcess(t, "relay", s.addr), newProcess(t, "relay", s.addr)
	g := teamOf(t, append(behind(t, s, frozen.addr, 8, 0), behind(t, s, other.addr, 2, 1)...)...)
	g.goesOn(1)
	testcluster.Freeze(t, frozen.Process)
	for rank := 8; rank < 11; rank++ {
		v := lost(t, g.barrier(bounded(t), rank, 2), 0, 1, 2, 3, 4, 5, 6, 7)
		require.Regexp(t, `^their relay \(pid \d+ on .*, .*\) did not respond$`, v.Reason)
	}
	testcluster.Thaw(t, frozen.Process)
	for rank := range 8 {
		require.ErrorIs(t, g.barrier(bounded(t), rank, 2), store.ErrSessionLost, "rank %d", rank)
	}
}

// TestASlowRankBehindARelay checks that a rank that reads or writes slowly does not delay the other
// ranks behind its relay, and is not lost.
func TestASlowRankBehindARelay(t *testing.T) {
	t.Parallel()
	s := serve(t, &store.Server{Limits: store.ServerLimits{LivenessTimeout: time.Second}}, tcp) // less than a transfer
	r := relay(t, s.addr, new(store.Server), tcp)
	proxy := testcluster.NewProxy(t, r.addr)
	// The liveness timeout is long since all ranks are slow on a busy machine.
	slow := testcluster.Dial(t, proxy.Addr(), &store.DialOptions{LivenessTimeout: 10 * time.Second})
	g := teamOf(t, append(behind(t, s, r.addr, 3, 0), slow)...)
	require.NoError(t, g.stores[0].Set(bounded(t), "large", make([]byte, 3<<20), nil))
	proxy.Throttle(2 << 20) // the transfers below take one and a half seconds in each direction
	var busy sync.WaitGroup
	defer busy.Wait()
	busy.Go(func() {
		_, err := slow.Get(bounded(t), "large")
		require.NoError(t, err)
		require.NoError(t, slow.Set(bounded(t), "large", make([]byte, 3<<20), nil))
		require.NoError(t, g.barrier(bounded(t), 3, 1))
	})
	for range 200 {
		began := time.Now()
		works(t, g.stores[1])
		require.Less(t, time.Since(began), testTimeout/4)
	}
	for _, err := range g.without(bounded(t), 3, 1) {
		require.NoError(t, err)
	}
}

// TestVotesOfARelayAreOneFrame checks that the load of the store grows with the number of relays, and not
// with the number of ranks: the votes of a relay's ranks for a barrier come in one frame, by their bytes.
func TestVotesOfARelayAreOneFrame(t *testing.T) {
	t.Parallel()
	m := new(store.Memory)
	s := serve(t, &store.Server{Engine: m}, tcp)
	relays := []*service{relay(t, s.addr, new(store.Server), tcp), relay(t, s.addr, new(store.Server), tcp)}
	const ranks, learn, rounds = 16, 5, 200
	var stores []*store.Store
	for i := range ranks {
		stores = append(stores, dial(t, relays[i%2].addr))
	}
	g := teamOf(t, stores...)
	for seq := range uint64(learn) { // the relays learn which ranks are in the group
		g.goesOn(seq + 1)
	}
	received := func() uint64 { return counts(t, m, func(*store.ServerStatus) bool { return true }).In }
	before := received()
	g.all(func(rank int, _ *store.Store) error {
		for seq := range uint64(rounds) {
			if err := g.barrier(bounded(t), rank, learn+seq+1); err != nil {
				return err
			}
		}
		return nil
	})
	vote := &wire.Vote{}
	one := len(wire.AppendVotes(nil, &wire.Contribution{Verb: "barrier"}, 1, wire.AppendVote(nil, vote)))
	// On a busy machine a vote is sometimes more than 2 ms late, and travels in a separate frame.
	got := received() - before
	t.Logf("%d bytes for each vote, which alone has %d", got/ranks/rounds, one)
	require.Less(t, got, uint64(ranks*rounds*one*3/4))
	require.GreaterOrEqual(t, got, uint64(ranks*rounds*len(wire.AppendVote(nil, vote))))
}

// TestAnswersOfARelaysRanksAreOneFrame checks that the store sends the liveness probes of all
// silent ranks behind a relay in one frame, and that the answers come back in one frame, by their bytes.
func TestAnswersOfARelaysRanksAreOneFrame(t *testing.T) {
	t.Parallel()
	m := new(store.Memory)
	s := serve(t, &store.Server{Engine: m, Limits: store.ServerLimits{LivenessTimeout: 1200 * time.Millisecond}}, tcp)
	r := relay(t, s.addr, new(store.Server), tcp)
	const ranks, questions = 33, 5
	g := teamOf(t, behind(t, s, r.addr, ranks, 0)...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := start(func() error { return g.barrier(ctx, 0, 1) })
	began, before := time.Now(), counts(t, m, func(n *store.ServerStatus) bool { return n.Calls == 1 })
	// A rank is probed 0.4 to 0.6 s after its last message, and later by a server that was stopped.
	after := counts(t, m, func(*store.ServerStatus) bool { return time.Since(began) > (questions+1)*400*time.Millisecond })
	separate := ranks * len(wire.AppendRelayRequest(nil, 1, &wire.Request{Op: wire.OpProbe}))
	most := separate * int(time.Since(began)/(400*time.Millisecond))
	cancel()
	require.ErrorIs(t, <-result, store.ErrCancelled)
	for what, got := range map[string]uint64{"questions": after.Out - before.Out, "answers": after.In - before.In} {
		t.Logf("%d bytes of %s", got, what)
		require.Positive(t, got)
		require.Less(t, got, uint64(most/2), what)
	}
	g.goesOn(2)
}

// TestARelaysOwnCalls checks that calls of the process of the relay use a separate connection,
// that Close ends everything, and that a second Close is allowed.
func TestARelaysOwnCalls(t *testing.T) {
	t.Parallel()
	s := serve(t, new(store.Server), tcp)
	e, err := store.NewRelay(bounded(t), "muster://"+s.addr, nil)
	require.NoError(t, err)
	own := store.New(e)
	works(t, own)
	waiting := startWait(t, own, "never")
	srv := serve(t, &store.Server{Engine: e}, tcp)
	rank := dial(t, srv.addr)
	works(t, rank)
	require.NoError(t, own.Close())
	require.ErrorIs(t, <-waiting, store.ErrClosed)
	require.ErrorIs(t, own.Set(bounded(t), "k", nil, nil), store.ErrClosed)
	require.NoError(t, e.Close())
	_, err = rank.Get(bounded(t), "works")
	require.ErrorIs(t, err, store.ErrUnavailable, "its relay is closed")
}
