package store_test

import (
	"context"
	"fmt"
	"net"
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

// team is a group whose ranks are sessions of their own.
type team struct {
	t      *testing.T
	stores []*store.Store
	gen    uint64
}

// teamOf joins the group of stores.
func teamOf(t *testing.T, stores ...*store.Store) *team {
	t.Helper()
	g := &team{t: t, stores: stores}
	g.all(func(rank int, s *store.Store) error {
		c := wire.Contribution{Group: "team", Run: "r", Rank: rank, Size: len(stores), Label: "rank " + strconv.Itoa(rank)}
		roll, err := s.Join(bounded(t), c, nil)
		if rank == 0 {
			g.gen = roll.Generation
		}
		return err
	})
	return g
}

// each does something in all ranks at once, and returns their errors.
func (g *team) each(do func(rank int, s *store.Store) error) []error {
	errs := make([]error, len(g.stores))
	var wg sync.WaitGroup
	for rank, s := range g.stores {
		wg.Go(func() { errs[rank] = do(rank, s) })
	}
	wg.Wait()
	return errs
}

// all is each of what must not fail.
func (g *team) all(do func(rank int, s *store.Store) error) {
	g.t.Helper()
	for rank, err := range g.each(do) {
		require.NoError(g.t, err, "rank %d", rank)
	}
}

// gather is an all-gather of what each rank says in it, and word; it returns what rank 0 had as that.
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

// rounds are all-gathers, barriers and sums, in all ranks, until hit is over, which begins in the middle of them.
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

// behind are n clients of the relay at addr, and m of s itself.
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

func patient(grace time.Duration) *store.Server {
	return &store.Server{Limits: store.ServerLimits{ReconnectTimeout: grace}}
}

// soon is patient, with a liveness timeout of a second: a test waits for a peer to be lost that is silent.
func soon(grace time.Duration) *store.Server {
	return &store.Server{Limits: store.ServerLimits{ReconnectTimeout: grace, LivenessTimeout: time.Second}}
}

// A relay that is killed takes nothing with it: the next one at its address goes on.
func TestARelayIsKilled(t *testing.T) {
	t.Parallel()
	s := serve(t, patient(comesBack), tcp)
	p, addr := relayProcess(t, s, "127.0.0.1:0")
	g := teamOf(t, behind(t, s, addr, 4, 2)...)
	g.rounds(func() {
		for range 3 {
			testcluster.Kill(t, p)
			p, _ = relayProcess(t, s, addr)
		}
	})
}

// A relay that stands still for longer than the store waits for it, or for a moment, goes on.
func TestARelayIsFrozen(t *testing.T) {
	t.Parallel()
	for name, long := range map[string]time.Duration{"a moment": 300 * time.Millisecond, "long": 1500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, soon(comesBack), tcp)
			p, addr := relayProcess(t, s, "127.0.0.1:0")
			g := teamOf(t, behind(t, s, addr, 4, 2)...)
			g.rounds(func() {
				testcluster.Freeze(t, p)
				<-time.After(long)
				testcluster.Thaw(t, p)
			})
		})
	}
}

// Sessions go on by any way: through another relay, and without one.
func TestOtherWays(t *testing.T) {
	t.Parallel()
	s := serve(t, patient(comesBack), tcp)
	first, a := relayProcess(t, s, "127.0.0.1:0")
	second, b := relayProcess(t, s, "127.0.0.1:0")
	g := teamOf(t, behind(t, s, a+","+b+","+s.addr, 4, 0)...)
	g.rounds(func() {
		testcluster.Kill(t, first)
		testcluster.Kill(t, second)
	})
}

// Ranks whose relay does not come back are lost together, in one verdict that says why. Who had voted is not named.
func TestARelayThatDoesNotComeBack(t *testing.T) {
	t.Parallel()
	s := serve(t, patient(100*time.Millisecond), tcp)
	p, addr := relayProcess(t, s, "127.0.0.1:0")
	g := teamOf(t, behind(t, s, addr, 3, 2)...)
	g.all(func(rank int, _ *store.Store) error { return g.barrier(bounded(t), rank, 1) })
	voted := make(chan error, 1)
	go func() { voted <- g.barrier(bounded(t), 1, 2) }()
	g.votes(1, 2, 4)
	testcluster.Kill(t, p)
	for _, rank := range []int{3, 4} {
		err := g.barrier(bounded(t), rank, 2)
		require.ErrorIs(t, err, store.ErrLost)
		v := verdictOf(t, err)
		require.Equal(t, []int{0, 2}, v.Lost)
		require.Contains(t, v.Reason, "their relay (pid ")
		require.Contains(t, v.Reason, "was cut off")
	}
	require.Error(t, <-voted)
	err := g.stores[3].Follow(bounded(t), wire.Contribution{Generation: g.gen, Rank: 3})
	require.Equal(t, []int{0, 1, 2}, verdictOf(t, err).Lost)
}

