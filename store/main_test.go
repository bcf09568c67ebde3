package store_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/scenario"
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
	return s.as(t, &store.DialOptions{Dial: s.dial})
}

// as is client with options, which have the dial function of s.
func (s *service) as(t *testing.T, o *store.DialOptions) *store.Store {
	t.Helper()
	return testcluster.Dial(t, "127.0.0.1:1", o)
}

// dial returns a Store on the server at addr that is closed at the end of the test.
func dial(t *testing.T, addr string) *store.Store {
	t.Helper()
	return testcluster.Dial(t, addr, nil)
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

// receiveRequest reads one request, as a server does.
func receiveRequest(t *testing.T, c net.Conn) (req wire.Request) {
	t.Helper()
	h, body := receiveBody(t, c)
	require.NoError(t, req.Parse(h, body))
	return req
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
	require.NoError(t, setAndGet(bounded(t), s, "works", "yes"))
}

// holds fails the test unless key has value.
func holds(t *testing.T, s *store.Store, key, value string) {
	t.Helper()
	v, err := s.Get(bounded(t), key)
	require.NoError(t, err)
	require.Equal(t, value, string(v))
}

// absent fails the test unless there is no key.
func absent(t *testing.T, s *store.Store, key string) {
	t.Helper()
	_, err := s.Get(bounded(t), key)
	require.ErrorIs(t, err, store.ErrNotFound)
}

// setAndGet sets key, and returns an error unless it then has this value.
func setAndGet(ctx context.Context, s *store.Store, key, value string) error {
	if err := s.Set(ctx, key, []byte(value), nil); err != nil {
		return err
	}
	v, err := s.Get(ctx, key)
	if err == nil && string(v) != value {
		err = fmt.Errorf("%s has %d bytes, and not the %d that were set", key, len(v), len(value))
	}
	return err
}

// start calls do in a goroutine. The channel has its error when it has returned.
func start(do func() error) <-chan error { return startMany(1, do) }

// startMany calls do in n goroutines at the same time.
func startMany(n int, do func() error) <-chan error {
	errs := make(chan error, n)
	for range n {
		go func() { errs <- do() }()
	}
	return errs
}

// startWait starts a wait for key.
func startWait(t *testing.T, s *store.Store, key string) <-chan error {
	ctx := bounded(t)
	return start(func() error { _, err := s.Wait(ctx, key); return err })
}

// together runs do in n goroutines at the same time.
func together(t *testing.T, n int, do func() error) {
	t.Helper()
	errs := startMany(n, do)
	for range n {
		require.NoError(t, <-errs)
	}
}

// faulty is an engine whose requests go through do.
type faulty struct {
	store.Engine
	do func(ctx context.Context, req *wire.Request, rep *wire.Reply) error
}

func (f *faulty) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	return f.do(ctx, req, rep)
}

func frame(h wire.Header, body ...byte) []byte {
	h.Len = uint32(len(body))
	return append(wire.AppendHeader(nil, h), body...)
}

// wires returns a listener for a server, and the dial function with which clients reach it.
type wires func(*testing.T) (net.Listener, func(ctx context.Context, network, addr string) (net.Conn, error))

var tcp = listening("127.0.0.1:0")

// listening returns sockets of which the server's is at addr.
func listening(addr string) wires {
	return func(t *testing.T) (net.Listener, func(ctx context.Context, network, addr string) (net.Conn, error)) {
		l, err := net.Listen("tcp", addr)
		require.NoError(t, err)
		return l, func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
		}
	}
}

// pipes are connections without sockets. As with TLS, each write to them may block.
func pipes(*testing.T) (net.Listener, func(ctx context.Context, network, addr string) (net.Conn, error)) {
	l := scenario.NewListener()
	return l, l.Conn
}

// breakConn ends the connection of a client, which reconnects.
func breakConn(e store.Engine) {
	if c := store.ConnOf(e); c != nil {
		_ = c.Close()
	}
}

func newMemory(*testing.T) store.Backend { return new(store.Memory) }

// Reconnect timeouts: soonLost for tests that wait for a loss, and comesBack for tests in which a
// session must be resumed, however slow the machine is.
const (
	soonLost  = 50 * time.Millisecond
	comesBack = time.Minute
)

// children are the roles that the test binary can run instead of the tests. The argument of each ends
// with the address at which it listens.
var children = testcluster.Children{
	"server": serveChild,
	"relay":  testcluster.ServeRelay,
}

// serveChild serves a store.Memory. Before the address it may have the directory of a durable one.
func serveChild(_ context.Context, arg string) error {
	dir, addr, durable := strings.Cut(arg, " ")
	if !durable {
		dir, addr = "", arg
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return (&store.Server{Engine: &store.Memory{Dir: dir}}).Serve(l)
}

// barrier returns the vote of rank in barrier seq.
func barrier(generation uint64, rank int, seq uint64) wire.Contribution {
	return wire.Contribution{Generation: generation, Rank: rank, Seq: seq, Verb: "barrier", Root: -1, Want: wire.WantNothing}
}

// process is a child of the test, which can be killed and started again at the same address.
type process struct {
	*launch.Process
	role, arg, addr string
}

// newProcess starts a child with a role of children and its argument.
func newProcess(t *testing.T, role, arg string) *process {
	t.Helper()
	p := &process{role: role, arg: arg, addr: testcluster.Port(t)}
	p.start(t)
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	p.Process = testcluster.StartAt(t, p.role, p.arg, p.addr)
}

func (p *process) kill(t *testing.T) { testcluster.Kill(t, p.Process) }
