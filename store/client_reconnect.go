package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// When a connection breaks, the store keeps its session for the reconnect timeout, with the calls
// that wait and the replies to numbered requests that may not have arrived. The client dials at
// once, and then at growing intervals. It resumes the session and sends all requests without a
// reply again: numbered requests with their numbers, so that each takes effect exactly once, the
// others with their ids.

// session identifies this client at the store.
type session struct {
	id, incarnation uint64
	token           []byte
	durable         bool // the store keeps its state across restarts
	relayed         bool // through a relay: a refused connection then says nothing about the store
	joined          map[uint64]bool
	leases          map[uint64]bool
	lostErr         error // why an earlier session of this client was lost; nil: none was
}

func sessionOf(w *wire.Reply) session {
	s := session{id: uint64(w.N), incarnation: w.Rev, token: w.Value, joined: map[uint64]bool{}, leases: map[uint64]bool{}}
	s.durable, s.relayed = len(w.Nums) > 0 && w.Nums[0] != 0, isRelayed(w)
	return s
}

// matches reports whether w resumes s.
func (s *session) matches(w *wire.Reply) bool { return uint64(w.N) == s.id && w.Rev == s.incarnation }

// check returns the error of a request for a rank that joined, or a lease that was granted, in an
// earlier session that was lost. A restarted store may use the same number for another group or
// lease.
func (s *session) check(req *wire.Request) error {
	switch {
	case s.lostErr == nil:
	case ranked(req) && !s.joined[req.Group.Generation]:
		return &Error{Code: wire.CodeUnavailable, Err: s.lostErr, Detail: "the session in which this rank joined was lost"}
	case req.Lease != 0 && !s.leases[req.Lease]:
		e := &Error{Op: req.Op.String(), Code: wire.CodeNotFound, Err: ErrNotFound, Detail: "the session of its lease was lost"}
		e.setSubject(req)
		return e
	}
	return nil
}

// ranked reports whether req is made for a rank that has joined.
func ranked(req *wire.Request) bool {
	return req.Op.ByMember() || req.Op == wire.OpJoin && req.Group.Generation != 0
}

const (
	firstPause    = 5 * time.Millisecond
	maxPause      = 250 * time.Millisecond
	maxRetryPause = 100 * time.Millisecond // between two attempts of a call that got CodeAgain
	// reconnectLimit is how long a client tries to reach a store that is not durable: its sessions
	// are lost by then.
	reconnectLimit = 5 * time.Second
)

// connEnded handles the end of a connection. The goroutine that had the turn to read calls it; the
// turn goes to the goroutine that reconnects.
func (c *client) connEnded(l *clientConn, err error) {
	_ = l.nc.Close()
	l.stopWatch()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readTurn.leader, c.readTurn.interrupted = 0, false
	if c.closed {
		close(c.ended)
		return
	}
	c.conn = nil
	if c.failedConns++; l.gotReply {
		c.failedConns = 0
	}
	why := c.connError(l, err)
	c.log().Debug("store connection ended", "err", why)
	c.health.down(why)
	c.readTurn.wg.Go(l.pipe.Done)
	permanent := why.Reason == wire.ReasonDisk || malformed(err) || errors.Is(err, errGoodbye) && !c.session.durable
	if permanent {
		c.failAll(why)
	}
	c.readTurn.taken = false
	if !permanent { // otherwise the next call reconnects
		c.startReconnecting()
	}
}

// log returns the logger, with the address, the session, and the number of the last numbered
// request. The caller holds mu.
func (c *client) log() *slog.Logger {
	return c.logger.With("addr", c.dialer.addr, "session", c.session.id, "seq", c.numbers.acked+uint64(len(c.numbers.open)))
}

// connError returns the error for calls whose connection l has ended.
func (c *client) connError(l *clientConn, err error) *Error {
	e := &Error{Key: c.dialer.addr, Code: wire.CodeUnavailable, Err: ErrUnavailable, Detail: err.Error()}
	if reported, ok := errors.AsType[*Error](err); ok {
		e.Detail, e.Reason = reported.Detail, reported.Reason
	}
	writing := l.out.Err()
	switch {
	case errors.Is(err, errGoodbye):
		e.Code = wire.CodeLeft
	case e.Reason == wire.ReasonDisk:
	case l.replaced.Load():
		e.Detail = "another address serves the store now"
	case writing != nil && !hadEnded(writing):
		e.Detail = writing.Error()
	case c.health.timedOut:
		e.Detail = "nothing received for the liveness timeout"
	case errors.Is(err, io.EOF):
		e.Detail = "connection closed by the store"
	case hadEnded(err):
		e.Detail = "connection closed"
	}
	return e
}