// votes waits until the store has rank's vote in barrier seq, as other finds out on a channel of its own.
func (g *team) votes(rank int, seq uint64, other int) {
	g.t.Helper()
	c := barrier(g.gen, other, 0)
	c.Channel = "probe"
	testcluster.Eventually(g.t, patience, func() bool {
		c.Seq++
		ctx, cancel := context.WithTimeout(bounded(g.t), 20*time.Millisecond)
		defer cancel()
		_, err := g.stores[other].Collect(ctx, c, nil)
		v := verdictOf(g.t, err)
		i := slices.Index(v.Missing, rank)
		return strings.HasPrefix(v.Doing[i], fmt.Sprintf("in barrier #%d ", seq))
	}, "the vote has come")
}

// One straggler never looks like eight: it is missing alone, though its relay holds votes back for it.
func TestAStragglerBehindARelay(t *testing.T) {
	t.Parallel()
	s := serve(t, new(store.Server), tcp)
	r := relay(t, s.addr, new(store.Server), tcp)
	g := teamOf(t, behind(t, s, r.addr, 8, 1)...)
	g.all(func(rank int, _ *store.Store) error { return g.barrier(bounded(t), rank, 1) })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	for rank, err := range g.each(func(rank int, _ *store.Store) error {
		if rank == 3 {
			return nil
		}
		return g.barrier(ctx, rank, 2)
	}) {
		if rank != 3 {
			require.ErrorIs(t, err, store.ErrTimeout)
			require.Equal(t, []int{3}, verdictOf(t, err).Missing)
		}
	}
	g.all(func(rank int, _ *store.Store) error { return g.barrier(bounded(t), rank, 3) })
}

// A rank that is silent towards its relay is lost, alone and by its own name, though the relay answers the store.
func TestASilentRankBehindARelay(t *testing.T) {
	t.Parallel()
	s := serve(t, soon(0), tcp)
	r := relay(t, s.addr, new(store.Server), tcp)
	proxy := testcluster.NewProxy(t, r.addr)
	g := teamOf(t, append(behind(t, s, r.addr, 7, 0), dial(t, proxy.Addr()))...)
	g.all(func(rank int, _ *store.Store) error { return g.barrier(bounded(t), rank, 1) })
	proxy.Blackhole(true)
	for rank, err := range g.each(func(rank int, _ *store.Store) error {
		if rank == 7 {
			return nil
		}
		return g.barrier(bounded(t), rank, 2)
	}) {
		if rank != 7 {
			require.ErrorIs(t, err, store.ErrLost)
			require.Equal(t, []int{7}, verdictOf(t, err).Lost)
			require.Equal(t, "rank 7", verdictOf(t, err).Reason)
		}
	}
	proxy.Cut(testcluster.RST)
}

// While a relay is silent nobody behind it is lost: then all of them are, since it was.
func TestASilentRelay(t *testing.T) {
	t.Parallel()
	s := serve(t, soon(100*time.Millisecond), tcp)
	proxy := testcluster.NewProxy(t, s.addr)
	r := relay(t, proxy.Addr(), new(store.Server), tcp)
	g := teamOf(t, behind(t, s, r.addr, 4, 1)...)
	proxy.Blackhole(true)
	err := g.barrier(bounded(t), 4, 1)
	require.ErrorIs(t, err, store.ErrLost)
	require.Equal(t, []int{0, 1, 2, 3}, verdictOf(t, err).Lost)
	require.Contains(t, verdictOf(t, err).Reason, "did not respond")
	proxy.Blackhole(false)
	proxy.Cut(testcluster.RST)
}

// A relay that is frozen, with ranks behind it that are not, is what errors name: those ranks are lost together, by their relay's fault, and no
// rank of another relay with them. They hear that the others have gone on without them when it stands still no more.
func TestAFrozenRelayIsNamed(t *testing.T) {
	t.Parallel()
	s := serve(t, soon(100*time.Millisecond), tcp)
	p, frozen := relayProcess(t, s, "127.0.0.1:0")
	_, other := relayProcess(t, s, "127.0.0.1:0")
	g := teamOf(t, append(behind(t, s, frozen, 8, 0), behind(t, s, other, 2, 1)...)...)
	g.all(func(rank int, _ *store.Store) error { return g.barrier(bounded(t), rank, 1) })
	testcluster.Freeze(t, p)
	for rank := 8; rank < 11; rank++ {
		err := g.barrier(bounded(t), rank, 2)
		require.ErrorIs(t, err, store.ErrLost)
		v := verdictOf(t, err)
		require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, v.Lost)
		require.Regexp(t, `^their relay \(pid \d+ on .*, .*\) did not respond$`, v.Reason)
	}
	testcluster.Thaw(t, p)
	for rank := range 8 {
		require.ErrorIs(t, g.barrier(bounded(t), rank, 2), store.ErrSessionLost, "rank %d", rank)
	}
}

