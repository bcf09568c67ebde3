package store_test

import (
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

func TestMain(m *testing.M) {
	children.Run()
	if flag.Parse(); !testing.Short() { // they use a quarter of two processors: most of them wait
		if err := flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	testcluster.Leaks(m)
}

// testTimeout is the timeout of operations that are fast unless the machine is overloaded.
const testTimeout = 30 * time.Second

// service is a running Server and its log.
type service struct {
	*store.Server
	testcluster.Log
	addr string
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// serve runs a server over w.
func serve(t *testing.T, srv *store.Server, w wires) *service {
	t.Helper()
	l, dial := w(t)
	s := &service{Server: srv, addr: l.Addr().String(), dial: dial}
	srv.Logger = s.Log.Logger()
	testcluster.ServeAt(t, srv, l)
	return s
}

// relay runs a relay of the store at addr on srv, over w.
func relay(t *testing.T, addr string, srv *store.Server, w wires) *service {
	t.Helper()
	r, err := store.NewRelay(bounded(t), "muster://"+addr, nil)
	require.NoError(t, err)
	srv.Engine = r
	return serve(t, srv, w)
}

// client returns a Store on s that is closed at the end of the test.
func (s *service) client(t *testing.T) *store.Store {
	t.Helper()
	c, err := store.Dial(t.Context(), "127.0.0.1:1", &store.DialOptions{Dial: s.dial})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// raw returns a bare connection to s.
func (s *service) raw(t *testing.T) net.Conn {
	t.Helper()
	c, err := s.dial(t.Context(), "tcp", "")
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
	return c
}

// greeted returns a bare connection after the handshake.
func (s *service) greeted(t *testing.T) net.Conn {
	t.Helper()
	c := s.raw(t)
	send(t, c, greeting())
	require.Equal(t, wire.OpHello, receive(t, c).Op)
	return c
}

func greeting() []byte {
	return wire.AppendRequest([]byte(wire.Preface), &wire.Request{Op: wire.OpHello, Key: "a test"})
}

func send(t *testing.T, c net.Conn, b []byte) {
	t.Helper()
	_, err := c.Write(b)
	require.NoError(t, err)
}

// receive reads one frame, and returns its header.
func receive(t *testing.T, c net.Conn) wire.Header {
	t.Helper()
	h, _ := receiveReply(t, c)
	return h
}

func receiveReply(t *testing.T, c net.Conn) (wire.Header, wire.Reply) {
	t.Helper()
	h, body := receiveBody(t, c)
	var rep wire.Reply
	require.NoError(t, rep.Parse(h, body))
	return h, rep
}

func receiveBody(t *testing.T, c net.Conn) (wire.Header, []byte) {
	t.Helper()
	head := make([]byte, wire.HeaderLen)
	_, err := io.ReadFull(c, head)
	require.NoError(t, err)
	h, err := wire.ParseHeader(head, wire.MaxReply)
	require.NoError(t, err)
	body := make([]byte, h.Len)
	_, err = io.ReadFull(c, body)
	require.NoError(t, err)
	return h, body
}

// closed reads until the server ends the connection.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, c)
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		t.Fatal("the server has not closed the connection")
	}
}

// bounded returns a context that ends long after the operation should have completed.
func bounded(t *testing.T) context.Context { return testcluster.Within(t, testTimeout) }

// works fails the test unless s can set and get.
func works(t *testing.T, s *store.Store) {
	t.Helper()
	ctx := bounded(t)
	require.NoError(t, s.Set(ctx, "works", []byte("yes"), nil))
	v, err := s.Get(ctx, "works")
	require.NoError(t, err)
	require.Equal(t, "yes", string(v))
}

func frame(h wire.Header, body ...byte) []byte {
	h.Len = uint32(len(body))
	return append(wire.AppendHeader(nil, h), body...)
}
