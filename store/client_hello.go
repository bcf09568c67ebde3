package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

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
	if o.Secret != nil {
		if err := checkSecret(o.Secret); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// takeoverTimeout bounds how long a dial of several addresses is repeated after a peer has closed
// the connection, as standbys of a replicated store do: a new leader may be taking over.
const takeoverTimeout = 5 * time.Second

// isHangup reports whether the peer closed the connection without a reply.
func isHangup(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

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
		standby = standby || len(d.addrs) > 1 && isHangup(err)
		switch {
		case err == nil:
			return l, nil
		case tries < len(d.addrs) && ctx.Err() == nil:
			continue
		case standby && isUnreachable(err) && time.Since(began) < takeoverTimeout && ctx.Err() == nil:
		case (isAmbiguousTLS(err) || isHangup(err)) && tries < maxTLSAttempts*len(d.addrs) && ctx.Err() == nil: // or a relay whose connection to the store has just ended
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

// clientConn is one connection of a client or a relay to the store, after the handshake.
type clientConn struct {
	nc        net.Conn
	addr      string // address of the server
	pipe      transport.NetPipe
	out       *transport.Outbox
	in        *frameReader // with buf: owned by the goroutine that reads
	buf       []byte
	welcome   wire.Reply
	gotReply  bool               // a reply after that to the hello; owned by the goroutine that reads
	stopWatch context.CancelFunc // with DialOptions.WaitReplaced: ends its call
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
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(longAgo) })
	l := &clientConn{nc: conn, addr: way, in: &frameReader{limit: maxHandshakeFrame, first: clientFirstAlloc}, buf: make([]byte, clientBufferSize)}
	if err = l.tlsHandshake(config); err == nil {
		err = l.hello(hello, &d.options)
	}
	if !stop() {
		err = noAnswerError{fmt.Errorf("no answer: %w", ctx.Err())}
	}
	if err != nil {
		_ = l.nc.Close()
		return nil, err
	}
	l.pipe = transport.NewPipe(l.nc)
	l.out = transport.NewOutbox(l.pipe, clientQueue)
	return l, nil
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

// tlsHandshake makes the TLS handshake, if config is not nil.
func (l *clientConn) tlsHandshake(config *tls.Config) error {
	if config == nil {
		return nil
	}
	t := tlsConn{tls.Client(l.nc, config), l.nc}
	l.nc = t
	err := t.Handshake()
	if err == nil {
		err = t.checkVersion()
	}
	if err == nil || isUnreachable(err) || errors.Is(err, net.ErrClosed) { // the server may be shutting down
		return err
	}
	return cmp.Or(tlsRefusal(err), error(ambiguousTLSError{denied(wire.ReasonUnknown, "TLS: "+err.Error())}))
}

// speaksPlain reports whether head, read in place of a TLS record, begins a frame that answers a
// hello: the upper bytes of its length are 0, and the operation follows.
func speaksPlain(head [5]byte) bool {
	return head[2] == 0 && head[3] == 0 && head[4] == byte(wire.OpHello)
}

func denied(reason wire.Reason, why string) error {
	return &Error{Code: wire.CodeDenied, Err: ErrDenied, Detail: why, Reason: reason}
}

// noAnswerError is the error of a dial that has connected, but got no answer in time.
type noAnswerError struct{ error }

func (e noAnswerError) Unwrap() error { return e.error }

// hello opens the session. With a secret, it succeeds only if the store has proved that it knows
// the secret too.
func (l *clientConn) hello(resume *wire.Request, o *DialOptions) error {
	secret := o.Secret
	req := wire.Request{Op: wire.OpHello, Timeout: o.LivenessTimeout, Key: cmp.Or(resume.Key, processName()), Resume: resume.Resume, Incarnation: resume.Incarnation, Value: resume.Value}
	if secret != nil {
		req.Token = newNonce()
	}
	_, writeErr := l.nc.Write(wire.AppendRequest([]byte(wire.Preface), &req))
	h, rep, err := l.readReply()
	if _, reported := errors.AsType[*Error](err); writeErr != nil && err != nil && !reported {
		return writeErr
	}
	var shown func(rep *wire.Reply) bool
	if err == nil && h.Op == wire.OpProof && secret != nil {
		if shown, err = l.prove(secret, req.Token, rep.Value); err != nil {
			return err
		}
		h, rep, err = l.readReply()
	}
	switch {
	case err != nil:
		return err
	case h.Op != wire.OpHello:
		return fmt.Errorf("%w: unexpected reply to the hello", ErrProtocol)
	case rep.Code != wire.CodeOK:
		return &Error{Code: rep.Code, Err: CodeError(rep.Code), Detail: rep.Detail, Reason: wire.Reason(rep.N)}
	case secret != nil && (shown == nil || !shown(&rep)):
		return denied(wire.ReasonServerSecret, "the store did not prove that it knows the secret")
	}
	l.welcome = rep
	l.in.limit = wire.MaxReply
	return nil
}

// readReply reads one frame of the handshake.
func (l *clientConn) readReply() (h wire.Header, rep wire.Reply, err error) {
	h, body, _, err := readFrame(l.nc, l.in, l.buf)
	switch {
	case errors.Is(err, wire.ErrTooLarge), errors.Is(err, wire.ErrUnknownOp):
		return h, rep, fmt.Errorf("%w: it answered %q", ErrProtocol, clip(string(l.in.buf[l.in.r:l.in.w])))
	case err != nil:
		return h, rep, cmp.Or(tlsRefusal(err), err)
	case h.Op == wire.OpGoodbye:
		return h, rep, fmt.Errorf("the store is shutting down: %w", io.EOF)
	}
	if rep.Parse(h, bytes.Clone(body)) != nil {
		return h, rep, fmt.Errorf("%w: unexpected reply to the hello", ErrProtocol)
	}
	return h, rep, nil
}

// prove answers the store's challenge. shown reports whether the welcome proves that the store
// knows the secret too.
func (l *clientConn) prove(secret, mine, theirs []byte) (shown func(welcome *wire.Reply) bool, err error) {
	bind, err := binding(l.nc)
	if err != nil {
		return nil, err
	}
	req := wire.Request{Op: wire.OpProof, Value: proof(secret, proofClient, mine, theirs, bind)}
	if _, err := l.nc.Write(wire.AppendRequest(nil, &req)); err != nil {
		return nil, err
	}
	return func(welcome *wire.Reply) bool {
		return len(welcome.Values) == 1 && proves(welcome.Values[0], secret, proofServer, mine, theirs, bind)
	}, nil
}

// readFrame reads until a frame is complete.
func readFrame(conn net.Conn, in *frameReader, buf []byte) (h wire.Header, body []byte, owned bool, err error) {
	for {
		h, body, owned, ok, err := in.next()
		if ok || err != nil {
			return h, body, owned, err
		}
		n, err := conn.Read(in.buffer(buf))
		if in.advance(n); n == 0 && err != nil {
			return h, nil, false, err
		}
	}
}
