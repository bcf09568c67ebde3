package testcluster_test

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
)

const (
	silence = 50 * time.Millisecond // how long nothing must come
	soon    = 20 * time.Second      // for what comes at once on a machine that is not stuck
)

func TestBlackhole(t *testing.T) {
	p, accepted := twoEnds(t)
	c := dial(t, p)
	s := <-accepted
	c2 := dial(t, p)
	s2 := <-accepted
	p.Down.Blackhole(true)
	send(t, c, "question")
	receive(t, s, "question")
	send(t, s, "answer")
	s.Close()
	receivesNothing(t, c) // nor that it has ended

	p.Down.Blackhole(false)
	receivesNothing(t, c) // what lost something stays silent
	send(t, s2, "hello")
	receive(t, c2, "hello") // what lost nothing goes on
}

func TestCut(t *testing.T) {
	for how, ended := range map[testcluster.Ending]func(testing.TB, net.Conn){
		testcluster.FIN: receiveEnd,
		testcluster.RST: receiveReset,
	} {
		p, accepted := twoEnds(t)
		var conns []net.Conn
		for range 4 {
			c := dial(t, p)
			conns = append(conns, c, <-accepted)
			send(t, c, "not read by the server: a close would become a reset")
		}
		p.Stall(true)
		p.Cut(how)
		assert.Zero(t, p.Conns())
		for i, c := range conns {
			if i%2 == 0 || how == testcluster.RST {
				ended(t, c)
			}
		}
		p.Stall(false)
		c := dial(t, p) // later ones work
		send(t, <-accepted, "again")
		receive(t, c, "again")
	}
}

// twoEnds returns a proxy and the connections that reach its target.
func twoEnds(t *testing.T) (*testcluster.Proxy, <-chan *net.TCPConn) {
	l := testcluster.Listen(t)
	accepted := make(chan *net.TCPConn, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			accepted <- c.(*net.TCPConn)
		}
	}()
	return testcluster.NewProxy(t, l.Addr().String()), accepted
}

func dial(t *testing.T, p *testcluster.Proxy) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

func send(t testing.TB, c net.Conn, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Error(err)
	}
}

func receive(t testing.TB, c net.Conn, want string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(soon))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Errorf("received %.40q, want %.40q: %v", got, want, err)
	}
}

func receivesNothing(t testing.TB, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(silence))
	n, err := c.Read(make([]byte, 100))
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("received %d bytes, %v; want nothing", n, err)
	}
}

func receiveEnd(t testing.TB, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(soon))
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Errorf("%v, want the end of the stream", err)
	}
}

func receiveReset(t testing.TB, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(soon))
	if _, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v, want connection reset", err)
	}
}
