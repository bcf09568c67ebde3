package tcpstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
)

// behind returns a Store over a client of s that is connected through a proxy.
func (s *service) behind(t *testing.T, o *tcpstore.Options) (*store.Store, *testcluster.Proxy) {
	t.Helper()
	p := testcluster.NewProxy(t, s.addr)
	return store.New(dial(t, p.Addr(), o)), p
}

// TestConnectionsAreMadeAnew checks that calls that wait go on, and that no change is sent on a connection
// that has ended: it would have an unknown outcome.
func TestConnectionsAreMadeAnew(t *testing.T) {
	s := current(t)
	c, p := s.behind(t, nil)
	var waiting sync.WaitGroup
	for range 5 {
		waiting.Go(func() {
			v, err := c.Wait(s.ctx, "late")
			assert.NoError(t, err)
			assert.Len(t, v, 1)
		})
	}
	for _, how := range []testcluster.Ending{testcluster.FIN, testcluster.RST} {
		testcluster.Eventually(t, testTimeout, func() bool { return p.Conns() >= 5 }, "five wait")
		require.NoError(t, c.Set(s.ctx, "k", nil, nil))
		p.Cut(how)
		require.NoError(t, c.Set(s.ctx, "k", nil, nil))
	}
	require.NoError(t, s.Set(s.ctx, "late", []byte("2"), nil))
	waiting.Wait()
}

func TestAChangeWhoseAnswerIsLost(t *testing.T) {
	s := current(t)
	c, p := s.behind(t, nil)
	_, err := c.Add(s.ctx, "n", 1)
	require.NoError(t, err)
	p.Down.Stall(true)
	adding := make(chan error, 1)
	go func() { _, err := c.Add(s.ctx, "n", 1); adding <- err }()
	_, err = s.Wait(s.ctx, "n")
	require.NoError(t, err)
	require.Eventually(t, func() bool { v, err := s.Get(s.ctx, "n"); return err == nil && string(v) == "2" }, testTimeout, time.Millisecond)
	p.Down.Stall(false)
	p.Cut(testcluster.RST)
	if err := <-adding; err != nil { // the reply may have arrived just before
		require.ErrorIs(t, err, store.ErrUnknown)
		require.ErrorIs(t, err, store.ErrUnavailable)
	}
	// It uses a new connection. The reply may have arrived, while the client has not detected the
	// end of the old connection yet.
	_, err = c.Get(s.ctx, "n")
	require.NoError(t, err)
	n, err := c.Add(s.ctx, "n", 1)
	require.NoError(t, err)
	require.EqualValues(t, 3, n, "and it was not repeated")
}

func TestNoServer(t *testing.T) {
	s := current(t)
	c, p := s.behind(t, &tcpstore.Options{ReconnectTimeout: 100 * time.Millisecond})
	p.Refuse(true)
	p.Cut(testcluster.FIN)
	_, err := c.Get(s.ctx, "k")
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, p.Addr())
	_, err = c.Wait(testcluster.Within(t, 20*time.Millisecond), "k")
	require.Error(t, err)
	p.Refuse(false)
	require.NoError(t, c.Set(s.ctx, "k", nil, nil), "it is back")
}

// TestAStalledServer checks that a server that does not answer delays a call until the end of its
// context and no longer, and that calls work again later.
func TestAStalledServer(t *testing.T) {
	s := current(t)
	c, p := s.behind(t, nil)
	require.NoError(t, c.Set(s.ctx, "k", []byte("1"), nil))
	p.Stall(true)
	for range 20 { // more than the client has connections
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := c.Get(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, c.Set(ctx, "k", nil, nil), store.ErrTimeout)
		_, err = c.Wait(ctx, "k", "other")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
	}
	p.Stall(false)
	v, err := c.Get(s.ctx, "k")
	require.NoError(t, err)
	require.Equal(t, "1", string(v))
}

