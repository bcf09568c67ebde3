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
	"maps"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/quietlog"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// ServerLimits bounds what the peers of a Server can use. Zero fields mean the defaults. What a
// Memory holds is bounded by its own Limits.
type ServerLimits struct {
	Conns   int // connections at once; default 65,536. Further ones get an error, and are closed
	PerAddr int // of them from one IP address; default 16,384
	// Handshakes bounds the unfinished handshakes; default 4,096. When there are more, the oldest
	// is dropped once it has taken a tenth of Handshake: bursts succeed, and peers that never
	// finish cannot block others.
	Handshakes int
	Handshake  time.Duration // time from accept to the reply to the hello; default 10 s
	InFlight   int           // bytes of replies that wait for one peer; default 64 MiB. From 1 MiB on its requests wait
	// Buffers bounds the bytes in transit of all peers: incomplete frames, and replies that wait;
	// default 4 GiB, at least 64 MiB. A peer whose frame does not fit, or for which more waits than
	// is left, is disconnected, and may reconnect. So is a peer that reads none of its replies for
	// LivenessTimeout while large replies to other peers wait for space.
	Buffers int64
	// ReconnectTimeout is how long a session whose connection has broken may take to reconnect
	// before its ranks have failed; default 500 ms.
	ReconnectTimeout time.Duration
	// LivenessTimeout is the time after which a peer that sends nothing, not even an answer to a
	// liveness probe, has failed; default 10 s, at least 0.6 s. It applies to peers that set none
	// of their own (DialOptions.LivenessTimeout). A peer whose connection ends is detected by that,
	// and fails after ReconnectTimeout.
	LivenessTimeout time.Duration
}

// minBuffers has space for several of the largest frames: one that never fits would be sent again
// forever.
const minBuffers = 64 << 20

func (l ServerLimits) withDefaults() ServerLimits {
	return ServerLimits{
		Conns:            cmp.Or(l.Conns, 65536),
		PerAddr:          cmp.Or(l.PerAddr, 16384),
		Handshakes:       cmp.Or(l.Handshakes, 4096),
		Handshake:        cmp.Or(l.Handshake, handshakeTimeout),
		InFlight:         cmp.Or(l.InFlight, 64<<20),
		Buffers:          max(cmp.Or(l.Buffers, 4<<30), minBuffers),
		ReconnectTimeout: cmp.Or(l.ReconnectTimeout, 500*time.Millisecond),

		LivenessTimeout: livenessTimeout(l.LivenessTimeout),
	}
}

// Backend is the engine of a Server: a *Memory or a *Relay.
type Backend interface {
	Engine
	// serve serves a connection after its handshake: until it ends, or by passing it to a loop.
	serve(c *conn)
	// checkPeers detects peers that have failed. It is called every checkInterval; late means that
	// this process was stopped since the last call.
	checkPeers(s *Server, late bool)
	// checkServer returns why s must not serve the backend, or "".
	checkServer(s *Server) string
}

// Server serves a Backend to other processes. On systems with a way to read many sockets at once it
// needs no goroutine per connection.
//
// It owns its listeners, the connections, and their goroutines. Close ends all of them and waits;
// it does not close the Engine.
type Server struct {
	Engine Backend
	// TLS is the TLS 1.3 configuration, see TLSFiles.Server; nil means plain TCP. Its ClientAuth
	// must say what is asked of clients, even if GetConfigForClient returns other configurations.
	TLS *tls.Config
	// Access lists who may connect, and their rights; other peers are refused. Empty means that
	// every peer may do everything.
	Access   []Access
	Insecure bool // allow unauthenticated access from other hosts
	// Stacks allows every peer to see the stacks of ranks (Store.Stacks) if Access is empty.
	// Otherwise Access.Stacks says who may.
	Stacks bool
	// Protocol is another protocol on the same port, such as that of package tcpstore; nil: none.
	Protocol Protocol
	Limits   ServerLimits
	Logger   *slog.Logger // nil discards. It gets at most 100 warnings of a kind in a second

	quietly sync.Once // sets quiet
	quiet   *slog.Logger

	mu             sync.Mutex // protects the fields below
	listeners      map[net.Listener]struct{}
	conns          map[*conn]struct{}
	perAddr        map[netip.Addr]int
	handshakes     list.List     // connections with an unfinished handshake, the oldest first
	handshakeFreed chan struct{} // gets a token when one of them has ended
	relayedConns   int           // connections of relays' peers: they count as connections
	refusing       int           // connections that are being refused
	loops          []*transport.Loop
	adopted        int // connections that were passed to a loop; used for round robin
	budget         *transport.Budget
	meter          *meter // that of a Memory, which shows it; that of a relay is not shown
	stopping       bool
	stopped        chan struct{}  // closed when stopping is set
	wg             sync.WaitGroup // connections, and watchPeers
}

