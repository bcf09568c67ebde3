package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
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
	clientRoom = 16 << 10
	// clientQueue bounds what waits for a server that does not read.
	clientQueue = 256 << 20
)

// Dial connects to the Server at addr, a host:port. A malformed address, or somebody else who
// listens there (ErrProtocol), is an error at once. ctx bounds the dialing alone.
func Dial(ctx context.Context, addr string, o *DialOptions) (*Store, error) {
	if o == nil {
		o = &DialOptions{}
	}
	if err := checkAddr(addr); err != nil {
		return nil, &Error{Op: "dial", Key: addr, Code: wire.CodeInvalid, Err: ErrInvalid, Detail: err.Error()}
	}
	began := time.Now()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		c, err := dialOnce(ctx, addr, o)
		if err == nil {
			return New(c), nil
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

func dialOnce(ctx context.Context, addr string, o *DialOptions) (*client, error) {
	dial := o.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	in := &frames{limit: wire.MaxReply}
	buf := make([]byte, clientRoom)
	err = hello(conn, in, buf)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	c := &client{
		addr: addr, conn: conn, in: in, pipe: transport.NewPipe(conn), logger: logger(o.Logger),
		calls: map[uint64]*clientCall{}, ended: make(chan struct{}),
	}
	c.out = transport.NewOutbox(c.pipe, clientQueue)
	go c.read(buf)
	return c, nil
}

// hello opens the session.
func hello(conn net.Conn, in *frames, buf []byte) error {
	b := append([]byte(nil), wire.Preface...)
	b = wire.AppendRequest(b, &wire.Request{Op: wire.OpHello, Key: whoami()})
	if _, err := conn.Write(b); err != nil {
		return err
	}
	h, body, _, err := readFrame(conn, in, buf)
	if errors.Is(err, wire.ErrTooLarge) || errors.Is(err, wire.ErrUnknownOp) {
		return fmt.Errorf("%w: it answered %q", ErrProtocol, clip(string(in.buf[in.r:in.w])))
	}
	if err != nil {
		return err
	}
	var rep wire.Reply
	if err := rep.Parse(h, body); err != nil || h.Op != wire.OpHello {
		return fmt.Errorf("%w: its answer is no welcome", ErrProtocol)
	}
	if rep.Code != wire.CodeOK {
		return fmt.Errorf("%w: %s", CodeError(rep.Code), rep.Detail)
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

// client is an Engine over one connection, which all calls share: a call that waits delays no
// other, and one that is given up leaves the connection as it is.
//
// It owns one goroutine, which reads; it ends when the connection does. That ends all calls.
type client struct {
	addr   string
	conn   net.Conn
	in     *frames // owned by read
	pipe   transport.NetPipe
	out    *transport.Outbox
	logger *slog.Logger
	ended  chan struct{} // read has ended

	mu    sync.Mutex // protects the fields below
	calls map[uint64]*clientCall
	last  uint64
	err   error // why there are no more calls
}

// clientCall is a call that waits for its reply. done gets one value: calls are used again.
type clientCall struct {
	rep  *wire.Reply
	err  error
	done chan struct{}
}

var clientCalls = sync.Pool{New: func() any { return &clientCall{done: make(chan struct{}, 1)} }}

// Do implements Engine.
func (c *client) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	call := clientCalls.Get().(*clientCall)
	call.rep, call.err = rep, nil
	id, err := c.register(call)
	if err != nil {
		return err
	}
	c.out.Append(func(b []byte) []byte {
		start := len(b)
		b = wire.AppendRequest(b, req)
		wire.Readdress(b[start:], req.Op, id)
		return b
	})
	c.out.Flush()
	err = await(ctx, req.Op, call.done, func() {
		if req.Op.Waits() {
			c.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &wire.Request{Op: wire.OpCancel, ID: id}) })
			c.out.Flush()
		}
	})
	if err != nil && !c.abandon(id) {
		<-call.done // the reader has it: the answer came just now
		err = nil
	}
	if err != nil {
		return err // call is not used again: nobody will fill it, but its rep is the caller's
	}
	err = call.err
	call.rep = nil
	clientCalls.Put(call)
	return err
}

func (c *client) register(call *clientCall) (id uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.last++
	c.calls[c.last] = call
	return c.last, nil
}

// abandon gives up a call; it is too late if the reader has taken it.
func (c *client) abandon(id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, there := c.calls[id]
	delete(c.calls, id)
	return there
}

func (c *client) take(id uint64) *clientCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[id]
	delete(c.calls, id)
	return call
}

// read completes calls until the connection ends.
func (c *client) read(buf []byte) {
	defer close(c.ended)
	for {
		h, body, owned, err := readFrame(c.conn, c.in, buf)
		if err == nil && h.Op == wire.OpGoodbye && h.ID == 0 {
			err = errGoodbye
		}
		if err != nil {
			c.fail(c.broken(err))
			return
		}
		call := c.take(h.ID)
		if call == nil {
			continue // a cancel's answer, or that of a call that was given up
		}
		if len(body) > 0 && !owned {
			body = append(make([]byte, 0, len(body)), body...)
		}
		err = call.rep.Parse(h, body)
		call.err = err
		call.done <- struct{}{} // from here on call is somebody else's
		if err != nil {
			c.fail(c.broken(err))
			return
		}
	}
}

var errGoodbye = errors.New("it has shut down")

func (c *client) broken(err error) error {
	e := &Error{Key: c.addr, Code: wire.CodeUnavailable, Err: ErrUnavailable, Detail: err.Error()}
	switch {
	case errors.Is(err, errGoodbye):
		e.Code = wire.CodeLeft
	case errors.Is(err, io.EOF):
		e.Detail = "it closed the connection"
	case c.out.Err() != nil:
		e.Detail = c.out.Err().Error()
	}
	return e
}

// fail ends all calls, now and later, with err.
func (c *client) fail(err error) {
	_ = c.conn.Close()
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	err = c.err
	calls := c.calls
	c.calls = map[uint64]*clientCall{}
	c.mu.Unlock()
	for _, call := range calls {
		call.err = err
		call.done <- struct{}{}
	}
	c.logger.Debug("store connection ended", "addr", c.addr, "err", err)
}

// Close says goodbye and waits, shortly, until the server has heard it: its ranks have left then, and are not lost.
func (c *client) Close() error {
	c.mu.Lock()
	first := c.err == nil
	var calls map[uint64]*clientCall
	if first {
		c.err = ErrClosed
		calls, c.calls = c.calls, map[uint64]*clientCall{}
	}
	c.mu.Unlock()
	for _, call := range calls { // at once: what the server still answers is nobody's
		call.err = ErrClosed
		call.done <- struct{}{}
	}
	if first {
		c.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &wire.Request{Op: wire.OpGoodbye}) })
		c.out.Flush()
		_ = c.conn.SetReadDeadline(time.Now().Add(goodbyeTime))
	}
	<-c.ended
	c.pipe.Done()
	return nil
}

func logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
