package store

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// Protocol is another protocol on the port of a Server, distinguished by the first bytes that a
// peer sends, such as that of package tcpstore. Its connections count as others do, and all ServerLimits except InFlight,
// ReconnectTimeout and LivenessTimeout apply to them.
//
// Its peers are not authenticated. They can use the whole store if the server's own protocol needs
// no authentication and no TLS. Otherwise they are refused, unless an Access opens a prefix to the
// protocol by its name.
type Protocol interface {
	// Name returns the name for Access.Protocol.
	Name() string
	// Match looks at the first bytes of a connection, at most 12. It returns whether the connection
	// uses the protocol, or whether it needs more bytes to decide.
	Match(first []byte) (yes, more bool)
	// ServeConn serves a connection until it ends; the server then closes it. When ctx ends,
	// ServeConn answers the requests that it has received and returns, without waiting for the
	// store or the peer. All goroutines that it has started must have ended when it returns.
	ServeConn(ctx context.Context, v *ProtocolConn) error
}

// ProtocolConn is a connection of a Protocol.
type ProtocolConn struct {
	Conn  net.Conn
	First []byte // bytes that were already read
	Store *Store // the part of the store that the peer can use
	// Prefix is that of Store in Whole, the whole store, which is for what the protocol publishes.
	// They are not set if Store is the whole store.
	Prefix string
	Whole  *Store
	// Immediate is true if Store answers requests that need not wait at once: it is in this
	// process, and not durable. One goroutine may then serve many connections.
	Immediate bool
	Logger    *slog.Logger // of the server; nil discards the log
	// Buffers is ServerLimits.Buffers of the server. Its Reserve(n) takes n bytes, and reports whether
	// so many were left; a negative n returns bytes. ServeConn takes what it holds of unfinished
	// requests and of answers that the peer has not read, and returns all of that. nil: there is no
	// limit.
	Buffers *transport.Budget
}

// foreignConn is a connection of another protocol.
type foreignConn struct {
	conn ProtocolConn
	ctx  context.Context // until the server stops
	stop context.CancelFunc
}

// setForeign makes the connection one of the other protocol, whose first bytes were read.
func (c *conn) setForeign(first []byte) error {
	c.hello.Key = c.server.Protocol.Name()
	s, prefix, err := c.server.openOther(handshake.IsTLS(c.nc))
	if err != nil {
		return err
	}
	prompt := c.memory != nil && !c.memory.isDurable()
	g := &foreignConn{conn: ProtocolConn{Conn: c.nc, First: first, Store: s, Immediate: prompt, Logger: c.server.log(), Buffers: c.server.budget}}
	if prefix != "" {
		g.conn.Prefix, g.conn.Whole = prefix, New(unclosable{c.server.Engine})
	}
	g.ctx, g.stop = context.WithCancel(context.Background())
	c.mu.Lock()
	c.foreign = g
	c.mu.Unlock()
	return nil
}

// serve serves the connection until it ends.
func (g *foreignConn) serve(c *conn) error {
	defer g.stop()
	if c.server.isStopping() {
		return net.ErrClosed
	}
	return c.server.Protocol.ServeConn(g.ctx, &g.conn)
}

// openOther returns the part of the store that the peers of the other protocol can use, and its prefix.
func (s *Server) openOther(secured bool) (part *Store, prefix string, err error) {
	p := s.Protocol
	refuse := func(wants string) (*Store, string, error) {
		return nil, "", fmt.Errorf("%w: it speaks %s, and this server wants %s: open a prefix to that by name (Access.Protocol)", ErrDenied, p.Name(), wants)
	}
	i := slices.IndexFunc(s.Access, func(a Access) bool { return a.Protocol == p.Name() })
	switch {
	case i >= 0:
		a := s.Access[i]
		e := Engine(unclosable{s.Engine})
		if !a.Write {
			e = &readOnly{e}
		}
		return Prefix(New(e), a.Prefix), a.Prefix, nil
	case len(s.Access) > 0:
		return refuse("a secret or a certificate")
	case s.TLS != nil && !secured:
		return refuse("TLS")
	}
	return New(unclosable{s.Engine}), "", nil
}

// unclosable is an Engine whose Close has no effect.
type unclosable struct{ Engine }

// Close does nothing.
func (unclosable) Close() error { return nil }

// readOnly is an engine that refuses changes.
type readOnly struct{ Engine }

// Do implements Engine.
func (r *readOnly) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if why := (rights{{"", false}}).refuse(req); why != "" {
		*rep = wire.Reply{Code: wire.CodeDenied, Detail: why}
		return nil
	}
	return r.Engine.Do(ctx, req, rep)
}
