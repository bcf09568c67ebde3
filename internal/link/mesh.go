// Package link makes direct connections between the ranks of a group, for data that is too large
// for the group's store: unix sockets on one node, TCP between nodes. The users of a connection
// define its protocol.
//
//	m, err := link.Open(ctx, g, link.Options{Name: "gather", Accept: accept}) // on every rank
//	c, err := m.Dial(ctx, 2, purpose)                                        // rank 2's accept has it by now
//
// Ranks learn each other's addresses and keys through the group, so exactly the processes that may
// take part in the group may connect. If the group uses TLS, TCP connections are
// encrypted too; keys authenticate both ends, in place of certificates.
//
// A broken connection alone does not mean that a rank has failed: the group's store decides that.
package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/spin"
	"github.com/muster-pg/muster/pgroup"
)

// Options of a mesh. Name and Accept are required.
type Options struct {
	Name   string // distinguishes the meshes of a group; all ranks open them in the same order
	Listen string // host or host:port at which other nodes connect; default: the interface on the route to the group's store

	// Accept takes over a connection that another rank has dialed. Dial returns on that rank when
	// Accept has returned. It must not block. The dialer must send first: what the acceptor sends
	// before may arrive before Dial knows that it is accepted.
	Accept func(*Conn)
	// Dial connects to a rank on another host; nil means a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Polling is for connections whose readers wait for short times, and seldom for many at once: on
	// Linux, a reader of a TCP connection polls it for up to 50 µs before it sleeps, and occupies a
	// thread while it sleeps. A process with a GOMAXPROCS of 1 ignores it.
	Polling bool
}

// Conn is a connection to a rank. The caller of Dial, or Accept, owns it.
type Conn struct {
	net.Conn     // *net.UnixConn, *net.TCPConn, one over TLS, or with Options.Polling a NowWriter
	Rank     int // of the other end
	Purpose
}

// NowWriter is a TCP connection of a mesh with Options.Polling, on Linux.
type NowWriter interface {
	net.Conn
	// WriteNow writes bufs, one after the other, as far as the socket takes them without waiting. It
	// returns the number of bytes written.
	WriteNow(bufs [][]byte) (n int, err error)
}

// Purpose is what a connection is for, as its two ends define it.
type Purpose struct {
	Kind   byte
	ID     uint64
	Number uint64 // orders connections for the same purpose: Accept may get them in another order
}

// Mesh is one rank's listeners, and the addresses of the other ranks. It owns a goroutine for each
// listener and for each handshake; Close ends them. It is safe for concurrent use.
type Mesh struct {
	group  *pgroup.Group
	opts   Options
	peers  []peerInfo       // by rank
	token  []byte           // of this rank
	cert   *tls.Certificate // nil: no TLS
	listen []net.Listener
	poll   spin.Poller

	wg     sync.WaitGroup
	ctx    context.Context // cancelled by Close
	cancel context.CancelFunc

	mu      sync.Mutex // protects pending
	pending []net.Conn // accepted connections in their handshake, the oldest first
}

const (
	// handshakeTimeout bounds the handshake of an accepted connection.
	handshakeTimeout = 10 * time.Second
	// maxUnauthenticated bounds, together with the size of the group, how many accepted connections
	// are in their handshake at a time. One more closes the oldest, so that peers that send nothing
	// cannot block ranks of the group. A rank whose handshake is closed in this way retries.
	maxUnauthenticated = 256
)

// ErrClosed is returned by a closed mesh.
var ErrClosed = errors.New("link: the mesh is closed")

// Open opens a mesh. All ranks of g must call it: it is one all-gather, on a separate channel.
// The caller must Close the mesh.
func Open(ctx context.Context, g *pgroup.Group, o Options) (*Mesh, error) {
	m := &Mesh{group: g, opts: o}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	mine, err := m.selfInfo(ctx)
	if err != nil {
		mine.Err = err.Error() // the other ranks fail too
	}
	m.peers, err = pgroup.AllGather(ctx, g.Channel("\x00link "+o.Name), mine)
	if err == nil {
		err = m.checkPeers()
	}
	if err != nil {
		m.Close()
		return nil, err
	}
	for _, l := range m.listen {
		m.wg.Go(func() { m.accept(l) })
	}
	return m, nil
}

// selfInfo starts the listeners, and returns what this rank sends the others.
func (m *Mesh) selfInfo(ctx context.Context) (peerInfo, error) {
	m.token = handshake.NewNonce()
	mine := peerInfo{Token: m.token}
	if m.group.Size() == 1 {
		return mine, nil
	}
	if cfg := m.group.Config(); cfg.TLS != nil || cfg.Dial != nil && cfg.Dial.TLS != nil {
		var err error
		if m.cert, err = newCertificate(); err != nil {
			return mine, err
		}
		mine.TLS = true
	}
	if l, name := listenUnix(); l != nil {
		m.listen, mine.Unix = append(m.listen, l), name
	}
	l, err := m.listenTCP(ctx)
	if err != nil {
		return mine, err
	}
	m.listen, mine.Addr = append(m.listen, l), l.Addr().String()
	return mine, nil
}

func (m *Mesh) checkPeers() error {
	for rank, c := range m.peers {
		switch {
		case c.Err != "":
			return fmt.Errorf("link: rank %d: %s", rank, c.Err)
		case handshake.BadSecret(c.Token) != "":
			return fmt.Errorf("link: rank %d sent malformed connection data: another version of muster?", rank)
		case c.TLS != m.peers[0].TLS:
			return fmt.Errorf("link: rank %d %s, and rank 0 %s: give all ranks the same pgroup.Config.TLS", rank, tlsWord(c.TLS), tlsWord(!c.TLS))
		}
	}
	return nil
}

