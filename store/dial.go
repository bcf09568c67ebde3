package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// dialer makes connections to one store.
type dialer struct {
	addr    string   // as the caller passed it
	addrs   []string // the addresses in addr
	next    int      // index of the next one to try; used by one dial at a time
	options DialOptions
}

func newDialer(addr string, o DialOptions) (*dialer, error) {
	d := &dialer{addr: addr, addrs: strings.Split(addr, ","), options: o}
	for _, way := range d.addrs {
		if err := checkAddr(way); err != nil {
			return nil, &Error{Op: "dial", Key: addr, Code: wire.CodeInvalid, Err: ErrInvalid, Detail: err.Error()}
		}
	}
	if bad := handshake.BadSecret(o.Secret); o.Secret != nil && bad != "" {
		return nil, fileError("secret", "", errors.New(bad))
	}
	return d, nil
}

// takeoverTimeout bounds how long a dial of several addresses is repeated after a peer has closed
// the connection, as standbys of a replicated store do: a new leader may be taking over.
const takeoverTimeout = 5 * time.Second

// dialUntil tries each address once, and with Wait until ctx ends.
func (d *dialer) dialUntil(ctx context.Context, hello *wire.Request) (*clientConn, error) {
	began, standby := time.Now(), false
	var last error // of the attempt before
	for tries, pause := 1, 5*time.Millisecond; ; tries++ {
		l, err := d.dial(ctx, hello)
		if err != nil && last != nil && transport.ContextErr(ctx) != nil {
			err = last // ctx interrupted this attempt: its error says nothing about the store
		}
		last = err
		standby = standby || len(d.addrs) > 1 && handshake.IsHangup(err)
		switch {
		case err == nil:
			return l, nil
		case tries < len(d.addrs) && ctx.Err() == nil:
			continue
		case standby && isUnreachable(err) && time.Since(began) < takeoverTimeout && ctx.Err() == nil:
		case (handshake.IsDoubtful(err) || handshake.IsHangup(err)) && tries < maxTLSAttempts*len(d.addrs) && ctx.Err() == nil: // or a relay whose connection to the store has just ended
		case !d.options.Wait || !isUnreachable(err):
			return nil, dialError(d.addr, err, 0)
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 250*time.Millisecond)
		case <-ctx.Done():
			return nil, dialError(d.addr, fmt.Errorf("%w: %w", ctx.Err(), err), time.Since(began))
		}
	}
}

// maxTLSAttempts is how often a dial tries while each handshake fails with a doubtful error.
const maxTLSAttempts = 3

// clientConn is one connection of a client or a relay to the store, after the handshake.
type clientConn struct {
	nc        net.Conn
	addr      string // address of the server
	pipe      transport.NetPipe
	out       *transport.Outbox
	in        handshake.FrameReader // with buf: owned by the goroutine that reads
	buf       []byte
	welcome   wire.Reply
	gotReply  bool               // a reply after that to the hello; owned by the goroutine that reads
	stopWatch context.CancelFunc // ends the call of DialOptions.WaitReplaced, if there is one
	replaced  atomic.Bool        // WaitReplaced has returned nil
}

// dial connects and sends the hello: for a new session, or to resume the one that hello names.
// After an error the next call tries the next address.
func (d *dialer) dial(ctx context.Context, hello *wire.Request) (*clientConn, error) {
	way := d.addrs[d.next]
	if d.options.Resolve != nil {
		var err error
		if way, err = d.options.Resolve(ctx); err != nil {
			return nil, err
		}
	}
	l, err := d.dialAddr(ctx, way, hello)
	if err != nil {
		d.next = (d.next + 1) % len(d.addrs)
	}
	return l, err
}

func (d *dialer) dialAddr(ctx context.Context, way string, hello *wire.Request) (*clientConn, error) {
	dial := d.options.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	config, err := d.tlsConfig(way)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	conn, err := dial(ctx, "tcp", way)
	if err != nil {
		return nil, err
	}
	offer := &handshake.Offer{TLS: config, Secret: d.options.Secret, Hello: *hello}
	offer.Hello.Key, offer.Hello.Timeout = cmp.Or(hello.Key, processName()), d.options.LivenessTimeout
	welcome, err := handshake.Open(ctx, conn, offer)
	if err != nil {
		return nil, refusalError(err)
	}
	l := &clientConn{nc: welcome.Conn, addr: way, welcome: welcome.Reply, in: welcome.In, buf: make([]byte, clientBufferSize), stopWatch: func() {}}
	l.in.Limit, l.in.First = wire.MaxReply, clientFirstAlloc
	l.pipe = transport.NewPipe(l.nc)
	l.out = transport.NewOutbox(l.pipe, clientQueue)
	return l, nil
}

// refusalError returns the *Error for a refused handshake, and other errors as they are.
func refusalError(err error) error {
	refusal, ok := errors.AsType[*handshake.RefusalError](err)
	if !ok {
		return err
	}
	e := &Error{Code: refusal.Code, Err: CodeError(refusal.Code), Detail: refusal.Detail, Reason: refusal.Reason}
	if handshake.IsDoubtful(err) {
		return handshake.DoubtfulError{Err: e}
	}
	return e
}

// send queues a request.
func (l *clientConn) send(req *wire.Request) {
	l.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, req) })
}

// close ends a connection that is no longer used.
func (l *clientConn) close() {
	_ = l.nc.Close()
	l.pipe.Done()
}

// tlsConfig returns the configuration for one dial; nil means no TLS.
func (d *dialer) tlsConfig(way string) (*tls.Config, error) {
	if d.options.TLS == nil {
		return nil, nil
	}
	c, err := d.options.TLS()
	if errors.Is(err, ErrInvalid) { // from TLSFiles
		return nil, err
	}
	if err != nil {
		return nil, &Error{Op: "dial", Key: d.addr, Code: wire.CodeInvalid, Err: fmt.Errorf("%w: %w", ErrInvalid, err)}
	}
	if c.ServerName == "" {
		c = c.Clone()
		c.ServerName, _, _ = net.SplitHostPort(way) // addr was checked
	}
	return c, nil
}
