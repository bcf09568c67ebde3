package storetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var collectChecks = []check{
	{"a barrier ends when all have called it, and not before", barrierMeets, []Feature{Collect}},
	{"1,000 barriers leave no key and no change", barrierLeavesNothing, []Feature{Collect, List, Watch}},
	{"channels are independent", channelsApart, []Feature{Collect}},
	{"a root does not wait for its readers", rootGoesOn, []Feature{Collect}},
	{"a reader waits for its root", readerWaits, []Feature{Collect}},
	{"a root runs ahead of its readers by a bounded number of records", rootBounded, []Feature{Collect}},
	{"a root runs ahead of its readers by a bounded number of bytes", rootBoundedBytes, []Feature{Collect}},
	{"a root that waits goes on when its reader has come along", rootResumes, []Feature{Collect}},
	{"a vote that is repeated gets the same answer", voteRepeated, []Feature{Collect}},
	{"a vote for a sequence that is passed is ErrStale", votePassed, []Feature{Collect}},
	{"a record that a rank skipped fails for the others at once", voteSkipped, []Feature{Collect}},
	{"what was passed in may be changed afterwards", voteKeepsInput, []Feature{Collect}},
	{"what was returned may be changed", voteOwnsOutput, []Feature{Collect}},
	{"many ranks, many rounds", manyRounds, []Feature{Collect}},
}

func barrierMeets(t *testing.T, w *world) {
	ranks := w.group(4)
	var waiting []<-chan outcome
	for _, r := range ranks[1:] {
		waiting = append(waiting, r.calls(t, ranks[0], barrier(1)))
	}
	for i, ch := range waiting {
		stillWaits(t, fmt.Sprint("rank ", i+1), ch)
	}
	good(t, ranks[0].collect(w.ctx, barrier(1)).err)
	for _, ch := range waiting {
		o := <-ch
		good(t, o.err)
		same(t, "values", len(o.values), 0)
	}
}

func barrierLeavesNothing(t *testing.T, w *world) {
	ranks := w.group(2)
	before := w.revision(ranks[0].Store)
	allGood(t, together(2, func(i int) ([][]byte, error) {
		for seq := range uint64(200) {
			if o := ranks[i].collect(w.ctx, barrier(seq+1)); o.err != nil {
				return nil, o.err
			}
		}
		return nil, nil
	}))
	same(t, "revision", w.revision(ranks[0].Store), before)
	same(t, "keys", len(w.list(ranks[0].Store, "")), 0)
}

func channelsApart(t *testing.T, w *world) {
	ranks := w.group(2)
	waiting := ranks[0].collectLater(t, w.ctx, barrier(1))
	for seq := range uint64(3) {
		c := allGather(seq + 1)
		c.Channel = "other"
		allGood(t, fromAll(ranks, c))
	}
	stillWaits(t, "the first channel", waiting)
	good(t, ranks[1].collect(w.ctx, barrier(1)).err)
	good(t, (<-waiting).err)
}

func rootGoesOn(t *testing.T, w *world) {
	ranks := w.group(3)
	for seq := range uint64(10) {
		o := ranks[1].collect(w.ctx, broadcast(seq+1, 1), byte(seq))
		good(t, o.err)
	}
	for seq := range uint64(10) {
		for _, r := range []*rank{ranks[0], ranks[2]} {
			o := r.collect(w.ctx, broadcast(seq+1, 1))
			good(t, o.err)
			same(t, "values", o.values, [][]byte{{byte(seq)}})
		}
	}
	goesOn(t, ranks, 11)
}

func readerWaits(t *testing.T, w *world) {
	ranks := w.group(3)
	a := ranks[0].calls(t, ranks[1], broadcast(1, 2))
	b := ranks[1].calls(t, ranks[0], broadcast(1, 2))
	stillWaits(t, "rank 0", a)
	stillWaits(t, "rank 1", b)
	good(t, ranks[2].collect(w.ctx, broadcast(1, 2)).err)
	for _, ch := range []<-chan outcome{a, b} {
		o := <-ch
		good(t, o.err)
		same(t, "values", texts(o.values), []string{"rank 2"})
	}
}

