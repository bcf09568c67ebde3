package pgroup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

// call is one collective verb of one rank: it takes one sequence number and casts one vote, whatever
// happens. A rank that cannot take part votes no, so that nobody waits for it.
type call struct {
	*Group
	c     wire.Contribution
	cause error // why this rank votes no

	// Of the trace.
	start, voted time.Time
	ctx          context.Context
	last         int
	waited       time.Duration
	bytes        int
	err          error
}

// begin takes the sequence number; end tells the trace, and gives way to the next verb.
func (cl *call) begin() error {
	g := cl.Group
	if err := g.hold(cl.c.Verb); err != nil {
		return err
	}
	if !g.mu.TryLock() {
		g.release()
		return fmt.Errorf("pgroup: %s of group %q on rank %d: %w", cl.c.Verb, g.name, g.rank, ErrBusy)
	}
	cl.start = trace.Now(g.cfg.sink)
	cl.c.Generation, cl.c.Rank, cl.c.Channel, cl.c.Seq = g.generation, g.rank, g.channel, g.seq.Add(1)
	return nil
}

func (cl *call) end() {
	if cl.cfg.sink != nil {
		cl.record()
	}
	cl.mu.Unlock()
	cl.release()
}

// checkRoot refuses a root that is no rank.
func (cl *call) checkRoot() {
	if root := cl.c.Root; root < 0 || root >= cl.size {
		cl.refuse(wire.CodeInvalid, fmt.Errorf("root %d of a group of %d: ranks are 0 to %d", root, cl.size, cl.size-1))
		cl.c.Root, cl.c.RootOnly, cl.c.Want = -1, false, wire.WantNothing
	}
}

// refuse makes the vote no. The first reason counts.
func (cl *call) refuse(code wire.Code, cause error) {
	if cl.cause == nil {
		cl.cause = cause
		cl.c.No, cl.c.Reason = code, clip(cause.Error(), 512)
	}
}

// cast votes, and returns what the decided record brings.
func (cl *call) cast(ctx context.Context, payload []byte) ([][]byte, error) {
	if cl.c.No != wire.CodeOK {
		payload = nil
	}
	bounded, cancel := cl.bound(ctx)
	defer cancel()
	cl.voted = trace.Now(cl.cfg.sink)
	got, last, err := cl.store.CollectLast(bounded, cl.c, payload)
	switch {
	case cl.cause != nil:
		err = cl.refused(err)
	case err != nil:
		err = cl.fault(cl.c.Verb, cl.c.Seq, err)
	}
	if cl.cfg.sink != nil {
		cl.note(ctx, payload, got, last, err)
	}
	if err != nil {
		return nil, err
	}
	return got, nil
}

// refused is the error of a verb that this rank did not take part in: its own reason, unless the verb had failed before.
func (cl *call) refused(err error) error {
	v := &wire.Failure{Code: cl.c.No, By: cl.rank, Reason: cl.c.Reason}
	if e, ok := errors.AsType[*store.Error](err); ok && e.Failure != nil && e.Failure.By != cl.rank {
		v = e.Failure
	}
	re := cl.rankError(cl.c.Verb, v, errors.Join(cl.cause, err))
	re.Channel, re.Seq = cl.c.Channel, cl.c.Seq
	return re
}

// undecodable is the error of a verb that succeeded, whose object of one rank is none for this one.
func (cl *call) undecodable(rank int, err error) error {
	cl.err = fmt.Errorf("pgroup: %s #%d of group %q on rank %d: the object of rank %d: %w", cl.c.Verb, cl.c.Seq, cl.name, cl.rank, rank, err)
	return cl.err
}

// want refuses an answer that has not as many payloads as asked for.
func (cl *call) want(n int, got [][]byte) error {
	if len(got) != n {
		cl.err = fmt.Errorf("pgroup: %s #%d of group %q on rank %d: the store answered with %d payloads, not %d: %w",
			cl.c.Verb, cl.c.Seq, cl.name, cl.rank, len(got), n, store.ErrProtocol)
		return cl.err
	}
	return nil
}

// nothing is the cancel of a context that is not this package's.
func nothing() {}

// bound gives ctx the default deadline, if it has none.
func (s *seat) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, nothing
	}
	return context.WithTimeout(ctx, s.cfg.Timeout)
}
