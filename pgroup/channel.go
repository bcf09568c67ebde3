package pgroup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

// channelUse is one use of a channel's name by this rank, from Channel to Close. All of its calls
// have ended when the store learns of the close: a later call would belong to the next use. The
// handle of the group itself has none.
type channelUse struct {
	ctx   context.Context // cancelled when Close begins
	end   context.CancelCauseFunc
	calls sync.RWMutex // read-locked by each call; Close locks it, and keeps it locked
	began atomic.Bool  // a call was made, so the store may know the channel
	close sync.Once
}

var errChannelClosed = errors.New("this rank has closed the channel")

// beginCall begins a call on g, which Close of a channel waits for; endCall ends it.
func (g *Group) beginCall(op string) error {
	switch {
	case g.isClosed():
		return g.closedError(op)
	case g.use == nil:
		return nil
	case !g.use.calls.TryRLock():
		return g.closedError(op)
	}
	g.use.began.Store(true)
	return nil
}

func (g *Group) endCall() {
	if g.use != nil {
		g.use.calls.RUnlock()
	}
}

// withTimeout gives ctx the default timeout, since start, if it has no deadline, and cancels it when g is
// closed.
func (g *Group) withTimeout(ctx context.Context, start time.Time) (context.Context, context.CancelFunc) {
	ctx, cancel := g.cfg.withDefaultTimeout(ctx, start)
	if g.use == nil { // the store ends the calls of a group that is closed
		return ctx, cancel
	}
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(g.use.ctx, func() { end(context.Cause(g.use.ctx)) })
	return ctx, func() {
		stop()
		end(nil)
		cancel()
	}
}

func (g *Group) isClosed() bool {
	return g.hasClosed() || g.use != nil && g.use.ctx.Err() != nil
}

// closedError returns the error of an operation of a handle that this rank has closed.
func (g *Group) closedError(op string) *RankError {
	re := g.rankError(op, &wire.Failure{Code: wire.CodeClosed, By: -1, Reason: "this rank has closed it"}, ErrClosed)
	re.Channel = g.channel
	return re
}

// asRankError returns the error of an operation for the store's error err.
func (g *Group) asRankError(op string, seq uint64, err error) error {
	if !g.isClosed() {
		return g.storeFailure(op, seq, err)
	}
	if errors.Is(err, ErrUnknown) { // it was sent, so the message may be delivered
		return fmt.Errorf("%w: %w", g.closedError(op), ErrUnknown)
	}
	return g.closedError(op)
}

// storeFailure is asRankError for a handle that may be closed.
func (g *Group) storeFailure(op string, seq uint64, err error) error {
	e, ok := errors.AsType[*store.Error](err)
	if !ok {
		err = fmt.Errorf("pgroup: %s of group %q on rank %d: %w", op, g.name, g.rank, err)
		g.logFailure(op, err)
		return err
	}
	re := g.rankError(op, e.Failure, err)
	if re.Failure == nil {
		re.Failure = g.failureOf(e)
	}
	if g.channel != shutdownChannel {
		re.Channel, re.Seq = g.channel, seq
	}
	g.noteRevocation(re)
	g.logFailure(op, re)
	return re
}

// closeChannel ends this rank's use of the channel. If the store cannot be reached, the next use of
// the name continues the sequence of this one.
func (g *Group) closeChannel() (err error) {
	g.use.close.Do(func() {
		g.use.end(errChannelClosed)
		g.mem.leave() // ends calls that wait in it
		g.use.calls.Lock()
		g.mem.close()
		start := trace.Now(g.cfg.sink)
		if g.use.began.Load() && !g.hasClosed() {
			c := g.request()
			c.Channel = g.channel
			ctx, cancel := context.WithTimeout(context.Background(), closeWait)
			defer cancel()
			err = g.store.CloseChannel(ctx, c)
		}
		g.forget(g, err)
		if g.hasClosed() || errors.Is(err, store.ErrUnsupported) {
			err = nil
		}
		if err != nil {
			err = g.storeFailure("close", 0, err)
		}
		g.traceOp(context.Background(), "close", start, 0, err)
	})
	return err
}

// handle returns the handle of a channel; there is one Group for each. "" is the group itself.
func (s *membership) handle(name string) *Group {
	s.lock.Lock()
	defer s.lock.Unlock()
	g := s.channels[name]
	if g == nil {
		g = s.newGroup(name)
	}
	return g
}

// newGroup makes the handle of a channel, or of the group. s.lock must be held.
func (s *membership) newGroup(name string) *Group {
	g := &Group{membership: s, channel: name}
	g.log = s.loggerOf(name, &g.seq)
	if name != "" {
		g.use = &channelUse{}
		g.use.ctx, g.use.end = context.WithCancelCause(context.Background())
	}
	s.channels[name] = g
	return g
}

// forget removes the handle of a closed channel. If the store does not know that it is closed, the
// next handle continues its numbers.
func (s *membership) forget(g *Group, err error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	delete(s.channels, g.channel)
	if g.use.began.Load() {
		s.closedNames.Add(g.channel)
	}
	if err == nil {
		return
	}
	next := s.newGroup(g.channel)
	next.seq.Store(g.seq.Load())
	next.inbox.of = g.inbox.of
	next.use.began.Store(true)
}
