package tcpstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// replyLimits bound a server's reply.
var replyLimits = tcpwire.Limits{Value: 1 << 30, Message: 1 << 30, Keys: 16 << 20}

// link is a connection of a Client. A call has it for itself, and makes it idle after its answers. A
// call that fails or is interrupted ends it, since its answers might still come.
type link struct {
	conn net.Conn
	stop func() bool // the closing of conn with the client
	in   inbox
	buf  []byte // for messages that fit
}

// expected describes a reply to come.
type expected struct {
	op   tcpwire.Op
	keys int
}

func (e expected) find(b []byte, c *tcpwire.Cursor, limits tcpwire.Limits) (int, bool, error) {
	return tcpwire.NextReply(b, e.op, e.keys, c, limits)
}

// brokenError is the error of a call whose connection ended: the call may have taken effect or not.
type brokenError struct{ error }

// connect makes a connection, and verifies that a TCPStore answers on it.
func (c *Client) connect(ctx context.Context) (*link, error) {
	conn, err := c.o.Dial(ctx, "tcp", c.addr)
	if err != nil {
		return nil, err
	}
	l := &link{conn: conn, in: inbox{Inbox: transport.Inbox{First: largeMessage}, limits: replyLimits}, buf: make([]byte, firstBuffer)}
	l.stop = context.AfterFunc(c.life, func() { _ = conn.Close() })
	if err := l.greet(ctx); err != nil {
		l.end()
		return nil, err
	}
	return l, nil
}

// end closes the connection.
func (l *link) end() {
	l.stop()
	_ = l.conn.Close()
}

// greetTime is how long a server may take for its first answer. PyTorch's server first looks up
// host names, one after the other.
const greetTime = 30 * time.Second

// missingKey is a key that no process sets.
const missingKey = tcpwire.KeyPrefix + "muster: is this a TCPStore?"

// greet sends the protocol's preface and two questions whose answers are known, and waits for them:
// whether all of no keys exist, and whether missingKey does. Servers of torch 2.2 know no ping.
func (l *link) greet(ctx context.Context) error {
	questions, expects, err := encode(checkOf(), checkOf(missingKey))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, greetTime)
	defer cancel()
	replies, err := l.call(ctx, append([]byte(tcpwire.Preface), questions...), expects)
	switch {
	case err != nil:
		return fmt.Errorf("no answer of a TCPStore: %w", err)
	case replies[0].N != tcpwire.Ready || replies[1].N != tcpwire.NotReady:
		return fmt.Errorf("%w: it answered %q", errNoTCPStore, []byte{byte(replies[0].N), byte(replies[1].N)})
	}
	return nil
}

var errNoTCPStore = errors.New("this is no TCPStore of torch 2.2 or later")

// encode returns the bytes of requests, and the replies that answer them.
func encode(reqs ...tcpwire.Request) (message []byte, expects []expected, err error) {
	for i := range reqs {
		if message, err = tcpwire.AppendRequest(message, &reqs[i]); err != nil {
			return nil, nil, err
		}
		if reqs[i].Op.Answered() {
			expects = append(expects, expected{reqs[i].Op, len(reqs[i].Keys)})
		}
	}
	return message, expects, nil
}

// call sends a message, and returns its replies. After an error, or the end of ctx, the connection
// cannot be used for another call.
func (l *link) call(ctx context.Context, message []byte, expects []expected) ([]tcpwire.Reply, error) {
	interrupt := context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(time.Unix(1, 0)) })
	defer interrupt()
	var writing sync.WaitGroup
	var writeErr error
	write := func() { _, writeErr = l.conn.Write(message) }
	if len(message) > largeMessage {
		writing.Go(write) // a server may wait until its first replies are read
	} else {
		write()
	}
	replies := make([]tcpwire.Reply, len(expects))
	for i, e := range expects {
		message, err := l.receive(e)
		if err == nil {
			err = replies[i].Parse(e.op, e.keys, bytes.Clone(message))
		}
		if err != nil {
			_ = l.conn.Close()
			writing.Wait()
			return nil, err
		}
		l.in.Take(len(message))
	}
	writing.Wait()
	if writeErr == nil && !interrupt() {
		writeErr = ctx.Err()
	}
	return replies, writeErr
}

// receive reads until there is a complete reply.
func (l *link) receive(e expected) ([]byte, error) {
	for {
		message, need, err := l.in.next(e.find)
		if message != nil || err != nil {
			return message, err
		}
		n, err := l.conn.Read(l.in.Room(l.buf, need))
		if l.in.Advance(n); n == 0 && err != nil {
			return nil, err
		}
	}
}

// usable reports whether an idle connection is open, as far as the kernel knows, and nothing has come
// without a request. A change that is sent on a connection that the server has closed would have an
// unknown outcome.
func (l *link) usable() bool {
	if unread, err := l.in.Unread(); err != nil || len(unread) > 0 {
		return false
	}
	socket, ok := l.conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	var readErr error
	err = raw.Read(func(fd uintptr) bool {
		_, readErr = unix.Read(int(fd), make([]byte, 1))
		return true // without waiting
	})
	return err == nil && errors.Is(readErr, unix.EAGAIN)
}

// idleLink returns the idle connection that was used last, or nil.
func (c *Client) idleLink() *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.idle) > 0 {
		l := c.idle[len(c.idle)-1]
		c.idle = c.idle[:len(c.idle)-1]
		if l.usable() {
			return l
		}
		l.end()
	}
	return nil
}

// free returns an idle connection, or a new one. It retries while the server refuses connections.
func (c *Client) free(ctx context.Context) (*link, error) {
	if l := c.idleLink(); l != nil {
		return l, nil
	}
	var before error // of the last attempt that ctx did not interrupt
	for r := c.retry(); ; {
		l, err := c.connect(ctx)
		if err == nil {
			return l, nil
		}
		if interrupted := transport.ContextErr(ctx); interrupted != nil {
			if before == nil {
				return nil, interrupted
			}
			return nil, fmt.Errorf("%w: %w", interrupted, before)
		}
		if errors.Is(err, errNoTCPStore) || !r.again(ctx) && ctx.Err() == nil {
			return nil, c.unavailable(err)
		}
		before = err
	}
}

func (c *Client) unavailable(err error) *store.Error {
	return &store.Error{Key: c.addr, Code: wire.CodeUnavailable, Err: fmt.Errorf("%w: %w", store.ErrUnavailable, err)}
}

// send carries out requests on one connection, and returns the replies of those that have one.
// slots is c.calls or c.waits.
func (c *Client) send(ctx context.Context, slots chan struct{}, reqs ...tcpwire.Request) ([]tcpwire.Reply, error) {
	message, expects, err := encode(reqs...)
	if err != nil {
		return nil, err
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.life.Done():
		return nil, store.ErrClosed
	}
	l, err := c.free(ctx)
	if err != nil {
		return nil, err
	}
	replies, err := l.call(ctx, message, expects)
	if err != nil {
		l.end()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, brokenError{err}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, l)
	return replies, nil
}
