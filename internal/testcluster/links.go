package testcluster

import (
	"context"
	"errors"
	"net"
	"sync"
)

// Links are the connections that a process dials, which can be cut without a goodbye, as by its end.
// The zero value is ready to use.
type Links struct {
	mu    sync.Mutex // protects the fields below
	isCut bool
	conns []net.Conn
}

// Dial dials, unless the links are cut.
func (l *Links) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case l.isCut:
		return nil, errors.Join(errors.New("the network is cut"), c.Close())
	}
	l.conns = append(l.conns, c)
	return c, nil
}

// Cut breaks all connections, and has new ones fail until it is called with false.
func (l *Links) Cut(yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut = yes; yes {
		for _, c := range l.conns {
			_ = c.Close()
		}
		l.conns = nil
	}
}