func tlsWord(on bool) string {
	if on {
		return "uses TLS"
	}
	return "uses no TLS"
}

// Dial connects to a rank; Accept on that rank gets p. On one node it is a *net.UnixConn where
// there are such. A connection that ends before the other side has answered is tried again: that
// side was overloaded, or the network failed. Dial ends with ctx, with the group, and after the
// group's Config.Timeout.
func (m *Mesh) Dial(ctx context.Context, rank int, p Purpose) (*Conn, error) {
	if rank < 0 || rank >= len(m.peers) || rank == m.group.Rank() {
		return nil, fmt.Errorf("link: cannot connect to rank %d", rank)
	}
	if m.ctx.Err() != nil {
		return nil, ErrClosed
	}
	ctx, cancel := m.withTimeout(ctx)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		conn, err := m.dial(ctx, rank, p)
		if err == nil {
			return &Conn{Conn: conn, Rank: rank, Purpose: p}, nil
		}
		if !handshake.IsHangup(err) {
			return nil, fmt.Errorf("link: connecting to the data port of rank %d: %w", rank, m.cause(ctx, err))
		}
		select { // the dialers of many ranks should not retry all at once
		case <-time.After(rand.N(pause)):
		case <-ctx.Done():
			return nil, fmt.Errorf("link: connecting to the data port of rank %d: %w: every attempt was cut short: %w", rank, m.cause(ctx, err), err)
		}
	}
}

// The pauses before connecting again are random, and at most this long.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// withTimeout returns a context that ends with ctx, the group, the mesh, and the group's timeout.
func (m *Mesh) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithTimeout(ctx, m.group.Config().Timeout)
	ctx, cancel := context.WithCancelCause(ctx)
	over := m.group.Context()
	releases := []func() bool{context.AfterFunc(over, func() { cancel(context.Cause(over)) }), context.AfterFunc(m.ctx, func() { cancel(ErrClosed) })}
	return ctx, func() {
		for _, release := range releases {
			release()
		}
		cancel(nil)
		stop()
	}
}

func (m *Mesh) dial(ctx context.Context, rank int, p Purpose) (net.Conn, error) {
	conn, err := m.connect(ctx, rank)
	if err == nil {
		conn, err = m.wrap(conn)
	}
	if err != nil {
		return nil, err
	}
	secured, err := m.dialHandshake(ctx, conn, rank, p)
	if err != nil {
		return nil, fmt.Errorf("at %s: %w", conn.RemoteAddr(), err)
	}
	return secured, nil
}

// connect prefers the unix socket. One that does not exist is in another network namespace.
func (m *Mesh) connect(ctx context.Context, rank int) (net.Conn, error) {
	var d net.Dialer
	if c := m.peers[rank]; c.Unix != "" && m.group.SameNode(rank) {
		if conn, err := d.DialContext(ctx, "unix", c.Unix); err == nil {
			return conn, nil
		}
	}
	if dial := m.opts.Dial; dial != nil {
		return dial(ctx, "tcp", m.peers[rank].Addr)
	}
	return d.DialContext(ctx, "tcp", m.peers[rank].Addr)
}

// wrap takes a new connection out of the runtime's poller if the options say so.
func (m *Mesh) wrap(conn net.Conn) (net.Conn, error) {
	// On a single P, the runtime passes it to another thread whenever a reader sleeps, which costs more
	// than its poller.
	if m.opts.Polling && runtime.GOMAXPROCS(0) > 1 {
		return newPollingConn(conn, &m.poll)
	}
	return conn, nil
}

// cause returns why a connection was ended, if this side ended it, or err.
func (m *Mesh) cause(ctx context.Context, err error) error {
	switch {
	case m.ctx.Err() != nil:
		return ErrClosed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// accept runs in the goroutine of its listener, until Close.
func (m *Mesh) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err == nil {
			conn, err = m.wrap(conn)
		}
		if err == nil {
			err = m.track(conn)
		}
		if err != nil {
			if m.ctx.Err() != nil {
				return
			}
			// Most likely out of file descriptors. Dialers have deadlines.
			m.group.Logger().Warn("accepting a data connection", "addr", l.Addr(), "err", err)
			<-time.After(acceptPause)
			continue
		}
		m.wg.Go(func() { m.handleAccepted(conn) })
	}
}

// acceptPause is the wait after a failed accept.
const acceptPause = 10 * time.Millisecond

// handleAccepted runs the handshake of an accepted connection and hands it over.
func (m *Mesh) handleAccepted(conn net.Conn) {
	defer m.untrack(conn)
	if err := m.acceptHandshake(conn); err != nil {
		m.group.Logger().Warn("a data connection was refused", "from", conn.RemoteAddr(), "err", err)
	}
}

// track makes Close end conn, an accepted connection, during its handshake. It closes the oldest one
// if there are too many.
func (m *Mesh) track(conn net.Conn) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() != nil {
		_ = conn.Close()
		return ErrClosed
	}
	m.pending = append(m.pending, conn)
	if len(m.pending) > maxUnauthenticated+len(m.peers) {
		_ = m.pending[0].Close()
		m.pending = slices.Delete(m.pending, 0, 1)
	}
	return nil
}

func (m *Mesh) untrack(conn net.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending = slices.DeleteFunc(m.pending, func(c net.Conn) bool { return c == conn })
}

// Close closes the listeners, ends every Dial and the connections in their handshake, and waits for
// the mesh's goroutines. Connections that were handed over stay open. A second Close does nothing.
func (m *Mesh) Close() {
	m.cancel()
	m.mu.Lock()
	for _, conn := range m.pending {
		_ = conn.Close()
	}
	m.mu.Unlock()
	for _, l := range m.listen {
		_ = l.Close()
	}
	m.wg.Wait()
}
