package collective

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/muster-pg/muster/internal/reduce"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

// call is one verb of one rank. It has the turn.
type call struct {
	*core
	ctx  context.Context // the Comm's end ends it too
	verb verb            // as the caller has it; head has what ranks agree on
	peer int             // of Send and Recv
	head head
	dt   tensor.DType // that numbers are combined as
	dt16 tensor.DType // of the caller's, if they are made wider
	elem int          // bytes of an element
	op   reduce.Op
	div  int // by which the sum is divided at the end

	start time.Time // zero: it did not begin
	limit time.Time

	// Of the watch, under its lock.
	ending bool
	stuck  *stuck // nil: it has not taken long
}

// plan is what a verb is to do.
type plan struct {
	verb  verb
	op    Op
	dt    tensor.DType
	root  int // -1: none
	peer  int // of Send and Recv
	count int // elements that each rank passes, in all slices
	x, y  vector

	// Of a verb that takes several slices as one.
	slices  int
	lengths uint64                       // a hash of their lengths
	list    func(list [][]byte) [][]byte // appends them; x is made of them when the verb begins
}

var reductions = [...]reduce.Op{Sum: reduce.Sum, Avg: reduce.Sum, Product: reduce.Product, Min: reduce.Min, Max: reduce.Max}

// run is a verb of all ranks, from its turn to its end.
func (c *Comm) run(ctx context.Context, p plan) error {
	if err := c.check(&p); err != nil {
		return err
	}
	if !c.inner {
		mine, err := c.turn(ctx, &p)
		if err != nil {
			return err
		}
		defer close(mine)
	}
	c.using.Lock()
	defer c.using.Unlock()
	if p.list != nil {
		c.slices = p.list(c.slices[:0])
		defer clear(c.slices)
		if i, j, ok := c.aliases.Find(c.slices); ok && p.verb == allReduce {
			return c.invalid(p.verb, "slices %d and %d share memory", i, j)
		}
		p.x = vectorOf(c.slices)
	}
	c.seq++
	return c.perform(ctx, &p, c.seq, func(cl *call) error {
		err := cl.do(&p)
		if err == nil && c.local != nil {
			c.local.unhold()
		}
		return err
	})
}

// turn waits until all verbs are done that were called before. The next ones wait until what it
// returns is closed. If ctx ends first, or the time of a verb, then so does the Comm: the other
// ranks wait for this one in a verb that it does not come to.
func (c *core) turn(ctx context.Context, p *plan) (chan struct{}, error) {
	mine, before := c.queue()
	if before == nil || done(before) {
		return mine, nil
	}
	timeout := time.NewTimer(c.timeout)
	defer timeout.Stop()
	late := timeout.C
	if _, ok := ctx.Deadline(); ok {
		late = nil
	}
	select {
	case <-before:
		return mine, nil
	case <-ctx.Done():
		c.newCall(ctx, p, 0).cancelled()
	case <-late:
		c.newCall(ctx, p, 0).overdue()
	case <-c.over.Done():
	}
	go func() {
		<-before
		close(mine)
	}()
	return nil, c.ended(p.verb)
}

func done(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// queue puts a verb behind those that were called before.
func (c *core) queue() (mine, before chan struct{}) {
	mine = make(chan struct{})
	c.turns.Lock()
	defer c.turns.Unlock()
	before, c.tail = c.tail, mine
	return mine, before
}

// perform makes one call of a verb that f does, with a deadline, one result for all ranks, and a
// trace.
func (c *core) perform(ctx context.Context, p *plan, seq uint64, f func(cl *call) error) error {
	if c.over.Err() != nil {
		return c.ended(p.verb)
	}
	cl := c.newCall(ctx, p, seq)
	if ctx.Err() != nil { // the others wait, and are to get this as the reason
		cl.cancelled()
		return c.ended(p.verb)
	}
	cl.start = time.Now()
	var ok bool
	if cl.limit, ok = ctx.Deadline(); !ok {
		cl.limit = cl.start.Add(c.timeout)
	}
	c.watch.begin(cl)
	err := cl.failureOf(f(cl))
	c.watch.end(cl)
	cl.trace(p.x.n, err)
	return err
}

func (c *core) newCall(ctx context.Context, p *plan, seq uint64) *call {
	cl := &call{core: c, ctx: ctx, verb: p.verb, peer: p.peer, dt: p.dt, div: 1}
	cl.head = head{generation: c.group.Generation(), seq: seq, count: uint64(p.count), root: int32(p.root), verb: p.verb, op: p.op, dt: p.dt}
	if p.list != nil {
		cl.head.slices, cl.head.lengths = uint32(p.slices), uint32(p.lengths>>32)|1
	}
	if p.verb == receive {
		cl.head.verb = send
	}
	cl.elem, _ = tensor.Size(p.dt, 1)
	if int(p.op) < len(reductions) {
		cl.op = reductions[p.op]
	}
	if p.op == Avg {
		cl.div = c.size()
	}
	return cl
}

func (c *call) trace(bytes int, err error) {
	if c.opts.Trace != nil {
		c.opts.Trace.Record(c.ctx, trace.Event{
			Op: "collective." + c.verb.String(), Group: c.name, Generation: c.head.generation, Seq: c.head.seq, Rank: c.rank(), Size: c.size(),
			Last: -1, Bytes: int64(bytes), Start: c.start, End: time.Now(), Err: err,
		})
	}
}

// check refuses invalid arguments before other ranks are involved.
func (c *core) check(p *plan) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("collective: %v of group %q on rank %d: %s: %w", p.verb, c.name, c.rank(), fmt.Sprintf(format, args...), pgroup.ErrInvalid)
	}
	switch {
	case p.root < -1 || p.root >= c.size():
		return bad("there is no rank %d in a group of %d", p.root, c.size())
	case (p.verb == allReduce || p.verb == reduceTo || p.verb == reduceScatter) && int(p.op) >= len(reductions):
		return bad("%v is no reduction", p.op)
	case p.verb == allToAll && overlap(p.x.head, p.y.head),
		p.verb == reduceScatter && overlap(p.x.head, p.y.head) && !isPart(p.y.head, p.x.head, c.rank()),
		p.verb == allGather && overlap(p.x.head, p.y.head) && !isPart(p.x.head, p.y.head, c.rank()):
		return bad("dst and src overlap")
	}
	return nil
}

