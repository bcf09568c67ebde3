package gather

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

// subgroup is a list of ranks that gather. It has its own group, whose rank 0 is the first of
// the list. It is made when the list is first used.
//
// A verb is one record of that group, or two. Each verb has two sequence numbers of its own: a rank
// that does not know how a record ended continues with the next verb, as the others do. The first
// record, an all-gather, has the offer of every rank; all ranks compare the same offers, and get
// the same result. If the first rank then has everything in its memory, in segments that it has
// mapped before, the verb ends: nothing can fail from here on. Otherwise the first rank reads what it
// does not have, and the second record, a broadcast, has its result.
type subgroup struct {
	ga    *Gatherer
	ranks []int
	name  string

	mu sync.Mutex // held during a verb: another call gets ErrBusy

	out     outbound      // connections to the first rank
	records *pgroup.Group // the channel of group for the records of verbs
	turns   uint64        // number of verbs that have begun on records

	calls uint64 // number of verbs on this list. If ranks are at different ones, one has timed out

	lock          sync.Mutex    // protects the fields below; close does not wait for a verb
	group         *pgroup.Group // nil until the first verb, which sets it with mu held too
	stopFollowing func() bool   // stops the abort of the Gatherer's group from aborting this one
	closed        bool
}

// outcome is the result of the first rank.
type outcome struct {
	Fault *fault
}

// verb is one call of one rank.
type verb struct {
	*subgroup
	op string

	// The fields below are for the trace.
	start  time.Time
	waited time.Duration // until all ranks had arrived
	bytes  int64
}

func (c *subgroup) first() bool { return c.ranks[0] == c.ga.group.Rank() }

// begin makes this the only verb of the subgroup; end records it in the trace, and allows the next.
func (c *subgroup) begin(ctx context.Context, op string) (*verb, error) {
	if !c.mu.TryLock() {
		return nil, fmt.Errorf("%s on rank %d: ranks %v: %w", op, c.ga.group.Rank(), c.ranks, pgroup.ErrBusy)
	}
	c.calls++
	v := &verb{subgroup: c, op: op, start: trace.Now(c.ga.group.Trace())}
	if err := v.form(ctx); err != nil {
		c.mu.Unlock()
		return nil, err
	}
	return v, nil
}

func (v *verb) end(ctx context.Context, err error) {
	if sink := v.ga.group.Trace(); sink != nil {
		trace.Record(ctx, sink, trace.Event{
			Op: v.op, Group: v.group.Name(), Generation: v.group.Generation(), Seq: v.calls, Rank: v.group.Rank(), Size: len(v.ranks), Last: -1,
			Bytes: v.bytes, Start: v.start, Waited: v.waited, Err: err,
		})
	}
	v.mu.Unlock()
}

// countBytes counts the bytes that this rank sent, or that the first rank received.
func (v *verb) countBytes(own *sender, offers []offer) {
	if !v.first() {
		v.bytes = own.offer.total()
		return
	}
	for i := range offers {
		if i != v.group.Rank() {
			v.bytes += offers[i].total()
		}
	}
}

// form forms the group of the list.
func (v *verb) form(ctx context.Context) error {
	if v.group != nil {
		return nil
	}
	if ctx.Err() != nil { // the others wait until their own deadlines
		return v.rankError(context.Cause(ctx))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.ga.life, cancel)()
	g, err := v.ga.group.Sub(ctx, v.name, v.ranks...)
	switch {
	case err != nil && v.ga.life.Err() != nil:
		return v.rankError(pgroup.ErrClosed)
	case err != nil:
		return v.rankError(err)
	}
	v.lock.Lock()
	defer v.lock.Unlock()
	if v.closed {
		return errors.Join(v.rankError(pgroup.ErrClosed), g.Close())
	}
	v.group, v.records = g, g.Channel("verbs")
	whole := v.ga.group.Context()
	v.stopFollowing = context.AfterFunc(whole, func() {
		if cause := context.Cause(whole); errors.Is(cause, pgroup.ErrAborted) {
			g.Abort(cause)
		}
	})
	return nil
}

// run runs a verb, from the offer to the result. agree compares the offers; collect receives them,
// on the first rank. A failure is the same on every rank.
func (v *verb) run(ctx context.Context, own *sender, agree check, collect func(ctx context.Context, offers []offer) error) error {
	own.offer.Verb, own.offer.Call = uint8(slices.Index(verbs, v.op)), v.calls
	called := trace.Now(v.ga.group.Trace())
	v.records.Skip(2 * v.turns)
	v.turns++
	encoded, err := pgroup.AllGather(ctx, v.records, own.offer.encode())
	if !called.IsZero() {
		v.waited = time.Since(called)
	}
	if err != nil {
		own.unseen = !errors.Is(err, pgroup.ErrUnknown) && !errors.Is(err, pgroup.ErrUnavailable) && !errors.Is(err, pgroup.ErrClosed)
		return v.rankError(err)
	}
	offers, err := v.openOffers(encoded)
	if !called.IsZero() {
		defer func() { v.countBytes(own, offers) }() // deferred, since some lists arrive later
	}
	if all := listed(offers); err == nil && all {
		err = v.compare(agree, offers)
	}
	if err != nil {
		own.unseen = true
		return v.rankError(err)
	}
	offers[v.group.Rank()].items = own.offer.items
	switch {
	case !ready(offers):
		return v.secondRecord(ctx, own, agree, offers, collect)
	case v.first():
		return v.finishReady(collect(ctx, offers))
	}
	return nil
}

// finishReady ends a verb whose offers were ready, so that it should not fail. If it has failed all
// the same, it aborts the group, so that the others do not continue.
func (v *verb) finishReady(err error) error {
	if err == nil {
		return nil
	}
	err = v.rankError(asFault(err))
	v.group.Abort(err)
	return err
}

// secondRecord runs the second record, which has the first rank's result.
func (v *verb) secondRecord(ctx context.Context, own *sender, agree check, offers []offer, collect func(ctx context.Context, offers []offer) error) error {
	var out outcome
	if v.first() {
		err := v.whileAlive(ctx, func(ctx context.Context) error {
			if !listed(offers) {
				if err := v.readLists(ctx, offers, own.held); err != nil {
					return err
				}
				if err := v.compare(agree, offers); err != nil {
					return err
				}
			}
			return collect(ctx, offers)
		})
		if err != nil {
			out.Fault = asFault(err)
		}
	}
	result, err := pgroup.Broadcast(ctx, v.records, 0, out)
	switch {
	case err != nil: // decided without the first rank: a deadline passed, or a rank failed
		v.withdraw()
		return v.rankError(err)
	case result.Fault != nil:
		return v.rankError(result.Fault)
	}
	own.mapped()
	return nil
}

// asFault converts an error to the form in which the first rank sends it to the others.
func asFault(err error) *fault {
	if f, ok := errors.AsType[*fault](err); ok {
		return f
	}
	if re, ok := errors.AsType[*pgroup.RankError](err); ok && re.Failure != nil {
		return &fault{Code: re.Code, By: re.By, Lost: re.Lost, Reason: re.Reason}
	}
	f := &fault{Code: wire.CodeFailed, Reason: err.Error(), err: err}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		f.Code = wire.CodeTimeout
	case errors.Is(err, context.Canceled):
		f.Code = wire.CodeCancelled
	}
	return f
}

// close leaves the group of the list, so that a verb in progress ends.
func (c *subgroup) close() error {
	c.lock.Lock()
	c.closed = true
	g := c.group
	c.lock.Unlock()
	var err error
	if g != nil {
		c.stopFollowing()
		err = g.Close()
	}
	c.out.close()
	return err
}
