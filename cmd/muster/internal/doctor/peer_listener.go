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
	life          context.Context // until close
	stop          context.CancelFunc
	wg            sync.WaitGroup
}

// listenForPeers listens where packages gather and collective would: at this node's address on the
// route to the store, or at loopback if there is only one node.
func (w *groupCheck) listenForPeers(ctx context.Context, token string) (*peerListener, error) {
	l, err := w.System.Listen(ctx, "tcp", net.JoinHostPort(w.reachable(ctx), "0"))
	if err != nil {
		return nil, err
	}
	d := &peerListener{listener: l, token: token, answerTimeout: w.answerTimeout()}
	d.life, d.stop = context.WithCancel(context.Background())
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
		d.wg.Go(func() {
			defer c.Close()
			defer context.AfterFunc(d.life, func() { _ = c.Close() })()
			d.serve(c)
		})
	}
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
	d.stop()
	d.wg.Wait()
}

func readFull(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	return err
}