// A deadline that passes while ranks have no relay names it, beside them: they may be back, so they are missing, and not lost.
func TestAMissingRelayIsNamed(t *testing.T) {
	t.Parallel()
	s := serve(t, patient(comesBack), tcp)
	p, addr := relayProcess(t, s, "127.0.0.1:0")
	g := teamOf(t, behind(t, s, addr, 8, 2)...)
	g.all(func(rank int, _ *store.Store) error { return g.barrier(bounded(t), rank, 1) })
	testcluster.Kill(t, p)
	var v *wire.Failure
	seq := uint64(1)
	testcluster.Eventually(t, patience, func() bool { // the store hears of its end
		seq++
		v = g.missed(8, seq)
		return v.Reason != ""
	}, "the relay is named")
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 9}, v.Missing)
	require.Regexp(t, `^8 of them: their relay \(pid \d+ on .*\) was cut off$`, v.Reason)
	relayProcess(t, s, addr)
	g.all(func(rank int, _ *store.Store) error { return g.barrier(bounded(t), rank, seq+1) })
}

// missed is the verdict of a barrier of whose ranks only one comes.
func (g *team) missed(rank int, seq uint64) *wire.Failure {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 50*time.Millisecond)
	defer cancel()
	err := g.barrier(ctx, rank, seq)
	require.ErrorIs(g.t, err, store.ErrTimeout)
	return verdictOf(g.t, err)
}

// A rank that does not read, or writes slowly, delays no other behind its relay, and is not lost for it.
func TestASlowRankBehindARelay(t *testing.T) {
	t.Parallel()
	s := serve(t, soon(0), tcp)
	r := relay(t, s.addr, new(store.Server), tcp)
	proxy := testcluster.NewProxy(t, r.addr)
	slow, err := store.Dial(bounded(t), proxy.Addr(), &store.DialOptions{LivenessTimeout: 10 * time.Second}) // on a busy machine all is slow
	require.NoError(t, err)
	t.Cleanup(func() { _ = slow.Close() })
	g := teamOf(t, append(behind(t, s, r.addr, 3, 0), slow)...)
	require.NoError(t, g.stores[0].Set(bounded(t), "large", make([]byte, 16<<20), nil))
	proxy.Throttle(4 << 20) // so that what is awaited below takes four seconds, both ways
	var busy sync.WaitGroup
	defer busy.Wait()
	busy.Go(func() {
		_, err := slow.Get(bounded(t), "large")
		require.NoError(t, err)
		require.NoError(t, slow.Set(bounded(t), "large", make([]byte, 16<<20), nil))
		require.NoError(t, g.barrier(bounded(t), 3, 1))
	})
	for range 200 {
		began := time.Now()
		works(t, g.stores[1])
		require.Less(t, time.Since(began), patience/4)
	}
	for rank, err := range g.each(func(rank int, _ *store.Store) error {
		if rank == 3 {
			return nil
		}
		return g.barrier(bounded(t), rank, 1)
	}) {
		require.NoError(t, err, "rank %d", rank)
	}
}

// counted counts the frames that come to a server, by what they are.
type counted struct {
	net.Listener
	mu     sync.Mutex
	frames map[wire.Op]int
	bytes  int
}

type countedConn struct {
	net.Conn
	of   *counted
	rest []byte
	pre  int
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &countedConn{Conn: c, of: l, pre: len(wire.Preface)}, nil
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.bytes += n
	c.rest = append(c.rest, b[:n]...)
	k := min(c.pre, len(c.rest))
	c.rest, c.pre = c.rest[k:], c.pre-k
	for len(c.rest) >= wire.HeaderLen {
		h, _ := wire.ParseHeader(c.rest, wire.MaxBody+wire.RelayOverhead)
		if len(c.rest) < wire.HeaderLen+int(h.Len) {
			break
		}
		c.of.frames[h.Op]++
		c.rest = c.rest[wire.HeaderLen+int(h.Len):]
	}
	return n, err
}

