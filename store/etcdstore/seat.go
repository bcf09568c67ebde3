package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/muster-pg/muster/wire"
)

// leftSeat is the value of a seat whose rank has said goodbye. Its key is under no lease any more.
const leftSeat = "left"

// seat is a rank of this process in a generation.
type seat struct {
	g    *group
	s    *session
	rank int
	key  string
	rev  int64           // of its key: another process's seat has another one
	ctx  context.Context // while it is held
	end  context.CancelCauseFunc

	mu       sync.Mutex // protects the fields below
	channels map[string]*channel
	outs     map[streamKeys]*outStream
	ins      map[streamKeys]*inStream
	expired  int // messages that nobody fetched in time, since it last asked
}

var (
	errLeft    = errors.New("etcdstore: this rank has left")
	errRetired = errors.New("etcdstore: this generation has a successor")
)

// take makes this process hold a rank.
func (s *session) take(g *group, rank int, key string, rev int64) {
	st := &seat{
		g: g, s: s, rank: rank, key: key, rev: rev,
		channels: map[string]*channel{}, outs: map[streamKeys]*outStream{}, ins: map[streamKeys]*inStream{},
	}
	st.ctx, st.end = context.WithCancelCause(s.ctx)
	context.AfterFunc(st.ctx, g.letGo)
	s.mu.Lock()
	s.seats[seatKey{g.gen, rank}] = st
	s.mu.Unlock()
}

// bury keeps of a seat that is empty only that it was there, and why it is no more: a process may be in many groups, one after the other.
func (s *session) bury(st *seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seats[seatKey{st.g.gen, st.rank}] = &seat{g: &group{gen: st.g.gen}, s: s, rank: st.rank, ctx: st.ctx}
}

// held is the condition that the seat is this process's.
func (st *seat) held() cond {
	return createdAt(st.key, st.rev)
}

// within is ctx, while the seat is held.
func (st *seat) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(st.ctx, func() { cancel(context.Cause(st.ctx)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// ended answers a call whose seat is held no more.
func (st *seat) ended(rep *wire.Reply) error {
	switch cause := context.Cause(st.ctx); {
	case errors.Is(cause, errRetired):
		return refuse(rep, wire.CodeStale, "generation %d is over: its survivors have another one", st.g.gen)
	case errors.Is(cause, errLeft):
		return refuse(rep, wire.CodeClosed, "rank %d is no longer in generation %d", st.rank, st.g.gen)
	default:
		return cause
	}
}

// onSeat makes an operation of one that a rank carries out.
func onSeat(do func(st *seat, ctx context.Context, req *wire.Request, rep *wire.Reply) error) func(e *Engine, ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	return func(e *Engine, ctx context.Context, req *wire.Request, rep *wire.Reply) error {
		st, err := e.seatOf(ctx, &req.Group, rep)
		if st == nil {
			return err
		}
		if st.ctx.Err() != nil {
			return st.ended(rep)
		}
		within, cancel := st.within(ctx)
		defer cancel()
		if err = do(st, within, req, rep); err != nil && st.ctx.Err() != nil {
			return st.ended(rep)
		}
		return err
	}
}

// seatOf finds the seat that c speaks for; nil, and why in rep, if it is not this process's.
func (e *Engine) seatOf(ctx context.Context, c *wire.Contribution, rep *wire.Reply) (*seat, error) {
	if s := e.current(); s != nil {
		s.mu.Lock()
		st := s.seats[seatKey{c.Generation, c.Rank}]
		s.mu.Unlock()
		if st != nil {
			return st, nil
		}
	}
	r, err := e.rollOf(ctx, c.Generation)
	switch {
	case err != nil:
		return nil, err
	case r == nil || !e.has(c.Generation):
		return nil, refuse(rep, wire.CodeStale, "generation %d is over, or never was this session's", c.Generation)
	case c.Rank < 0 || c.Rank >= len(r.ids):
		return nil, refuse(rep, wire.CodeInvalid, "rank %d of %d", c.Rank, len(r.ids))
	}
	return nil, refuse(rep, wire.CodeDenied, "rank %d of generation %d is another session's", c.Rank, c.Generation)
}

// has reports whether this process's session has a seat in a generation.
func (e *Engine) has(gen uint64) bool {
	s := e.current()
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.seats {
		if k.gen == gen {
			return true
		}
	}
	return false
}

// rollOf is the roll of a generation; nil if there is none.
func (e *Engine) rollOf(ctx context.Context, gen uint64) (*roll, error) {
	kv, err := e.entry(ctx, e.root.generation(gen).rolled())
	if err != nil || kv == nil {
		return nil, err
	}
	rep, err := parseReply(kv.Value)
	if err != nil {
		return nil, fmt.Errorf("etcdstore: the roll of generation %d: %w", gen, err)
	}
	if rep.Code != wire.CodeOK {
		return nil, nil
	}
	return parseRoll(rep), nil
}

// leaveGroup takes a rank out of its group, or aborts the group.
func (st *seat) leaveGroup(ctx context.Context, req *wire.Request, _ *wire.Reply) error {
	c := &req.Group
	if c.No != wire.CodeOK {
		return st.g.revoke(ctx, &wire.Verdict{Code: wire.CodeAborted, By: c.Rank, Reason: c.Reason}, true)
	}
	return st.leave(ctx)
}

// leave says goodbye.
func (st *seat) leave(ctx context.Context) error { return st.vacate(ctx, errLeft) }

func (st *seat) vacate(ctx context.Context, why error) error {
	if errors.Is(context.Cause(st.ctx), errLeft) || errors.Is(context.Cause(st.ctx), errRetired) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, st.g.e.o.Mend)
	defer cancel()
	until, _ := ctx.Deadline()
	_, err := st.g.e.txn(ctx, []cond{st.held()}, []op{opPut(st.key, leftSeat, 0)}, nil)
	if err != nil {
		return err
	}
	st.end(why)
	st.s.bury(st)
	st.g.leaves(st.g.roll.ids[st.rank], wire.CodeLeft)
	tidy, cancel := context.WithDeadline(context.WithoutCancel(ctx), until) // ctx may have ended with the seat
	defer cancel()
	_, err = st.g.e.txn(tidy, nil, []op{st.g.e.root.takeOut(st.g.gen, st.g.roll.name)}, nil)
	return err
}

func (st *seat) followGroup(ctx context.Context, _ *wire.Request, rep *wire.Reply) error {
	for {
		s := st.g.state()
		if s.over != nil {
			*rep = copyReply(s.over)
			return nil
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return overdue(ctx, rep)
		}
	}
}

// overdue answers a call whose time is over.
func overdue(ctx context.Context, rep *wire.Reply) error {
	switch err := context.Cause(ctx); {
	case errors.Is(err, context.DeadlineExceeded):
		return refuse(rep, wire.CodeTimeout, "")
	case errors.Is(err, context.Canceled):
		return refuse(rep, wire.CodeCancelled, "")
	default:
		return err
	}
}

// copyReply is rep for a caller, who may change it.
func copyReply(rep *wire.Reply) wire.Reply {
	own := *rep
	if rep.Verdict != nil {
		v := *rep.Verdict
		v.Missing, v.Lost, v.Left = slices.Clone(v.Missing), slices.Clone(v.Lost), slices.Clone(v.Left)
		v.Doing, v.Clash = slices.Clone(v.Doing), slices.Clone(v.Clash)
		own.Verdict = &v
	}
	return own
}
