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
	"slices"
	"syscall"
	"time"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// When a connection breaks, its session goes on: the store keeps it for a while, with the calls that wait, and with the answers to
// numbered requests that may not have arrived. The client dials at once, and then less and less often; it takes the session up again, and
// repeats what has no answer: numbered requests under their numbers, so that each takes effect once, the others under their ids.

// session is what the store calls this client.
type session struct {
	id, incarnation uint64
	token           []byte
	durable         bool // the store comes back with its state after a crash
	relayed         bool // through a relay: that nobody is there says nothing of the store
	joined          map[uint64]bool
	leases          map[uint64]bool
	lost            bool          // this one is not the first
	why             error         // the one before was lost
	over            chan struct{} // closed when it is lost
}

func sessionOf(w *wire.Reply) session {
	s := session{id: uint64(w.N), incarnation: w.Rev, token: w.Value, joined: map[uint64]bool{}, leases: map[uint64]bool{}, over: make(chan struct{})}
	s.durable, s.relayed = len(w.Nums) > 0 && w.Nums[0] != 0, relayed(w)
	return s
}

// is reports whether w welcomes back to s.
func (s *session) is(w *wire.Reply) bool { return uint64(w.N) == s.id && w.Rev == s.incarnation }

// refuses is the error of a request in the name of a rank that joined, or a lease that was granted, in a session that is lost. The
// store's new life may have a group, or a lease, of the same number.
func (s *session) refuses(req *wire.Request) error {
	switch {
	case !s.lost:
	case ranked(req) && !s.joined[req.Group.Generation]:
		return &Error{Code: wire.CodeUnavailable, Err: s.why, Detail: "the session in which this rank joined is lost"}
	case req.Lease != 0 && !s.leases[req.Lease]:
		e := &Error{Op: req.Op.String(), Code: wire.CodeNotFound, Err: ErrNotFound, Detail: "the session of its lease is lost"}
		e.about(req)
		return e
	}
	return nil
}

// ranked reports whether req is in the name of a rank that has joined.
func ranked(req *wire.Request) bool {
	switch req.Op {
	case wire.OpLeave, wire.OpFollow, wire.OpCollect, wire.OpSend, wire.OpRecv, wire.OpExpired, wire.OpSendReady, wire.OpCloseChannel, wire.OpAck:
		return true
	case wire.OpJoin:
		return req.Group.Generation != 0
	}
	return false
}

const (
	firstPause = 5 * time.Millisecond
	mostPause  = 250 * time.Millisecond
	mostAgain  = 100 * time.Millisecond // between two tries of a call for whose answer the store has no room
	// mendTime is for how long a client tries to reach a store that keeps nothing: its sessions are lost by then.
	mendTime = 5 * time.Second
)

