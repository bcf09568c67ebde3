package store_test

import (
	"context"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// stacksServer serves srv, and returns its address and its log.
func stacksServer(t *testing.T, srv *store.Server) (addr string, log *testcluster.Log) {
	t.Helper()
	log = new(testcluster.Log)
	srv.Logger = log.Logger()
	return testcluster.Serve(t, srv), log
}

func dialAs(t *testing.T, addr string, secret []byte) *store.Store {
	t.Helper()
	return testcluster.Dial(t, addr, &store.DialOptions{Secret: secret})
}

// stuckHere is a function that the stacks of this process show.
func stuckHere(stop chan struct{}) { <-stop }

func TestStacks(t *testing.T) {
	addr, log := stacksServer(t, &store.Server{Stacks: true})
	a, b := dialAs(t, addr, nil), dialAs(t, addr, nil)
	p := join(t, a, b)
	for range 3 { // the client that is asked has no call, or one
		text, err := a.Stacks(bounded(t), p.gen, 1)
		require.NoError(t, err)
		require.Regexp(t, `^goroutine 1 \[[^\n]+\n(?s:.*)main\.main`, text)
		require.LessOrEqual(t, len(text), 64<<10)
	}
	require.Contains(t, log.String(), `msg="stacks requested"`)
	require.Contains(t, log.String(), `rank 1 of group \"g\"`)
	for _, req := range []wire.Request{{Rev: p.gen, Delta: 2}, {Rev: p.gen, Delta: -1}, {Rev: p.gen + 1}} {
		_, err := a.Stacks(bounded(t), req.Rev, int(req.Delta))
		require.ErrorIs(t, err, store.ErrNotFound)
	}
	p.goesOn(t, 1)
}

// TestStacksOfManyGoroutines checks that a pool of goroutines is one entry, behind the others.
func TestStacksOfManyGoroutines(t *testing.T) {
	stop := make(chan struct{})
	var started, stopped sync.WaitGroup
	pool := func(release chan struct{}) {
		started.Done()
		stuckHere(release)
	}
	started.Add(1001)
	for range 1000 {
		stopped.Go(func() { pool(stop) })
	}
	stopped.Go(func() {
		started.Done()
		<-stop
	})
	started.Wait()
	all := make([]byte, 64<<20)
	var text string
	require.Eventually(t, func() bool { // some may not be in stuckHere yet
		text = store.GroupStacks(string(all[:runtime.Stack(all, true)]))
		return strings.Contains(text, " and 999 more [chan receive")
	}, 10*time.Second, 10*time.Millisecond, text)
	close(stop)
	stopped.Wait()
	last := text[strings.LastIndex(text[:strings.Index(text, " and 999 more")], "goroutine "):]
	require.Contains(t, last, "stuckHere")
	require.Equal(t, 1, strings.Count(text, ".stuckHere"))
	require.Equal(t, 1, strings.Count(last, "\n\n"), "the largest pool is last")
	require.True(t, strings.HasPrefix(text, "goroutine 1 "))
	require.NotRegexp(t, `\(0x|\+0x`, text)
}

// TestStacksOfManyCallers checks that several callers get an answer each, even if they ask for the
// same rank.
func TestStacksOfManyCallers(t *testing.T) {
	addr, _ := stacksServer(t, &store.Server{Stacks: true})
	p := join(t, dialAs(t, addr, nil), dialAs(t, addr, nil))
	var asked sync.WaitGroup
	for range 8 {
		s := dialAs(t, addr, nil)
		for rank := range 2 {
			asked.Go(func() {
				text, err := s.Stacks(bounded(t), p.gen, rank)
				if err != nil || !strings.Contains(text, "goroutine ") {
					t.Error(rank, err)
				}
			})
		}
	}
	asked.Wait()
}

func TestStacksWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	addr, _ := stacksServer(t, &store.Server{Stacks: true})
	proxy := testcluster.NewProxy(t, addr)
	a, b := dialAs(t, addr, nil), dialAs(t, proxy.Addr(), nil)
	p := join(t, a, b)
	proxy.Blackhole(true)
	_, err := a.Stacks(bounded(t), p.gen, 1)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, "within 2s: its process may be stopped")
	proxy.Blackhole(false)
}

