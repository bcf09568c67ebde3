package scenario

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// Pipe is a client and a server, connected by net.Pipe.
var Pipe = Engine{
	Name: "a client over pipes",
	Has:  []Feature{Whole, LimitsOf, Rights},
	Start: func(t *testing.T, s Settings) func(string) Session {
		return Clients(t, &store.Server{Engine: &store.Memory{Limits: s.Limits}}, s)
	},
}

// Clients serves until the end of the test with the access of s, and returns the function that opens a
// session of srv.
func Clients(t *testing.T, srv *store.Server, s Settings) func(name string) Session {
	srv.Access = s.Access
	l := Listen(t, srv)
	return func(name string) Session { return l.Dial(t, s.DialOptions(name)) }
}

// Restarting is Clients of a store that can end and start again. open returns it with its data, which
// restore replaces by those of a backup.
func Restarting(t *testing.T, s Settings, open func() *store.Memory, restore func(backup string) error) func(name string) Session {
	var served sync.WaitGroup
	var srv *store.Server
	l, backup := NewListener(), filepath.Join(testcluster.Scratch(t), "backup")
	start := func() {
		srv = &store.Server{Engine: open(), Access: s.Access}
		own, again := srv, l.Again()
		served.Go(func() { _ = own.Serve(again) })
	}
	end := func() {
		_ = srv.Close()
		_ = srv.Engine.Close()
		served.Wait()
	}
	start()
	t.Cleanup(end)
	return func(name string) Session {
		c := l.Dial(t, s.DialOptions(name))
		c.Stop, c.Restart, c.Backup = end, start, backup
		c.Restore = func() {
			end()
			if err := restore(backup); err != nil {
				t.Error(err)
			}
			start()
		}
		return c
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

// Dial opens a session, whose options have no Dial.
func (l *Listener) Dial(t *testing.T, o *store.DialOptions) Session {
	links := &testcluster.Links{Connect: l.Conn}
	o.Dial = links.Dial
	s, err := store.Dial(context.Background(), "127.0.0.1:1", o)
	require.NoError(t, err)
	return Session{Engine: s.Engine(), Links: links}
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
