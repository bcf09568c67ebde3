package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// ServerLimits bound what peers can make a Server hold. Zero fields have the defaults.
type ServerLimits struct {
	Conns     int           // connections at once; default 65,536
	Handshake time.Duration // from accept to hello; default 10 s
	Unread    int           // bytes of answers that wait for one slow peer; default 64 MiB
	// Grace is how long a session whose connection has broken may take to come back, before it is lost; default 500 ms.
	Grace time.Duration
	// Silence is after how long a peer is lost that does not answer probes; default 15 s. If others wait for one of its
	// ranks it is a second.
	Silence time.Duration
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
	if l.Grace == 0 {
		l.Grace = 500 * time.Millisecond
	}
	if l.Silence == 0 {
		l.Silence = 15 * time.Second
	}
	return l
}

// Server serves an Engine: a *Memory without a goroutine for each connection where the system has a
// way to read many sockets at once, any other engine with a goroutine for each call.
//
// It owns the listeners that it was given, the connections, and all those goroutines. Close ends all of
// them and waits; it does not close the Engine.
type Server struct {
	Engine   Engine
	Insecure bool // serve beyond loopback, to whoever comes
	Limits   ServerLimits
	Logger   *slog.Logger // nil is silent

	mu        sync.Mutex // protects the fields below
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	sessions  map[uint64]*engineSession // of an Engine that is no Memory
	loops     []*transport.Loop
	adopted   int // connections that a loop was given; they take turns
	stopping  bool
	stopped   chan struct{}  // closed with stopping
	running   sync.WaitGroup // connections, and watch
}

// Listen listens on exactly addr, a host:port: an IPv4 address is not an IPv6 one as well, as it would
// be with net.Listen and 0.0.0.0.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	network := "tcp"
	if host, _, err := net.SplitHostPort(addr); err == nil {
		if ip, err := netip.ParseAddr(host); err == nil && ip.Is4() {
			network = "tcp4"
		}
	}
	return new(net.ListenConfig).Listen(ctx, network, addr)
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
		s.sessions = map[uint64]*engineSession{}
		s.stopped = make(chan struct{})
		s.running.Go(s.watch)
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
	c := newConn(s, nc, limits)
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
		s.running.Add(1)
		go c.serve()
	}
}

// ended takes out a connection, and says why it is over.
func (s *Server) ended(c *conn, err error) {
	switch {
	case errors.Is(err, errDone), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		s.log().Debug("connection ended", "peer", c.peer, "who", c.hello.Key, "err", err)
	default:
		s.log().Warn("connection ended", "peer", c.peer, "who", c.hello.Key, "err", err)
	}
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.running.Done()
}

// loop is the loop that reads the next connection; nil if this system has none.
func (s *Server) loop() *transport.Loop {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil
	}
	if s.loops == nil {
		for range max(1, runtime.GOMAXPROCS(0)/4) {
			l, err := transport.NewLoop()
			if err != nil {
				return nil
			}
			s.loops = append(s.loops, l)
		}
	}
	s.adopted++
	return s.loops[s.adopted%len(s.loops)]
}

// stop stops accepting, and lists the connections that there are.
func (s *Server) stop() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping && s.stopped != nil {
		close(s.stopped)
	}
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
		c.close()
	}
	s.wait()
	return nil
}

// wait returns when all connections have ended, and what served them.
func (s *Server) wait() {
	s.running.Wait()
	s.mu.Lock()
	loops := s.loops
	sessions := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	for _, es := range sessions { // that waited for their peers to come back
		es.lose()
		s.forgetSession(es)
	}
	for _, l := range loops {
		l.Close()
	}
}

// Shutdown says goodbye to every peer behind the last of its answers, and waits until they
// have hung up. When ctx ends first, it closes the others and returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	for _, c := range s.stop() {
		c.goodbye()
	}
	done := make(chan struct{})
	go func() { s.wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		_ = s.Close()
		<-done
		return ctx.Err()
	}
}
