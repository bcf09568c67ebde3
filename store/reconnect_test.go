package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// TestChangesUnderWayToAStoreThatIsGone checks calls to a store that cannot be reached any longer, or has lost
// its data: changes under way may have taken effect, and are not sent again; a watch does not go on in other
// revisions. backup.txt has the other calls of clients of a store that lost its data.
func TestChangesUnderWayToAStoreThatIsGone(t *testing.T) {
	for says, becomes := range map[string]func(t *testing.T, p *testcluster.Proxy){
		"reset":                   func(_ *testing.T, p *testcluster.Proxy) { p.Refuse(true) },
		"the store was restarted": func(t *testing.T, p *testcluster.Proxy) { p.Target(serve(t, new(store.Server), tcp).addr) },
	} {
		t.Run(says, func(t *testing.T) {
			old := serve(t, new(store.Server), tcp)
			c, proxy := old.through(t)
			waits := waiting(t, c, 20)
			watched := start(func() error { return last(c.Watch(t.Context(), "", 1)) })
			counts(t, old.Engine, func(n *store.ServerStatus) bool { return n.Watches == 1 })
			proxy.Down.Stall(true)
			adds := startMany(20, func() error { _, err := c.Add(t.Context(), "n", 1); return err })
			counts(t, old.Engine, func(n *store.ServerStatus) bool { return len(n.Ops) > int(wire.OpAdd) && n.Ops[wire.OpAdd] == 20 })
			becomes(t, proxy)
			proxy.Cut(testcluster.RST)
			proxy.Stall(false)
			for range 20 {
				err := <-adds
				require.ErrorIs(t, err, store.ErrUnknown)
				require.ErrorIs(t, err, store.ErrUnavailable)
				require.ErrorContains(t, err, says)
				require.ErrorContains(t, err, proxy.Addr())
			}
			n, err := c.Add(bounded(t), "n", 1)
			if says == "reset" {
				require.ErrorIs(t, err, store.ErrUnavailable)
				require.NotErrorIs(t, err, store.ErrUnknown)
				require.ErrorContains(t, err, proxy.Addr())
				require.ErrorIs(t, <-watched, store.ErrUnavailable)
			} else {
				require.ErrorIs(t, <-watched, store.ErrCompacted, "revisions start again")
				require.NoError(t, err)
				require.EqualValues(t, 1, n, "none was sent again")
				require.NoError(t, c.Close())
			}
			for range 20 {
				require.NotErrorIs(t, <-waits, store.ErrUnknown)
			}
		})
	}
}

// TestNumbersOfAStoreThatLostItsData checks that a store that was restarted without its data grants no
// lease, and forms no group, of a number that a client has from before: the old handle would end the new
// lease.
func TestNumbersOfAStoreThatLostItsData(t *testing.T) {
	old := serve(t, new(store.Server), tcp)
	c, proxy := old.through(t)
	group := func() uint64 {
		var rep wire.Reply
		require.NoError(t, c.Do(bounded(t), &wire.Request{Op: wire.OpJoin, Group: wire.Contribution{Group: "g", Size: 1}}, &rep))
		return rep.Rev
	}
	lease := func() *store.Lease {
		l, err := c.Lease(bounded(t), time.Minute)
		require.NoError(t, err)
		return l
	}
	generation, before := group(), lease()
	proxy.Target(serve(t, new(store.Server), tcp).addr)
	proxy.Cut(testcluster.RST)
	absent(t, c, "key") // a read, which is repeated
	after := lease()
	require.NoError(t, c.Set(bounded(t), "key", nil, &store.SetOptions{Lease: after}))
	require.Greater(t, after.ID(), before.ID())
	require.NoError(t, before.Close(bounded(t)))
	_, err := c.Get(bounded(t), "key")
	require.NoError(t, err)
	require.NoError(t, after.Close(bounded(t)))
	require.Greater(t, group(), generation)
}

// TestContextThatEndsWithoutAConnection checks that the error of a call whose context ends while
// there is no connection says so, and says whether the call may have taken effect.
func TestContextThatEndsWithoutAConnection(t *testing.T) {
	s := serve(t, &store.Server{Limits: store.ServerLimits{ReconnectTimeout: comesBack}}, tcp)
	c, proxy := s.through(t)
	works(t, c)
	proxy.Stall(true)
	sent, cancel := context.WithCancel(t.Context())
	adding := start(func() error { _, err := c.Add(sent, "sent", 1); return err })
	testcluster.Eventually(t, testTimeout, func() bool { return store.Calls(c.Engine()) == 1 }, "it is sent")
	proxy.Cut(testcluster.RST)
	testcluster.Eventually(t, testTimeout, func() bool { return store.ConnOf(c.Engine()) == nil }, "the client has seen the end")
	short := testcluster.Within(t, 20*time.Millisecond)
	_, err := c.Add(short, "unsent", 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, store.ErrUnknown)
	require.ErrorContains(t, err, proxy.Addr()+": not connected for")
	cancel()
	err = <-adding
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, store.ErrUnknown)
	proxy.Stall(false)
	works(t, c)
	absent(t, c, "unsent")
	_, err = c.Get(bounded(t), "sent")
	require.ErrorIs(t, err, store.ErrNotFound, "it had not arrived, and was given up")
}

