package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// ServerLimits bound what peers can make a Server hold. Zero fields have the defaults.
type ServerLimits struct {
	Conns     int           // connections at once; default 65,536
	Handshake time.Duration // from accept to hello; default 10 s
	Unread    int           // bytes of answers that wait for one slow peer; default 64 MiB
}

func (l ServerLimits) withDefaults() ServerLimits {
	if l.Conns == 0 {
		l.Conns = 65536
	}
	if l.Handshake == 0 {
		l.Handshake = handshakeTime
	}
	if l.Unread == 0 {
		l.Unread = 64 << 20
	}
	return l
}

// Server serves an Engine: a *Memory from the goroutine that reads, any other with a goroutine for each call.
//
// It owns the listeners that it was given and a goroutine for each connection. Close ends all of
// them and waits; it does not close the Engine.
type Server struct {
	Engine   Engine
	Insecure bool // serve beyond loopback, to whoever comes
	Limits   ServerLimits
	Logger   *slog.Logger // nil is silent

	mu        sync.Mutex // protects the fields below
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	stopping  bool
	running   sync.WaitGroup // connections
}

// Serve accepts connections on l until Close or Shutdown, and then returns ErrServerClosed. A
// listener that others than this machine can reach is ErrInsecure unless s.Insecure.
func (s *Server) Serve(l net.Listener) error {
	if err := s.admit(l); err != nil {
		_ = l.Close()
		return err
	}
	defer s.forget(l)
	for pause := time.Millisecond; ; {
		nc, err := l.Accept()
		switch {
		case err == nil:
			pause = time.Millisecond
			s.start(nc)
		case s.ending():
			return ErrServerClosed
		case errors.Is(err, net.ErrClosed):
			return err
		default: // no more file descriptors, or a peer that went away: that passes
			s.log().Warn("accept", "err", err)
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
		}
	}
}

func (s *Server) admit(l net.Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return ErrServerClosed
	}
	if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() && !s.Insecure {
		return &Error{
			Op: "serve", Key: a.String(), Code: wire.CodeDenied, Err: ErrInsecure,
			Detail: "anybody who can reach this address could read and write; listen on 127.0.0.1, or set Insecure if the network is yours",
		}
	}
	if s.listeners == nil {
		s.listeners, s.conns = map[net.Listener]struct{}{}, map[*conn]struct{}{}
	}
	s.listeners[l] = struct{}{}
	return nil
}

func (s *Server) forget(l net.Listener) {
	s.mu.Lock()
	delete(s.listeners, l)
	s.mu.Unlock()
	_ = l.Close()
}

func (s *Server) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopping
}

func (s *Server) log() *slog.Logger { return logger(s.Logger) }

// start serves a connection, or refuses it.
func (s *Server) start(nc net.Conn) {
	limits := s.Limits.withDefaults()
	c := &conn{
		server: s, nc: nc, in: newFrames(nc, wire.MaxBody), out: transport.NewOutbox(nc, limits.Unread),
		limits: limits, peer: nc.RemoteAddr().String(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopping:
		_ = nc.Close()
	case len(s.conns) >= limits.Conns:
		s.log().Warn("connection refused", "peer", c.peer, "reason", "too many connections", "limit", limits.Conns)
		s.running.Go(func() { c.turnAway(wire.CodeFull, fmt.Sprintf("the limit is %d connections", limits.Conns)) })
	default:
		s.conns[c] = struct{}{}
		s.running.Go(func() {
			c.serve()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		})
	}
}

// stop stops accepting, and lists the connections that there are.
func (s *Server) stop() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	for l := range s.listeners {
		_ = l.Close()
	}
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	return conns
}

// Close ends all connections at once, and waits for their goroutines. It may be called twice.
func (s *Server) Close() error {
	for _, c := range s.stop() {
		_ = c.nc.Close()
	}
	s.running.Wait()
	return nil
}

// Shutdown says goodbye to every peer behind the last of its answers, and waits until they
// have hung up. When ctx ends first, it closes the others and returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	for _, c := range s.stop() {
		c.goodbye()
	}
	done := make(chan struct{})
	go func() { s.running.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		_ = s.Close()
		return ctx.Err()
	}
}

