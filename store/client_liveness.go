package store

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-pg/muster/wire"
)

// A client that waits for replies detects that the store sends nothing: it sends a probe, adds that
// to the errors of calls whose deadlines pass, and finally reconnects. A client of a durable store
// detects it even while no call waits, because its session may continue at another server, and is
// lost if it is not resumed in time.

// connHealth measures for how long nothing was received from the store. The client's mu protects
// it.
type connHealth struct {
	timeout    time.Duration // liveness timeout; constant
	timer      *time.Timer
	running    bool
	ticks      int       // timer ticks since something was received
	sent       uint64    // bytes that the connection had sent at the last tick
	downSince  time.Time // when the connection ended; zero while there is one
	downReason *Error    // why it ended; kept until the next one
	timedOut   bool      // the connection was closed by checkHealth
}

// A client probes after 2 ticks without data, and every 5 ticks from then on.
const (
	askAfterTicks = 2
	askEveryTicks = 5
)

// tick returns the period of the timer: a tenth of the timeout, at most a second. While this
// process is stopped, at most one tick passes.
func (s *connHealth) tick() time.Duration { return min(s.timeout/10, time.Second) }

// silentFor returns for how long nothing was received.
func (s *connHealth) silentFor() time.Duration { return time.Duration(s.ticks) * s.tick() }

// limit returns the time after which the connection is closed. The server ends a session from which
// it receives nothing for the whole liveness timeout; a session that may resume at another server
// needs part of that time.
func (s *connHealth) limit(durable bool) time.Duration {
	if durable {
		return s.timeout * 3 / 4
	}
	return s.timeout
}

// start starts the timer, because there is a call.
func (s *connHealth) start() {
	if !s.running {
		s.running, s.ticks = true, 0
		s.timer.Reset(s.tick())
	}
}

func (s *connHealth) down(why *Error) { s.downSince, s.downReason, s.timedOut = time.Now(), why, false }
func (s *connHealth) up()             { s.downSince, s.ticks = time.Time{}, 0 }

// checkHealth runs at each tick of the timer.
func (c *client) checkHealth() {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.health
	s.running = (len(c.calls) > 0 || c.session.durable) && !c.closed
	if !s.running {
		return
	}
	s.timer.Reset(s.tick())
	if c.conn == nil {
		s.ticks = 0
		return
	}
	waiting, taken := c.conn.out.Backlog()
	reads := waiting > maxUnread && taken != s.sent // a long request is being sent
	s.sent = taken
	if c.received.Swap(false) || reads {
		s.ticks = 0
		return
	}
	s.ticks++
	switch {
	case s.silentFor() >= s.limit(c.session.durable):
		s.timedOut, s.ticks = true, 0
		_ = c.conn.nc.Close() // the reading goroutine notices
	case s.ticks%askEveryTicks == askAfterTicks:
		c.conn.send(&wire.Request{Op: wire.OpPing})
		go c.conn.out.Flush()
	}
}

// watchReplaced returns a function that waits until wait reports that another address serves the
// store, and then closes the connection. It returns when life ends, or stopWatch is called.
func (l *clientConn) watchReplaced(life context.Context, moved func(ctx context.Context, addr string) error) func() {
	var ctx context.Context
	ctx, l.stopWatch = context.WithCancel(life)
	return func() {
		defer l.stopWatch()
		if moved(ctx, l.addr) == nil && ctx.Err() == nil {
			l.replaced.Store(true)
			_ = l.nc.Close() // the reading goroutine notices
		}
	}
}

// contextError is the error of a call whose context has ended: it describes the state of the
// connection, and whether the call may have taken effect.
func (c *client) contextError(op wire.Op, sent bool, err error) error {
	c.mu.Lock()
	s := &c.health
	what, reason := "", wire.ReasonUnknown
	switch {
	case !s.downSince.IsZero():
		reason = wire.ReasonDisconnected
		what = fmt.Sprintf("not connected for %v: %v", time.Since(s.downSince).Round(time.Millisecond), s.downReason.Detail)
	case s.ticks > 0 && !c.received.Load():
		what = fmt.Sprintf("nothing received from the store for %v", s.silentFor())
	}
	c.mu.Unlock()
	if sent && op.Numbered() {
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if what == "" {
		return err
	}
	return &Error{Key: c.dialer.addr, Code: failureCode(err), Err: err, Detail: what, Reason: reason}
}