// hadEnded reports whether a read or a write failed because the connection had ended: that is not why it has.
func hadEnded(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe)
}

// malformed reports whether err is caused by a frame that no store sends: repeating the request
// would repeat it.
func malformed(err error) bool {
	kinds := []error{wire.ErrTooLarge, wire.ErrTruncated, wire.ErrTrailing, wire.ErrUnknownOp, wire.ErrFlags, errIncomplete}
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}

var errGoodbye = errors.New("the store has shut down")

// startReconnecting starts the reconnecting goroutine, unless it runs, there is a connection, or
// the client is closed. The caller holds mu.
func (c *client) startReconnecting() {
	if c.reconnecting || c.closed || c.conn != nil {
		return
	}
	c.reconnecting = true
	c.readTurn.taken, c.readTurn.leader = true, 0
	c.readTurn.wg.Go(c.reconnect)
}

// reconnect dials until there is a connection, and reads from it; or it fails the waiting calls.
// Between two pauses it tries each address once: of several replicas, one serves.
func (c *client) reconnect() {
	began := time.Now()
	limit := reconnectLimit / 2 // of one attempt: the server may have missed the start of a handshake, and wait for it
	pause := c.initialPause()
	for tries := 0; ; tries, limit = tries+1, min(2*limit, handshakeTimeout) {
		rest := time.Duration(0)
		if tries%len(c.dialer.addrs) == 0 {
			if tries > 0 {
				pause = min(max(2*pause, firstPause), maxPause)
			}
			rest = pause + rand.N(pause/2+1)
		}
		if !c.sleep(rest) {
			c.failWaitingCalls(ErrClosed)
			return
		}
		ctx, cancel := context.WithTimeout(c.ctx, limit)
		l, err := c.dialer.dial(ctx, c.resumeRequest())
		cancel()
		if err == nil {
			if c.resumeOn(l) {
				c.readLoop(l)
			}
			return
		}
		if c.isPermanent(err, time.Since(began)) {
			c.failWaitingCalls(err)
			return
		}
	}
}

// initialPause returns the pause before the first dial: none, unless several connections in a row
// have ended without a reply.
func (c *client) initialPause() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failedConns < 2 {
		return 0
	}
	return min(firstPause<<min(c.failedConns-2, 10), maxPause)
}

// sleep waits for pause, and reports whether the client is still open.
func (c *client) sleep(pause time.Duration) bool {
	select {
	case <-time.After(pause):
	case <-c.ctx.Done():
	}
	return c.ctx.Err() == nil
}

// resumeRequest returns the hello that resumes the session.
func (c *client) resumeRequest() *wire.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &wire.Request{Resume: c.session.id, Incarnation: c.session.incarnation, Value: c.session.token}
}

// isPermanent reports whether further attempts to reach the store are pointless. A durable store
// restarts, and the callers' contexts limit the wait. A store in memory that is gone has lost its
// state.
func (c *client) isPermanent(err error, tried time.Duration) bool {
	c.mu.Lock()
	durable, relayed := c.session.durable, c.session.relayed
	c.mu.Unlock()
	// The store may run although a connection was refused: it was a relay that has ended, and may be
	// started again, or there are other addresses.
	otherPath := (relayed || len(c.dialer.addrs) > 1) && errors.Is(err, syscall.ECONNREFUSED)
	switch {
	case handshake.IsDoubtful(err):
		return c.ctx.Err() != nil || tried > reconnectLimit
	case errors.Is(err, ErrDenied), errors.Is(err, ErrProtocol), errors.Is(err, ErrInvalid): // ErrInvalid: its TLS files
		return true
	case c.ctx.Err() != nil:
		return true
	case durable:
		return false
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, context.DeadlineExceeded):
		return tried > reconnectLimit
	}
	return !isUnreachable(err) || isConnRefused(err) && !otherPath || tried > reconnectLimit
}