// Listen listens on exactly addr, host:port: unlike net.Listen, it does not listen on IPv6 for an
// IPv4 address such as 0.0.0.0.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	network := "tcp"
	if host, _, err := net.SplitHostPort(addr); err == nil {
		if ip, err := netip.ParseAddr(host); err == nil && ip.Is4() {
			network = "tcp4"
		}
	}
	return new(net.ListenConfig).Listen(ctx, network, addr)
}

// Serve accepts connections on l until Close or Shutdown, and then returns ErrServerClosed. It
// first returns the error of Check, if any. It closes l.
func (s *Server) Serve(l net.Listener) error {
	if err := s.addListener(l); err != nil {
		_ = l.Close()
		return err
	}
	defer s.removeListener(l)
	for pause := time.Millisecond; ; {
		nc, err := l.Accept()
		switch {
		case err == nil:
			pause = time.Millisecond
			s.start(nc)
		case s.isStopping():
			return ErrServerClosed
		case errors.Is(err, net.ErrClosed):
			return err
		default: // temporary: out of file descriptors, or the peer has closed the connection
			s.log().Warn("accept", "err", err)
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
		}
	}
}

// Check returns why s would not serve at addr, or nil. An address that other hosts can reach is
// ErrInsecure unless peers need a secret (Access) or a certificate (Access, or TLS that requires
// one), or s.Insecure is set. TLS without client certificates is not enough: it encrypts, but
// authenticates no client. Nor is any of these if Access opens a prefix to another protocol, whose
// peers are not authenticated.
func (s *Server) Check(addr net.Addr) error {
	if err := s.checkAccess(); err != nil {
		return err
	}
	if s.Engine != nil {
		if why := s.Engine.checkServer(s); why != "" {
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
	if len(s.Access) > 0 || s.requiresCertificate() {
		return nil
	}
	return &Error{
		Op: "serve", Key: a.String(), Code: wire.CodeDenied, Err: ErrInsecure,
		Detail: "any host that can reach this address could read and write: require a secret or a client certificate (Access, TLS), " +
			"listen on 127.0.0.1, or set Insecure if the network is yours",
	}
}

// requiresCertificate reports whether TLS refuses clients without a certificate.
func (s *Server) requiresCertificate() bool {
	return s.TLS != nil && s.TLS.ClientAuth == tls.RequireAndVerifyClientCert
}

func (s *Server) addListener(l net.Listener) error {
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
		s.budget, s.meter = transport.NewBudget(s.Limits.withDefaults().Buffers), new(meter)
		if m, ok := s.Engine.(*Memory); ok {
			s.meter = &m.meter
		}
		s.stopped, s.handshakeFreed = make(chan struct{}), make(chan struct{}, 1)
		s.wg.Go(s.watchPeers)
	}
	s.listeners[l] = struct{}{}
	return nil
}

func (s *Server) removeListener(l net.Listener) {
	s.mu.Lock()
	delete(s.listeners, l)
	s.mu.Unlock()
	_ = l.Close()
}

func (s *Server) isStopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopping
}

// log returns the Logger, of which peers cannot make endless use.
func (s *Server) log() *slog.Logger {
	s.quietly.Do(func() { s.quiet = quietlog.New(logger(s.Logger)) })
	return s.quiet
}

// start serves a connection, or refuses it.
func (s *Server) start(nc net.Conn) {
	limits := s.Limits.withDefaults()
	c := newConn(s, nc, limits)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limitHandshakes(limits)
	switch why := s.exceeds(c); {
	case s.stopping:
		_ = nc.Close()
	case why != "":
		s.refuseConn(c, why)
	default:
		s.conns[c] = struct{}{}
		s.meter.conns.Add(1)
		s.meter.arrived.Add(1)
		s.perAddr[c.addr]++
		c.acceptedAt, c.unfinished = time.Now(), s.handshakes.PushBack(c)
		s.wg.Add(1)
		go c.serve()
	}
}

// exceeds returns which limit one more connection of the peer of c, or of a relay that c is of, would
// exceed, or "". The caller holds mu.
func (s *Server) exceeds(c *conn) string {
	switch {
	case len(s.conns)+s.relayedConns >= c.limits.Conns:
		return fmt.Sprintf("the limit is %d connections", c.limits.Conns)
	case c.addr.IsValid() && s.perAddr[c.addr] >= c.limits.PerAddr:
		return fmt.Sprintf("the limit is %d connections from one address", c.limits.PerAddr)
	}
	return ""
}

