package store_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

func TestDialRefusedConnection(t *testing.T) {
	addr := testcluster.Port(t)
	_, err := store.Dial(bounded(t), addr, nil)
	require.ErrorIs(t, err, store.ErrUnavailable)
	ctx := testcluster.Within(t, 50*time.Millisecond)
	_, err = store.Dial(ctx, addr, &store.DialOptions{Wait: true})
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Regexp(t, `answered for [\d.]+ms$`, err.Error())
}

// TestDialInvalid checks addresses, secrets and files with which no server can be reached, however long
// the client waits.
func TestDialInvalid(t *testing.T) {
	for _, addr := range []string{"", "host", "host:", "host:http", "host:0", "host:65536", "host:-1", "::1:70", "a:b:c"} {
		_, err := store.Dial(bounded(t), addr, &store.DialOptions{Wait: true})
		require.ErrorIs(t, err, store.ErrInvalid, addr)
	}
	none := newTLSFiles(t).client()
	none.CA = "none.pem"
	for want, o := range map[string]store.DialOptions{
		"secret: 5 bytes are too few": {Secret: []byte("short")},
		"secret: 0 bytes are too few": {Secret: []byte{}},
		"none.pem":                    {TLS: none.Client},
		"out of certificates":         {TLS: func() (*tls.Config, error) { return nil, errors.New("out of certificates") }},
	} {
		o.Wait = true
		_, err := store.Dial(bounded(t), "127.0.0.1:1", &o)
		require.ErrorIs(t, err, store.ErrInvalid)
		require.ErrorContains(t, err, want)
	}
}

// otherService starts a server that does not speak the protocol, and returns its address.
func otherService(t *testing.T, serve func(net.Conn)) (addr string) {
	l, _ := tcp(t)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { defer c.Close(); serve(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return l.Addr().String()
}

func TestDialAnotherServer(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"HTTP": func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
		},
		"echo": func(c net.Conn) { _, _ = io.Copy(c, c) },
		"SMTP": func(c net.Conn) {
			_, _ = io.WriteString(c, "220 mail.example.org ESMTP\r\n")
			_, _ = io.Copy(io.Discard, c)
		},
		"torn": func(c net.Conn) {
			_, _ = c.Write(frame(wire.Header{Op: wire.OpHello, Flags: 1}, 1))
			_, _ = io.Copy(io.Discard, c)
		},
		"ping": func(c net.Conn) { _, _ = c.Write(frame(wire.Header{Op: wire.OpPing})); _, _ = io.Copy(io.Discard, c) },
	} {
		_, err := store.Dial(bounded(t), otherService(t, serve), &store.DialOptions{Wait: true})
		require.ErrorIs(t, err, store.ErrProtocol, name)
	}
}

func TestDialOfASilentServerIsBoundedByTheContext(t *testing.T) {
	addr := otherService(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	for _, wait := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := store.Dial(ctx, addr, &store.DialOptions{Wait: wait})
		cancel()
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "no answer")
	}
}

// waiting starts n waits of c for a key that no client sets, and returns when the server has them.
func waiting(t *testing.T, c *store.Store, n int) <-chan error {
	t.Helper()
	errs := startMany(n, func() error { _, err := c.Wait(t.Context(), "never"); return err })
	works(t, c)
	return errs
}

// TestAServerThatGoesEndsAllCalls checks that the calls of clients, direct or behind a relay, end at once with a
// store that shuts down or is gone, and keeps nothing.
func TestAServerThatGoesEndsAllCalls(t *testing.T) {
	for name, end := range map[string]struct {
		how  func(*store.Server) error
		code wire.Code
		text string
	}{
		"Close":    {(*store.Server).Close, wire.CodeUnavailable, "connection closed"},
		"Shutdown": {func(s *store.Server) error { return s.Shutdown(context.Background()) }, wire.CodeLeft, "the store has shut down"},
	} {
		check := func(t *testing.T, s, peers *service) {
			c := peers.client(t)
			errs := waiting(t, c, 20)
			began := time.Now()
			require.NoError(t, end.how(s.Server))
			for range 20 {
				goneWith(t, <-errs, end.code)
			}
			require.Less(t, time.Since(began), 4*time.Second, "such a store does not come back")
			_, err := c.Get(t.Context(), "k")
			goneWith(t, err, end.code)
			require.ErrorContains(t, err, `store: get "k": store unavailable: 127.0.0.1:1: `+end.text)
		}
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, s *service) { check(t, s, s) })
			t.Run("relay", func(t *testing.T) {
				s := serve(t, new(store.Server), tcp)
				r := relay(t, s.addr, new(store.Server), tcp)
				check(t, s, r)
				_, err := store.Dial(bounded(t), r.addr, nil)
				require.ErrorIs(t, err, store.ErrUnavailable)
				require.ErrorContains(t, err, "the relay cannot reach the store at "+s.addr)
			})
		})
	}
}

