package store

import (
	"fmt"
	"time"

	"github.com/muster-pg/muster/wire"
)

// A client that waits for answers notices when the store says nothing at all: it asks, says so in the errors of calls whose
// deadlines pass, and tries another connection in the end.
const (
	listenEvery   = time.Second
	askAfter      = 2  // seconds of silence
	silenceAskFor = 5  // seconds until it is asked again
	mostSilence   = 15 // seconds until the connection is given up
)

// silence is for how long the store has not been heard. Its fields are protected by client.mu.
type silence struct {
	timer   *time.Timer
	running bool
	seconds int       // since something was heard, while calls wait
	since   time.Time // when the connection ended; zero while there is one
	why     *Error    // it did; kept until there is another
	gaveUp  bool
}

// begin lets the timer run: there is a call.
func (s *silence) begin() {
	if !s.running {
		s.running, s.seconds = true, 0
		s.timer.Reset(listenEvery)
	}
}

func (s *silence) down(why *Error) { s.since, s.why, s.gaveUp = time.Now(), why, false }
func (s *silence) up()             { s.since, s.seconds = time.Time{}, 0 }

// listen is what the timer does.
func (c *client) listen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.silence
	s.running = len(c.calls) > 0 && !c.closed
	if !s.running {
		return
	}
	s.timer.Reset(listenEvery)
	if c.heard.Swap(false) || c.line == nil {
		s.seconds = 0
		return
	}
	s.seconds++
	switch {
	case s.seconds >= mostSilence:
		s.gaveUp, s.seconds = true, 0
		_ = c.line.conn.Close() // whoever reads notices
	case s.seconds%silenceAskFor == askAfter:
		c.line.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &wire.Request{Op: wire.OpPing}) })
		go c.line.out.Flush()
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
	case s.seconds > 0:
		what = fmt.Sprintf("it has been silent for %d s", s.seconds)
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
