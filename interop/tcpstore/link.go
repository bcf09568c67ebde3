package tcpstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// replyLimits bound a server's reply.
var replyLimits = tcpwire.Limits{Value: 1 << 30, Message: 1 << 30, Keys: 16 << 20}

// link is a connection of a Client. It has at most one call at a time, and a goroutine that reads.
// So the end of a connection is detected at once, and a call whose caller has returned does not end
// the connection.
type link struct {
	client *Client
	conn   net.Conn
	in     inbox // owned by the reading goroutine

	mu     sync.Mutex // protects the fields below
	call   *call      // nil while idle
	broken error
}

// call is a list of requests that are sent together.
type call struct {
	expects []expected
	replies []tcpwire.Reply
	slot    chan struct{} // gets a token back when the call ends
	done    chan struct{}
	err     error // valid after done
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
	l := &link{client: c, conn: conn, in: inbox{Inbox: transport.Inbox{First: largeMessage}, limits: replyLimits}}
	if err := l.greet(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		_ = conn.Close()
		return nil, store.ErrClosed
	}
	c.links[l] = struct{}{}
	c.running.Go(l.read)
	return l, nil
}

// greetTime is how long a server may take for its first answer. PyTorch's server first looks up
// host names, one after the other.
const greetTime = 30 * time.Second

// missingKey is a key that no process sets.
const missingKey = tcpwire.KeyPrefix + "muster: is this a TCPStore?"

// greet sends the protocol's preface and two questions whose answers are known, and waits for them:
// whether all of no keys exist, and whether missingKey does. Servers of torch 2.2 know no ping.
func (l *link) greet(ctx context.Context) error {
	hello := []byte(tcpwire.Preface)
	for _, keys := range [][]string{nil, {missingKey}} {
		var err error
		if hello, err = tcpwire.AppendRequest(hello, &tcpwire.Request{Op: tcpwire.OpCheck, Keys: keys}); err != nil {
			return err
		}
	}
	_ = l.conn.SetDeadline(time.Now().Add(greetTime))
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(time.Unix(1, 0)) })
	if _, err := l.conn.Write(hello); err != nil {
		return err
	}
	for _, want := range []int64{tcpwire.Ready, tcpwire.NotReady} {
		message, err := l.in.receive(l.conn, expected{op: tcpwire.OpCheck}.find)
		if err != nil {
			return fmt.Errorf("no answer of a TCPStore: %w", err)
		}
		var rep tcpwire.Reply
		if err := rep.Parse(tcpwire.OpCheck, 0, message); err != nil || rep.N != want {
			return fmt.Errorf("%w: it answered %q", errNoTCPStore, message[:min(len(message), 16)])
		}
		l.in.Take(len(message))
	}
	if !stop() {
		return ctx.Err()
	}
	return l.conn.SetDeadline(time.Time{})
}

var errNoTCPStore = errors.New("this is no TCPStore of torch 2.2 or later")

// start sends a call. The reading goroutine reports a failure of the connection to the caller.
func (l *link) start(ctx context.Context, k *call, message []byte) error {
	l.mu.Lock()
	if l.broken != nil {
		l.mu.Unlock()
		return l.broken
	}
	l.call = k
	l.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetWriteDeadline(time.Unix(1, 0)) })
	if _, err := l.conn.Write(message); !stop() || err != nil {
		_ = l.conn.Close() // a part of the message may have been sent
	}
	return nil
}

// giveUp ends the connection, unless the call has ended.
func (l *link) giveUp(k *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.call == k {
		_ = l.conn.Close()
	}
}

// read reads until the connection ends.
func (l *link) read() {
	err := l.readAll()
	_ = l.conn.Close()
	l.mu.Lock()
	l.broken = brokenError{err}
	k := l.call
	l.call = nil
	l.mu.Unlock()
	l.client.forget(l)
	if k != nil {
		k.err = l.broken
		k.end()
	}
}

