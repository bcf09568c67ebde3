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

// call is one verb of one rank, while it has the turn.
type call struct {
	*core
	ctx  context.Context // ends with the Comm too
	verb verb            // as the caller called it; head has what the ranks must agree on
	peer int             // of Send and Recv
	head head
	dt   tensor.DType // the type in which numbers are combined
	dt16 tensor.DType // the caller's type, if its numbers are converted to a wider one
	elem int          // bytes of an element
	op   reduce.Op
	div  int // divisor of the sum at the end

	start time.Time // zero if it has not begun
	limit time.Time

	// The fields below belong to the watch, under its lock.
	ending bool
	stuck  *stuck // nil until the verb has taken long
}

// plan is the arguments of a verb.
type plan struct {
	verb  verb
	op    Op
	dt    tensor.DType
	root  int // -1: none
	peer  int // of Send and Recv
	count int // number of elements that each rank passes, in all slices
	x, y  vector

	// The fields below are for a verb that takes several slices as one.
	slices  int
	lengths uint64 // a hash of their lengths
	// appends the slices to list; x is made of them when the verb begins
	list func(list [][]byte) [][]byte
}

var reductions = [...]reduce.Op{Sum: reduce.Sum, Avg: reduce.Sum, Product: reduce.Product, Min: reduce.Min, Max: reduce.Max}

// run runs a verb of all ranks, from its turn to its end.
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
	return c.perform(ctx, &p, c.seq, func(cl *call) error { return cl.do(&p) })
}

// turn waits until all verbs that were called before have ended. Later verbs wait until the
// returned channel is closed. If ctx or the timeout of the verb ends first, so does the Comm: the
// other ranks would wait for this one in a verb that it does not reach.
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

// queue adds a verb to the queue of those that were called before.
func (c *core) queue() (mine, before chan struct{}) {
	mine = make(chan struct{})
	c.turns.Lock()
	defer c.turns.Unlock()
	before, c.tail = c.tail, mine
	return mine, before
}

// perform runs f, which carries out one call of a verb, with a deadline, the same result on all
// ranks, and a trace event.
func (c *core) perform(ctx context.Context, p *plan, seq uint64, f func(cl *call) error) error {
	if c.over.Err() != nil {
		return c.ended(p.verb)
	}
	cl := c.newCall(ctx, p, seq)
	if ctx.Err() != nil { // the others wait, and get this as the reason
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
	if sink := c.group.Trace(); sink != nil {
		sink.Record(c.ctx, trace.Event{
			Op: "collective." + c.verb.String(), Group: c.name, Generation: c.head.generation, Seq: c.head.seq, Rank: c.rank(), Size: c.size(),
			Last: -1, Bytes: int64(bytes), Start: c.start, End: time.Now(), Err: err,
		})
	}
}

// check rejects invalid arguments before other ranks are involved.
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

// cancelled ends the Comm because the caller's context was cancelled.
func (c *call) cancelled() {
	cause := context.Cause(c.ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		c.overdue()
		return
	}
	c.fail(&wire.Failure{Code: wire.CodeCancelled, By: c.rank(), Reason: cause.Error()})
}

// overdue ends the Comm because the deadline has passed.
func (c *call) overdue() {
	v := &wire.Failure{Code: wire.CodeTimeout, By: c.rank()}
	if !c.start.IsZero() {
		v.By, v.Waited = -1, time.Since(c.start)
		v.Missing, v.Doing = c.awaited()
	}
	c.fail(v)
}

// ended returns the error of a verb that is called after the Comm has ended.
func (c *core) ended(v verb) error {
	err := context.Cause(c.over)
	if re, ok := errors.AsType[*pgroup.RankError](err); ok {
		report := *re
		report.Op = "collective." + v.String()
		return &report
	}
	return fmt.Errorf("collective: %v of group %q on rank %d: %w", v, c.name, c.rank(), err)
}

// suspected is the error of a rank that may have failed; the store decides whether it has.
type suspected struct {
	failureOf *wire.Failure
	wait      bool // the rank may have failed, so wait for the store
}

func (s *suspected) Error() string { return s.failureOf.Reason }

// lossTime is longer than the store takes to report the failure of a rank whose process has ended.
const lossTime = time.Second

// failureOf converts an error of this rank to the failure that all ranks get.
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
	return c.ended(c.verb)
}

// broken returns the error of a connection that ended.
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

// mismatchOf returns the failure of two ranks that call different verbs.
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

// awaited returns the ranks that this one waits for, or rather those of them that are in no verb,
// and what they do.
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
