// Package link gets the ranks of a group sockets to each other, for what is too bulky for the group's store: unix sockets
// on one node, TCP between nodes. What travels over them is up to who asked for them.
//
//	m, err := link.Open(ctx, g, link.Options{Name: "gather", Accept: accept}) // on every rank
//	c, err := m.Dial(ctx, 2, purpose)                                        // rank 2's accept has it by now
//
// Ranks learn each other's addresses and keys through the group, so whoever may take part in the group may connect, and nobody
// else. Where the group uses TLS, so do TCP connections, with certificates that are made for this one mesh.
//
// A broken connection is a suspicion and no verdict: the group's store says who is lost.
package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/muster-pg/muster/pgroup"
)

// Options of a mesh; Name and Accept are needed.
type Options struct {
	Name   string // tells the meshes of a group apart; all ranks open them in the same order
	Listen string // host or host:port for other nodes to connect to; default: the interface that leads to the group's store

	// Accept takes over a connection that another rank has dialled. Dial returns over there when it has. It must not wait. Who has dialled
	// speaks first: what the other side says before it hears anything may come before Dial knows that it is accepted.
	Accept func(*Conn)
}

// Conn is a connection to a rank. Its owner is who dialled it, or Accept.
type Conn struct {
	net.Conn     // *net.UnixConn, *net.TCPConn or *tls.Conn
	Rank     int // the other end
	Purpose
}

// Purpose is what a connection is for; the two ends know what it means.
type Purpose struct {
	Kind   byte
	ID     uint64
	Number uint64 // tells which came first of those that are for the same: Accept may hear of them in another order
}

// Mesh is one rank's listeners, and what it knows of the others'. It owns a goroutine for each listener and one for each
// connection that is being made; Close ends them. Many goroutines may use it.
type Mesh struct {
	group  *pgroup.Group
	opts   Options
	cards  []card // by rank
	token  []byte // of this rank
	ident  *identity
	listen []net.Listener

	wg   sync.WaitGroup
	life context.Context // ends with Close
	die  context.CancelFunc

	mu     sync.Mutex // protects the fields below
	closed bool
	young  map[net.Conn]uint64 // not yet handed over; those that were accepted, by when
	nth    uint64
}

const (
	// handshakeTime bounds what an accepted connection may take to prove itself.
	handshakeTime = 10 * time.Second
	// maxStrangers bounds, together with the size of the group, how many are at it at a time: one more ends the oldest, so that strangers who
	// say nothing keep nobody out. A rank of the group whose handshake ends like that connects again.
	maxStrangers = 256
)

// ErrClosed is what a closed mesh says.
var ErrClosed = errors.New("link: the mesh is closed")

