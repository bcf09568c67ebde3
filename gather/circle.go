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

// circle is a list of ranks that gather: a group of their own, whose rank 0 is the first of the list. It is made when
// the list is first used.
//
// A verb is one record of that group, or two; each verb has two numbers of its own, so that a rank which does not know how a record ended
// goes on with the next verb, where the others are. In the first, an all-gather, every rank says what it offers; all compare the same offers, and come to
// the same end. If the first rank has everything in its memory then, in segments that it has mapped before, that is all: nothing can go
// wrong any more. Otherwise it gets what it has not, and the second record, a broadcast, is its word on whether it could.
type circle struct {
	ga    *Gatherer
	ranks []int
	name  string

	mu sync.Mutex // held for the whole of a verb: whoever finds it locked is ErrBusy

	out     outlet        // where this rank gives
	records *pgroup.Group // the channel of group for the records of verbs
	turns   uint64        // verbs that have begun on records

	calls uint64 // of verbs on this list. Ranks at different ones do not meet: one has given up what another calls now

	lock     sync.Mutex    // protects the fields below; close does not wait for a verb
	group    *pgroup.Group // nil until the first verb, which sets it with mu held too
	unfollow func() bool   // ends that an abort of the Gatherer's group is one of this
	closed   bool
}

// outcome is what the first rank says.
type outcome struct {
	Fault *fault
}

// verb is one call of one rank.
type verb struct {
	*circle
	op string

	// Of the trace.
	start  time.Time
	waited time.Duration // until all had come
	bytes  int64
}

func (c *circle) first() bool { return c.ranks[0] == c.ga.group.Rank() }

// begin makes this the circle's only verb; end tells the trace, and gives way to the next.
func (c *circle) begin(ctx context.Context, op string) (*verb, error) {
	if !c.mu.TryLock() {
		return nil, fmt.Errorf("%s on rank %d: ranks %v: %w", op, c.ga.group.Rank(), c.ranks, pgroup.ErrBusy)
	}
	c.calls++
	v := &verb{circle: c, op: op, start: trace.Now(c.ga.opts.Trace)}
	if err := v.meet(ctx); err != nil {
		c.mu.Unlock()
		return nil, err
	}
	return v, nil
}

func (v *verb) end(ctx context.Context, err error) {
	if sink := v.ga.opts.Trace; sink != nil {
		trace.Record(ctx, sink, trace.Event{
			Op: v.op, Group: v.group.Name(), Generation: v.group.Generation(), Seq: v.calls, Rank: v.group.Rank(), Size: len(v.ranks), Last: -1,
			Bytes: v.bytes, Start: v.start, Waited: v.waited, Err: err,
		})
	}
	v.mu.Unlock()
}

// moved notes how much a verb was about: what this rank gave, or what the first one got.
func (v *verb) moved(own *giving, offers []offer) {
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

// meet makes the group of the list.
func (v *verb) meet(ctx context.Context) error {
	if v.group != nil {
		return nil
	}
	if ctx.Err() != nil { // the others wait until their own time is over
		return v.verdict(context.Cause(ctx))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.ga.life, cancel)()
	g, err := v.ga.group.Sub(ctx, v.name, v.ranks...)
	switch {
	case err != nil && v.ga.life.Err() != nil:
		return v.verdict(pgroup.ErrClosed)
	case err != nil:
		return v.verdict(err)
	}
	v.lock.Lock()
	defer v.lock.Unlock()
	if v.closed {
		return errors.Join(v.verdict(pgroup.ErrClosed), g.Close())
	}
	v.group, v.records = g, g.Channel("verbs")
	whole := v.ga.group.Context()
	v.unfollow = context.AfterFunc(whole, func() {
		if cause := context.Cause(whole); errors.Is(cause, pgroup.ErrAborted) {
			g.Abort(cause)
		}
	})
	return nil
}

// run is the verb, from the offer to the verdict. agree compares what is offered, and receive gets it, on the first rank. A failure
// is the same on every rank.
func (v *verb) run(ctx context.Context, own *giving, agree check, receive func(ctx context.Context, offers []offer) error) error {
	own.offer.Verb, own.offer.Call = uint8(slices.Index(verbs, v.op)), v.calls
	called := trace.Now(v.ga.opts.Trace)
	v.records.Skip(2 * v.turns)
	v.turns++
	encoded, err := pgroup.AllGather(ctx, v.records, own.offer.encode())
	if !called.IsZero() {
		v.waited = time.Since(called)
	}
	if err != nil {
		own.unseen = !errors.Is(err, pgroup.ErrUnknown) && !errors.Is(err, pgroup.ErrUnavailable) && !errors.Is(err, pgroup.ErrClosed)
		return v.verdict(err)
	}
	offers, err := v.openOffers(encoded)
	if !called.IsZero() {
		defer func() { v.moved(own, offers) }() // some lists come later
	}
	if all := listed(offers); err == nil && all {
		err = v.compare(agree, offers)
	}
	if err != nil {
		own.unseen = true
		return v.verdict(err)
	}
	offers[v.group.Rank()].items = own.offer.items
	switch {
	case !ready(offers):
		return v.conclude(ctx, own, agree, offers, receive)
	case v.first():
		return v.sure(receive(ctx, offers))
	}
	return nil
}

// sure passes on the end of what cannot fail. If it has failed all the same, the others are not to go on as if it had not.
func (v *verb) sure(err error) error {
	if err == nil {
		return nil
	}
	err = v.verdict(asFault(err))
	v.group.Abort(err)
	return err
}

// conclude is the second record.
func (v *verb) conclude(ctx context.Context, own *giving, agree check, offers []offer, receive func(ctx context.Context, offers []offer) error) error {
	var out outcome
	if v.first() {
		err := v.whileThere(ctx, func(ctx context.Context) error {
			if !listed(offers) {
				if err := v.readLists(ctx, offers, own.taken); err != nil {
					return err
				}
				if err := v.compare(agree, offers); err != nil {
					return err
				}
			}
			return receive(ctx, offers)
		})
		if err != nil {
			out.Fault = asFault(err)
		}
	}
	told, err := pgroup.Broadcast(ctx, v.records, 0, out)
	switch {
	case err != nil: // decided without the first rank: a deadline passed, or somebody is lost
		v.withdraw()
		return v.verdict(err)
	case told.Fault != nil:
		return v.verdict(told.Fault)
	}
	own.mapped()
	return nil
}

// asFault is what the first rank tells the others of an error of its own.
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
func (c *circle) close() error {
	c.lock.Lock()
	c.closed = true
	g := c.group
	c.lock.Unlock()
	var err error
	if g != nil {
		c.unfollow()
		err = g.Close()
	}
	c.out.close()
	return err
}
