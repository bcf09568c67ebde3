package collective

import (
	"context"
	"errors"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/wire"
)

// stuckTime is how long a verb takes before a rank asks what the others do. Messages say so only to those that get some.
const stuckTime = 250 * time.Millisecond

// stuck is a verb that takes long. Through the store it finds ranks that do something else, and that wait for each other; and since it waits for
// everybody's word there, the store asks ranks that say nothing whether they are still alive.
type stuck struct {
	call    *call
	ctx     context.Context // ends with the verb, or its deadline
	done    chan struct{}
	missing []int // at the deadline: those that are in no verb; after done
}

// watch begins when the verb has taken long. What it returns ends it.
func (c *call) watch() (stop func()) {
	ctx, cancel := context.WithCancel(c.ctx)
	s := &stuck{call: c, ctx: ctx, done: make(chan struct{})}
	c.stuck = s
	c.watchers.Add(1)
	timer := time.AfterFunc(stuckTime, s.run)
	return func() {
		cancel()
		if timer.Stop() {
			c.watchers.Done()
		}
	}
}

func (s *stuck) run() {
	defer s.call.watchers.Done()
	defer close(s.done)
	mine := make([]byte, headLen)
	s.call.head.put(mine)
	for s.ctx.Err() == nil && s.call.over.Err() == nil {
		heads, err := pgroup.AllGather(s.ctx, s.call.group.Channel("stuck"), mine)
		if err == nil {
			s.compare(heads)
			err = errSlow
		}
		if re, ok := errors.AsType[*pgroup.RankError](err); ok && errors.Is(err, pgroup.ErrTimeout) && s.ctx.Err() != nil {
			s.missing = re.Missing
			return
		}
		select {
		case <-s.ctx.Done():
		case <-s.call.over.Done():
		case <-time.After(stuckTime / 5):
		}
	}
}

var errSlow = errors.New("all ranks are in the same verb")

// compare ends the Comm if ranks do different things. All that compare have the same heads.
func (s *stuck) compare(heads [][]byte) {
	first := parseHead(heads[0])
	for rank, b := range heads {
		if theirs := parseHead(b); !first.agrees(theirs) {
			s.call.fail(&wire.Verdict{Code: wire.CodeMismatch, By: rank, Reason: disagreement(rank, theirs, 0, first)})
			return
		}
	}
}

// late are the ranks that a verb has waited for whose time is over, as far as is known.
func (c *call) late() []int {
	if c.stuck != nil {
		select {
		case <-c.stuck.done:
			if len(c.stuck.missing) > 0 {
				return c.stuck.missing
			}
		case <-time.After(stuckTime): // it is not over, or has not begun
		}
	}
	return c.awaited()
}