// TestTheWindow checks that changes wait when the window of changes without a reply is full.
func TestTheWindow(t *testing.T) {
	const n = 1500
	s := serve(t, &store.Server{Limits: store.ServerLimits{ReconnectTimeout: comesBack}}, tcp)
	for _, cuts := range []int{0, 10} {
		t.Run(fmt.Sprint(cuts, " cuts"), func(t *testing.T) {
			c, proxy := s.through(t)
			key := t.Name()
			proxy.Delay(5 * time.Millisecond)
			var breaking sync.WaitGroup
			breaking.Go(func() {
				for range cuts {
					works(t, c)
					proxy.Cut(testcluster.RST)
				}
			})
			together(t, n, func() error { _, err := c.Add(bounded(t), key, 1); return err })
			breaking.Wait()
			sum, err := c.Add(bounded(t), key, 0)
			require.NoError(t, err)
			require.EqualValues(t, n, sum)
		})
	}
}

// TestTheWindowEnds checks that calls that wait for the window end with the store, as sent calls do.
func TestTheWindowEnds(t *testing.T) {
	const n = 1500
	c, proxy := serve(t, patient(), tcp).through(t)
	works(t, c)
	proxy.Stall(true)
	errs := startMany(n, func() error { _, err := c.Add(t.Context(), "n", 1); return err })
	testcluster.Eventually(t, testTimeout, func() bool { return store.Calls(c.Engine()) == 1000 }, "the window is full")
	proxy.Refuse(true)
	proxy.Cut(testcluster.RST)
	late := time.After(testTimeout)
	for i := range n {
		select {
		case err := <-errs:
			require.ErrorIs(t, err, store.ErrUnavailable)
		case <-late:
			t.Fatalf("only %d of %d calls have ended", i, n)
		}
	}
	_, err := c.Add(bounded(t), "n", 1) // the window is still full
	require.ErrorIs(t, err, store.ErrUnavailable)
	proxy.Stall(false)
	proxy.Refuse(false)
	sum, err := c.Add(bounded(t), "n", 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, sum)
}

// TestTheWindowInBytes checks that recorded replies have a limit in bytes, too, and that calls
// continue beyond it.
func TestTheWindowInBytes(t *testing.T) {
	each(t, func(t *testing.T, s *service) {
		c, ctx := s.client(t), bounded(t)
		require.NoError(t, c.Set(ctx, "large", make([]byte, wire.MaxValue), nil))
		var out sync.WaitGroup
		for range 12 {
			out.Go(func() { _, _ = c.Swap(ctx, "large", nil, nil) })
		}
		out.Wait()
		works(t, c)
	})
}

// TestCancelRacesTheAnswer checks waits whose reply races with their cancel, in a store of this process and
// at a server: each has one of the two outcomes, and nothing of it is left.
func TestCancelRacesTheAnswer(t *testing.T) {
	m, srv := new(store.Memory), serve(t, new(store.Server), tcp)
	c := srv.client(t)
	for name, tc := range map[string]struct {
		s, other *store.Store
		waits    int
		left     func() int
		within   time.Duration // nothing is left
	}{
		"memory": {store.New(m), store.New(m), 4000, func() int { return store.Waiting(m) }, 0},
		"client": {c, srv.client(t), 600, func() int { return store.Cancelled(c.Engine()) }, testTimeout},
	} {
		for i := range tc.waits {
			key := fmt.Sprint(i)
			ctx, cancel := context.WithCancel(t.Context())
			set := start(func() error {
				defer cancel()
				return tc.other.Set(t.Context(), key, []byte("v"), nil)
			})
			if i%2 == 0 {
				go cancel()
			}
			v, err := tc.s.Wait(ctx, key)
			if err != nil {
				require.ErrorIs(t, err, context.Canceled, name)
			} else {
				require.Equal(t, [][]byte{[]byte("v")}, v, name)
			}
			require.NoError(t, <-set, name)
		}
		works(t, tc.s)
		testcluster.Eventually(t, tc.within, func() bool { return tc.left() == 0 }, "no wait, and no cancel, is left")
		require.NoError(t, tc.s.Close())
		require.NoError(t, tc.s.Close())
	}
	require.Zero(t, m.Keys())
}

