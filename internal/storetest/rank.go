package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// rank is a member of a group, with a session of its own.
type rank struct {
	*store.Store
	engine store.Engine
	w      *world
	gen    uint64
	n      int
}

// label is the name that rank n reports.
func label(n int) string { return fmt.Sprintf("host-%d:%d", n, 1000+n) }

// applicant is the contribution with which rank n of size joins.
func applicant(group string, n, size int) wire.Contribution {
	return wire.Contribution{Group: group, Run: "run", Rank: n, Size: size, Label: label(n)}
}

// group forms a group of size ranks.
func (w *world) group(size int) []*rank {
	w.t.Helper()
	ranks := make([]*rank, size)
	for n := range ranks {
		e := w.engine()
		ranks[n] = &rank{Store: store.New(e), engine: e, w: w, n: n}
	}
	w.join(ranks, "group")
	return ranks
}

// join lets ranks join name concurrently.
func (w *world) join(ranks []*rank, name string) {
	w.t.Helper()
	allGood(w.t, together(len(ranks), func(n int) ([][]byte, error) {
		membership, err := ranks[n].Join(w.ctx, applicant(name, n, len(ranks)), nil)
		ranks[n].gen = membership.Generation
		return nil, err
	}))
}

// asMember is a contribution with only the generation and the rank.
func (r *rank) asMember() wire.Contribution { return wire.Contribution{Generation: r.gen, Rank: r.n} }

// in is c with r's generation and rank.
func (r *rank) in(c wire.Contribution) wire.Contribution {
	c.Generation, c.Rank = r.gen, r.n
	return c
}

// collect casts a vote with payload, or with the payload "rank n" if there is none.
func (r *rank) collect(ctx context.Context, c wire.Contribution, payload ...byte) outcome {
	if payload == nil {
		payload = fmt.Appendf(nil, "rank %d", r.n)
	}
	values, err := r.Collect(ctx, r.in(c), payload)
	return outcome{values, err}
}

// collectLater casts a vote concurrently with the test.
func (r *rank) collectLater(t *testing.T, ctx context.Context, c wire.Contribution, payload ...byte) <-chan outcome {
	return later(t, func() ([][]byte, error) {
		o := r.collect(ctx, c, payload...)
		return o.values, o.err
	})
}

// fromAll sends the vote c of all ranks concurrently.
func fromAll(ranks []*rank, c wire.Contribution) []outcome {
	return together(len(ranks), func(i int) ([][]byte, error) {
		o := ranks[i].collect(ranks[i].w.ctx, c)
		return o.values, o.err
	})
}

// goesOn asserts that a barrier of ranks succeeds.
func goesOn(t *testing.T, ranks []*rank, seq uint64) {
	t.Helper()
	allGood(t, fromAll(ranks, barrier(seq)))
}

func barrier(seq uint64) wire.Contribution {
	return wire.Contribution{Seq: seq, Verb: "barrier", Root: -1, Want: wire.WantNothing}
}

func allGather(seq uint64) wire.Contribution {
	return wire.Contribution{Seq: seq, Verb: "all-gather", Root: -1, Want: wire.WantAll}
}

func broadcast(seq uint64) wire.Contribution {
	return wire.Contribution{Seq: seq, Verb: "broadcast", RootOnly: true}
}

// calls casts r's vote in a barrier that no other rank has called, and returns when the store has
// the vote.
func (r *rank) calls(t *testing.T, other *rank, c wire.Contribution) <-chan outcome {
	t.Helper()
	waiting := r.collectLater(t, r.w.ctx, c)
	r.seen(t, other, c.Verb)
	return waiting
}

// seen returns when the store reports to other that r has voted in what.
func (r *rank) seen(t *testing.T, other *rank, what string) {
	t.Helper()
	until(t, r.w.ctx, fmt.Sprintf("rank %d is in %s", r.n, what), func() bool {
		all, err := other.Status(r.w.ctx, "group")
		good(t, err)
		return slices.ContainsFunc(all.Groups, func(g store.GroupStatus) bool {
			return slices.ContainsFunc(g.Records, func(rec store.RecordStatus) bool { return rec.Verb == what && rec.Arrived.Has(r.n) })
		})
	})
}

// agreed fails the test unless all outcomes have the same failure, and returns it.
func agreed(t *testing.T, out ...outcome) *wire.Failure {
	t.Helper()
	first := failureOf(t, out[0].err)
	for i, o := range out[1:] {
		same(t, fmt.Sprintf("failure %d", i+1), *failureOf(t, o.err), *first)
		is(t, o.err, store.CodeError(first.Code))
	}
	return first
}

// send adds a message to the stream to rank 1.
func (r *rank) send(ctx context.Context, tag, message string) error {
	return r.Send(ctx, r.in(wire.Contribution{Root: 1, Channel: tag, Verb: "send", Type: "text"}), []byte(message), 0)
}

// recv receives message pos of the stream from rank 0.
func (r *rank) recv(ctx context.Context, tag string, pos uint64) outcome {
	v, _, err := r.Recv(ctx, r.in(wire.Contribution{Channel: tag, Seq: pos, Verb: "recv"}))
	return outcome{[][]byte{v}, err}
}

// gets fails the test unless message pos from rank 0 is want.
func (r *rank) gets(t *testing.T, pos uint64, want string) {
	t.Helper()
	o := r.recv(r.w.ctx, "", pos)
	good(t, o.err)
	same(t, fmt.Sprintf("message %d", pos), texts(o.values), []string{want})
}
