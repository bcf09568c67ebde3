package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"

	"github.com/muster-pg/muster/wire"
)

// Protocol is another protocol on the port of a Server, told from others by what a peer sends first. Its connections
// count as others do; all of ServerLimits but InFlight, Grace and LivenessTimeout holds for them.
//
// Its peers prove nothing. They reach the whole store if everybody does, by this server's protocol; if that takes a secret,
// a certificate or TLS, they are turned away, unless one of Access opens a prefix to the protocol by its name.
type Protocol interface {
	// Name is what Access calls it.
	Name() string
	// Match looks at the first bytes of a connection, of which there are at most 12. It says yes, no, or that it takes more
	// of them to tell. There are none if the peer has said nothing in all the time for a handshake.
	Match(first []byte) (yes, more bool)
	// ServeConn serves a connection until it ends; the server then closes it. When ctx ends, what has been asked is answered,
	// and that is all: waiting, in the store and for the peer, is over. Whatever it started has ended when it returns.
	ServeConn(ctx context.Context, v *Visit) error
}

// Visit is a connection of a Protocol.
type Visit struct {
	Conn  net.Conn
	First []byte // what has been read of it already
	Store *Store // what the peer reaches
	// Prompt is that Store answers at once what need not wait: it is in this process, and not on a disk. Then one goroutine may serve
	// many connections.
	Prompt bool
}

// guest is a connection of a Protocol.
type guest struct {
	protocol Protocol
	visit    Visit
	ctx      context.Context // until the server stops
	leave    context.CancelFunc
}

// invite makes the connection one of p's, which the first bytes are of.
func (c *conn) invite(p Protocol, first []byte) error {
	c.hello.Key = p.Name()
	_, secured := c.nc.(tlsConn)
	s, err := c.server.openTo(p, secured)
	if err != nil {
		return err
	}
	prompt := c.memory != nil && !c.memory.stays()
	g := &guest{protocol: p, visit: Visit{Conn: c.nc, First: bytes.Clone(first), Store: s, Prompt: prompt}}
	g.ctx, g.leave = context.WithCancel(context.Background())
	c.mu.Lock()
	c.guest = g
	c.mu.Unlock()
	return nil
}

// serve serves the connection until it ends.
func (g *guest) serve(c *conn) error {
	defer g.leave()
	if c.server.ending() {
		return net.ErrClosed
	}
	return g.protocol.ServeConn(g.ctx, &g.visit)
}

// openTo is what the peers of p reach.
func (s *Server) openTo(p Protocol, secured bool) (*Store, error) {
	refuse := func(wants string) error {
		return fmt.Errorf("%w: it speaks %s, and this server wants %s: open a prefix to that by name (Access.Protocol)", ErrDenied, p.Name(), wants)
	}
	i := slices.IndexFunc(s.Access, func(a Access) bool { return a.Protocol == p.Name() })
	switch {
	case i >= 0:
		a := s.Access[i]
		e := Engine(shared{s.Engine})
		if !a.Write {
			e = &readOnly{e}
		}
		return Prefix(New(e), a.Prefix), nil
	case len(s.Access) > 0:
		return nil, refuse("a secret or a certificate")
	case s.TLS != nil && !secured:
		return nil, refuse("TLS")
	}
	return New(shared{s.Engine}), nil
}

// shared is an Engine that its user cannot close.
type shared struct{ Engine }

// Close does nothing.
func (shared) Close() error { return nil }

// readOnly is an engine that refuses to change anything.
type readOnly struct{ Engine }

// Do implements Engine.
func (r *readOnly) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if why := (rights{{"", false}}).refuse(req); why != "" {
		*rep = wire.Reply{Code: wire.CodeDenied, Detail: why}
		return nil
	}
	return r.Engine.Do(ctx, req, rep)
}

// look reads the first bytes of a connection into buf, as few as tell what it is: one of a Protocol's, or another one.
func (c *conn) look(buf []byte) (first []byte, p Protocol, err error) {
	buf = buf[:len(wire.Preface)]
	n := 0
	for n < len(buf) && len(c.server.Protocols) > 0 {
		m, err := c.nc.Read(buf[n:])
		n += m
		if n == 0 && err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, nil, err
		}
		p, more := c.server.match(buf[:n])
		if p != nil || n > 0 && !more {
			return buf[:n], p, nil
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return buf[:n], nil, nil
}

// match finds whose peer begins like that; more is that it takes more to tell.
func (s *Server) match(first []byte) (p Protocol, more bool) {
	if len(first) > 0 && (first[0] == wire.Preface[0] || first[0] == tlsRecord) {
		return nil, false
	}
	for _, p := range s.Protocols {
		yes, unsure := p.Match(first)
		if yes {
			return p, false
		}
		more = more || unsure
	}
	return nil, more
}

// checkProtocols refuses names that are ambiguous, or of nothing.
func (s *Server) checkProtocols() error {
	var names []string
	for _, p := range s.Protocols {
		names = append(names, p.Name())
	}
	opened := map[string]bool{}
	for i, a := range s.Access {
		if a.Protocol == "" {
			continue
		}
		bad := &Error{Op: "access", Key: strconv.Itoa(i), Code: wire.CodeInvalid, Err: ErrInvalid}
		switch {
		case !slices.Contains(names, a.Protocol):
			bad.Detail = fmt.Sprintf("this server does not speak %q: it speaks %q", a.Protocol, names)
			return bad
		case opened[a.Protocol]:
			bad.Detail = fmt.Sprintf("there is another prefix for %q: its peers see one", a.Protocol)
			return bad
		}
		opened[a.Protocol] = true
	}
	return nil
}

// replayed is a connection whose first bytes have been read already.
type replayed struct {
	net.Conn
	first []byte
}

// Read implements net.Conn.
func (r *replayed) Read(b []byte) (int, error) {
	if len(r.first) == 0 {
		return r.Conn.Read(b)
	}
	n := copy(b, r.first)
	r.first = r.first[n:]
	return n, nil
}