func (l *link) readAll() error {
	for need := 1; ; {
		if err := l.in.fill(l.conn, need); err != nil {
			return err
		}
		for {
			l.mu.Lock()
			k := l.call
			l.mu.Unlock()
			if k == nil {
				return errUnasked
			}
			e := k.expects[len(k.replies)]
			message, n, err := l.in.next(e.find)
			if err != nil {
				return err
			}
			if need = n; message == nil {
				break
			}
			var rep tcpwire.Reply
			if err := rep.Parse(e.op, e.keys, bytes.Clone(message)); err != nil {
				return err
			}
			l.in.Take(n)
			if k.replies = append(k.replies, rep); len(k.replies) < len(k.expects) {
				continue
			}
			if unread, _ := l.in.Unread(); len(unread) > 0 {
				return errUnasked
			}
			l.finish(k)
			need = 1
			break
		}
	}
}

var errUnasked = errors.New("an answer without a request")

// finish ends a call, and makes the connection available to the next one.
func (l *link) finish(k *call) {
	l.mu.Lock()
	l.call = nil
	l.mu.Unlock()
	l.client.release(l)
	k.end()
}

func (k *call) end() {
	<-k.slot
	close(k.done)
}

// release puts a link back into the list of idle links.
func (c *Client) release(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.links[l]; ok {
		c.idle = append(c.idle, l)
	}
}

// forget removes a link that has ended.
func (c *Client) forget(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.links, l)
	for i := range c.idle {
		if c.idle[i] == l {
			c.idle = append(c.idle[:i], c.idle[i+1:]...)
			return
		}
	}
}

// free returns an idle link, or a new one. It retries while the server refuses connections.
func (c *Client) free(ctx context.Context) (*link, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		l := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return l, nil
	}
	c.mu.Unlock()
	began := time.Now()
	var before error // of the last attempt that ctx did not interrupt
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		l, err := c.connect(ctx)
		interrupted := transport.ContextErr(ctx)
		switch {
		case err == nil:
			return l, nil
		case interrupted != nil && before != nil:
			return nil, fmt.Errorf("%w: %w", interrupted, before)
		case interrupted != nil:
			return nil, interrupted
		case time.Since(began)+pause > c.o.ReconnectTimeout, errors.Is(err, errNoTCPStore), errors.Is(err, store.ErrClosed):
			return nil, c.unavailable(err)
		}
		before = err
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-c.life.Done():
			return nil, store.ErrClosed
		}
	}
}

func (c *Client) unavailable(err error) *store.Error {
	return &store.Error{Key: c.addr, Code: wire.CodeUnavailable, Err: fmt.Errorf("%w: %w", store.ErrUnavailable, err)}
}

var errNoSlot = errors.New("too many calls wait")

// take takes a slot. For calls that wait it does not block, since a slot may stay in use without a
// bound.
func (c *Client) take(ctx context.Context, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	default:
	}
	if slots == c.waits {
		return errNoSlot
	}
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.life.Done():
		return store.ErrClosed
	}
}

// send carries out requests on one connection, and returns the replies of those that have one.
// slots is c.calls or c.waits.
func (c *Client) send(ctx context.Context, slots chan struct{}, reqs ...tcpwire.Request) ([]tcpwire.Reply, error) {
	k := &call{slot: slots, done: make(chan struct{})}
	var message []byte
	for i := range reqs {
		var err error
		if message, err = tcpwire.AppendRequest(message, &reqs[i]); err != nil {
			return nil, err
		}
		if reqs[i].Op.Answered() {
			k.expects = append(k.expects, expected{reqs[i].Op, len(reqs[i].Keys)})
		}
	}
	if err := c.take(ctx, slots); err != nil {
		return nil, err
	}
	l, err := c.free(ctx)
	if err == nil {
		err = l.start(ctx, k, message)
	}
	if err != nil {
		<-slots
		return nil, err
	}
	select {
	case <-k.done:
		return k.replies, k.err
	case <-ctx.Done():
		if slots == c.waits { // the server ends the wait with its connection
			l.giveUp(k)
		} else { // the call may never end, and it holds a slot
			time.AfterFunc(c.o.ReconnectTimeout, func() { l.giveUp(k) })
		}
		return nil, ctx.Err()
	}
}