// failWaitingCalls ends all calls with the reason why the connection ended, and why there is no
// other one. The next call tries again.
func (c *client) failWaitingCalls(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reconnecting = false
	c.readTurn.taken = false
	if c.closed {
		c.failAll(ErrClosed)
		return
	}
	why := *c.health.downReason
	switch e, ok := errors.AsType[*Error](err); {
	case ok && !isUnreachable(err):
		why.Code, why.Err, why.Detail = e.Code, e.Err, e.Detail
	case ok:
		why.Detail += "; then: " + cmp.Or(e.Detail, e.Err.Error())
	case !isConnRefused(err):
		why.Detail += "; then: " + err.Error()
	}
	c.failAll(&why)
}

// resumeOn makes l the connection, and sends the requests without a reply again.
func (c *client) resumeOn(l *clientConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reconnecting = false
	if c.closed {
		_ = l.nc.Close()
		c.readTurn.wg.Go(l.pipe.Done)
		return false
	}
	if !c.session.matches(&l.welcome) {
		c.startNewSession(&l.welcome)
	}
	c.session.relayed = isRelayed(&l.welcome)
	l.out = transport.NewOutbox(l.pipe, clientQueue+c.pendingBytes())
	c.use(l)
	c.health.up()
	c.resend()
	l.out.Flush()
	return true
}

// pendingBytes returns the approximate size of the requests to be sent again, all of which are
// queued at once however slow the server is. The caller holds mu.
func (c *client) pendingBytes() (n int) {
	for _, call := range c.calls {
		n += len(call.req.Value)
	}
	return n
}

// startNewSession replaces the session that the store no longer knows. Requests of the old
// session that may have taken effect, or that refer to its ranks or leases, fail and are never sent
// again: under the new session the store could not recognize them as repeated. The caller holds mu.
func (c *client) startNewSession(w *wire.Reply) {
	c.log().Warn("store session lost", "restarted", w.Rev != c.session.incarnation)
	why := &Error{
		Key: c.dialer.addr, Code: wire.CodeUnavailable, Err: fmt.Errorf("%w: %w", ErrUnavailable, ErrSessionLost),
		Detail: "the session was not resumed in time",
	}
	if w.Rev != c.session.incarnation {
		why.Err, why.Detail = ErrUnavailable, "the store was restarted without its data"
	}
	for id, call := range c.calls {
		if call.req.Op == wire.OpWatch && call.req.After != 0 && w.Rev != c.session.incarnation {
			delete(c.calls, id)
			call.end(&Error{Key: c.dialer.addr, Code: wire.CodeCompacted, Err: ErrCompacted, Detail: "the store was restarted, and its revisions start again"})
			continue
		}
		if op := call.req.Op; call.conn != nil && (op.Numbered() || op == wire.OpJoin || op == wire.OpKeepAlive) || ranked(call.req) || call.req.Lease != 0 {
			delete(c.calls, id)
			c.numbers.abandon(call)
			call.end(c.outcome(call, why))
		}
	}
	unsent := 0
	for _, call := range c.calls {
		if call.req.Op.Numbered() {
			unsent++
		}
	}
	c.numbers.acked, c.numbers.open, c.numbers.count = 0, nil, unsent
	c.numbers.wake()
	clear(c.cancelled)
	c.session = sessionOf(w)
	c.session.lostErr = why.Err
}

// resend sends the requests without a reply. The caller holds mu.
func (c *client) resend() {
	for i, n := range c.numbers.open {
		switch {
		case n.answered:
		case n.call != nil:
			c.transmit(n.call)
		default: // abandoned: if it has not taken effect, it must not do so now
			skip := wire.Request{Op: wire.OpSkip, ID: n.id, Number: c.numbers.acked + uint64(i) + 1, Acked: c.numbers.acked}
			c.conn.send(&skip)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.calls)) {
		if call := c.calls[id]; call.conn != c.conn {
			c.transmit(call)
		}
	}
	for id, why := range c.cancelled {
		c.conn.send(why.request(id))
		if c.calls[id] == nil { // it may never have arrived, and then has no reply
			delete(c.cancelled, id)
		}
	}
}
