package store

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// client is an Engine over one connection, which all calls share: a call that waits delays no
// other, and one that is given up leaves the connection as it is.
//
// Somebody reads for all: see client_read.go. What ends the connection ends all calls.
type client struct {
	addr   string
	conn   net.Conn
	pipe   transport.NetPipe
	out    *transport.Outbox
	logger *slog.Logger
	ended  chan struct{} // closed by fail

	large   chan struct{} // holds a token while a large request waits for room
	drained chan struct{} // gets a token when there is room again

	in  *frames // with buf: of whoever has the turn to read
	buf []byte

	mu    sync.Mutex // protects the fields below
	calls map[uint64]*clientCall
	last  uint64
	err   error // why there are no more calls
	turn  turn
}

// clientCall is a call that waits for its reply. done gets one value: calls are used again.
type clientCall struct {
	rep  *wire.Reply
	err  error
	done chan struct{}
}

var clientCalls = sync.Pool{New: func() any { return &clientCall{done: make(chan struct{}, 1)} }}

func newClient(addr string, conn net.Conn, in *frames, buf []byte, l *slog.Logger) *client {
	c := &client{
		addr: addr, conn: conn, in: in, buf: buf, pipe: transport.NewPipe(conn), logger: l,
		calls: map[uint64]*clientCall{}, ended: make(chan struct{}),
	}
	c.large, c.drained = make(chan struct{}, 1), make(chan struct{}, 1)
	c.out = transport.NewOutbox(c.pipe, clientQueue)
	c.out.Drained = func() {
		select {
		case c.drained <- struct{}{}:
		default:
		}
	}
	c.mu.Lock() // the timer may be early
	defer c.mu.Unlock()
	c.turn.idle = time.AfterFunc(idleAfter, c.rested)
	c.turn.armed = true
	return c
}

// Do implements Engine.
func (c *client) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	call := clientCalls.Get().(*clientCall)
	call.rep, call.err = rep, nil
	id, err := c.register(call)
	if err != nil {
		return err
	}
	if err := c.send(ctx, req, id); err != nil && c.abandon(id) {
		return err
	}
	c.lead(ctx, id)
	err = await(ctx, req.Op, call.done, func() { c.withdraw(req.Op, id) })
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

// send queues a request and writes what the server takes. A large one waits first while others wait for the server to read.
func (c *client) send(ctx context.Context, req *wire.Request, id uint64) error {
	if len(req.Value) > largeRequest {
		select {
		case c.large <- struct{}{}:
			defer func() { <-c.large }()
		case <-ctx.Done():
			return ctx.Err()
		}
		for c.out.Hold(largeQueue) {
			select {
			case <-c.drained:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	c.out.Append(func(b []byte) []byte {
		start := len(b)
		b = wire.AppendRequest(b, req)
		wire.Readdress(b[start:], req.Op, id)
		return b
	})
	c.out.Flush()
	return nil
}

func (c *client) register(call *clientCall) (id uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.last++
	c.calls[c.last] = call
	c.turn.used = true
	return c.last, nil
}

// withdraw tells the store that nobody waits for a call any more.
func (c *client) withdraw(op wire.Op, id uint64) {
	if op.Waits() {
		c.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &wire.Request{Op: wire.OpCancel, ID: id}) })
		c.out.Flush()
	}
}

// abandon gives up a call; it is too late if a reader has taken it.
func (c *client) abandon(id uint64) bool {
	return c.take(id) != nil
}

func (c *client) take(id uint64) *clientCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[id]
	delete(c.calls, id)
	return call
}

// takeAll takes all calls, and leaves err to those that come later.
func (c *client) takeAll(err error) (calls map[uint64]*clientCall, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first = c.err == nil; first {
		c.err = err
	}
	calls, c.calls = c.calls, map[uint64]*clientCall{}
	for _, call := range calls {
		call.err = c.err
	}
	return calls, first
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

// fail ends the connection, and all calls, now and later, with err. Whoever has the turn to read calls it, once, and keeps the turn.
func (c *client) fail(err error) {
	_ = c.conn.Close()
	calls, _ := c.takeAll(err)
	for _, call := range calls {
		call.done <- struct{}{}
	}
	c.logger.Debug("store connection ended", "addr", c.addr, "err", err)
	close(c.ended)
}

// Close says goodbye and waits, shortly, until the server has heard it: its ranks have left then, and are not
// lost. Calls in progress end at once: what the server still answers is nobody's.
func (c *client) Close() error {
	calls, first := c.takeAll(ErrClosed)
	for _, call := range calls {
		call.done <- struct{}{}
	}
	if first {
		c.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &wire.Request{Op: wire.OpGoodbye}) })
		c.out.Flush()
		c.readToEnd()
	}
	<-c.ended
	c.pipe.Done()
	c.turn.background.Wait()
	return nil
}