// ahead casts root-only votes until one of them waits for the readers, and returns the error of
// that vote. On a loaded machine the result may arrive after the result grace of the call
// (ErrUnknown): repeating the vote asks for the result again.
func ahead(t *testing.T, w *world, root *rank, most uint64, payload []byte) (done uint64, err error) {
	t.Helper()
	for seq := range most {
		o := root.collect(w.within(5*soon), broadcast(seq+1, root.n), payload...)
		if errors.Is(o.err, store.ErrUnknown) {
			o = root.collect(w.ctx, broadcast(seq+1, root.n), payload...)
		}
		if o.err != nil {
			return seq, o.err
		}
	}
	t.Fatalf("the root is %d records ahead, and goes on", most)
	return 0, nil
}

func rootBounded(t *testing.T, w *world) {
	ranks := w.group(3)
	ahead1, err := ahead(t, w, ranks[0], 50_000, []byte("x"))
	is(t, err, store.ErrTimeout)
	same(t, "missing", failureOf(t, err).Missing, []int{1, 2})
	if ahead1 < 8 {
		t.Fatalf("the root got only %d records ahead", ahead1)
	}
	for seq := range ahead1 {
		for _, r := range ranks[1:] {
			good(t, r.collect(w.ctx, broadcast(seq+1, 0)).err)
		}
	}
	late := ranks[1].collect(w.ctx, broadcast(ahead1+1, 0))
	agreed(t, outcome{err: err}, late)
	agreed(t, outcome{err: err}, ranks[2].collect(w.ctx, broadcast(ahead1+1, 0)))
	goesOn(t, ranks, ahead1+2)
}

func rootBoundedBytes(t *testing.T, w *world) {
	ranks := w.group(2)
	_, err := ahead(t, w, ranks[1], 200, big(1<<20))
	is(t, err, store.ErrTimeout)
	same(t, "missing", failureOf(t, err).Missing, []int{0})
}

func rootResumes(t *testing.T, w *world) {
	ranks := w.group(2)
	const rounds = 300
	root := later(t, func() ([][]byte, error) {
		for seq := range uint64(rounds) {
			if o := ranks[0].collect(w.ctx, broadcast(seq+1, 0), byte(seq)); o.err != nil {
				return nil, o.err
			}
		}
		return nil, nil
	})
	for seq := range uint64(rounds) {
		o := ranks[1].collect(w.ctx, broadcast(seq+1, 0))
		good(t, o.err)
		same(t, "values", o.values, [][]byte{{byte(seq)}})
	}
	good(t, (<-root).err)
}

func voteRepeated(t *testing.T, w *world) {
	ranks := w.group(3)
	allGood(t, fromAll(ranks[:2], broadcast(1, 0)))
	allGood(t, fromAll(ranks, allGather(2)))
	for range 3 {
		o := ranks[1].collect(w.ctx, allGather(2), []byte("something else")...)
		good(t, o.err)
		same(t, "values", texts(o.values), []string{"rank 0", "rank 1", "rank 2"})
	}
	goesOn(t, ranks, 3)
}

func votePassed(t *testing.T, w *world) {
	ranks := w.group(2)
	for seq := range uint64(3) {
		goesOn(t, ranks, seq+1)
	}
	for _, seq := range []uint64{0, 1, 2} {
		is(t, ranks[0].collect(w.ctx, barrier(seq)).err, store.ErrStale)
	}
	goesOn(t, ranks, 4)
}

func voteSkipped(t *testing.T, w *world) {
	for name, first := range map[string]int{"the one who waits came first": 0, "the one who skips came first": 1} {
		t.Run(name, func(t *testing.T) {
			w := w.world(t)
			ranks := w.group(2)
			var waiting <-chan outcome
			if first == 0 {
				waiting = ranks[0].calls(t, ranks[1], barrier(1))
			}
			good(t, ranks[1].collect(w.ctx, broadcast(2, 1)).err)
			if first == 1 {
				waiting = ranks[0].collectLater(t, w.ctx, barrier(1))
			}
			o := <-waiting
			is(t, o.err, store.ErrSkipped)
			same(t, "by", failureOf(t, o.err).By, 1)
			good(t, ranks[0].collect(w.ctx, broadcast(2, 1)).err)
			goesOn(t, ranks, 3)
		})
	}
}

