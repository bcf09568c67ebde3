package vllm

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// barrier is one Barrier of Go ranks. The first of them that sets the departure key of rank 0
// decides the result for all of them: success, or why not. Rank 0, Go or Python, sets that key in
// any case, and deletes it.
type barrier struct {
	*call
	id string
	n  uint64 // number of rank 0's broadcast of the ID; it is used whether the barrier succeeds or not
}

// Values of arrival and departure keys; vLLM does not look at them.
const (
	byGo   = "muster" // an arrival of a Go rank
	passed = "1"      // a departure; any other value begins with failed
	failed = "failed "
)

func (b *barrier) arrival(rank int) string   { return fmt.Sprintf("arrival_%s_%d", b.id, rank) }
func (b *barrier) departure(rank int) string { return fmt.Sprintf("departure_%s_%d", b.id, rank) }

// Barrier returns when all ranks have called it. All Go ranks get the same result, late ones
// included. Rank 0 waits until all others have left the barrier, or ctx ends, so that a store that
// it hosts outlives the barrier.
func (g *Group) Barrier(ctx context.Context) error {
	c := &call{Group: g, op: "barrier"}
	return c.exclusive(ctx, &g.collective, func(ctx context.Context) error {
		g.barriers++
		c.seq = g.barriers
		b := &barrier{call: c, n: g.broadcasts[0]}
		g.broadcasts[0]++
		if err := b.open(ctx); err != nil {
			return err
		}
		c.groupFailed = b.decidedFailure
		return b.meet(ctx)
	})
}

// open makes the ID of the barrier on rank 0, and receives it on the other ranks.
func (b *barrier) open(ctx context.Context) error {
	if b.cfg.Rank == 0 {
		b.id = barrierID + uuid()
		pickled, err := pickle.Append(nil, b.id)
		if err != nil {
			return err
		}
		return b.publish(ctx, object, b.n, pickled)
	}
	values, err := b.await(ctx, []need{{key: object.broadcastKey(0, b.n), from: 0, n: b.n, m: object, broadcast: true}})
	if err != nil {
		return err
	}
	v, err := pickle.Parse(values[0])
	name, ok := v.(string)
	if err != nil || !ok || !isBarrierID(name) {
		what := fmt.Sprintf("what it broadcast is of type %T", v)
		if err != nil {
			what = err.Error()
		}
		return b.rankError(&wire.Failure{Code: wire.CodeMismatch, By: -1, Reason: "this rank called barrier, rank 0 did not: " + what}, err)
	}
	b.id = name
	return nil
}

// meet announces the arrival of this rank, and waits for those of all ranks.
func (b *barrier) meet(ctx context.Context) error {
	if err := b.set(ctx, b.arrival(b.cfg.Rank), []byte(byGo)); err != nil {
		return b.asRankError(err)
	}
	arrivals, err := b.await(ctx, b.needs(b.arrival))
	if err != nil {
		return b.decideFailure(ctx, err)
	}
	decided, err := b.decide(ctx, passed)
	if err != nil {
		return b.unknown(err)
	}
	return b.end(ctx, decided, arrivals)
}

// end does what a rank has to do after the decision, and returns the result.
func (b *barrier) end(ctx context.Context, decided string, arrivals [][]byte) error {
	last, cancel := b.lingering(ctx)
	defer cancel()
	if err := b.errorOf(decided); err != nil {
		_, _ = b.store.Delete(last, b.arrival(b.cfg.Rank)) // late Python ranks should not pass; this is best effort
		return err
	}
	// It has succeeded: later errors do not change that.
	if b.cfg.Rank == 0 {
		b.cleanUp(ctx)
		return nil
	}
	_ = b.set(last, b.departure(b.cfg.Rank), []byte(passed))
	if b.cleansID(arrivals) {
		_, _ = b.store.Delete(last, object.broadcastKey(0, b.n))
	}
	return nil
}

func (b *barrier) needs(key func(rank int) string) []need {
	needs := make([]need, b.cfg.Size)
	for rank := range needs {
		needs[rank] = need{key: key(rank), from: rank}
	}
	return needs
}

// decide makes outcome the result of the barrier, unless another rank was faster, and returns the
// result.
func (b *barrier) decide(ctx context.Context, outcome string) (string, error) {
	ctx, cancel := b.lingering(ctx)
	defer cancel()
	now, err := b.store.Swap(ctx, b.departure(0), nil, []byte(outcome))
	if errors.Is(err, store.ErrConflict) {
		return string(now), nil
	}
	return outcome, err
}

// errorOf returns the error that a result stands for; nil is success.
func (b *barrier) errorOf(outcome string) error {
	text, bad := strings.CutPrefix(outcome, failed)
	if !bad {
		return nil
	}
	v := new(wire.Failure)
	if err := json.Unmarshal([]byte(text), v); err != nil {
		v = &wire.Failure{Code: wire.CodeFailed, By: -1, Reason: text}
	}
	return b.rankError(v, store.CodeError(v.Code))
}

// decidedFailure returns the result if Go ranks have decided one, and it is a failure.
func (b *barrier) decidedFailure(ctx context.Context) error {
	outcome, err := b.store.Get(ctx, b.departure(0))
	if err != nil {
		return nil //nolint:nilerr // no Go rank has decided
	}
	return b.errorOf(string(outcome))
}

// decideFailure makes err the result for all Go ranks, unless there is one.
func (b *barrier) decideFailure(ctx context.Context, err error) error {
	e, ok := errors.AsType[*pgroup.RankError](err)
	if !ok || e.Code == wire.CodeClosed || e.Code == wire.CodeUnavailable {
		return err
	}
	text, jsonErr := json.Marshal(e.Failure)
	if jsonErr != nil {
		return errors.Join(err, jsonErr)
	}
	mine := failed + string(text)
	decided, swapErr := b.decide(ctx, mine)
	if swapErr != nil {
		return b.unknown(errors.Join(err, swapErr))
	}
	if decided == mine { // give it a time to live
		last, cancel := b.lingering(ctx)
		defer cancel()
		_ = b.put(last, b.departure(0), []byte(mine))
	}
	return b.end(ctx, decided, nil)
}

// unknown returns the error of a rank that could not learn the decision.
func (b *barrier) unknown(err error) error {
	if b.ctx.Err() != nil {
		return b.closed()
	}
	return b.rankError(&wire.Failure{Code: wire.CodeUnavailable, By: -1, Reason: "the store did not report the result of the barrier"}, fmt.Errorf("%w: %w", store.ErrUnknown, err))
}

// cleanUp is for rank 0: it deletes the keys of the barrier when all other ranks have departed.
func (b *barrier) cleanUp(ctx context.Context) {
	if _, err := b.await(ctx, b.needs(b.departure)); err != nil {
		return
	}
	keys := []string{object.broadcastKey(0, b.n)}
	for rank := range b.cfg.Size {
		keys = append(keys, b.arrival(rank), b.departure(rank))
	}
	last, cancel := b.lingering(ctx)
	defer cancel()
	_, _ = b.store.Delete(last, keys...)
}

// cleansID reports whether this rank deletes the ID, which vLLM leaves: rank 0 if it is a Go rank,
// and otherwise the first rank that is.
func (b *barrier) cleansID(arrivals [][]byte) bool {
	for rank, who := range arrivals {
		if string(who) == byGo {
			return rank == b.cfg.Rank
		}
	}
	return false
}

// uuid returns a random UUID (version 4).
func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