// The tests below make several connections of one session without a client.

// handshake sends a hello. If resume is not nil, it resumes the session of that reply.
func (s *service) handshake(t *testing.T, resume *wire.Reply) (net.Conn, wire.Reply) {
	t.Helper()
	c := s.raw(t)
	hello := wire.Request{Op: wire.OpHello, Key: "a test"}
	if resume != nil {
		hello.Resume, hello.Incarnation, hello.Value = uint64(resume.N), resume.Rev, resume.Value
	}
	send(t, c, wire.AppendRequest([]byte(wire.Preface), &hello))
	h, rep := receiveReply(t, c)
	require.Equal(t, wire.OpHello, h.Op)
	return c, rep
}

// ask sends a request and returns its reply.
func ask(t *testing.T, c net.Conn, req wire.Request) wire.Reply {
	t.Helper()
	send(t, c, wire.AppendRequest(nil, &req))
	for {
		h, rep := receiveReply(t, c)
		if h.Op == wire.OpProbe {
			continue
		}
		require.Equal(t, req.Op, h.Op)
		require.Equal(t, req.ID, h.ID)
		return rep
	}
}

// TestStaleConnectionsUnderLoad checks that requests that keep coming on old connections have no
// effect while the session is resumed by one connection after the other.
func TestStaleConnectionsUnderLoad(t *testing.T) {
	eachWith(t, store.ServerLimits{ReconnectTimeout: comesBack}, func(t *testing.T, s *service) {
		_, welcome := s.handshake(t, nil)
		var writing sync.WaitGroup
		next := uint64(1)
		for range 30 {
			c, back := s.handshake(t, &welcome)
			require.Equal(t, welcome.N, back.N)
			n := counted(t, c)
			require.GreaterOrEqual(t, n+1, next)
			next = n + 1
			from := next
			writing.Go(func() { // each adds 1 under its number, so the counter is the last number
				for i := from; ; i++ {
					if _, err := c.Write(wire.AppendRequest(nil, &wire.Request{Op: wire.OpAdd, ID: i, Number: i, Acked: from - 1, Key: "n", Add: 1})); err != nil {
						return
					}
				}
			})
		}
		c, _ := s.handshake(t, &welcome)
		writing.Wait()
		n := counted(t, c)
		require.Equal(t, n, counted(t, c))
		require.Equal(t, wire.CodeInvalid, ask(t, c, wire.Request{Op: wire.OpAdd, ID: 1, Number: n + 2, Key: "n"}).Code)
		require.Equal(t, wire.CodeOK, ask(t, c, wire.Request{Op: wire.OpAdd, ID: 2, Number: n + 1, Acked: n, Key: "n"}).Code)
	})
}

// counted returns the value of the counter n, 0 if all adds were cut off too soon.
func counted(t *testing.T, c net.Conn) (n uint64) {
	t.Helper()
	rep := ask(t, c, wire.Request{Op: wire.OpGet, ID: 1 << 40, Key: "n"})
	if rep.Code == wire.CodeOK {
		_, err := fmt.Sscan(string(rep.Value), &n)
		require.NoError(t, err)
	}
	return n
}

func TestWhatDoesNotResumeOpensASession(t *testing.T) {
	eachWith(t, store.ServerLimits{ReconnectTimeout: comesBack}, func(t *testing.T, s *service) {
		mine, welcome := s.handshake(t, nil)
		require.Len(t, welcome.Values, 0)
		require.Equal(t, []int64{0, int64(comesBack)}, welcome.Nums[:2])
		for name, change := range map[string]func(*wire.Reply){
			"wrong token":         func(r *wire.Reply) { r.Value = bytes.Repeat([]byte{1}, len(r.Value)) },
			"no token":            func(r *wire.Reply) { r.Value = nil },
			"half a token":        func(r *wire.Reply) { r.Value = r.Value[:len(r.Value)/2] },
			"another incarnation": func(r *wire.Reply) { r.Rev++ },
			"unknown session":     func(r *wire.Reply) { r.N += 1000 },
			"the store's own":     func(r *wire.Reply) { r.N = 1 << 62 },
		} {
			asked := welcome
			change(&asked)
			c, rep := s.handshake(t, &asked)
			require.NotEqual(t, welcome.N, rep.N, name)
			require.Equal(t, welcome.Rev, rep.Rev, name)
			require.NotEqual(t, welcome.Value, rep.Value, name)
			require.EqualValues(t, wire.CodeOK, ask(t, c, wire.Request{Op: wire.OpAdd, ID: 1, Number: 1, Key: "new"}).Code, name)
		}
		require.EqualValues(t, 1, ask(t, mine, wire.Request{Op: wire.OpAdd, ID: 1, Number: 1, Key: "n", Add: 1}).N)
	})
}