// TestMoreWaitsThanConnections checks that any number of calls can wait: they use at most 256
// connections, and do not delay other calls.
func TestMoreWaitsThanConnections(t *testing.T) {
	s := current(t)
	c, p := s.behind(t, nil)
	const waits = 300
	var waiting sync.WaitGroup
	for i := range waits {
		waiting.Go(func() {
			v, err := c.Wait(s.ctx, fmt.Sprint(i))
			assert.NoError(t, err)
			assert.Len(t, v, 1)
		})
	}
	for range 50 {
		_, err := c.Add(s.ctx, "n", 1)
		require.NoError(t, err)
		require.LessOrEqual(t, p.Conns(), 256+16)
	}
	for i := range waits {
		require.NoError(t, s.Set(s.ctx, fmt.Sprint(i), nil, nil))
	}
	waiting.Wait()
}

func TestWhatIsNoTCPStore(t *testing.T) {
	l := testcluster.Listen(t)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("220 mail.example.com ready\r\n"))
			_ = c.Close()
		}
	})
	defer serving.Wait()
	defer l.Close()
	ctx := testcluster.Within(t, testTimeout)
	_, err := tcpstore.Dial(ctx, l.Addr().String(), nil)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, `no TCPStore of torch 2.2 or later: it answered "2`)
	none := serve(t, &tcpstore.Protocol{}, &store.Server{Access: []store.Access{{Secret: secret}}})
	_, err = tcpstore.Dial(ctx, none.addr, &tcpstore.Options{ReconnectTimeout: 50 * time.Millisecond})
	require.ErrorIs(t, err, store.ErrUnavailable)
	_, err = tcpstore.Dial(ctx, "nowhere", nil)
	require.ErrorIs(t, err, store.ErrInvalid)
}

// TestOpen has what a script of cmd/muster cannot express: stores.txt has other URLs.
func TestOpen(t *testing.T) {
	for _, bad := range []string{"tcp://u@h:1", "tcp://h:1#f", "tcp://h:1?%", "tcp://h:1?join=1", "tcp://h:1?join=true&join=true"} {
		_, err := store.Schemes{"tcp": tcpstore.Open}.Open(t.Context(), bad)
		require.ErrorIs(t, err, store.ErrInvalid, bad)
	}
}

// TestUnsupported checks that an operation that the protocol does not have is refused with its
// name, and does not break the connection.
func TestUnsupported(t *testing.T) {
	s := current(t)
	c, _ := s.behind(t, nil)
	_, err := c.Revision(s.ctx)
	require.ErrorIs(t, err, store.ErrUnsupported)
	require.ErrorContains(t, err, "a TCPStore has no ping")
	err = c.Set(s.ctx, "k", nil, &store.SetOptions{TTL: time.Second})
	require.ErrorIs(t, err, store.ErrUnsupported)
	require.ErrorContains(t, err, "no TTL")
	_, err = c.Swap(s.ctx, "k", []byte("v"), nil)
	require.ErrorIs(t, err, store.ErrUnsupported)
	require.ErrorContains(t, err, "cannot delete")
	require.NoError(t, c.Set(s.ctx, "word", []byte("x1"), nil))
	_, err = c.Add(s.ctx, "word", 1)
	require.ErrorIs(t, err, store.ErrInvalid)
	e, ok := errors.AsType[*store.Error](err)
	require.True(t, ok)
	require.Equal(t, "word", e.Key)
}

// TestDialSaysWhyAtItsDeadline checks that the error of a Dial whose deadline interrupts an attempt
// has the reason why the attempts before it failed.
func TestDialSaysWhyAtItsDeadline(t *testing.T) {
	ctx := testcluster.Within(t, 200*time.Millisecond)
	refused := false
	_, err := tcpstore.Dial(ctx, "127.0.0.1:1", &tcpstore.Options{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		if !refused {
			refused = true
			return nil, syscall.ECONNREFUSED
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}
