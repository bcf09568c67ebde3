package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/wire"
)

const (
	// tick is the interval of the checks of calls in progress: a timer and a context for each call
	// would cost more than a small verb.
	tick = 10 * time.Millisecond
	// stuckTime is how long a verb takes before a rank asks through the store what the others do.
	// Messages show it only to the ranks that receive some.
	stuckTime = 100 * time.Millisecond
	// idleTicks is the number of checks without a call after which the watch stops, until the next
	// call.
	idleTicks = 100
)

// watch checks the calls of a Comm: it ends those whose deadline has passed or whose context has
// ended, and asks the other ranks what they do when one takes long.
type watch struct {
	asking sync.WaitGroup

	mu      sync.Mutex // protects the fields below
	calls   []*call    // in progress
	timer   *time.Timer
	running bool
	idle    int
	stopped bool
}

// begin adds a call to the watch, and end removes it.
func (w *watch) begin(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, c)
	switch {
	case w.running || w.stopped:
	case w.timer == nil:
		w.timer = time.AfterFunc(tick, w.look)
	default:
		w.timer.Reset(tick)
	}
	w.running, w.idle = true, 0
}

func (w *watch) end(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = slices.DeleteFunc(w.calls, func(other *call) bool { return other == c })
	if c.stuck != nil {
		c.stuck.cancel()
	}
}

// stop ends the watch, and returns when its requests to the store have ended.
func (w *watch) stop() {
	w.mu.Lock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	w.asking.Wait()
}

// look is called by the timer.
func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.idle++; w.idle > idleTicks || w.stopped {
		w.running = false
		return
	}
	w.timer.Reset(tick)
	now := time.Now()
	for _, c := range w.calls {
		w.idle = 0
		switch {
		case c.ending:
		case c.ctx.Err() != nil:
			c.ending = true
			w.asking.Go(c.cancelled)
		case now.After(c.limit):
			c.ending = true
			w.asking.Go(c.overdue)
		case c.stuck == nil && now.Sub(c.start) > stuckTime:
			c.stuck = newStuck(c)
			w.asking.Go(c.stuck.run)
		}
	}
}

// missing returns the ranks that a verb waited for until its deadline, and what they do. Ranks that
// are in no verb are included only if the store names them in time.
func (w *watch) missing(c *call) (ranks []int, doing []string) {
	w.mu.Lock()
	s := c.stuck
	w.mu.Unlock()
	if s == nil {
		return nil, nil
	}
	select {
	case <-s.done:
		return s.missing, s.doing
	case <-time.After(stuckTime):
		return nil, nil
	}
}

// stuck is a verb that takes long. Through the store it finds ranks that make a different call, and
// ranks that wait for each other. A Send or Recv waits for its peer there.
type stuck struct {
	call    *call
	ctx     context.Context // ends with the verb, or its deadline
	cancel  context.CancelFunc
	done    chan struct{}
	missing []int // with doing: valid after done
	doing   []string
}

func newStuck(c *call) *stuck {
	s := &stuck{call: c, done: make(chan struct{})}
	s.ctx, s.cancel = context.WithDeadline(c.ctx, c.limit)
	return s
}

func (s *stuck) run() {
	defer close(s.done)
	if s.call.isPair() {
		// No rank sends on this channel: the error of the receive says what the peer does instead.
		_, err := pgroup.Recv[any](s.ctx, s.call.group.Channel("\x00stuck"), s.call.peer)
		s.noteMissing(err)
		return
	}
	mine := make([]byte, headLen)
	s.call.head.put(mine)
	for s.ctx.Err() == nil && s.call.over.Err() == nil {
		heads, err := pgroup.AllGather(s.ctx, s.call.group.Channel("\x00stuck"), mine)
		if err == nil {
			s.compare(heads)
		}
		if s.noteMissing(err) { // the first deadline has passed, which ends the verb on all ranks
			return
		}
		select {
		case <-s.ctx.Done():
		case <-s.call.over.Done():
		case <-time.After(stuckTime):
		}
	}
}

// noteMissing keeps the ranks that the store names as missing, if err is a timeout.
func (s *stuck) noteMissing(err error) bool {
	re, ok := errors.AsType[*pgroup.RankError](err)
	if !ok || re.Code != wire.CodeTimeout { // a stall is of the group's operations
		return false
	}
	s.missing, s.doing = re.Missing, re.Doing
	return true
}

// compare ends the Comm if ranks make different calls with the same sequence number. A rank with
// another number may be about to follow, or may have gone on: a rank that waits for a message of a
// call receives it in time, since all messages of a call are sent before the next begins. All ranks
// that compare have the same heads.
func (s *stuck) compare(heads [][]byte) {
	first := map[uint64]int{} // by call, the first rank in it
	for rank, b := range heads {
		if len(b) != headLen {
			s.call.fail(&wire.Failure{Code: wire.CodeMismatch, By: rank, Reason: fmt.Sprintf("rank %d says what it does in another way: another version of muster?", rank)})
			return
		}
		h := parseHead(b)
		other, ok := first[h.seq]
		if !ok {
			first[h.seq] = rank
			continue
		}
		if theirs := parseHead(heads[other]); !theirs.agrees(h) {
			s.call.fail(&wire.Failure{Code: wire.CodeMismatch, By: rank, Reason: disagreement(rank, h, other, theirs)})
			return
		}
	}
}
