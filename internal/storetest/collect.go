package storetest

import (
	"fmt"
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var collectChecks = []check{
	{"a root that waits goes on when its reader has come along", rootResumes, []Feature{Collect}},
	{"what was passed in may be changed afterwards", voteKeepsInput, []Feature{Collect}},
	{"what was returned may be changed", voteOwnsOutput, []Feature{Collect}},
	{"many ranks, many rounds", manyRounds, []Feature{Collect}},
}

func rootResumes(t *testing.T, w *world) {
	ranks := w.group(2)
	const rounds = 300
	root := later(t, func() ([][]byte, error) {
		for seq := range uint64(rounds) {
			if o := ranks[0].collect(w.ctx, broadcast(seq+1), byte(seq)); o.err != nil {
				return nil, o.err
			}
		}
		return nil, nil
	})
	for seq := range uint64(rounds) {
		o := ranks[1].collect(w.ctx, broadcast(seq+1))
		good(t, o.err)
		same(t, "values", o.values, [][]byte{{byte(seq)}})
	}
	good(t, (<-root).err)
}

func voteKeepsInput(t *testing.T, w *world) {
	ranks := w.group(2)
	payload := []byte("value")
	good(t, ranks[0].collect(w.ctx, broadcast(1), payload...).err)
	good(t, ranks[0].send(w.ctx, "", "message"))
	copy(payload, "XXXXX")
	same(t, "values", texts(ranks[1].collect(w.ctx, broadcast(1)).values), []string{"value"})
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
	good(t, ranks[0].collect(w.ctx, broadcast(2)).err)
	for _, r := range ranks[1:] {
		o := r.collect(w.ctx, broadcast(2))
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
	{"another fold", func(t *testing.T, w *world) {
		clash(t, w, func(c *wire.Contribution) { c.Reduction = wire.Reduction{Op: wire.ReduceMax, Kind: wire.Int64} }, func(c wire.Contribution) any { return c.Reduction })
	}, []Feature{Collect}},
	{"another electorate", func(t *testing.T, w *world) {
		clash(t, w, func(c *wire.Contribution) { c.RootOnly = true }, func(c wire.Contribution) any { return c.RootOnly })
	}, []Feature{Collect}},
	{"another number of numbers to fold fails for all", clashLength, []Feature{Collect}},
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
