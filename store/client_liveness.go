package store

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-pg/muster/wire"
)

// A client that waits for answers notices when the store says nothing at all: it asks, says so in the errors of calls whose
// deadlines pass, and tries another connection in the end. One of a durable store notices also while no call waits: its session may go on
// elsewhere, and is lost if it does not come there in time.

// silence is for how long the store has sent nothing. Its fields are protected by client.mu.
type silence struct {
	timeout time.Duration // the liveness timeout; does not change
	timer   *time.Timer
	running bool
	ticks   int       // of the timer since something came, while it runs
	taken   uint64    // bytes that the connection has taken
	since   time.Time // when the connection ended; zero while there is one
	why     *Error    // it did; kept until there is another
	gaveUp  bool
}

// A client asks a silent store after 2 ticks, and every 5 from then on.
const (
	askAfterTicks = 2
	askEveryTicks = 5
)

// tick is the period of the timer: a tenth of the timeout, or a second. Time during which this process stands still is one tick.
func (s *silence) tick() time.Duration { return min(s.timeout/10, time.Second) }

// lasts returns for how long the store has been silent.
func (s *silence) lasts() time.Duration { return time.Duration(s.ticks) * s.tick() }

// limit returns after which silence the connection is given up. The server ends a session from which nothing came for the whole liveness
// timeout. One that may resume elsewhere needs some of that time to do so.
func (s *silence) limit(durable bool) time.Duration {
	if durable {
		return s.timeout * 3 / 4
	}
	return s.timeout
}

// begin lets the timer run: there is a call.
func (s *silence) begin() {
	if !s.running {
		s.running, s.ticks = true, 0
		s.timer.Reset(s.tick())
	}
}

func (s *silence) down(why *Error) { s.since, s.why, s.gaveUp = time.Now(), why, false }
func (s *silence) up()             { s.since, s.ticks = time.Time{}, 0 }

// listen is what the timer does.
func (c *client) listen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.silence
	s.running = (len(c.calls) > 0 || c.session.durable) && !c.closed
	if !s.running {
		return
	}
	s.timer.Reset(s.tick())
	if c.line == nil {
		s.ticks = 0
		return
	}
	waiting, taken := c.line.out.Backlog()
	reads := waiting > unreadPause && taken != s.taken // a long request is on its way
	s.taken = taken
	if c.heard.Swap(false) || reads {
		s.ticks = 0
		return
	}
	s.ticks++
	switch {
	case s.lasts() >= s.limit(c.session.durable):
		s.gaveUp, s.ticks = true, 0
		_ = c.line.conn.Close() // whoever reads notices
	case s.ticks%askEveryTicks == askAfterTicks:
		c.line.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &wire.Request{Op: wire.OpPing}) })
		go c.line.out.Flush()
	}
}

// watchMove returns what waits until moved says that another address serves the store, and ends the connection then. It ends with life, and when
// unwatch is called.
func (l *line) watchMove(life context.Context, moved func(ctx context.Context, addr string) error) func() {
	var ctx context.Context
	ctx, l.unwatch = context.WithCancel(life)
	return func() {
		defer l.unwatch()
		if moved(ctx, l.way) == nil && ctx.Err() == nil {
			l.moved.Store(true)
			_ = l.conn.Close() // whoever reads notices
		}
	}
}

// gaveUp is the error of a call whose context has ended: it says what is known of the store, and whether the call may have taken effect.
func (c *client) gaveUp(op wire.Op, sent bool, err error) error {
	c.mu.Lock()
	s := &c.silence
	what := ""
	switch {
	case !s.since.IsZero():
		what = fmt.Sprintf("there is no connection since %v: %v", time.Since(s.since).Round(time.Millisecond), s.why.Detail)
	case s.ticks > 0:
		what = fmt.Sprintf("it has been silent for %v", s.lasts())
	}
	c.mu.Unlock()
	if sent && op.Numbered() {
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if what == "" {
		return err
	}
	return &Error{Key: c.dialer.addr, Code: failureCode(err), Err: err, Detail: what}
}
