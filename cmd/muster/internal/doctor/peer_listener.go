package doctor

import (
	"context"
	"crypto/subtle"
	"io"
	"net"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/link"
)

// peerListener listens for the connections with which the other ranks test this rank. It closes
// connections of clients that do not have the token.
type peerListener struct {
	listener      net.Listener
	token         string
	answerTimeout time.Duration
	wg            sync.WaitGroup

	mu     sync.Mutex // protects the fields below
	closed bool
	conns  map[net.Conn]bool
}

// listenForPeers listens where packages gather and collective would: at this node's address on the
// route to the store, or at loopback if there is only one node.
func (w *groupCheck) listenForPeers(ctx context.Context, token string) (*peerListener, error) {
	l, err := w.System.Listen(ctx, "tcp", net.JoinHostPort(w.reachable(ctx), "0"))
	if err != nil {
		return nil, err
	}
	d := &peerListener{listener: l, token: token, answerTimeout: w.answerTimeout(), conns: map[net.Conn]bool{}}
	d.wg.Go(d.accept)
	return d, nil
}

func (w *groupCheck) reachable(ctx context.Context) string {
	const loopback = "127.0.0.1"
	if w.group.NodeCount() == 1 {
		return loopback
	}
	for _, host := range link.RouteHosts(w.group.Config().Address) {
		if ip, err := w.source(ctx, host); err == nil && !ip.IsLoopback() {
			return ip.String()
		}
	}
	return loopback
}

func (d *peerListener) accept() {
	for {
		c, err := d.listener.Accept()
		if err != nil {
			return
		}
		if !d.enter(c) {
			_ = c.Close()
			continue
		}
		d.wg.Go(func() {
			defer d.leave(c)
			d.serve(c)
		})
	}
}

func (d *peerListener) enter(c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.conns[c] = true
	}
	return !d.closed
}

func (d *peerListener) leave(c net.Conn) {
	_ = c.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
}

// serve is the other end of try.
func (d *peerListener) serve(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(3 * d.answerTimeout)) // cannot fail for a socket
	token := make([]byte, len(d.token))
	if readFull(c, token) != nil || subtle.ConstantTimeCompare(token, []byte(d.token)) != 1 {
		return
	}
	many := make([]byte, bulk)
	if _, err := c.Write(token); err != nil || readFull(c, many) != nil {
		return
	}
	if _, err := c.Write(token[:1]); err == nil {
		_, _ = c.Write(many) // a peer that does not receive it reports that
		_, _ = io.Copy(io.Discard, c)
	}
}

func (d *peerListener) close() {
	_ = d.listener.Close()
	d.mu.Lock()
	d.closed = true
	for c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
}

func readFull(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	return err
}
