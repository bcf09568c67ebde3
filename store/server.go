package store

import (
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// ServerLimits bound what peers can make a Server hold. Zero fields have the defaults. What a Memory holds has its own Limits.
type ServerLimits struct {
	Conns   int // connections at once; default 65,536. One too many is told, and closed
	PerAddr int // of them from one IP address; default 16,384
	// Handshakes is how many may be unfinished at once; default 4,096. If there are more, the oldest is dropped, once it has had a tenth
	// of its time: a burst gets through, and peers that never finish keep nobody out.
	Handshakes int
	Handshake  time.Duration // from accept to the answer to hello; default 10 s
	InFlight   int           // bytes of answers that wait for one slow peer; default 64 MiB. Its requests wait from 1 MiB on
	// Buffers bounds the bytes of all peers that are on their way: frames that have not come whole, and answers that wait; default 4 GiB,
	// at least 64 MiB. A peer whose frame does not fit, or for whom more waits than is left, is cut off, and may try again. So is
	// one that reads nothing of what waits for it for LivenessTimeout, while large answers to others wait for room.
	Buffers int64
	// Grace is how long a session whose connection has broken may take to come back, before it is lost; default 500 ms.
	Grace time.Duration
	// LivenessTimeout is after how long a peer that sends nothing, and answers no liveness probe, has failed; default 10 s, at least
	// 0.6 s. It holds for peers that name none of their own (DialOptions.LivenessTimeout). One whose connection ends is detected by
	// that, and lost after Grace.
	LivenessTimeout time.Duration
}

// leastBuffers has room for several of the largest frames: one that never fits would be sent again and again.
const leastBuffers = 64 << 20

func (l ServerLimits) withDefaults() ServerLimits {
	return ServerLimits{
		Conns:      cmp.Or(l.Conns, 65536),
		PerAddr:    cmp.Or(l.PerAddr, 16384),
		Handshakes: cmp.Or(l.Handshakes, 4096),
		Handshake:  cmp.Or(l.Handshake, handshakeTimeout),
		InFlight:   cmp.Or(l.InFlight, 64<<20),
		Buffers:    max(cmp.Or(l.Buffers, 4<<30), leastBuffers),
		Grace:      cmp.Or(l.Grace, 500*time.Millisecond),

		LivenessTimeout: livenessTimeout(l.LivenessTimeout),
	}
}

// Backend is what a Server serves: a *Memory, or a *Relay.
type Backend interface {
	Engine
	// serve serves a connection after its handshake: until it ends, or by giving it to a loop.
	serve(c *conn, buf []byte)
	// lookAround detects peers that have failed. It is called at intervals of look; late means that
	// this process itself was stopped since the last call.
	lookAround(s *Server, late bool)
	// refuses returns the reason why s must not serve it, or "".
	refuses(s *Server) string
}

// Server serves a Backend, without a goroutine for each connection where the system has a way to read many sockets at once.
//
// It owns the listeners that it was given, the connections, and all those goroutines. Close ends all of
// them and waits; it does not close the Engine.
type Server struct {
	Engine Backend
	// TLS is how to speak TLS 1.3; see TLSFiles.Server. Nil is plain TCP. Its ClientAuth says what is asked of clients, also if its
	// GetConfigForClient makes other configurations.
	TLS *tls.Config
	// Access is who may come in, and what they may do; others are denied. Empty is everybody, everything.
	Access   []Access
	Insecure bool // serve beyond loopback, to whoever comes
	// Protocols are others that are spoken on the same port, as those of package torchstore.
	Protocols []Protocol
	Limits    ServerLimits
	Logger    *slog.Logger // nil is silent

	mu         sync.Mutex // protects the fields below
	listeners  map[net.Listener]struct{}
	conns      map[*conn]struct{}
	perAddr    map[netip.Addr]int
	handshakes list.List     // conns whose handshake is unfinished, the oldest first
	freed      chan struct{} // gets a token when there are fewer of them
	branches   int           // of relays: they count as connections
	away       int           // connections that are being turned away
	loops      []*transport.Loop
	adopted    int // connections that a loop was given; they take turns
	budget     *transport.Budget
	stopping   bool
	stopped    chan struct{}  // closed with stopping
	running    sync.WaitGroup // connections, and watch
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

// Serve accepts connections on l until Close or Shutdown, and then returns ErrServerClosed. What Check says is an error at once.
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

// Check says why s would not serve at addr; nil if it would. An address that others than this machine can reach is ErrInsecure, unless
// a peer needs a secret (Access) or a certificate (Access, or TLS that requires one) to come in, or s.Insecure says that it need not.
// TLS alone is not enough: it encrypts, and authenticates no client. Nor is any of them if Access opens a prefix to
// another protocol, whose peers prove nothing.
func (s *Server) Check(addr net.Addr) error {
	if err := cmp.Or(checkAccess(s.Access), s.checkProtocols()); err != nil {
		return err
	}
	if s.TLS == nil || s.TLS.ClientAuth < tls.VerifyClientCertIfGiven {
		for i, a := range s.Access {
			if a.Name != "" {
				return &Error{
					Op: "access", Key: strconv.Itoa(i), Code: wire.CodeInvalid, Err: ErrInvalid,
					Detail: "it is for a client certificate, and none is asked for: that takes TLS, with the CA that signs them",
				}
			}
		}
	}
	if s.Engine != nil {
		if why := s.Engine.refuses(s); why != "" {
			return &Error{Op: "relay", Key: addr.String(), Code: wire.CodeDenied, Err: ErrInsecure, Detail: why}
		}
	}
	a, ok := addr.(*net.TCPAddr)
	if !ok || a.IP.IsLoopback() || s.Insecure {
		return nil
	}
	if i := slices.IndexFunc(s.Access, func(a Access) bool { return a.Protocol != "" }); i >= 0 {
		return &Error{
			Op: "access", Key: strconv.Itoa(i), Code: wire.CodeDenied, Err: ErrInsecure,
			Detail: fmt.Sprintf("%s is reached by other hosts, and peers that speak %q prove nothing: all of them could use what is below %q, without encryption: "+
				"listen on 127.0.0.1, or set Insecure if the network is yours", a, s.Access[i].Protocol, s.Access[i].Prefix),
		}
	}
	if len(s.Access) > 0 || s.wantsCertificate() {
		return nil
	}
	return &Error{
		Op: "serve", Key: a.String(), Code: wire.CodeDenied, Err: ErrInsecure,
		Detail: "anybody who can reach this address could read and write: want a secret or a client certificate (Access, TLS), " +
			"listen on 127.0.0.1, or set Insecure if the network is yours",
	}
}

// wantsCertificate reports whether nobody comes in without one.
func (s *Server) wantsCertificate() bool {
	return s.TLS != nil && s.TLS.ClientAuth == tls.RequireAndVerifyClientCert
}

func (s *Server) admit(l net.Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return ErrServerClosed
	}
	if err := s.Check(l.Addr()); err != nil {
		return err
	}
	if s.Engine == nil {
		return &Error{Op: "serve", Key: l.Addr().String(), Code: wire.CodeInvalid, Err: ErrInvalid, Detail: "Server.Engine is nil: it takes a *Memory, or a *Relay"}
	}
	if s.listeners == nil {
		s.listeners, s.conns, s.perAddr = map[net.Listener]struct{}{}, map[*conn]struct{}{}, map[netip.Addr]int{}
		s.budget = transport.NewBudget(s.Limits.withDefaults().Buffers)
		s.stopped, s.freed = make(chan struct{}), make(chan struct{}, 1)
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
	s.makeRoom(limits)
	switch {
	case s.stopping:
		_ = nc.Close()
	case len(s.conns)+s.branches >= limits.Conns:
		s.turnAway(c, fmt.Sprintf("the limit is %d connections", limits.Conns))
	case c.addr.IsValid() && s.perAddr[c.addr] >= limits.PerAddr:
		s.turnAway(c, fmt.Sprintf("the limit is %d connections from one address", limits.PerAddr))
	default:
		s.conns[c] = struct{}{}
		c.meter.connAccepted()
		s.perAddr[c.addr]++
		c.began, c.unfinished = time.Now(), s.handshakes.PushBack(c)
		s.running.Add(1)
		go c.serve()
	}
}

// makeRoom sees to it that there is room for one more handshake: it waits a little for one that is unfinished, and then drops the
// oldest. Called with mu, which it may unlock meanwhile.
func (s *Server) makeRoom(l ServerLimits) {
	for !s.stopping && s.handshakes.Len() > 0 && (s.handshakes.Len() >= l.Handshakes || len(s.conns) >= l.Conns) {
		oldest := s.handshakes.Front().Value.(*conn)
		rest := l.Handshake/10 - time.Since(oldest.began)
		if rest <= 0 {
			s.log().Warn("handshake dropped", "peer", oldest.peer, "reason", "others wait", "limit", l.Handshakes)
			s.remove(oldest)
			oldest.close()
			continue
		}
		s.mu.Unlock()
		select {
		case <-s.freed:
		case <-time.After(rest):
		case <-s.stopped:
		}
		s.mu.Lock()
	}
}

// turnAway tells a peer that there is no room for it, unless too many are being told. Called with mu.
func (s *Server) turnAway(c *conn, why string) {
	s.log().Warn("connection refused", "peer", c.peer, "reason", why)
	c.meter.connRefused()
	if s.away >= maxRefusals {
		_ = c.nc.Close()
		return
	}
	s.away++
	s.running.Go(func() {
		c.sendAway(why)
		s.mu.Lock()
		s.away--
		s.mu.Unlock()
	})
}

// shaken notes that c's handshake is over.
func (s *Server) shaken(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.unfinished != nil {
		s.handshakes.Remove(c.unfinished)
		c.unfinished = nil
		s.free()
	}
}

// free tells makeRoom. Called with mu.
func (s *Server) free() {
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// remove takes c out of what is counted, once. Called with mu.
func (s *Server) remove(c *conn) {
	if _, ok := s.conns[c]; !ok {
		return
	}
	delete(s.conns, c)
	c.meter.connClosed()
	if s.perAddr[c.addr]--; s.perAddr[c.addr] == 0 {
		delete(s.perAddr, c.addr)
	}
	if c.unfinished != nil {
		s.handshakes.Remove(c.unfinished)
		c.unfinished = nil
	}
	s.free()
}

// ended takes out a connection, and says why it is over.
func (s *Server) ended(c *conn, err error) {
	if errors.Is(err, transport.ErrSlow) {
		c.meter.connDropped()
	}
	switch {
	case errors.Is(err, errDone), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		s.log().Debug("connection ended", "peer", c.peer, "who", clip(c.hello.Key), "err", err)
	default:
		s.log().Warn("connection ended", "peer", c.peer, "who", clip(c.hello.Key), "err", err)
	}
	if c.out != nil {
		c.out.Discard()
	}
	c.in.release()
	s.mu.Lock()
	s.remove(c)
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
	s.mu.Unlock()
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