func voteKeepsInput(t *testing.T, w *world) {
	ranks := w.group(2)
	payload := []byte("value")
	good(t, ranks[0].collect(w.ctx, broadcast(1, 0), payload...).err)
	good(t, ranks[0].send(w.ctx, 1, "", "message"))
	copy(payload, "XXXXX")
	same(t, "values", texts(ranks[1].collect(w.ctx, broadcast(1, 0)).values), []string{"value"})
}

func voteOwnsOutput(t *testing.T, w *world) {
	ranks := w.group(3)
	for _, o := range fromAll(ranks, allGather(1)) {
		good(t, o.err)
		same(t, "values", texts(o.values), []string{"rank 0", "rank 1", "rank 2"})
		for _, v := range o.values {
			clear(v)
		}
	}
	good(t, ranks[0].collect(w.ctx, broadcast(2, 0)).err)
	for _, r := range ranks[1:] {
		o := r.collect(w.ctx, broadcast(2, 0))
		good(t, o.err)
		same(t, "values", texts(o.values), []string{"rank 0"})
		clear(o.values[0])
	}
}

func manyRounds(t *testing.T, w *world) {
	const n, rounds = 16, 100
	ranks := w.group(n)
	allGood(t, together(n, func(i int) ([][]byte, error) {
		for seq := range uint64(rounds) {
			o := ranks[i].collect(w.ctx, allGather(seq+1), byte(i), byte(seq))
			if o.err != nil {
				return nil, o.err
			}
			for from, v := range o.values {
				if string(v) != string([]byte{byte(from), byte(seq)}) {
					return nil, fmt.Errorf("round %d: rank %d has %v of rank %d", seq, i, v, from)
				}
			}
		}
		return nil, nil
	}))
}

var clashChecks = []check{
	{"another verb", func(t *testing.T, w *world) {
		clash(t, w, func(c *wire.Contribution) { c.Verb = "all-gather" }, func(c wire.Contribution) any { return c.Verb })
	}, []Feature{Collect}},
	{"another root", func(t *testing.T, w *world) {
		clash(t, w, func(c *wire.Contribution) { c.Root = 0 }, func(c wire.Contribution) any { return c.Root })
	}, []Feature{Collect}},
	{"another type", func(t *testing.T, w *world) {
		clash(t, w, func(c *wire.Contribution) { c.Type = "other" }, func(c wire.Contribution) any { return c.Type })
	}, []Feature{Collect}},
	{"another label", func(t *testing.T, w *world) {
		clash(t, w, func(c *wire.Contribution) { c.Label = "other" }, func(c wire.Contribution) any { return c.Label })
	}, []Feature{Collect}},
	{"another fold", func(t *testing.T, w *world) {
		clash(t, w, func(c *wire.Contribution) { c.Reduction = wire.Reduction{Op: wire.ReduceMax, Kind: wire.Int64} }, func(c wire.Contribution) any { return c.Reduction })
	}, []Feature{Collect}},
	{"another electorate", func(t *testing.T, w *world) {
		clash(t, w, func(c *wire.Contribution) { c.RootOnly = true }, func(c wire.Contribution) any { return c.RootOnly })
	}, []Feature{Collect}},
	{"types count only if both are given", typesNotGiven, []Feature{Collect}},
	{"another number of numbers to fold fails for all", clashLength, []Feature{Collect}},
	{"that comes after the decision is reported to the late rank, and revokes", clashLate, []Feature{Collect}},
	{"ends what others wait for on other channels", clashElsewhere, []Feature{Collect}},
}

