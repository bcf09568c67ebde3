package store_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

const large = 1 << 20

// gets returns n requests for key.
func gets(n int, key string) (b []byte) {
	for i := range n {
		b = wire.AppendRequest(b, &wire.Request{Op: wire.OpGet, ID: uint64(i + 1), Key: key})
	}
	return b
}

func TestPeerThatDoesNotRead(t *testing.T) {
	each(t, func(t *testing.T, s *service) {
		other, ctx := s.client(t), bounded(t)
		require.NoError(t, other.Set(ctx, "large", make([]byte, large), nil))
		before := heap()
		slow := s.greeted(t)
		var writing sync.WaitGroup
		writing.Go(func() { _, _ = slow.Write(gets(5000, "large")) }) // 5 GB of replies
		began, worst := time.Now(), time.Duration(0)
		for time.Since(began) < 200*time.Millisecond {
			at := time.Now()
			works(t, other)
			worst = max(worst, time.Since(at))
		}
		require.Less(t, worst, 10*time.Second, "others wait")
		require.Less(t, heap()-before, int64(150<<20), "memory")
		require.NoError(t, slow.Close())
		writing.Wait()
	})
}

func TestSlowPeerThatReadsInTheEndGetsEverything(t *testing.T) {
	eachWith(t, store.ServerLimits{InFlight: 4 << 20}, func(t *testing.T, s *service) {
		require.NoError(t, s.client(t).Set(bounded(t), "large", make([]byte, large), nil))
		slow := s.greeted(t)
		go func() { _, _ = slow.Write(gets(200, "large")) }()
		for i := range 200 {
			require.EqualValues(t, i+1, receive(t, slow).ID)
		}
		send(t, slow, wire.AppendRequest(nil, &wire.Request{Op: wire.OpPing, ID: 1000}))
		require.EqualValues(t, 1000, receive(t, slow).ID)
	})
}

// TestWaitsOfAPeerThatDoesNotRead checks that the server counts replies that become ready later,
// which it cannot hold back, and closes the connection of a peer that does not read them.
func TestWaitsOfAPeerThatDoesNotRead(t *testing.T) {
	eachWith(t, store.ServerLimits{InFlight: 4 << 20}, func(t *testing.T, s *service) {
		other, ctx := s.client(t), bounded(t)
		slow := s.greeted(t)
		for i := range 200 {
			send(t, slow, wire.AppendRequest(nil, &wire.Request{Op: wire.OpWait, ID: uint64(i + 1), Keys: []string{"large"}}))
		}
		send(t, slow, wire.AppendRequest(nil, &wire.Request{Op: wire.OpSet, ID: 1000, Key: "all are in", Value: []byte{}}))
		_, err := other.Wait(ctx, "all are in")
		require.NoError(t, err)
		before := heap()
		require.NoError(t, other.Set(ctx, "large", make([]byte, large), nil))
		s.Says(t, "the peer does not read")
		counts(t, s.Engine, func(n *store.ServerStatus) bool { return n.Dropped == 1 })
		// An engine still makes some copies that no peer receives.
		testcluster.Eventually(t, testTimeout, func() bool { return heap()-before < 64<<20 }, "memory")
		works(t, other)
	})
}

func TestAnAnswerLargerThanInFlightIsNoReasonToCutOff(t *testing.T) {
	eachWith(t, store.ServerLimits{InFlight: 1 << 20}, func(t *testing.T, s *service) {
		c, ctx := s.client(t), bounded(t)
		for i := range 4 {
			require.NoError(t, c.Set(ctx, fmt.Sprint(i), make([]byte, large), nil))
		}
		v, err := c.Wait(ctx, "0", "1", "2", "3")
		require.NoError(t, err)
		require.Len(t, v, 4)
	})
}