// Open is called by every rank of g: it is one all-gather, on a channel of its own.
func Open(ctx context.Context, g *pgroup.Group, o Options) (*Mesh, error) {
	m := &Mesh{group: g, opts: o, young: map[net.Conn]uint64{}}
	m.life, m.die = context.WithCancel(context.Background())
	mine, err := m.start(ctx)
	if err != nil {
		mine.Err = err.Error() // the others hear of it
	}
	m.cards, err = pgroup.AllGather(ctx, g.Channel("\x00link "+o.Name), mine)
	if err == nil {
		err = m.checkCards()
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

// start makes what this rank tells the others.
func (m *Mesh) start(ctx context.Context) (card, error) {
	m.token = newNonce()
	mine := card{Token: m.token}
	if m.group.Size() == 1 {
		return mine, nil
	}
	if cfg := m.group.Config(); cfg.TLS != nil || cfg.Dial != nil && cfg.Dial.TLS != nil {
		var err error
		if m.ident, err = newIdentity(); err != nil {
			return mine, err
		}
		mine.Cert = m.ident.print[:]
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

func (m *Mesh) checkCards() error {
	for rank, c := range m.cards {
		switch {
		case c.Err != "":
			return fmt.Errorf("link: rank %d: %s", rank, c.Err)
		case len(c.Token) != nonceLen || c.Cert != nil && len(c.Cert) != printLen:
			return fmt.Errorf("link: rank %d tells nothing to connect with: another version of muster?", rank)
		case (c.Cert != nil) != (m.cards[0].Cert != nil):
			return fmt.Errorf("link: rank %d %s, and rank 0 %s: give all ranks the same pgroup.Config.TLS", rank, tlsWord(c.Cert != nil), tlsWord(c.Cert == nil))
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

// Dial connects to a rank; Accept over there is told what for. On one node it is a *net.UnixConn, where there are such. A connection that ends
// before the other side has answered is made again: that side was busy, or something on the way was. Dial ends with ctx and with the group, and
// takes no longer than the group's Config.Timeout.
func (m *Mesh) Dial(ctx context.Context, rank int, p Purpose) (*Conn, error) {
	if rank < 0 || rank >= len(m.cards) || rank == m.group.Rank() {
		return nil, fmt.Errorf("link: rank %d is none to connect to", rank)
	}
	ctx, cancel := m.bound(ctx)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		conn, err := m.dial(ctx, rank, p)
		if err == nil {
			return &Conn{Conn: conn, Rank: rank, Purpose: p}, nil
		}
		if !cutShort(err) {
			return nil, fmt.Errorf("link: connecting to rank %d: %w", rank, m.why(ctx, err))
		}
		select { // the dialers of many ranks are not to come back all at once
		case <-time.After(rand.N(pause)):
		case <-ctx.Done():
			return nil, fmt.Errorf("link: connecting to rank %d: %w: every attempt was cut short: %w", rank, m.why(ctx, err), err)
		}
	}
}

// The pauses before connecting again are random, and at most this long.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// bound ends ctx with the group and with the mesh, and after the group's timeout.
func (m *Mesh) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithTimeout(ctx, m.group.Config().Timeout)
	ctx, cancel := context.WithCancelCause(ctx)
	over := m.group.Context()
	releases := []func() bool{context.AfterFunc(over, func() { cancel(context.Cause(over)) }), context.AfterFunc(m.life, func() { cancel(ErrClosed) })}
	return ctx, func() {
		for _, release := range releases {
			release()
		}
		cancel(nil)
		stop()
	}
}

// cutShort reports whether the other side ended the connection without an answer. One that refuses answers.
func cutShort(err error) bool {
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (m *Mesh) dial(ctx context.Context, rank int, p Purpose) (net.Conn, error) {
	conn, err := m.connect(ctx, rank)
	if err != nil {
		return nil, err
	}
	if err := m.own(conn); err != nil {
		return nil, err
	}
	defer m.disown(conn)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	secured, err := m.introduce(ctx, conn, rank, p)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("at %s: %w", conn.RemoteAddr(), err)
	}
	return secured, nil
}

// connect prefers the unix socket. One that is not there is in another network namespace.
func (m *Mesh) connect(ctx context.Context, rank int) (net.Conn, error) {
	var d net.Dialer
	if c := m.cards[rank]; c.Unix != "" && m.group.SameNode(rank) {
		if conn, err := d.DialContext(ctx, "unix", c.Unix); err == nil {
			return conn, nil
		}
	}
	return d.DialContext(ctx, "tcp", m.cards[rank].Addr)
}

// why prefers what ended a connection to how it looked.
func (m *Mesh) why(ctx context.Context, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return ErrClosed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// accept owns its listener's goroutine; Close ends it.
func (m *Mesh) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err == nil {
			err = m.accepted(conn)
		}
		if err != nil {
			if m.isClosed() {
				return
			}
			// Out of descriptors, most likely: whoever waits has a deadline of their own.
			m.group.Logger().Warn("accepting a data connection", "addr", l.Addr(), "err", err)
			<-time.After(acceptPause)
			continue
		}
		m.wg.Go(func() { m.welcome(conn) })
	}
}

// acceptPause is the wait after an accept that failed.
const acceptPause = 10 * time.Millisecond

// welcome hands an accepted connection over, once it has proved itself.
func (m *Mesh) welcome(conn net.Conn) {
	defer m.disown(conn)
	_ = conn.SetDeadline(time.Now().Add(handshakeTime))
	if err := m.receive(conn); err != nil {
		_ = conn.Close()
		m.group.Logger().Warn("a data connection was refused", "from", conn.RemoteAddr(), "err", err)
	}
}

// own makes Close end conn, while it is young.
func (m *Mesh) own(conn net.Conn) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		_ = conn.Close()
		return ErrClosed
	}
	m.young[conn] = 0
	return nil
}

// accepted is own for a connection that was accepted. It ends the oldest of those if they are too many.
func (m *Mesh) accepted(conn net.Conn) error {
	if err := m.own(conn); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nth++
	m.young[conn] = m.nth
	oldest, accepted := conn, 0
	for c, nth := range m.young {
		if nth > 0 {
			accepted++
			if nth < m.young[oldest] {
				oldest = c
			}
		}
	}
	if accepted > maxStrangers+len(m.cards) {
		delete(m.young, oldest)
		_ = oldest.Close()
	}
	return nil
}

func (m *Mesh) disown(conn net.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.young, conn)
}

func (m *Mesh) isClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

// Close stops listening, ends the connections that are being made, and waits for its goroutines. Those that were
// handed over are their owners'. It may be called twice.
func (m *Mesh) Close() {
	m.die()
	m.mu.Lock()
	m.closed = true
	for conn := range m.young {
		_ = conn.Close()
	}
	m.mu.Unlock()
	for _, l := range m.listen {
		_ = l.Close()
	}
	m.wg.Wait()
}