// limitHandshakes makes space for another handshake: it waits a little for an unfinished one, and
// then drops the oldest. The caller holds mu, which may be unlocked meanwhile.
func (s *Server) limitHandshakes(l ServerLimits) {
	for !s.stopping && s.handshakes.Len() > 0 && (s.handshakes.Len() >= l.Handshakes || len(s.conns) >= l.Conns) {
		oldest := s.handshakes.Front().Value.(*conn)
		rest := l.Handshake/10 - time.Since(oldest.acceptedAt)
		if rest <= 0 {
			s.log().Warn("handshake dropped", "peer", oldest.peer, "reason", "others wait", "limit", l.Handshakes)
			s.remove(oldest)
			oldest.close()
			continue
		}
		s.mu.Unlock()
		select {
		case <-s.handshakeFreed:
		case <-time.After(rest):
		case <-s.stopped:
		}
		s.mu.Lock()
	}
}

// maxRefusals bounds the peers that are being refused at once.
const maxRefusals = 64

// refuseConn sends an error to a peer that exceeds a limit, unless too many are being refused. The
// caller holds mu.
func (s *Server) refuseConn(c *conn, why string) {
	s.log().Warn("connection refused", "peer", c.peer, "reason", why)
	s.meter.refused.Add(1)
	if s.refusing >= maxRefusals {
		_ = c.nc.Close()
		return
	}
	s.refusing++
	s.wg.Go(func() {
		full := &handshake.RefusalError{Code: wire.CodeFull, Detail: why}
		_, _ = handshake.Accept(c.nc, &handshake.Policy{Timeout: handshake.RefusalTimeout, TLS: s.TLS, Full: full})
		s.mu.Lock()
		s.refusing--
		s.mu.Unlock()
	})
}

// handshakeDone records that c's handshake is finished.
func (s *Server) handshakeDone(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endHandshake(c)
}

// endHandshake takes c from the unfinished handshakes, if it is one, and wakes limitHandshakes. The
// caller holds mu.
func (s *Server) endHandshake(c *conn) {
	if c.unfinished != nil {
		s.handshakes.Remove(c.unfinished)
		c.unfinished = nil
	}
	signal(s.handshakeFreed)
}

// remove removes c from the counts, at most once. The caller holds mu.
func (s *Server) remove(c *conn) {
	if _, ok := s.conns[c]; !ok {
		return
	}
	delete(s.conns, c)
	s.meter.conns.Add(-1)
	s.uncount(c, 1)
	s.endHandshake(c)
}

// uncount takes n connections of the address of c from the counts. The caller holds mu.
func (s *Server) uncount(c *conn, n int) {
	if s.perAddr[c.addr] -= n; s.perAddr[c.addr] == 0 {
		delete(s.perAddr, c.addr)
	}
}

// ended removes a connection, and logs why it ended: the error of its outbox, if that has ended it.
func (s *Server) ended(c *conn, err error) {
	if c.out != nil {
		err = cmp.Or(c.out.Err(), err)
		c.out.Discard()
	}
	if errors.Is(err, transport.ErrSlow) {
		s.meter.slow.Add(1)
	}
	switch {
	case errors.Is(err, errDone), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		s.log().Debug("connection ended", "peer", c.peer, "who", clip(c.hello.Key), "err", err)
	default:
		s.log().Warn("connection ended", "peer", c.peer, "who", clip(c.hello.Key), "err", err)
	}
	c.in.Release()
	s.mu.Lock()
	s.remove(c)
	s.mu.Unlock()
	s.wg.Done()
}

// loop returns the loop for the next connection, or nil if the system has none.
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
		kind := s.loops[0].Kind()
		s.meter.loop.Store(&kind)
	}
	s.adopted++
	return s.loops[s.adopted%len(s.loops)]
}

// stop stops accepting, and returns the current connections.
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
	return slices.Collect(maps.Keys(s.conns))
}

// Close ends all connections at once, and waits for their goroutines. It may be called twice.
func (s *Server) Close() error {
	conns := s.stop()
	// Memory learns of the first end only when the sockets of all are shut down. Otherwise the peers
	// that are closed last would get the failure of the ranks of the first.
	if m, ok := s.Engine.(*Memory); ok {
		m.mu.Lock()
		for _, c := range conns {
			c.abort()
		}
		m.mu.Unlock()
	}
	for _, c := range conns {
		c.close()
	}
	s.wait()
	return nil
}

// wait returns when all connections, and the goroutines that served them, have ended.
func (s *Server) wait() {
	s.wg.Wait()
	s.mu.Lock()
	loops := s.loops
	s.mu.Unlock()
	for _, l := range loops {
		l.Close()
	}
}

// Shutdown sends each peer a goodbye after its last reply, and waits until all peers have
// disconnected. If ctx ends first, it closes the remaining connections and returns ctx's error.
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