// TestCloseWithPeersThatHang checks that a peer that stops reading at any point of its session
// delays neither Close nor other peers.
func TestCloseWithPeersThatHang(t *testing.T) {
	each(t, func(t *testing.T, s *service) {
		require.NoError(t, s.client(t).Set(bounded(t), "large", make([]byte, large), nil))
		silent, half, slow := s.raw(t), s.raw(t), s.greeted(t)
		send(t, half, greeting()[:12])
		go func() { _, _ = slow.Write(gets(100, "large")) }()
		torn := s.greeted(t)
		send(t, torn, wire.AppendHeader(nil, wire.Header{Op: wire.OpSet, Len: 1000}))
		require.NoError(t, s.Close())
		for _, c := range []net.Conn{silent, half, slow, torn} {
			closed(t, c)
		}
	})
}

func TestShutdownEndsWithItsContext(t *testing.T) {
	each(t, func(t *testing.T, s *service) {
		slow := s.greeted(t)
		require.ErrorIs(t, s.Shutdown(testcluster.Within(t, 20*time.Millisecond)), context.DeadlineExceeded)
		closed(t, slow)
	})
}

func TestShutdownDeliversWhatIsDecidedBeforeItsGoodbye(t *testing.T) {
	each(t, func(t *testing.T, s *service) {
		c := s.greeted(t)
		send(t, c, wire.AppendRequest(nil, &wire.Request{Op: wire.OpWait, ID: 7, Keys: []string{"works"}}))
		send(t, c, wire.AppendRequest(nil, &wire.Request{Op: wire.OpSet, ID: 8, Key: "in", Value: []byte{}}))
		_, err := s.client(t).Wait(bounded(t), "in")
		require.NoError(t, err)
		require.EqualValues(t, 8, receive(t, c).ID)
		works(t, s.client(t)) // this completes request 7
		down := start(func() error { return s.Shutdown(bounded(t)) })
		require.EqualValues(t, 7, receive(t, c).ID)
		require.Equal(t, wire.OpGoodbye, receive(t, c).Op)
		require.NoError(t, c.Close())
		require.NoError(t, <-down)
	})
}

func TestServeEndsWithErrServerClosed(t *testing.T) {
	for name, end := range map[string]func(*store.Server) error{
		"Close":    (*store.Server).Close,
		"Shutdown": func(s *store.Server) error { return s.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := tcp(t)
			srv := &store.Server{Engine: new(store.Memory)}
			served := start(func() error { return srv.Serve(l) })
			dial(t, l.Addr().String())
			require.NoError(t, end(srv))
			require.Equal(t, store.ErrServerClosed, <-served)
			require.NoError(t, srv.Close())
			again, _ := tcp(t)
			require.Equal(t, store.ErrServerClosed, srv.Serve(again))
		})
	}
}

func TestCloseDuringHandshakes(t *testing.T) {
	for _, w := range []wires{tcp, pipes} {
		for range 60 {
			l, dial := w(t)
			srv := &store.Server{Engine: new(store.Memory)}
			var running sync.WaitGroup
			running.Go(func() { _ = srv.Serve(l) })
			shaken := make(chan struct{}, 8)
			for range cap(shaken) {
				running.Go(func() {
					c, err := store.Dial(t.Context(), "127.0.0.1:1", &store.DialOptions{Dial: dial})
					shaken <- struct{}{}
					if err == nil {
						_ = c.Set(t.Context(), "k", nil, nil)
						_ = c.Close()
					}
				})
			}
			<-shaken
			together(t, 2, srv.Close)
			running.Wait()
		}
	}
}

func TestAClosedEngineEndsItsConnections(t *testing.T) {
	each(t, func(t *testing.T, s *service) {
		c := s.greeted(t)
		send(t, c, wire.AppendRequest(nil, &wire.Request{Op: wire.OpWait, ID: 1, Keys: []string{"never"}, Timeout: testTimeout}))
		send(t, c, wire.AppendRequest(nil, &wire.Request{Op: wire.OpPing, ID: 2}))
		require.EqualValues(t, 2, receive(t, c).ID) // so the wait has reached the store
		require.NoError(t, s.Engine.Close())
		closed(t, c)
		_, err := store.Dial(bounded(t), "127.0.0.1:1", &store.DialOptions{Dial: s.dial})
		require.ErrorIs(t, err, store.ErrUnavailable)
	})
}