// clash asserts that on every rank the error names both of two ranks that disagree, and that the
// generation is revoked.
func clash(t *testing.T, w *world, change func(*wire.Contribution), of func(wire.Contribution) any) {
	ranks := w.group(4)
	c := wire.Contribution{
		Seq: 1, Verb: "reduce", Root: 1, Type: "[]int64", Label: "loss", Want: wire.WantNothing,
	}
	other := c
	change(&other)
	out := together(3, func(i int) ([][]byte, error) { // the fourth rank arrives later
		o := ranks[i].collect(w.ctx, []wire.Contribution{c, c, other}[i], make([]byte, 8)...)
		return o.values, o.err
	})
	v := agreed(t, append(out, ranks[3].collect(w.ctx, c, make([]byte, 8)...))...)
	is(t, out[0].err, store.ErrMismatch)
	same(t, "ranks that clash", len(v.Clash), 2)
	for _, x := range v.Clash {
		same(t, fmt.Sprintf("what rank %d called", x.Rank), of(x), of([]wire.Contribution{c, c, other, c}[x.Rank]))
	}
	same(t, "one of them is rank 2", v.Clash[0].Rank == 2 != (v.Clash[1].Rank == 2), true)
	over(t, w, ranks, store.ErrMismatch)
}

// over asserts that the generation of ranks is revoked with the error want.
func over(t *testing.T, w *world, ranks []*rank, want error) {
	t.Helper()
	for _, r := range ranks {
		is(t, r.Follow(w.ctx, r.asMember()), want)
		is(t, r.collect(w.ctx, barrier(1000)).err, want)
		c := barrier(1)
		c.Channel = "another one"
		is(t, r.collect(w.ctx, c).err, want)
	}
}

func typesNotGiven(t *testing.T, w *world) {
	ranks := w.group(3)
	typed := func(seq uint64, types ...string) []outcome {
		return together(3, func(i int) ([][]byte, error) {
			c := barrier(seq)
			c.Type = types[i]
			o := ranks[i].collect(w.ctx, c)
			return o.values, o.err
		})
	}
	allGood(t, typed(1, "", "int", ""))
	allGood(t, typed(2, "int", "", "int"))
	agreed(t, typed(3, "int", "", "string")...)
	over(t, w, ranks, store.ErrMismatch)
}

func clashLength(t *testing.T, w *world) {
	ranks := w.group(3)
	c := folding(1, wire.ReduceSum, wire.Int64)
	v := agreed(t, together(3, func(i int) ([][]byte, error) {
		o := ranks[i].collect(w.ctx, c, make([]byte, []int{16, 16, 8}[i])...)
		return o.values, o.err
	})...)
	if v.Code != wire.CodeMismatch && v.Code != wire.CodeInvalid {
		t.Fatalf("code is %v", v.Code)
	}
}

func clashLate(t *testing.T, w *world) {
	ranks := w.group(3)
	good(t, ranks[0].collect(w.ctx, broadcast(1, 0)).err)
	waiting := ranks[0].calls(t, ranks[1], barrier(2))
	late := ranks[2].collect(w.ctx, allGather(1))
	is(t, late.err, store.ErrMismatch)
	same(t, "ranks that clash", len(failureOf(t, late.err).Clash), 2)
	is(t, (<-waiting).err, store.ErrMismatch)
	same(t, "what was decided stands", texts(ranks[1].collect(w.ctx, broadcast(1, 0)).values), []string{"rank 0"})
	over(t, w, ranks, store.ErrMismatch)
}

func clashElsewhere(t *testing.T, w *world) {
	ranks := w.group(4)
	c := barrier(1)
	c.Channel, c.Verb = "aside", "aside"
	aside := ranks[3].calls(t, ranks[0], c)
	recv := later(t, func() ([][]byte, error) { o := ranks[2].recv(w.ctx, 3, "", 1); return o.values, o.err })
	follow := laterErr(t, func() error { return ranks[2].Follow(w.ctx, ranks[2].asMember()) })
	waiting := ranks[0].collectLater(t, w.ctx, barrier(1))
	is(t, ranks[1].collect(w.ctx, allGather(1)).err, store.ErrMismatch)
	for _, ch := range []<-chan outcome{aside, recv, follow, waiting} {
		is(t, (<-ch).err, store.ErrMismatch)
	}
}