// TestCloseEndsAllCalls checks that calls whose reply Close does not wait for return ErrClosed, and ErrUnknown too
// if they are changes that were sent. Others wait for the window, or for the server to read.
func TestCloseEndsAllCalls(t *testing.T) {
	t.Parallel()
	add := func(c *store.Store) error { _, err := c.Add(context.Background(), "n", 1); return err }
	get := func(c *store.Store) error { _, err := c.Get(context.Background(), "n"); return err }
	set := func(c *store.Store) error {
		return c.Set(context.Background(), "large", make([]byte, wire.MaxValue), nil)
	}
	for name, tc := range map[string]struct {
		call        func(*store.Store) error
		calls, sent int // sent is how many are, at least
		unknown     bool
	}{
		"a change": {add, 1, 1, true}, "a read": {get, 1, 1, false}, "too many changes": {add, 1500, 1000, true}, "large changes": {set, 6, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			c, proxy := serve(t, new(store.Server), tcp).through(t)
			works(t, c)
			proxy.Stall(true)
			errs := startMany(tc.calls, func() error { return tc.call(c) })
			testcluster.Eventually(t, testTimeout, func() bool { return store.Calls(c.Engine()) >= tc.sent }, "they are sent")
			require.NoError(t, c.Close())
			unknown := 0
			for range tc.calls {
				err := <-errs
				require.ErrorIs(t, err, store.ErrClosed)
				if errors.Is(err, store.ErrUnknown) {
					unknown++
				}
			}
			require.Equal(t, tc.unknown, unknown >= tc.sent)
			require.True(t, tc.unknown || unknown == 0)
		})
	}
}

// TestAFrameThatTheStoreCannotRead checks that a frame that the store cannot parse is an error of
// its call, and is not sent again. The session and its other calls continue.
func TestAFrameThatTheStoreCannotRead(t *testing.T) {
	t.Parallel()
	for name, behindRelay := range map[string]bool{"directly": false, "through a relay": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limits := store.ServerLimits{ReconnectTimeout: comesBack}
			s := serve(t, &store.Server{Engine: new(store.Memory), Limits: limits}, tcp)
			at := s.addr
			if behindRelay {
				at = relay(t, s.addr, &store.Server{Limits: limits}, tcp).addr
			}
			c := dial(t, at)
			held, err := c.Lease(bounded(t), time.Minute)
			require.NoError(t, err)
			waiting := startWait(t, c, "k")
			bad := wire.Request{Op: wire.OpAdd, Key: strings.Repeat("n", wire.MaxKey+1), Add: 1}
			for range 3 {
				err = c.Engine().Do(bounded(t), &bad, new(wire.Reply))
				require.ErrorIs(t, err, store.ErrTooLarge)
				require.ErrorContains(t, err, "the store rejected the request: ")
			}
			n, err := c.Add(bounded(t), "n", 1)
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			require.NoError(t, c.Set(bounded(t), "k", nil, &store.SetOptions{Lease: held}), "the session is the same")
			require.NoError(t, <-waiting)
			counts(t, s.Engine, func(n *store.ServerStatus) bool { return n.Accepted <= 5 })
		})
	}
}

// TestConnectionsThatBringNothing checks that a client whose connections end one after the other,
// without a reply, waits longer and longer between them.
func TestConnectionsThatBringNothing(t *testing.T) {
	t.Parallel()
	s := serve(t, new(store.Server), tcp)
	var dials atomic.Int32
	ctx := testcluster.Within(t, time.Second)
	c := testcluster.Dial(t, s.addr, &store.DialOptions{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &deafAfterHello{Conn: conn}, err
	}})
	_, err := c.Wait(ctx, "k")
	require.ErrorIs(t, err, store.ErrTimeout)
	require.Less(t, dials.Load(), int32(20))
	require.Greater(t, dials.Load(), int32(3))
}

// deafAfterHello is a connection that ends at its second write.
type deafAfterHello struct {
	net.Conn
	writes atomic.Int32
}

func (c *deafAfterHello) Write(b []byte) (int, error) {
	if c.writes.Add(1) > 1 {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}
