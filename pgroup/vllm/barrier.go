package vllm

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
	"github.com/muster-pg/muster/wire/pickle"
)

// barrier is one Barrier, by its ID, as ranks of Go do it. The first of them to set rank 0's departure decides for all: that everybody
// came, or why not. That key is set by rank 0 in any case, and deleted by it, be it of Go or of Python.
type barrier struct {
	*call
	id string
	n  uint64 // of rank 0's broadcast that has the ID; it is taken whether the barrier succeeds or not
}

// What arrivals and departures hold: vLLM never looks.
const (
	byGo   = "muster" // an arrival
	passed = "1"      // a departure; what else begins with failed
	failed = "failed "
)

func (b *barrier) arrival(rank int) string   { return fmt.Sprintf("arrival_%s_%d", b.id, rank) }
func (b *barrier) departure(rank int) string { return fmt.Sprintf("departure_%s_%d", b.id, rank) }

// Barrier returns when every rank has called it. Ranks of Go all have the same outcome; whoever is late hears why the others gave up.
// Rank 0 waits until all others have left it, or ctx ends, so that a store that it hosts is not gone before.
func (g *Group) Barrier(ctx context.Context) error {
	c := &call{Group: g, op: "barrier"}
	return c.alone(ctx, &g.together, func(ctx context.Context) error {
		g.barriers++
		c.seq = g.barriers
		b := &barrier{call: c, n: g.casts[0]}
		g.casts[0]++
		if err := b.open(ctx); err != nil {
			return err
		}
		c.over = b.failure
		return b.pass(ctx)
	})
}

// open learns the ID of the barrier, or makes it.
func (b *barrier) open(ctx context.Context) error {
	if b.cfg.Rank == 0 {
		b.id = barrierID + uuid()
		pickled, err := pickle.Append(nil, b.id)
		if err != nil {
			return err
		}
		return b.publish(ctx, object, b.n, pickled)
	}
	values, err := b.await(ctx, []need{{key: object.cast(0, b.n), from: 0, n: b.n, m: object, cast: true}})
	if err != nil {
		return err
	}
	v, err := pickle.Parse(values[0])
	name, ok := v.(string)
	if err != nil || !ok || !isBarrierID(name) {
		what := fmt.Sprintf("what it broadcast is a %T", v)
		if err != nil {
			what = err.Error()
		}
		return b.rankError(&wire.Failure{Code: wire.CodeMismatch, By: -1, Reason: "this rank called barrier, rank 0 did not: " + what}, err)
	}
	b.id = name
	return nil
}

// pass meets the others.
func (b *barrier) pass(ctx context.Context) error {
	if _, err := b.set(ctx, b.arrival(b.cfg.Rank), []byte(byGo)); err != nil {
		return b.fault(err)
	}
	arrivals, err := b.await(ctx, b.needs(b.arrival))
	if err != nil {
		return b.giveUp(ctx, err)
	}
	decided, err := b.decide(ctx, passed)
	if err != nil {
		return b.unknown(err)
	}
	return b.end(ctx, decided, arrivals)
}

// end does what a rank has to do after the decision, and returns what that is.
func (b *barrier) end(ctx context.Context, decided string, arrivals [][]byte) error {
	last, cancel := b.linger(ctx)
	defer cancel()
	if err := b.verdict(decided); err != nil {
		_, _ = b.store.Delete(last, b.arrival(b.cfg.Rank)) // so that ranks of Python that are late do not pass; at worst they do
		return err
	}
	// It has passed: what goes wrong from here on is not its failure.
	if b.cfg.Rank == 0 {
		b.cleanUp(ctx)
		return nil
	}
	_, _ = b.set(last, b.departure(b.cfg.Rank), []byte(passed))
	if b.cleansID(arrivals) {
		_, _ = b.store.Delete(last, object.cast(0, b.n))
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

// decide makes outcome that of the barrier, unless another rank was faster, and returns what it is.
func (b *barrier) decide(ctx context.Context, outcome string) (string, error) {
	ctx, cancel := b.linger(ctx)
	defer cancel()
	now, err := b.store.Swap(ctx, b.departure(0), nil, []byte(outcome))
	if errors.Is(err, store.ErrConflict) {
		return string(now), nil
	}
	return outcome, err
}

// verdict is the error that an outcome stands for.
func (b *barrier) verdict(outcome string) error {
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

// failure is the verdict, if ranks of Go have one already, and it is an error.
func (b *barrier) failure(ctx context.Context) error {
	outcome, err := b.store.Get(ctx, b.departure(0))
	if err != nil {
		return nil
	}
	return b.verdict(string(outcome))
}

// giveUp makes err the outcome for every rank of Go, unless there is one.
func (b *barrier) giveUp(ctx context.Context, err error) error {
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
	if decided == mine { // now it goes with time
		last, cancel := b.linger(ctx)
		defer cancel()
		_ = b.put(last, b.departure(0), []byte(mine))
	}
	return b.end(ctx, decided, nil)
}

// unknown is the error of a rank that could not learn what was decided.
func (b *barrier) unknown(err error) error {
	if b.life.Err() != nil {
		return b.closed()
	}
	return b.rankError(&wire.Failure{Code: wire.CodeUnavailable, By: -1, Reason: "the store did not say what became of the barrier"}, fmt.Errorf("%w: %w", store.ErrUnknown, err))
}

// cleanUp is rank 0's: when all others have told that they will look for nothing any more, it deletes what the barrier has set.
func (b *barrier) cleanUp(ctx context.Context) {
	if _, err := b.await(ctx, b.needs(b.departure)); err != nil {
		return
	}
	keys := []string{object.cast(0, b.n)}
	for rank := range b.cfg.Size {
		keys = append(keys, b.arrival(rank), b.departure(rank))
	}
	last, cancel := b.linger(ctx)
	defer cancel()
	_, _ = b.store.Delete(last, keys...)
}

// cleansID reports whether this is the rank that deletes the ID, which vLLM leaves behind: everybody has read it. Rank 0 does if it is
// of Go, and otherwise the first rank that is.
func (b *barrier) cleansID(arrivals [][]byte) bool {
	for rank, who := range arrivals {
		if string(who) == byGo {
			return rank == b.cfg.Rank
		}
	}
	return false
}

// uuid is one of version 4.
func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