// broke is the end of a connection, seen by whoever has the turn to read, which goes to the goroutine that mends.
func (c *client) broke(l *line, err error) {
	_ = l.conn.Close()
	if l.unwatch != nil {
		l.unwatch()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn.leader, c.turn.interrupted = 0, false
	if c.closed {
		close(c.ended)
		return
	}
	c.line = nil
	if c.fruitless++; l.brought {
		c.fruitless = 0
	}
	why := c.broken(l, err)
	c.log().Debug("store connection ended", "err", why)
	c.silence.down(why)
	c.turn.background.Go(l.pipe.Done)
	hopeless := malformed(err) || errors.Is(err, errGoodbye) && !c.session.durable
	if hopeless {
		c.endAll(why)
	}
	c.turn.taken = false
	if !hopeless { // otherwise the next call tries
		c.startMending()
	}
}

// log is for records: each has the address, the session, and the number of the last request that was given one. Called with mu.
func (c *client) log() *slog.Logger {
	return c.logger.With("addr", c.dialer.addr, "session", c.session.id, "seq", c.numbers.acked+uint64(len(c.numbers.open)))
}

// broken is why l has ended.
func (c *client) broken(l *line, err error) *Error {
	e := &Error{Key: c.dialer.addr, Code: wire.CodeUnavailable, Err: ErrUnavailable, Detail: err.Error()}
	switch {
	case errors.Is(err, errGoodbye):
		e.Code = wire.CodeLeft
	case l.moved.Load():
		e.Detail = "another address serves the store now"
	case l.out.Err() != nil:
		e.Detail = l.out.Err().Error()
	case c.silence.gaveUp:
		e.Detail = "it was silent for too long"
	case errors.Is(err, io.EOF):
		e.Detail = "it closed the connection"
	}
	return e
}

// malformed reports whether err is that of a frame which no store would send: to ask again would bring it again.
func malformed(err error) bool {
	for _, e := range [...]error{wire.ErrTooLarge, wire.ErrTruncated, wire.ErrTrailing, wire.ErrUnknownOp, wire.ErrFlags, errUnfit} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

var errGoodbye = errors.New("it has shut down")

// startMending lets the goroutine mend, if somebody waits, or the session is to be kept. Called with mu.
func (c *client) startMending() {
	if c.mending || c.closed || c.line != nil {
		return
	}
	c.mending = true
	c.turn.taken, c.turn.leader = true, 0
	c.turn.background.Go(c.mend)
}

// mend dials until there is a connection, and reads on from it; or ends the calls that wait for one. Between two pauses it tries
// every address once: of several replicas, one serves.
func (c *client) mend() {
	began := time.Now()
	limit := mendTime / 2 // of one try: a handshake that was garbled on its way may wait for bytes that never come
	pause := c.firstPause()
	for tries := 0; ; tries, limit = tries+1, min(2*limit, handshakeTime) {
		rest := time.Duration(0)
		if tries%len(c.dialer.ways) == 0 {
			if tries > 0 {
				pause = min(max(2*pause, firstPause), mostPause)
			}
			rest = pause + rand.N(pause/2+1)
		}
		if !c.rests(rest) {
			c.giveUp(ErrClosed)
			return
		}
		ctx, cancel := context.WithTimeout(c.life, limit)
		l, err := c.dialer.dial(ctx, c.resume())
		cancel()
		if err == nil {
			if c.adopt(l) {
				c.readOn(l)
			}
			return
		}
		if c.hopeless(err, time.Since(began)) {
			c.giveUp(err)
			return
		}
	}
}

// firstPause is for how long to wait before the first dial: not at all, unless one connection after the other has ended without an answer.
func (c *client) firstPause() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fruitless < 2 {
		return 0
	}
	return min(firstPause<<min(c.fruitless-2, 10), mostPause)
}

// rests waits, unless the client is closed.
func (c *client) rests(pause time.Duration) bool {
	select {
	case <-time.After(pause):
	case <-c.life.Done():
	}
	return c.life.Err() == nil
}

// resume is the hello that takes the session up again.
func (c *client) resume() *wire.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &wire.Request{Resume: c.session.id, Rev: c.session.incarnation, Value: c.session.token}
}

// hopeless reports whether a store that could not be reached need not be tried again. One that is durable comes back; whoever
// calls knows for how long to wait. One that is not, and is not there, took everything with it.
func (c *client) hopeless(err error, tried time.Duration) bool {
	switch {
	case isDoubtful(err):
		return c.life.Err() != nil || tried > mendTime
	case errors.Is(err, ErrDenied), errors.Is(err, ErrProtocol), errors.Is(err, ErrInvalid): // ErrInvalid: its TLS files
		return true
	case c.life.Err() != nil:
		return true
	case c.durable():
		return false
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, context.DeadlineExceeded):
		return tried > mendTime
	}
	return !nobodyThere(err) || isRefused(err) && !c.elsewhere(err) || tried > mendTime
}

// elsewhere reports whether the store may be there though a connection was refused: it was a relay that has ended, and there may soon
// be another, or there are other ways.
func (c *client) elsewhere(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return (c.session.relayed || len(c.dialer.ways) > 1) && errors.Is(err, syscall.ECONNREFUSED)
}

