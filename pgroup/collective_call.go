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

// call is one collective operation of one rank. It takes one sequence number and sends one vote,
// whatever happens: a rank that cannot take part votes no, so that the other ranks need not wait
// for it.
type call struct {
	*Group
	c       wire.Contribution
	refusal error // why this rank votes no

	// For the trace.
	start, voted time.Time
	ctx          context.Context
	last         int
	waited       time.Duration
	bytes        int
	err          error
}

// collective makes the operation that c describes. payload completes the vote, and returns what this rank
// gives; result makes the result of what the record gives.
func collective[R any](ctx context.Context, g *Group, c wire.Contribution, payload func(*call) []byte, result func(*call, [][]byte) (R, error)) (r R, err error) {
	cl, err := g.begin(&c)
	if err != nil {
		return r, err
	}
	defer cl.end()
	got, err := cl.vote(ctx, payload(cl))
	if err != nil {
		return r, err
	}
	return result(cl, got)
}

// begin begins the operation that c describes, and takes its sequence number. end must be called when it
// has succeeded: it traces the operation and allows the next one.
func (g *Group) begin(c *wire.Contribution) (*call, error) {
	if err := g.beginCall(c.Verb); err != nil {
		return nil, err
	}
	if !g.mu.TryLock() {
		g.endCall()
		return nil, fmt.Errorf("pgroup: %s of group %q on rank %d: %w", c.Verb, g.name, g.rank, ErrBusy)
	}
	cl := &g.call // all zero, between operations
	cl.Group, cl.c, cl.start = g, *c, trace.Now(g.cfg.sink)
	cl.c.Stall = g.cfg.Stall
	cl.c.Generation, cl.c.Rank, cl.c.Channel, cl.c.Seq = g.generation, g.rank, g.channel, g.seq.Add(1)
	return cl, nil
}

func (cl *call) end() {
	g := cl.Group
	defer func() { // even if the sink panics
		*cl = call{}
		g.mu.Unlock()
		g.endCall()
	}()
	if g.cfg.sink != nil {
		cl.traceCall()
	}
}

// checkRoot refuses a root that is not a rank.
func (cl *call) checkRoot() {
	if root := cl.c.Root; root < 0 || root >= cl.size {
		cl.refuse(wire.CodeInvalid, fmt.Errorf("root %d of a group of %d: ranks are 0 to %d", root, cl.size, cl.size-1))
		cl.c.Root, cl.c.RootOnly, cl.c.Want = -1, false, wire.WantNothing
	}
}

// refuse makes the vote a no. The first reason counts.
func (cl *call) refuse(code wire.Code, cause error) {
	if cl.refusal == nil {
		cl.refusal = cause
		cl.c.No, cl.c.Reason = code, clip(cause.Error(), 512)
	}
}

// vote sends the vote, waits for the decision, and returns what the record gives.
func (cl *call) vote(ctx context.Context, payload []byte) ([][]byte, error) {
	if cl.c.No != wire.CodeOK {
		payload = nil
	}
	cl.voted = trace.Now(cl.cfg.sink)
	got, last, err := cl.collect(ctx, payload)
	switch {
	case cl.refusal != nil:
		err = cl.refused(err)
	case err != nil:
		err = cl.asRankError(cl.c.Verb, cl.c.Seq, err)
		if re, ok := errors.AsType[*RankError](err); ok {
			cl.addProgress(re)
		}
	}
	if cl.cfg.sink != nil {
		cl.noteResult(ctx, payload, got, last, err)
	}
	if err != nil {
		return nil, err
	}
	return got, nil
}

// refused returns the error of an operation in which this rank voted no: the failure of all ranks,
// or its own reason if the store has given none.
func (cl *call) refused(err error) error {
	v := &wire.Failure{Code: cl.c.No, By: cl.rank, Reason: cl.c.Reason}
	if e, ok := errors.AsType[*store.Error](err); ok && e.Failure != nil {
		v = e.Failure
	}
	re := cl.rankError(cl.c.Verb, v, errors.Join(cl.refusal, err))
	re.Channel, re.Seq = cl.c.Channel, cl.c.Seq
	return re
}

// undecodable is fail for an object of a rank.
func (cl *call) undecodable(rank int, err error) error {
	return cl.fail(fmt.Errorf("the object of rank %d: %w", rank, err))
}

// checkCount refuses an answer that does not have n payloads.
func (cl *call) checkCount(n int, got [][]byte) error {
	if len(got) != n {
		return cl.fail(fmt.Errorf("the store answered with %d payloads, not %d: %w", len(got), n, store.ErrProtocol))
	}
	return nil
}

// fail returns the error of an operation that succeeded, but whose result this rank cannot use.
func (cl *call) fail(err error) error {
	cl.err = fmt.Errorf("pgroup: %s #%d of group %q on rank %d: %w", cl.c.Verb, cl.c.Seq, cl.name, cl.rank, err)
	return cl.err
}

// withDefaultTimeout gives ctx the default timeout, since start, if it has no deadline.
func (c *Config) withDefaultTimeout(ctx context.Context, start time.Time) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, start.Add(c.Timeout))
}
