package testcluster

import (
	"context"
	"net"
	"sync"
)

// Links are the connections that a process dials, which can be cut without a goodbye, as by its end.
// The zero value is ready to use.
type Links struct {
	// Connect makes a connection; nil connects to the network.
	Connect func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex    // protects the fields below
	cut   chan struct{} // closed when the links are mended; nil if they are not cut
	conns []net.Conn
}

// Dial dials. While the links are cut it waits, as in a network that answers nothing.
func (l *Links) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	l.mu.Lock()
	cut := l.cut
	l.mu.Unlock()
	if cut != nil {
		select {
		case <-cut:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	connect := l.Connect
	if connect == nil {
		connect = new(net.Dialer).DialContext
	}
	c, err := connect(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut != nil { // meanwhile
		_ = c.Close()
	}
	l.conns = append(l.conns, c)
	return c, nil
}

// Cut breaks all connections, and lets no new ones be made until Mend.
func (l *Links) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut == nil {
		l.cut = make(chan struct{})
	}
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

// Mend lets new connections be made after Cut.
func (l *Links) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut != nil {
		close(l.cut)
		l.cut = nil
	}
}
