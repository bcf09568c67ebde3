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
	addr    string   // as it was given
	ways    []string // the addresses in it
	next    int      // that is tried next; of who dials, which is one at a time
	options DialOptions
}

func newDialer(addr string, o DialOptions) (*dialer, error) {
	d := &dialer{addr: addr, ways: strings.Split(addr, ","), options: o}
	for _, way := range d.ways {
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

// takeoverTime bounds how long a dial of several addresses is repeated after one of the peers hung up, as standbys of a replicated store do:
// its leader may be changing.
const takeoverTime = 5 * time.Second

// hungUp reports whether the peer closed the connection before it sent a reply.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// dialUntil tries every way once, and with Wait until ctx ends.
func (d *dialer) dialUntil(ctx context.Context, hello *wire.Request) (*line, error) {
	began, standby := time.Now(), false
	for tries, pause := 1, 5*time.Millisecond; ; tries++ {
		l, err := d.dial(ctx, hello)
		standby = standby || len(d.ways) > 1 && hungUp(err)
		switch {
		case err == nil:
			return l, nil
		case tries < len(d.ways) && ctx.Err() == nil:
			continue
		case standby && nobodyThere(err) && time.Since(began) < takeoverTime && ctx.Err() == nil:
		case (isDoubtful(err) || hungUp(err)) && tries < mostDoubts*len(d.ways) && ctx.Err() == nil: // or it is a relay whose connection to the store just ended
		case !d.options.Wait || !nobodyThere(err):
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

// line is one connection of a client, and the session that it was welcomed to.
type line struct {
	conn    net.Conn
	way     string // the address
	pipe    transport.NetPipe
	out     *transport.Outbox
	in      *frames // with buf: of whoever has the turn to read
	buf     []byte
	welcome wire.Reply
	brought bool               // a reply after that to the hello; owned by the goroutine that reads
	unwatch context.CancelFunc // with DialOptions.Moved: ends its call
	moved   atomic.Bool        // it has returned nil
}

// dial connects and says hello: for a new session, or to take up the one that hello names. Whatever is wrong with this way, the next time is
// another one's.
func (d *dialer) dial(ctx context.Context, hello *wire.Request) (*line, error) {
	way := d.ways[d.next]
	if d.options.Resolve != nil {
		var err error
		if way, err = d.options.Resolve(ctx); err != nil {
			return nil, err
		}
	}
	l, err := d.dialWay(ctx, way, hello)
	if err != nil {
		d.next = (d.next + 1) % len(d.ways)
	}
	return l, err
}

func (d *dialer) dialWay(ctx context.Context, way string, hello *wire.Request) (*line, error) {
	dial := d.options.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	config, err := d.config(way)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	conn, err := dial(ctx, "tcp", way)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(longAgo) })
	l := &line{conn: conn, way: way, in: &frames{limit: helloRoom}, buf: make([]byte, clientRoom)}
	if err = l.secure(config); err == nil {
		err = l.hello(hello, &d.options)
	}
	if !stop() {
		err = fmt.Errorf("it has not answered: %w", ctx.Err())
	}
	if err != nil {
		_ = l.conn.Close()
		return nil, err
	}
	l.pipe = transport.NewPipe(l.conn)
	l.out = transport.NewOutbox(l.pipe, clientQueue)
	return l, nil
}

// end ends a connection that nobody uses any more.
func (l *line) end() {
	_ = l.conn.Close()
	l.pipe.Done()
}

// config is that of one dial; nil is without TLS.
func (d *dialer) config(way string) (*tls.Config, error) {
	if d.options.TLS == nil {
		return nil, nil
	}
	c, err := d.options.TLS()
	if errors.Is(err, ErrInvalid) { // as TLSFiles has it
		return nil, err
	}
	if err != nil {
		return nil, &Error{Op: "dial", Key: d.addr, Code: wire.CodeInvalid, Err: fmt.Errorf("%w: %w", ErrInvalid, err)}
	}
	if c.ServerName == "" {
		c = c.Clone()
		c.ServerName, _, _ = net.SplitHostPort(way) // it is one
	}
	return c, nil
}

// secure is the TLS handshake.
func (l *line) secure(config *tls.Config) error {
	if config == nil {
		return nil
	}
	t := tlsConn{tls.Client(l.conn, config), l.conn}
	l.conn = t
	err := t.Handshake()
	if err == nil {
		err = t.checkVersion()
	}
	if err == nil || nobodyThere(err) || errors.Is(err, net.ErrClosed) { // the store is about to end, perhaps
		return err
	}
	return cmp.Or(refusal(err), error(doubtful{denied("TLS: " + err.Error())}))
}

// speaksPlain reports whether head, where a TLS record should be, begins a frame that answers a hello: the upper bytes of its length are
// 0, and then comes the operation.
func speaksPlain(head [5]byte) bool {
	return head[2] == 0 && head[3] == 0 && head[4] == byte(wire.OpHello)
}

func denied(why string) error { return &Error{Code: wire.CodeDenied, Err: ErrDenied, Detail: why} }

// hello opens the session. With a secret it ends well only if the store has proved that it knows it too.
func (l *line) hello(resume *wire.Request, o *DialOptions) error {
	secret := o.Secret
	req := wire.Request{Op: wire.OpHello, Timeout: o.LivenessTimeout, Key: cmp.Or(resume.Key, whoami()), Resume: resume.Resume, Rev: resume.Rev, Value: resume.Value}
	if secret != nil {
		req.Old = newNonce()
	}
	_, writeErr := l.conn.Write(wire.AppendRequest([]byte(wire.Preface), &req))
	h, rep, err := l.answer()
	if _, told := errors.AsType[*Error](err); writeErr != nil && err != nil && !told {
		return writeErr
	}
	var shown func(rep *wire.Reply) bool
	if err == nil && h.Op == wire.OpProof && secret != nil {
		if shown, err = l.prove(secret, req.Old, rep.Value); err != nil {
			return err
		}
		h, rep, err = l.answer()
	}
	switch {
	case err != nil:
		return err
	case h.Op != wire.OpHello:
		return fmt.Errorf("%w: its answer is no welcome", ErrProtocol)
	case rep.Code != wire.CodeOK:
		return &Error{Code: rep.Code, Err: CodeError(rep.Code), Detail: rep.Detail}
	case secret != nil && (shown == nil || !shown(&rep)):
		return denied("the store did not prove that it knows the secret")
	}
	l.welcome = rep
	l.in.limit = wire.MaxReply
	return nil
}

// answer reads one frame of the handshake.
func (l *line) answer() (h wire.Header, rep wire.Reply, err error) {
	h, body, _, err := readFrame(l.conn, l.in, l.buf)
	switch {
	case errors.Is(err, wire.ErrTooLarge), errors.Is(err, wire.ErrUnknownOp):
		return h, rep, fmt.Errorf("%w: it answered %q", ErrProtocol, clip(string(l.in.buf[l.in.r:l.in.w])))
	case err != nil:
		return h, rep, cmp.Or(refusal(err), err)
	case h.Op == wire.OpGoodbye:
		return h, rep, fmt.Errorf("it is shutting down: %w", io.EOF)
	}
	if rep.Parse(h, bytes.Clone(body)) != nil {
		return h, rep, fmt.Errorf("%w: its answer is no welcome", ErrProtocol)
	}
	return h, rep, nil
}

// prove answers the store's question for the secret. shown reports whether the welcome proves that the store knows it too.
func (l *line) prove(secret, mine, theirs []byte) (shown func(welcome *wire.Reply) bool, err error) {
	bind, err := binding(l.conn)
	if err != nil {
		return nil, err
	}
	req := wire.Request{Op: wire.OpProof, Value: proof(secret, proofClient, mine, theirs, bind)}
	if _, err := l.conn.Write(wire.AppendRequest(nil, &req)); err != nil {
		return nil, err
	}
	return func(welcome *wire.Reply) bool {
		return len(welcome.Values) == 1 && proves(welcome.Values[0], secret, proofServer, mine, theirs, bind)
	}, nil
}

// readFrame reads until there is a whole frame.
func readFrame(conn net.Conn, in *frames, buf []byte) (h wire.Header, body []byte, owned bool, err error) {
	for {
		h, body, owned, ok, err := in.next()
		if ok || err != nil {
			return h, body, owned, err
		}
		n, err := conn.Read(in.room(buf))
		if in.got(n); n == 0 && err != nil {
			return h, nil, false, err
		}
	}
}