// cancelled ends the Comm because the caller's context has ended.
func (c *call) cancelled() {
	cause := context.Cause(c.ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		c.overdue()
		return
	}
	c.fail(&wire.Failure{Code: wire.CodeCancelled, By: c.rank(), Reason: cause.Error()})
}

// overdue ends the Comm because the time is over.
func (c *call) overdue() {
	v := &wire.Failure{Code: wire.CodeTimeout, By: c.rank()}
	if !c.start.IsZero() {
		v.By, v.Waited = -1, time.Since(c.start)
		v.Missing, v.Doing = c.awaited()
	}
	c.fail(v)
}

// ended is why no verb can be called any more.
func (c *core) ended(v verb) error {
	err := context.Cause(c.over)
	if re, ok := errors.AsType[*pgroup.RankError](err); ok {
		told := *re
		told.Op = "collective." + v.String()
		return &told
	}
	return fmt.Errorf("collective: %v of group %q on rank %d: %w", v, c.name, c.rank(), err)
}

// suspected is the error of a rank that may have failed; the store decides whether it has.
type suspected struct {
	failureOf *wire.Failure
	wait      bool // it may be lost
}

func (s *suspected) Error() string { return s.failureOf.Reason }

// lossTime is longer than the store takes to declare a rank lost whose process has ended.
const lossTime = time.Second

// failureOf is the failure that all ranks get because of an error of this one.
func (c *call) failureOf(err error) error {
	if err == nil {
		return nil
	}
	s, ok := errors.AsType[*suspected](err)
	if !ok {
		s = &suspected{&wire.Failure{Code: wire.CodeFailed, By: c.rank(), Reason: err.Error()}, false}
	}
	if s.wait {
		select {
		case <-c.over.Done():
		case <-time.After(lossTime):
		}
	}
	if c.over.Err() == nil {
		c.fail(s.failureOf)
	}
	<-c.over.Done()
	c.conns.close() // from here on the caller's slices are not used
	if c.local != nil && !c.isPair() {
		c.local.withdraw()
	}
	return c.ended(c.verb)
}

// broken is a connection's end.
func (c *call) broken(rank int, err error) error {
	if errors.Is(err, net.ErrClosed) || c.over.Err() != nil {
		return &suspected{&wire.Failure{Code: wire.CodeFailed, By: rank, Reason: "its data connection is closed"}, true}
	}
	return &suspected{&wire.Failure{Code: wire.CodeFailed, By: rank, Reason: "its data connection broke: " + err.Error()}, true}
}

func (c *call) left(rank int) error {
	return &suspected{&wire.Failure{Code: wire.CodeLeft, By: -1, Left: []int{rank}, Reason: "in " + c.head.String()}, false}
}

func (c *call) failed(rank int, err error) error {
	return &suspected{&wire.Failure{Code: wire.CodeFailed, By: rank, Reason: err.Error()}, false}
}

// mismatchOf is the failure of two ranks that do different things.
func (c *call) mismatchOf(rank int, theirs head) error {
	return &suspected{&wire.Failure{Code: wire.CodeMismatch, By: rank, Reason: disagreement(rank, theirs, c.rank(), c.head)}, false}
}

func disagreement(rank int, theirs head, other int, h head) string {
	if theirs.generation != h.generation {
		return fmt.Sprintf("rank %d is in generation %d, and rank %d in %d", rank, theirs.generation, other, h.generation)
	}
	return fmt.Sprintf("rank %d is in %v, and rank %d in %v", rank, theirs, other, h)
}

// isPair reports whether this is a Send or a Recv, which run beside the verbs of all ranks.
func (c *call) isPair() bool { return c.head.verb == send }

// await notes the rank that this one waits for, for the error of a timeout.
func (c *core) await(rank int) { c.waiting.Store(int64(rank) + 1) }

// awaited are the ranks that this one waits for, or better: those that are in no verb, and what
// they do.
func (c *call) awaited() (ranks []int, doing []string) {
	if ranks, doing = c.watch.missing(c); len(ranks) > 0 {
		return ranks, doing
	}
	if c.isPair() {
		return []int{c.peer}, nil
	}
	if n := c.waiting.Load(); n > 0 {
		return []int{int(n) - 1}, nil
	}
	return nil, nil
}
