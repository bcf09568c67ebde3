package scenario

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

// Pipe is a client and a server, connected by net.Pipe.
var Pipe = Engine{
	Name: "a client over pipes",
	Has:  []Feature{Whole, LimitsOf, Rights},
	Start: func(t *testing.T, s Settings) func(string) Session {
		return Clients(t, &store.Server{Engine: &store.Memory{Limits: s.Limits}, Access: s.Access})
	},
}

// Clients serves until the end of the test, and returns the function that opens a session of srv.
func Clients(t *testing.T, srv *store.Server) func(name string) Session {
	l := Listen(t, srv)
	return func(name string) Session {
		o := new(store.DialOptions)
		if srv.Access != nil {
			o.Secret = Secret(name)
		}
		return l.Dial(t, o)
	}
}

// Listener listens for connections in this process.
type Listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// NewListener returns a listener.
func NewListener() *Listener {
	return &Listener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Again returns another listener for connections to l, which itself stays open: those that are made
// while nobody accepts wait for the next one.
func (l *Listener) Again() *Listener { return &Listener{conns: l.conns, closed: make(chan struct{})} }

// Listen serves on a new Listener until the end of the test.
func Listen(t *testing.T, srv *store.Server) *Listener {
	l := NewListener()
	var served sync.WaitGroup
	served.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() {
		_ = srv.Close()
		served.Wait()
		_ = srv.Engine.Close()
	})
	return l
}

// Dial opens a session, which may crash or lose its connection.
func (l *Listener) Dial(t *testing.T, o *store.DialOptions) Session {
	d := l.Link()
	own := store.DialOptions{}
	if o != nil {
		own = *o
	}
	own.Dial = d.Dial
	s, err := store.Dial(context.Background(), "127.0.0.1:1", &own)
	require.NoError(t, err)
	return Session{Engine: s.Engine(), Crash: d.Cut, Break: d.breakConn, Mend: d.Mend}
}

// Link makes the connections of one client, or relay.
type Link struct {
	listener *Listener

	mu   sync.Mutex    // protects the fields below
	conn net.Conn      // the last one
	down chan struct{} // closed when connections can be made; nil: they can
}

// Link returns a link to l.
func (l *Listener) Link() *Link { return &Link{listener: l} }

// Dial implements store.DialOptions.Dial. It waits while the network is down.
func (k *Link) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	k.mu.Lock()
	down := k.down
	k.mu.Unlock()
	if down != nil {
		select {
		case <-down:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	conn, err := k.listener.Conn(ctx, network, addr)
	if err == nil {
		k.mu.Lock()
		k.conn = conn
		k.mu.Unlock()
	}
	return conn, err
}

// Cut ends the connection, and makes no other one until Mend.
func (k *Link) Cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = make(chan struct{})
	_ = k.conn.Close()
}

// Mend ends a Cut.
func (k *Link) Mend() {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.down)
	k.down = nil
}

func (k *Link) breakConn() {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = k.conn.Close()
}

// Conn connects to the listener; it is a dial function.
func (l *Listener) Conn(ctx context.Context, _, _ string) (net.Conn, error) {
	mine, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return mine, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// Prefix is a part of a store.
var Prefix = Engine{
	Name: "a prefix",
	Start: func(t *testing.T, s Settings) func(string) Session {
		open := Pipe.Start(t, s)
		return func(name string) Session {
			on := open(name)
			on.Engine = &both{store.Prefix(store.New(on.Engine), "jobs/").Engine(), on.Engine}
			return on
		}
	},
}

// both closes a part of a store, and then the store.
type both struct {
	store.Engine
	below store.Engine
}

func (b *both) Close() error {
	_ = b.Engine.Close()
	return b.below.Close()
}