func goneWith(t *testing.T, err error, code wire.Code) {
	t.Helper()
	require.ErrorIs(t, err, store.ErrUnavailable)
	e, ok := errors.AsType[*store.Error](err)
	require.True(t, ok)
	if e.Code != wire.CodeClosed { // the call reached the engine while it was closing
		require.Equal(t, code, e.Code, err.Error())
	}
}

func TestClientCloseWhileManyCall(t *testing.T) {
	each(t, func(t *testing.T, s *service) {
		for range 20 {
			c := s.client(t)
			var calling sync.WaitGroup
			for range 8 {
				calling.Go(func() {
					for c.Set(t.Context(), "k", make([]byte, 5000), nil) == nil {
						_, _ = c.Get(t.Context(), "k")
					}
				})
			}
			works(t, c)
			require.NoError(t, c.Close())
			calling.Wait()
		}
	})
}

func TestDeadlinesFarAway(t *testing.T) {
	for _, c := range []*store.Store{store.New(new(store.Memory)), serve(t, new(store.Server), tcp).client(t)} {
		ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1<<40, 0))
		got := start(func() error { _, err := c.Wait(ctx, "works"); return err })
		require.NoError(t, c.Set(ctx, "ttl", nil, &store.SetOptions{TTL: 1<<63 - 1}))
		works(t, c)
		_, err := c.Get(ctx, "ttl")
		require.NoError(t, err)
		require.NoError(t, <-got)
		cancel()
		require.NoError(t, c.Close())
	}
}

// TestAStoppedServerBlamesNoRank closes a server while ranks wait for one of them: they get the end
// of the store. The end of one connection must not be reported as the failure of its rank to those
// that are closed after it.
func TestAStoppedServerBlamesNoRank(t *testing.T) {
	for range 40 {
		s := serve(t, new(store.Server), tcp)
		g := teamOf(t, behind(t, s, "", 0, 8)...)
		voting := make(chan []error)
		go func() { voting <- g.without(bounded(t), 7, 1) }()
		require.Eventually(t, func() bool {
			return !slices.ContainsFunc(g.stores[:7], func(s *store.Store) bool { return store.Calls(s.Engine()) == 0 })
		}, 10*time.Second, time.Millisecond)
		require.NoError(t, s.Close())
		for _, err := range <-voting {
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.NotErrorIs(t, err, store.ErrLost)
		}
	}
}

func TestTraceOfAClient(t *testing.T) {
	srv := serve(t, new(store.Server), tcp)
	sink := new(testcluster.Events)
	s := srv.as(t, &store.DialOptions{Dial: srv.dial, Trace: sink})
	ctx := t.Context()
	require.NoError(t, s.Set(ctx, "k", []byte("12345"), nil))
	_, err := s.Wait(ctx, "k")
	require.NoError(t, err)
	absent(t, s, "none")
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err = s.Wait(short, "none")
	require.ErrorIs(t, err, store.ErrTimeout)

	events := sink.All()
	require.Len(t, events, 4, "a wait is one round trip")
	for i, want := range []struct {
		op    string
		bytes int64
		waits bool
		err   error
	}{
		{"store.set", 5, false, nil}, {"store.wait", 5, true, nil}, {"store.get", 0, false, store.ErrNotFound}, {"store.wait", 0, true, store.ErrTimeout},
	} {
		e := events[i]
		require.Equal(t, []any{want.op, want.bytes, -1, -1}, []any{e.Op, e.Bytes, e.Rank, e.Last})
		require.ErrorIs(t, e.Err, want.err)
		require.Positive(t, e.Duration())
		require.Equal(t, want.waits, e.Waited == e.Duration())
	}
}

// TestConnectionsLeaveNothing checks that connections which have ended leave neither goroutines nor memory in a
// server that goes on. It runs alone: it counts what the process has.
func TestConnectionsLeaveNothing(t *testing.T) {
	s := serve(t, new(store.Server), tcp)
	round := func() int {
		for range 50 {
			c, err := store.Dial(t.Context(), s.addr, nil)
			require.NoError(t, err)
			require.NoError(t, c.Set(t.Context(), "k", nil, nil))
			require.NoError(t, c.Close())
		}
		counts(t, s.Engine, func(n *store.ServerStatus) bool { return n.Conns == 0 })
		return runtime.NumGoroutine()
	}
	round()
	goroutines, bytes := round(), heap()
	for range 4 {
		require.LessOrEqual(t, round(), goroutines+20)
	}
	require.Less(t, heap(), bytes+4<<20)
}
