package pgroup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
)

// use is one use of a channel's name by this rank, from Channel to Close. Its calls have ended when the store learns of the close: a call
// that came later would be one of the next use. The handle of the group itself has none, and is closed with its seat.
type use struct {
	life  context.Context // ends when Close begins
	end   context.CancelCauseFunc
	calls sync.RWMutex // held for reading during each call; Close takes it, and keeps it
	began atomic.Bool  // a call has been made: the store may know the channel
	close sync.Once
}

var errChannelClosed = errors.New("this rank has closed the channel")

// hold begins a call on g, which Close of a channel waits for; release ends it.
func (g *Group) hold(op string) error {
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

func (g *Group) release() {
	if g.use != nil {
		g.use.calls.RUnlock()
	}
}

// bound gives ctx the default deadline, if it has none, and cancels it when g is closed.
func (g *Group) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := g.seat.bound(ctx)
	if g.use == nil { // the store ends the calls of a group that is closed
		return ctx, cancel
	}
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(g.use.life, func() { end(context.Cause(g.use.life)) })
	return ctx, func() {
		stop()
		end(nil)
		cancel()
	}
}

func (g *Group) isClosed() bool { return g.seat.isClosed() || g.use != nil && g.use.life.Err() != nil }

// closedError is the answer to a verb of a handle that this rank has closed.
func (g *Group) closedError(op string) error {
	re := g.seat.closedError(op)
	re.Channel = g.channel
	return re
}

// fault is what the store's error means to a rank.
func (g *Group) fault(op string, seq uint64, err error) error {
	if !g.isClosed() {
		return g.seat.fault(op, g.channel, seq, err)
	}
	if errors.Is(err, ErrUnknown) { // it was sent: a message may be delivered
		return fmt.Errorf("%w: %w", g.closedError(op), ErrUnknown)
	}
	return g.closedError(op)
}

// closeChannel ends this rank's use of the channel. If the store cannot be reached, the next use of the name goes on where this one was.
func (g *Group) closeChannel() (err error) {
	g.use.close.Do(func() {
		g.use.end(errChannelClosed)
		g.use.calls.Lock()
		start := trace.Now(g.cfg.sink)
		if g.use.began.Load() && !g.seat.isClosed() {
			c := g.request()
			c.Channel = g.channel
			ctx, cancel := context.WithTimeout(context.Background(), leaveWait)
			defer cancel()
			err = g.store.CloseChannel(ctx, c)
		}
		g.forget(g, err)
		if g.seat.isClosed() || errors.Is(err, store.ErrUnsupported) {
			err = nil
		}
		if err != nil {
			err = g.seat.fault("close", g.channel, 0, err)
		}
		if g.cfg.sink != nil {
			g.tell(context.Background(), "close", start, 0, err)
		}
	})
	return err
}

// open returns the channel of a name; there is one Group for each.
func (s *seat) open(name string) *Group {
	s.lock.Lock()
	defer s.lock.Unlock()
	g := s.channels[name]
	if g == nil {
		g = s.newGroup(name)
	}
	return g
}

// newGroup makes the handle of a channel, or, as "", of the group. Called with lock.
func (s *seat) newGroup(name string) *Group {
	g := &Group{seat: s, channel: name}
	g.log = s.loggerOf(name, &g.seq)
	if name != "" {
		g.use = &use{}
		g.use.life, g.use.end = context.WithCancelCause(context.Background())
	}
	s.channels[name] = g
	return g
}

// forget takes a channel that is closed out of the seat's. One that the store does not know to be closed leaves its numbers.
func (s *seat) forget(g *Group, err error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	delete(s.channels, g.channel)
	if err == nil {
		return
	}
	next := s.newGroup(g.channel)
	next.seq.Store(g.seq.Load())
	next.inboxes.of = g.inboxes.of
	next.use.began.Store(true)
}
