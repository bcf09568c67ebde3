package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// DialOptions has defaults for nil.
type DialOptions struct {
	// Dial makes the connection; nil is a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Wait keeps trying while nobody listens there, or the name does not resolve, until ctx
	// ends: ranks may start before the store does.
	Wait   bool
	Logger *slog.Logger // nil is silent
}

const (
	// handshakeTime bounds a handshake whose ctx does not.
	handshakeTime = 10 * time.Second
	// goodbyeTime bounds how long Close waits for the server to have heard it.
	goodbyeTime = time.Second
	// clientRoom is the size of a client's read buffer; larger replies get memory of their own.
	clientRoom = 32 << 10
	// largeRequest is from where on a request waits its turn while more than largeQueue bytes
	// wait for the server to read.
	largeRequest = 64 << 10
	largeQueue   = 32 << 20
	// clientQueue bounds what waits for a server that does not read.
	clientQueue = 256 << 20
)

// Dial connects to the Server at addr, a host:port. A malformed address, or somebody else who
// listens there (ErrProtocol), is an error at once. ctx bounds the dialing alone.
//
// The connection mends itself. Calls that have no answer yet are repeated; what changes something takes effect once.
// If the session could not be taken up again, since its time to come back has passed or the store lost its memory, then changes that
// were under way are ErrUnknown, and nothing is repeated. A store that has gone for good is ErrUnavailable.
func Dial(ctx context.Context, addr string, o *DialOptions) (*Store, error) {
	if o == nil {
		o = &DialOptions{}
	}
	if err := checkAddr(addr); err != nil {
		return nil, &Error{Op: "dial", Key: addr, Code: wire.CodeInvalid, Err: ErrInvalid, Detail: err.Error()}
	}
	d := &dialer{addr: addr, options: *o}
	began := time.Now()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		l, err := d.dial(ctx, &wire.Request{})
		if err == nil {
			return New(newClient(d, l)), nil
		}
		if !o.Wait || !nobodyThere(err) {
			return nil, dialError(addr, err, 0)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, dialError(addr, fmt.Errorf("%w: %w", ctx.Err(), err), time.Since(began))
		}
	}
}

func dialError(addr string, err error, waited time.Duration) error {
	e := &Error{Op: "dial", Key: addr, Code: wire.CodeUnavailable, Err: fmt.Errorf("%w: %w", ErrUnavailable, err)}
	if errors.Is(err, ErrProtocol) || errors.Is(err, ErrDenied) {
		e.Err = err
	}
	if waited > 0 {
		e.Code = failureCode(err)
		e.Detail = fmt.Sprintf("nobody served there for %v", waited.Round(time.Millisecond))
	}
	return e
}

// checkAddr refuses addresses that no amount of waiting makes right.
func checkAddr(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("port %q is not a number from 1 to 65535", port)
	}
	return nil
}

// nobodyThere reports whether err may go away when the server has started.
func nobodyThere(err error) bool {
	var dns *net.DNSError
	var timeout net.Error
	return errors.As(err, &dns) || errors.As(err, &timeout) && timeout.Timeout() ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EHOSTUNREACH) ||
		errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// isRefused reports whether nobody listens there.
func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// dialer makes connections to one store.
type dialer struct {
	addr    string
	options DialOptions
}

// line is one connection of a client, and the session that it was welcomed to.
type line struct {
	conn    net.Conn
	pipe    transport.NetPipe
	out     *transport.Outbox
	in      *frames // with buf: of whoever has the turn to read
	buf     []byte
	welcome wire.Reply
}

// dial connects and says hello: for a new session, or to take up the one that resume names.
func (d *dialer) dial(ctx context.Context, resume *wire.Request) (*line, error) {
	dial := d.options.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	conn, err := dial(ctx, "tcp", d.addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(longAgo) })
	l := &line{conn: conn, in: &frames{limit: wire.MaxReply}, buf: make([]byte, clientRoom)}
	err = l.hello(resume)
	if !stop() {
		err = fmt.Errorf("it has not answered: %w", ctx.Err())
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	l.pipe = transport.NewPipe(conn)
	l.out = transport.NewOutbox(l.pipe, clientQueue)
	return l, nil
}

// hello opens the session.
func (l *line) hello(resume *wire.Request) error {
	req := wire.Request{Op: wire.OpHello, Key: whoami(), Resume: resume.Resume, Rev: resume.Rev, Value: resume.Value}
	b := wire.AppendRequest([]byte(wire.Preface), &req)
	if _, err := l.conn.Write(b); err != nil {
		return err
	}
	h, body, _, err := readFrame(l.conn, l.in, l.buf)
	if errors.Is(err, wire.ErrTooLarge) || errors.Is(err, wire.ErrUnknownOp) {
		return fmt.Errorf("%w: it answered %q", ErrProtocol, clip(string(l.in.buf[l.in.r:l.in.w])))
	}
	if err != nil {
		return err
	}
	if h.Op == wire.OpGoodbye {
		return fmt.Errorf("it is shutting down: %w", io.EOF)
	}
	rep := &l.welcome
	if err := rep.Parse(h, bytes.Clone(body)); err != nil || h.Op != wire.OpHello {
		return fmt.Errorf("%w: its answer is no welcome", ErrProtocol)
	}
	if rep.Code != wire.CodeOK {
		return &Error{Code: rep.Code, Err: CodeError(rep.Code), Detail: rep.Detail}
	}
	return nil
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

// whoami is how this process is called in the logs of others.
func whoami() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("pid %d on %s", os.Getpid(), host)
}

func logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
