package tcpstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/scenario"
	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
)

func TestMain(m *testing.M) { testcluster.Leaks(m) }

// testTimeout is the timeout of operations that are fast unless the machine is overloaded.
const testTimeout = 30 * time.Second

// service is a Server for Python clients, and its store.
type service struct {
	*store.Server
	*store.Store // the store as Go clients see it
	testcluster.Log
	addr string
	conn func() (net.Conn, error)
	ctx  context.Context
}

// serve runs a server that speaks p. A nil srv is a server of a Memory on a port of the loopback.
func serve(t testing.TB, p *tcpstore.Protocol, srv *store.Server) *service {
	t.Helper()
	if srv == nil {
		srv = new(store.Server)
	}
	if srv.Engine == nil {
		srv.Engine = new(store.Memory)
	}
	l := testcluster.Listen(t)
	s := &service{Server: srv, Store: store.New(srv.Engine), addr: l.Addr().String()}
	s.conn = func() (net.Conn, error) { return net.Dial("tcp", s.addr) }
	srv.Protocol = p
	srv.Logger = s.Log.Logger()
	testcluster.ServeAt(t, srv, l)
	s.ctx = testcluster.Within(t, 2*testTimeout)
	return s
}

// virtually runs a test with a server whose connections are pipes, in virtual time.
func virtually(t *testing.T, srv *store.Server, test func(t *testing.T, s *service)) {
	synctest.Test(t, func(t *testing.T) { test(t, piped(t, srv, new(tcpstore.Protocol))) })
}

// piped runs a server whose connections are pipes.
func piped(t *testing.T, srv *store.Server, p *tcpstore.Protocol) *service {
	srv.Engine, srv.Protocol = new(store.Memory), p
	l := scenario.Listen(t, srv)
	return &service{Server: srv, Store: store.New(srv.Engine), ctx: t.Context(), conn: func() (net.Conn, error) { return l.Conn(t.Context(), "", "") }}
}

// current returns a server with the defaults.
func current(t testing.TB) *service { return serve(t, &tcpstore.Protocol{}, nil) }

// client is a bare connection that speaks the protocol.
type client struct {
	net.Conn
	t      testing.TB
	buf    []byte
	cursor tcpwire.Cursor
}

// raw connects, and sends nothing.
func (s *service) raw(t testing.TB) *client {
	t.Helper()
	c, err := s.conn()
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
	return &client{Conn: c, t: t}
}

// client connects, and sends the same first messages as torch.
func (s *service) client(t testing.TB) *client {
	t.Helper()
	c := s.raw(t)
	c.send(tcpwire.Request{Op: tcpwire.OpValidate}, tcpwire.Request{Op: tcpwire.OpPing, N: 4711})
	require.EqualValues(t, 4711, c.reply(tcpwire.OpPing, 0).N)
	return c
}

func (c *client) bytes(reqs ...tcpwire.Request) (b []byte) {
	c.t.Helper()
	for i := range reqs {
		var err error
		b, err = tcpwire.AppendRequest(b, &reqs[i])
		require.NoError(c.t, err)
	}
	return b
}

func (c *client) write(b []byte) {
	c.t.Helper()
	_, err := c.Write(b)
	require.NoError(c.t, err)
}

// send sends requests in one write.
func (c *client) send(reqs ...tcpwire.Request) {
	c.t.Helper()
	c.write(c.bytes(reqs...))
}

// reply reads one reply.
func (c *client) reply(op tcpwire.Op, keys int) tcpwire.Reply {
	c.t.Helper()
	rep, err := c.read(op, keys)
	require.NoError(c.t, err)
	return rep
}

// read is reply, with the error of a connection that has ended.
func (c *client) read(op tcpwire.Op, keys int) (rep tcpwire.Reply, err error) {
	for {
		n, whole, err := tcpwire.NextReply(c.buf, op, keys, &c.cursor, tcpwire.Limits{Value: 1 << 30, Message: 1 << 31})
		if whole && err == nil {
			err = rep.Parse(op, keys, bytes.Clone(c.buf[:n]))
			c.buf = c.buf[n:]
			return rep, err
		}
		if err != nil {
			return rep, err
		}
		more := make([]byte, 64<<10)
		m, err := c.Read(more)
		if err != nil {
			return rep, err
		}
		c.buf = append(c.buf, more[:m]...)
	}
}

// call sends a request, and returns its reply.
func (c *client) call(req tcpwire.Request) tcpwire.Reply {
	c.t.Helper()
	c.send(req)
	if !req.Op.Answered() {
		return tcpwire.Reply{}
	}
	return c.reply(req.Op, len(req.Keys))
}

// closed checks that the server ends the connection without sending more.
func (c *client) closed() {
	c.t.Helper()
	n, err := io.Copy(io.Discard, c)
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		c.t.Fatal("the server has not closed the connection")
	}
	require.Zero(c.t, n)
}

// silent checks that, for a moment, no reply comes, and that the connection stays open.
func (c *client) silent() {
	c.t.Helper()
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := c.Read(make([]byte, 1))
	e, ok := errors.AsType[net.Error](err)
	require.True(c.t, ok && e.Timeout(), "%v", err)
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(testTimeout)))
}

// works checks that the client is served, and that its stream is in sync.
func (c *client) works() {
	c.t.Helper()
	require.EqualValues(c.t, 99, c.call(tcpwire.Request{Op: tcpwire.OpPing, N: 99}).N)
	c.send(set("/works", "yes"))
	require.Equal(c.t, "yes", string(c.call(get("/works")).Value))
}

func set(key, value string) tcpwire.Request {
	return tcpwire.Request{Op: tcpwire.OpSet, Key: key, Value: []byte(value)}
}

func get(key string) tcpwire.Request { return tcpwire.Request{Op: tcpwire.OpGet, Key: key} }

func wait(keys ...string) tcpwire.Request {
	return tcpwire.Request{Op: tcpwire.OpWait, Keys: keys}
}

func check(keys ...string) tcpwire.Request {
	return tcpwire.Request{Op: tcpwire.OpCheck, Keys: keys}
}

func add(key string, n int64) tcpwire.Request {
	return tcpwire.Request{Op: tcpwire.OpAdd, Key: key, N: n}
}

func of(op tcpwire.Op) tcpwire.Request { return tcpwire.Request{Op: op} }
