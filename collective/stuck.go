package collective

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/wire"
)

// stuckTime is how long a verb takes before a rank asks what the others do. Messages say so only to those that get some.
const stuckTime = 100 * time.Millisecond

// watch looks after the verb that has the turn. When that has taken long, a goroutine of the watch asks the others what they do, until it ends.
type watch struct {
	asking sync.WaitGroup

	mu    sync.Mutex // protects the fields below
	timer *time.Timer
	call  *call  // nil: no verb has the turn
	stuck *stuck // of call; nil: it is not that late
}

// begin watches a verb, and end ends that.
func (w *watch) begin(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.call = c
	if w.timer == nil {
		w.timer = time.AfterFunc(stuckTime, w.late)
	} else {
		w.timer.Reset(stuckTime)
	}
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	if w.stuck != nil {
		w.stuck.cancel()
	}
	w.call, w.stuck = nil, nil
}

// late is called by the timer.
func (w *watch) late() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.call == nil || w.stuck != nil {
		return
	}
	s := &stuck{call: w.call, done: make(chan struct{})}
	if s.ctx, s.cancel = context.WithCancel(s.call.ctx); !s.call.limit.IsZero() {
		s.ctx, s.cancel = context.WithDeadline(s.call.ctx, s.call.limit)
	}
	w.stuck = s
	w.asking.Go(s.run)
}

// missing are the ranks that a verb has waited for whose time is over, and what they do: those that are in no verb, if they are found in time.
func (w *watch) missing() (ranks []int, doing []string) {
	w.mu.Lock()
	s := w.stuck
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

// stuck is a verb that takes long. Through the store it finds ranks that do something else, and that wait for each other; and since it waits for
// everybody's word there, the store asks ranks that say nothing whether they are still alive.
type stuck struct {
	call    *call
	ctx     context.Context // ends with the verb, or its deadline
	cancel  context.CancelFunc
	done    chan struct{}
	missing []int // with doing: after done
	doing   []string
}

func (s *stuck) run() {
	defer close(s.done)
	mine := make([]byte, headLen)
	s.call.head.put(mine)
	for s.ctx.Err() == nil && s.call.over.Err() == nil {
		heads, err := pgroup.AllGather(s.ctx, s.call.group.Channel("stuck"), mine)
		if err == nil {
			s.compare(heads)
		}
		if re, ok := errors.AsType[*pgroup.RankError](err); ok && errors.Is(err, pgroup.ErrTimeout) {
			s.missing, s.doing = re.Missing, re.Doing // when the time of the first was over, which ends the verb for all
			return
		}
		select {
		case <-s.ctx.Done():
		case <-s.call.over.Done():
		case <-time.After(stuckTime):
		}
	}
}

// compare ends the Comm if ranks do different things in the same call. One that is in another call may be about to follow, or to go on: who waits for
// a message of a call has it in time, since all messages of a call are sent before the next begins. All that compare have the same heads.
func (s *stuck) compare(heads [][]byte) {
	first := map[uint64]int{} // of each call, the first rank
	for rank, b := range heads {
		if len(b) != headLen {
			s.call.fail(&wire.Verdict{Code: wire.CodeMismatch, By: rank, Reason: fmt.Sprintf("rank %d says what it does in another way: another version of muster?", rank)})
			return
		}
		h := parseHead(b)
		other, ok := first[h.seq]
		if !ok {
			first[h.seq] = rank
			continue
		}
		if theirs := parseHead(heads[other]); !theirs.agrees(h) {
			s.call.fail(&wire.Verdict{Code: wire.CodeMismatch, By: rank, Reason: disagreement(rank, h, other, theirs)})
			return
		}
	}
}
