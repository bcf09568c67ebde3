package link

import (
	"context"
	"fmt"
	"net"
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

// reachable is this node's address on the way to the store, or else to anywhere. On one node loopback will do.
func (m *Mesh) reachable(ctx context.Context) string {
	if m.group.NodeCount() == 1 {
		return loopback
	}
	for _, to := range Routes(m.group.Config().Address) {
		// Connecting a datagram socket sends nothing: it asks the kernel for the route.
		conn, err := new(net.Dialer).DialContext(ctx, "udp", net.JoinHostPort(to, "9"))
		if err != nil {
			continue
		}
		ip := conn.LocalAddr().(*net.UDPAddr).IP
		_ = conn.Close()
		if !ip.IsLoopback() { // to a relay of this node, or to rank 0 itself: others cannot connect there
			return ip.String()
		}
	}
	return loopback
}

// Routes are hosts on the way to which a node's address may be one that others can connect to: those where its ranks meet, and one that leads
// to the default route.
func Routes(address string) (hosts []string) {
	ways := address
	if _, rest, isURL := strings.Cut(address, "://"); isURL {
		ways, _, _ = strings.Cut(rest, "/")
		ways = ways[strings.LastIndexByte(ways, '@')+1:]
	}
	for way := range strings.SplitSeq(ways, ",") {
		if host, _, err := net.SplitHostPort(way); err == nil && host != "" {
			hosts = append(hosts, host)
		}
	}
	return append(hosts, "192.0.2.1")
}