// conn is one peer. Its goroutine reads, answers in line what need not wait, and writes what it
// answered once it has nothing more to read; the answers to calls that wait come from elsewhere.
type conn struct {
	server  *Server
	nc      net.Conn
	in      *frames
	out     *transport.Outbox
	limits  ServerLimits
	peer    string
	session uint64
	req     wire.Request
	rep     wire.Reply
}

// errDone is the end of a connection whose peer said goodbye.
var errDone = errors.New("goodbye")

func (c *conn) serve() {
	defer c.out.Rest()
	defer func() { _ = c.nc.Close() }()
	who, err := c.welcome()
	if err != nil {
		c.server.log().Warn("handshake", "peer", c.peer, "err", err)
		return
	}
	err = c.serveSession()
	if cause := c.out.Err(); cause != nil {
		err = cause
	}
	switch {
	case errors.Is(err, errDone), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		c.server.log().Debug("connection ended", "peer", c.peer, "who", who, "err", err)
	default:
		c.server.log().Warn("connection ended", "peer", c.peer, "who", who, "err", err)
	}
}

// welcome reads the preface and the hello. The session is opened, and the hello answered, by serveSession.
func (c *conn) welcome() (who string, err error) {
	_ = c.nc.SetReadDeadline(time.Now().Add(c.limits.Handshake))
	if err := c.in.fill(len(wire.Preface)); err != nil {
		return "", err
	}
	got := string(c.in.buf[:len(wire.Preface)])
	if got != wire.Preface {
		if got[:len(got)-1] == wire.Preface[:len(got)-1] {
			c.turnAway(wire.CodeUnsupported, fmt.Sprintf("this server speaks version %d of the protocol", wire.Version))
		}
		return "", fmt.Errorf("%w: it began with %q", ErrProtocol, got)
	}
	c.in.r = len(wire.Preface)
	h, body, _, err := c.in.next()
	if err != nil {
		return "", err
	}
	if err := c.req.Parse(h, body); err != nil || h.Op != wire.OpHello {
		return "", fmt.Errorf("%w: %s before hello", ErrProtocol, h.Op)
	}
	return string([]byte(c.req.Key)), c.nc.SetReadDeadline(time.Time{})
}

// turnAway answers a hello with no.
func (c *conn) turnAway(code wire.Code, detail string) {
	_ = c.nc.SetDeadline(time.Now().Add(time.Second))
	b := wire.AppendReply(nil, wire.OpHello, 0, &wire.Reply{Code: code, Detail: detail})
	if _, err := c.nc.Write(b); err == nil {
		if half, ok := c.nc.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // a close at once might take the answer back
			_, _ = io.Copy(io.Discard, io.LimitReader(c.nc, readRoom))
		}
	}
	_ = c.nc.Close()
}

// goodbye says that there will be nothing more.
func (c *conn) goodbye() {
	c.out.Append(func(b []byte) []byte { return wire.AppendReply(b, wire.OpGoodbye, 0, &wire.Reply{Code: wire.CodeLeft}) })
	c.out.Flush()
}

func (c *conn) reply(op wire.Op, id uint64, rep *wire.Reply) {
	c.out.Append(func(b []byte) []byte { return wire.AppendReply(b, op, id, rep) })
}

// deliver implements link.
func (c *conn) deliver(e core.Effect, encode *encoder) {
	head, body := encode.frameOf(e)
	c.out.AppendShared(head, body)
}

// flush implements link.
func (c *conn) flush() { c.out.Flush() }

func (c *conn) serveSession() error {
	if m, ok := c.server.Engine.(*Memory); ok {
		return c.serveMemory(m)
	}
	return c.serveEngine(c.server.Engine)
}

// next reads a request. Its value is the machine's to keep.
func (c *conn) next() error {
	h, body, owned, err := c.in.next()
	if err != nil {
		return err
	}
	if err := c.req.Parse(h, body); err != nil {
		return fmt.Errorf("%s: %w", h.Op, err)
	}
	if !owned && core.Keeps(h.Op) && c.req.Value != nil {
		c.req.Value = append(make([]byte, 0, len(c.req.Value)), c.req.Value...)
	}
	return nil
}