// The store's load grows with relays, not with ranks: of each barrier it gets one frame from each.
func TestVotesOfARelayAreOneFrame(t *testing.T) {
	t.Parallel()
	l, dialer := tcp(t)
	counts := &counted{Listener: l, frames: map[wire.Op]int{}}
	s := serve(t, new(store.Server), func(*testing.T) (net.Listener, func(context.Context, string, string) (net.Conn, error)) {
		return counts, dialer
	})
	relays := []*service{relay(t, s.addr, new(store.Server), tcp), relay(t, s.addr, new(store.Server), tcp)}
	var stores []*store.Store
	for i := range 16 {
		stores = append(stores, dial(t, relays[i%2].addr))
	}
	g := teamOf(t, stores...)
	const learn, rounds = 5, 200
	for seq := range uint64(learn) { // who is in the group
		g.all(func(rank int, _ *store.Store) error { return g.barrier(bounded(t), rank, seq+1) })
	}
	counts.mu.Lock()
	clear(counts.frames)
	counts.mu.Unlock()
	g.all(func(rank int, _ *store.Store) error {
		for seq := range uint64(rounds) {
			if err := g.barrier(bounded(t), rank, learn+seq+1); err != nil {
				return err
			}
		}
		return nil
	})
	counts.mu.Lock()
	defer counts.mu.Unlock()
	require.GreaterOrEqual(t, counts.frames[wire.OpVotes], 2*rounds)
	require.Less(t, counts.frames[wire.OpVotes], 6*rounds, "16 ranks have voted %d times", rounds) // a busy machine is late by 2 ms sometimes
	require.Less(t, counts.frames[wire.OpRelay], rounds)
}

// Silent ranks are sent liveness probes, all of a relay in one frame, and so they answer.
func TestAnswersOfARelaysRanksAreOneFrame(t *testing.T) {
	t.Parallel()
	l, dialer := tcp(t)
	counts := &counted{Listener: l, frames: map[wire.Op]int{}}
	s := serve(t, &store.Server{Limits: store.ServerLimits{LivenessTimeout: 1200 * time.Millisecond}}, func(*testing.T) (net.Listener, func(context.Context, string, string) (net.Conn, error)) {
		return counts, dialer
	})
	r := relay(t, s.addr, new(store.Server), tcp)
	const ranks, questions = 33, 5
	g := teamOf(t, behind(t, s, r.addr, ranks, 0)...)
	counts.mu.Lock()
	clear(counts.frames)
	counts.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), (questions+1)*400*time.Millisecond) // they are probed 0.4 to 0.6 s after they have been heard
	defer cancel()
	require.ErrorIs(t, g.barrier(ctx, 0, 1), store.ErrTimeout)
	counts.mu.Lock()
	frames := counts.frames[wire.OpRelay]
	counts.mu.Unlock()
	t.Logf("%d frames", frames)
	require.GreaterOrEqual(t, frames, 1)
	require.Less(t, frames, questions*(ranks-1)/2, "%d ranks answer up to %d questions", ranks-1, questions)
	g.all(func(rank int, _ *store.Store) error { return g.barrier(bounded(t), rank, 2) })
}

// A store that shuts down says so to the ranks behind its relays; one that is gone is told as gone, at once.
func TestTheStoreBehindARelayEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *service) error{
		"in order": func(s *service) error { return s.Shutdown(bounded(t)) },
		"at once":  func(s *service) error { return s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, new(store.Server), tcp)
			r := relay(t, s.addr, new(store.Server), tcp)
			c := dial(t, r.addr)
			waiting := make(chan error, 1)
			go func() { _, err := c.Wait(bounded(t), "never"); waiting <- err }()
			testcluster.Eventually(t, patience, func() bool { return store.Calls(c.Engine()) == 1 }, "it waits")
			works(t, c)
			began := time.Now()
			require.NoError(t, end(s))
			require.ErrorIs(t, <-waiting, store.ErrUnavailable)
			require.Less(t, time.Since(began), 4*time.Second, "a store that keeps nothing does not come back")
			_, err := store.Dial(bounded(t), r.addr, nil)
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.ErrorContains(t, err, "the relay cannot reach the store at "+s.addr)
		})
	}
}

// Calls of the relay's own process have a connection of their own; Close ends everything, and may be called twice.
func TestARelaysOwnCalls(t *testing.T) {
	t.Parallel()
	s := serve(t, new(store.Server), tcp)
	e, err := store.NewRelay(bounded(t), "muster://"+s.addr, nil)
	require.NoError(t, err)
	own := store.New(e)
	works(t, own)
	waiting := make(chan error, 1)
	go func() { _, err := own.Wait(bounded(t), "never"); waiting <- err }()
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

func TestRelaysOfNothing(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]error{
		"tcp://127.0.0.1:1":                         store.ErrInvalid,
		"muster://127.0.0.1:1/prefix":               store.ErrInvalid,
		"muster://127.0.0.1":                        store.ErrInvalid,
		"muster://127.0.0.1:1,nobody":               store.ErrInvalid,
		"muster://127.0.0.1:1?secret-file=/nowhere": nil,
		"muster://127.0.0.1:1":                      store.ErrUnavailable,
		"%":                                         store.ErrInvalid,
	} {
		_, err := store.NewRelay(bounded(t), url, nil)
		require.Error(t, err, url)
		if want != nil {
			require.ErrorIs(t, err, want, url)
		}
	}
}
