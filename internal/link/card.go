package link

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
)

// card is what a rank tells the others of itself. It travels through the group, and nobody else sees it than who sees that.
type card struct {
	Unix  string // name of its unix socket; "" if it has none
	Addr  string // host:port of its TCP listener
	Token []byte // who knows it may connect
	Cert  []byte // hash of its certificate; nil: no TLS
	Err   string // why it cannot take part
}

// listenTCP listens where the others can connect to.
func (m *Mesh) listenTCP(ctx context.Context) (net.Listener, error) {
	addr := m.opts.Listen
	if addr == "" {
		addr = m.reachable(ctx)
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(strings.Trim(addr, "[]"), "0")
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listening for data connections: %w", err)
	}
	if ip := l.Addr().(*net.TCPAddr).IP; ip.IsUnspecified() {
		_ = l.Close()
		return nil, fmt.Errorf("listening for data connections at %s: name one interface, the others must know where to connect to", addr)
	}
	return l, nil
}

const loopback = "127.0.0.1"

// reachable is this node's address on the way to the store. On one node loopback will do.
func (m *Mesh) reachable(ctx context.Context) string {
	if m.group.NodeCount() == 1 {
		return loopback
	}
	for _, to := range []string{storeHost(m.group.Config().Address), "192.0.2.1"} { // the second leads to the default route
		if to == "" {
			continue
		}
		// Connecting a datagram socket sends nothing: it asks the kernel for the route.
		conn, err := new(net.Dialer).DialContext(ctx, "udp", net.JoinHostPort(to, "9"))
		if err != nil {
			continue
		}
		ip := conn.LocalAddr().(*net.UDPAddr).IP
		_ = conn.Close()
		return ip.String()
	}
	return loopback
}

// storeHost is the host of host:port or of a URL; "" if it has none.
func storeHost(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Hostname()
	}
	host, _, _ := net.SplitHostPort(address)
	return host
}