func (c *client) durable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session.durable
}

// giveUp ends all calls: with why the connection ended, and, if that tells more, why there is no other. The next one tries again.
func (c *client) giveUp(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mending = false
	c.turn.taken = false
	if c.closed {
		c.endAll(ErrClosed)
		return
	}
	why := *c.silence.why
	switch e, ok := errors.AsType[*Error](err); {
	case ok && !nobodyThere(err):
		why.Code, why.Err, why.Detail = e.Code, e.Err, e.Detail
	case ok:
		why.Detail += "; then: " + cmp.Or(e.Detail, e.Err.Error())
	case !isRefused(err):
		why.Detail += "; then: " + err.Error()
	}
	c.endAll(&why)
}

// adopt makes l the connection, and repeats what has no answer.
func (c *client) adopt(l *line) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mending = false
	if c.closed {
		_ = l.conn.Close()
		c.turn.background.Go(l.pipe.Done)
		return false
	}
	if !c.session.is(&l.welcome) {
		c.beginAnew(&l.welcome)
	}
	c.session.relayed = relayed(&l.welcome)
	l.out = transport.NewOutbox(l.pipe, clientQueue+c.unanswered())
	c.use(l)
	c.silence.up()
	c.repeat()
	l.out.Flush()
	return true
}

// unanswered is about how many bytes are to be repeated: so many may wait at once, however slow the server. Called with mu.
func (c *client) unanswered() (n int) {
	for _, call := range c.calls {
		n += len(call.req.Value)
	}
	return n
}

// beginAnew is a new session, because the store does not know the old one any more. What was under way in its name is over: nothing of
// it is ever sent again. Called with mu.
func (c *client) beginAnew(w *wire.Reply) {
	c.log().Warn("store session lost", "restarted", w.Rev != c.session.incarnation)
	why := &Error{
		Key: c.dialer.addr, Code: wire.CodeUnavailable, Err: fmt.Errorf("%w: %w", ErrUnavailable, ErrSession),
		Detail: "the session was not taken up again in time",
	}
	if w.Rev != c.session.incarnation {
		why.Err, why.Detail = ErrUnavailable, "it has been restarted, and has forgotten everything"
	}
	for id, call := range c.calls {
		if call.req.Op == wire.OpWatch && call.req.Rev != 0 && w.Rev != c.session.incarnation {
			delete(c.calls, id)
			call.end(&Error{Key: c.dialer.addr, Code: wire.CodeCompacted, Err: ErrCompacted, Detail: "it has been restarted, and its revisions begin anew"})
			continue
		}
		if op := call.req.Op; call.line != nil && (op.Numbered() || op == wire.OpJoin || op == wire.OpKeepAlive) || ranked(call.req) || call.req.Lease != 0 {
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
	c.numbers.acked, c.numbers.open, c.numbers.gone, c.numbers.held = 0, nil, nil, unsent
	c.numbers.wake()
	clear(c.cancelled)
	close(c.session.over)
	c.session = sessionOf(w)
	c.session.lost, c.session.why = true, why.Err
}

// repeat sends what has no answer. Called with mu.
func (c *client) repeat() {
	out := c.line.out
	for i, n := range c.numbers.open {
		switch {
		case n.answered:
		case n.call != nil:
			c.transmit(n.call)
		default: // given up: it is not to take effect now, if it has not
			skip := wire.Request{Op: wire.OpSkip, ID: n.id, Number: c.numbers.acked + uint64(i) + 1, Acked: c.numbers.acked}
			out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &skip) })
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.calls)) {
		if call := c.calls[id]; call.line != c.line {
			c.transmit(call)
		}
	}
	for id, why := range c.cancelled {
		c.line.cancel(id, why)
		if c.calls[id] == nil { // it may never have arrived: then there is no answer to wait for
			delete(c.cancelled, id)
		}
	}
}
