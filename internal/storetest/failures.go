package storetest

import (
	"context"
	"fmt"
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var failureChecks = []check{
	{"a timeout names the missing on every rank, latecomers included", timeoutNames, []Feature{Collect}},
	{"the earliest deadline counts", timeoutEarliest, []Feature{Collect}},
	{"a timeout reports what the missing rank does instead", timeoutDoing, []Feature{Collect}},
	{"a timeout fails one sequence, and the group goes on", timeoutGoesOn, []Feature{Collect}},
	{"a reader's timeout names the root", timeoutReader, []Feature{Collect}},
	{"all ranks learn of a cancel, and whose it was", cancelReported, []Feature{Collect}},
	{"a context that is over is a vote of no", cancelBefore, []Feature{Collect}},
	{"all ranks get the reason of a refused vote", noReaches, []Feature{Collect}},
	{"a reader's no does not undo what its root decided", noAfterYes, []Feature{Collect}},
	{"a vote that makes no sense is ErrInvalid for all", nonsense, []Feature{Collect}},
}

func timeoutNames(t *testing.T, w *world) {
	ranks := w.group(5)
	out := together(3, func(i int) ([][]byte, error) {
		o := ranks[[]int{0, 2, 4}[i]].collect(w.within(soon), barrier(1))
		return nil, o.err
	})
	for _, r := range []*rank{ranks[1], ranks[3]} {
		out = append(out, r.collect(w.ctx, barrier(1)))
	}
	v := agreed(t, out...)
	is(t, out[0].err, store.ErrTimeout)
	is(t, out[0].err, context.DeadlineExceeded)
	same(t, "missing", v.Missing, []int{1, 3})
	same(t, "by", v.By, -1)
}

func timeoutEarliest(t *testing.T, w *world) {
	ranks := w.group(3)
	patient := ranks[0].calls(t, ranks[1], barrier(1))
	hasty := ranks[1].collect(w.within(soon), barrier(1))
	v := agreed(t, <-patient, hasty)
	same(t, "missing", v.Missing, []int{2})
	if v.Waited < soon/2 {
		t.Fatalf("the failure says that it waited %v", v.Waited)
	}
}

func timeoutDoing(t *testing.T, w *world) {
	ranks := w.group(2)
	c := barrier(1)
	c.Channel, c.Verb = "aside", "checkpoint"
	aside := ranks[1].calls(t, ranks[0], c)
	o := ranks[0].collect(w.within(soon), barrier(1))
	v := failureOf(t, o.err)
	same(t, "missing", v.Missing, []int{1})
	same(t, "ranks described", len(v.Doing), 1)
	names(t, fmt.Errorf("%s", v.Doing[0]), "checkpoint")
	good(t, ranks[0].collect(w.ctx, c).err)
	good(t, (<-aside).err)
}

func timeoutGoesOn(t *testing.T, w *world) {
	ranks := w.group(2)
	for seq := uint64(1); seq < 8; seq += 2 {
		o := ranks[seq/2%2].collect(w.within(soon/4), barrier(seq))
		is(t, o.err, store.ErrTimeout)
		is(t, ranks[1-seq/2%2].collect(w.ctx, barrier(seq)).err, store.ErrTimeout)
		goesOn(t, ranks, seq+1)
	}
}

func timeoutReader(t *testing.T, w *world) {
	ranks := w.group(3)
	o := ranks[1].collect(w.within(soon), broadcast(1, 2))
	is(t, o.err, store.ErrTimeout)
	same(t, "missing", failureOf(t, o.err).Missing, []int{2})
	agreed(t, o, ranks[2].collect(w.ctx, broadcast(1, 2)), ranks[0].collect(w.ctx, broadcast(1, 2)))
	goesOn(t, ranks, 2)
}

func cancelReported(t *testing.T, w *world) {
	ranks := w.group(3)
	ctx, cancel := context.WithCancel(w.ctx)
	one := ranks[1].collectLater(t, ctx, barrier(1))
	ranks[1].seen(t, ranks[2], "barrier")
	zero := ranks[0].calls(t, ranks[2], barrier(1))
	cancel()
	a, b := <-zero, <-one
	v := agreed(t, a, b, ranks[2].collect(w.ctx, barrier(1)))
	is(t, b.err, context.Canceled)
	is(t, a.err, store.ErrCancelled)
	same(t, "by", v.By, 1)
	goesOn(t, ranks, 2)
}

func cancelBefore(t *testing.T, w *world) {
	ranks := w.group(3)
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	waiting := ranks[0].collectLater(t, w.ctx, barrier(1))
	mine := ranks[1].collect(ctx, barrier(1))
	is(t, mine.err, context.Canceled)
	same(t, "by", agreed(t, mine, <-waiting).By, 1)
	agreed(t, mine, ranks[2].collect(w.ctx, barrier(1)))
	goesOn(t, ranks, 2)
}

func noReaches(t *testing.T, w *world) {
	ranks := w.group(3)
	no := allGather(1)
	no.No, no.Reason = wire.CodeInvalid, "cannot encode chan int"
	waiting := ranks[0].collectLater(t, w.ctx, allGather(1))
	mine := ranks[1].collect(w.ctx, no)
	v := agreed(t, mine, <-waiting, ranks[2].collect(w.ctx, allGather(1)))
	is(t, mine.err, store.ErrInvalid)
	same(t, "by", v.By, 1)
	same(t, "reason", v.Reason, no.Reason)
	names(t, mine.err, no.Reason)
	goesOn(t, ranks, 2)
}

func noAfterYes(t *testing.T, w *world) {
	ranks := w.group(3)
	good(t, ranks[0].collect(w.ctx, broadcast(1, 0)).err)
	no := broadcast(1, 0)
	no.No, no.Reason = wire.CodeCancelled, "no more"
	ranks[1].collect(w.ctx, no)
	o := ranks[2].collect(w.ctx, broadcast(1, 0))
	good(t, o.err)
	same(t, "values", texts(o.values), []string{"rank 0"})
	goesOn(t, ranks, 2)
}

// nonsense checks that an invalid vote reaches the other ranks as an error: otherwise they would
// wait until their timeout.
func nonsense(t *testing.T, w *world) {
	for name, change := range map[string]func(*wire.Contribution){
		"root out of range":     func(c *wire.Contribution) { c.Root = 2 },
		"root below range":      func(c *wire.Contribution) { c.Root = -2 },
		"no root for its verb":  func(c *wire.Contribution) { c.RootOnly = true },
		"wants a rank too high": func(c *wire.Contribution) { c.Want = 2 },
		"wants what is not":     func(c *wire.Contribution) { c.Want = wire.WantReduced - 1 },
		"no such reduction":     func(c *wire.Contribution) { c.Want, c.Reduction = wire.WantReduced, wire.Reduction{Op: 99, Kind: 99} },
		"half a number": func(c *wire.Contribution) {
			c.Want, c.Reduction = wire.WantReduced, wire.Reduction{Op: wire.ReduceSum, Kind: wire.Int64}
		},
		"no parts": func(c *wire.Contribution) { c.Want = wire.WantPart },
	} {
		t.Run(name, func(t *testing.T) {
			w := w.world(t)
			ranks := w.group(2)
			c := barrier(1)
			change(&c)
			out := fromAll(ranks, c)
			agreed(t, out...)
			is(t, out[0].err, store.ErrInvalid)
			goesOn(t, ranks, 2)
		})
	}
}