// TestTooManyStacksAtOnce checks that a connection has 16 requests in goroutines at most, and the store
// 64: the next one is refused at once, and later ones are carried out.
func TestTooManyStacksAtOnce(t *testing.T) {
	s := serve(t, &store.Server{Stacks: true}, tcp)
	proxy := testcluster.NewProxy(t, s.addr)
	p := join(t, s.client(t), dial(t, proxy.Addr()))
	proxy.Blackhole(true)
	ask := func(b []byte, id uint64) []byte {
		return wire.AppendRequest(b, &wire.Request{Op: wire.OpStacks, ID: id, Rev: p.gen, Delta: 1})
	}
	var all []byte // in one write, so that none ends before the last is read
	for id := range uint64(17) {
		all = ask(all, id+1)
	}
	conns := make([]net.Conn, 5)
	for i := range conns {
		conns[i] = s.greeted(t)
	}
	for _, c := range conns[:4] {
		send(t, c, all)
		h, rep := receiveReply(t, c)
		require.Equal(t, uint64(17), h.ID)
		require.Equal(t, wire.CodeFull, rep.Code)
	}
	send(t, conns[4], ask(nil, 1))
	_, rep := receiveReply(t, conns[4])
	require.Equal(t, wire.CodeFull, rep.Code)
	require.Equal(t, "64 processes are asked for their stacks already", rep.Detail)
	proxy.Blackhole(false)
	for range 16 {
		require.NotEqual(t, wire.CodeFull, receive(t, conns[0]).Code)
	}
	send(t, conns[0], ask(nil, 18))
	require.NotEqual(t, wire.CodeFull, receive(t, conns[0]).Code)
}

func TestStacksNeedARight(t *testing.T) {
	addr, log := stacksServer(t, &store.Server{Access: []store.Access{
		{Secret: secretOf("a"), Write: true}, {Secret: secretOf("b"), Prefix: "g", Stacks: true}, {Secret: secretOf("c"), Prefix: "x/", Write: true, Stacks: true},
	}})
	all, debug, other := dialAs(t, addr, secretOf("a")), dialAs(t, addr, secretOf("b")), dialAs(t, addr, secretOf("c"))
	p := join(t, all, dialAs(t, addr, secretOf("a")))
	text, err := debug.Stacks(bounded(t), p.gen, 1)
	require.NoError(t, err)
	require.Contains(t, text, "goroutine ")
	for _, s := range []*store.Store{all, other} {
		_, err := s.Stacks(bounded(t), p.gen, 1)
		require.ErrorIs(t, err, store.ErrDenied)
		_, err = s.Stacks(bounded(t), p.gen+7, 1)
		require.ErrorIs(t, err, store.ErrDenied, "it does not show which groups there are")
	}
	require.Contains(t, log.String(), "no right to see stacks")
	off, _ := stacksServer(t, new(store.Server))
	s := dialAs(t, off, nil)
	q := join(t, s, dialAs(t, off, nil))
	_, err = s.Stacks(bounded(t), q.gen, 1)
	require.ErrorIs(t, err, store.ErrDenied)
	require.ErrorContains(t, err, "--stacks")
}

// TestStacksThroughARelay checks that a rank behind a relay answers, and that a peer of the relay may
// not ask: the relay's rights are not its own.
func TestStacksThroughARelay(t *testing.T) {
	addr, _ := stacksServer(t, &store.Server{Stacks: true})
	relay, err := store.NewRelay(bounded(t), "muster://"+addr, nil)
	require.NoError(t, err)
	near, _ := stacksServer(t, &store.Server{Engine: relay, Stacks: true})
	a, b := dialAs(t, addr, nil), dialAs(t, near, nil)
	p := join(t, a, b)
	text, err := a.Stacks(bounded(t), p.gen, 1)
	require.NoError(t, err)
	require.Contains(t, text, "goroutine ")
	_, err = b.Stacks(bounded(t), p.gen, 0)
	require.ErrorIs(t, err, store.ErrDenied)
	require.ErrorContains(t, err, "ask the store itself")
}

func TestStacksOfThisProcess(t *testing.T) {
	m := new(store.Memory)
	defer m.Close()
	s := store.New(m)
	p := join(t, s, s)
	text, err := s.Stacks(bounded(t), p.gen, 1)
	require.NoError(t, err)
	require.Contains(t, text, "TestStacksOfThisProcess")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = s.Stacks(ctx, p.gen, 5)
	require.ErrorIs(t, err, store.ErrNotFound)
}
