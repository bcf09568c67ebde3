package link

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// peerInfo is what a rank sends the others when the mesh opens. It is sent through the group, and
// visible only to its ranks.
type peerInfo struct {
	Unix  string // name of its unix socket; "" if it has none
	Addr  string // host:port of its TCP listener
	Token []byte // a secret: a rank that knows it may connect
	TLS   bool   // it encrypts TCP connections
	Err   string // why it cannot take part
}

// listenTCP listens where the other ranks can connect.
func (m *Mesh) listenTCP(ctx context.Context) (net.Listener, error) {
	addr := m.opts.Listen
	if addr == "" {
		addr = m.localAddr(ctx)
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
		return nil, fmt.Errorf("listening for data connections at %s: choose one interface, since the other ranks need an address", addr)
	}
	return l, nil
}

// IsLoopback reports whether addr, with or without a port, is certainly loopback. It does not resolve
// names.
func IsLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

const loopback = "127.0.0.1"

// localAddr returns this node's address on the route to the store, or else on the default route;
// the loopback address if all ranks are on one node.
func (m *Mesh) localAddr(ctx context.Context) string {
	if m.group.NodeCount() == 1 {
		return loopback
	}
	for _, to := range RouteHosts(m.group.Config().Address) {
		// Connecting a datagram socket sends nothing; it only looks up the route.
		conn, err := new(net.Dialer).DialContext(ctx, "udp", net.JoinHostPort(to, "9"))
		if err != nil {
			continue
		}
		ip := conn.LocalAddr().(*net.UDPAddr).IP
		_ = conn.Close()
		if !ip.IsLoopback() { // loopback leads to a relay of this node, or to rank 0 itself
			return ip.String()
		}
	}
	return loopback
}

// RouteHosts returns hosts to which a node's route may have a source address that other nodes can
// connect to: those of the store's address, and one on the default route.
func RouteHosts(address string) (hosts []string) {
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
