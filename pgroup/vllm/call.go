package vllm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
	"github.com/muster-pg/muster/wire/pickle"
)

// call is one verb of this rank.
type call struct {
	*Group
	op  string // as errors have it
	seq uint64 // its number, from 1; 0 if it has none
	// over, if it is not nil, tells whether ranks of Go have decided that the verb has failed.
	over   func(ctx context.Context) error
	waits  string // for whom, once it has waited for long
	failed bool   // it ended so, and has said it; guarded by mu
}

// need is a key that this rank waits for.
type need struct {
	key  string
	from int    // the rank that sets it
	n    uint64 // its number
	m    medium
	cast bool // it is a broadcast
	sent bool // it is a message to this rank
}

// other is the key that from sets if it sends what is of the other medium.
func (n need) other(me int) string {
	if n.cast {
		return n.m.other().cast(n.from, n.n)
	}
	return n.m.other().sent(me, n.n)
}

// look is how long a rank waits until it looks around why, and then between one look and the next.
const look = 500 * time.Millisecond

// await returns the values of all needs, in their order.
func (c *call) await(ctx context.Context, needs []need) ([][]byte, error) {
	if len(needs) == 0 {
		return nil, nil
	}
	began := time.Now()
	for {
		values, missing, err := c.wait(ctx, look, needs)
		switch {
		case err == nil:
			c.waits = ""
			return values, nil
		case ctx.Err() != nil:
			return c.overdue(ctx, needs, began)
		case !errors.Is(err, store.ErrTimeout):
			return nil, c.fault(err)
		}
		if _, err := c.lookAround(ctx, missing); err != nil {
			return nil, err
		}
		if c.waits == "" {
			c.waits = ", waiting for " + ranks(missing)
			c.say(ctx, "in")
		}
	}
}

// wait waits for all needs, but not for long, and returns the missing ones with the error.
func (c *call) wait(ctx context.Context, long time.Duration, needs []need) (values [][]byte, missing []need, err error) {
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	keys := make([]string, len(needs))
	for i, n := range needs {
		keys[i] = n.key
	}
	var rep wire.Reply
	if err := c.store.Do(ctx, &wire.Request{Op: wire.OpWait, Keys: keys}, &rep); err == nil {
		return rep.Values, nil, nil
	} else if rep.Code != wire.CodeTimeout || len(rep.Keys) == 0 {
		return nil, needs, err
	} else {
		return nil, among(needs, rep.Keys), err
	}
}

// among is those needs whose keys are in keys.
func among(needs []need, keys []string) []need {
	in := make(map[string]bool, len(keys))
	for _, k := range keys {
		in[k] = true
	}
	var some []need
	for _, n := range needs {
		if in[n.key] {
			some = append(some, n)
		}
	}
	return some
}

// overdue is what becomes of a verb whose context has ended: what has come in the last moment, or an error that says who is missing
// and what they do instead.
func (c *call) overdue(ctx context.Context, needs []need, began time.Time) ([][]byte, error) {
	if c.life.Err() != nil {
		return nil, c.closed()
	}
	last, cancel := c.grace()
	defer cancel()
	values, missing, err := c.wait(last, time.Millisecond, needs)
	if err == nil {
		return values, nil
	}
	c.waits = ", waiting for " + ranks(missing)
	told, err := c.lookAround(last, missing)
	if err != nil {
		return nil, err
	}
	v := &wire.Failure{Code: c.ended(ctx), By: c.canceller(ctx), Waited: time.Since(began), Reason: "no key " + quoted(missing)}
	for _, n := range missing {
		v.Missing = append(v.Missing, n.from)
		v.Doing = append(v.Doing, told.doing(n.from))
	}
	return nil, c.rankError(v, ctx.Err())
}

// grace is for the last words of a verb that failed.
func (c *call) grace() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.life, store.Grace)
}

// linger is a context that ends a moment after ctx, for what must not be left undecided.
func (c *call) linger(ctx context.Context) (context.Context, func()) {
	long, cancel := context.WithCancel(c.life)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(store.Grace, cancel) })
	return long, func() {
		stop()
		cancel()
	}
}

// ended is why ctx has.
func (c *call) ended(ctx context.Context) wire.Code {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return wire.CodeTimeout
	}
	return wire.CodeCancelled
}

// canceller is this rank if it cancelled the verb.
func (c *call) canceller(ctx context.Context) int {
	if c.ended(ctx) == wire.CodeCancelled {
		return c.cfg.Rank
	}
	return -1
}

// say tells the other ranks of Go what this one does with the verb. It is worth no error.
func (c *call) say(ctx context.Context, what string) {
	what += " " + c.op
	if c.seq > 0 {
		what += fmt.Sprintf(" #%d", c.seq)
	}
	c.mu.Lock()
	c.said = c
	c.mu.Unlock()
	_ = c.store.Set(ctx, note(doing, c.cfg.Rank), []byte(what+c.waits), nil)
}

// report tells the other ranks of Go that the verb has failed, or takes back what it said, and what one before it did that failed.
func (c *call) report(err error) {
	ctx, cancel := c.grace()
	defer cancel()
	if e, ok := errors.AsType[*pgroup.RankError](err); ok {
		if e.Code != wire.CodeClosed && e.Code != wire.CodeUnavailable {
			c.mu.Lock()
			c.failed = true
			c.mu.Unlock()
			c.say(ctx, "failed in")
		}
		return
	}
	c.mu.Lock()
	stale := c.said == c || c.said != nil && c.said.failed
	if stale {
		c.said = nil
	}
	c.mu.Unlock()
	if stale {
		_, _ = c.store.Delete(ctx, note(doing, c.cfg.Rank))
	}
}

// parse makes *v of what n is for.
func (c *call) parse(b []byte, n need, v any) error {
	if err := c.checkObject(b, n); err != nil {
		return err
	}
	err := pickle.Codec.Parse(b, v)
	if t, ok := v.(**tensor.Tensor); ok && err == nil && *t == nil {
		err = errors.New("pickle: it is None")
	}
	if err == nil {
		return nil
	}
	reason := fmt.Sprintf("rank %d sent what this rank does not take: %v", n.from, err)
	if n.m == array {
		reason = fmt.Sprintf("rank %d set %q to what is no tensor, and is passed over: %v", n.from, n.key, err)
		err = noTensor{err}
	}
	return c.rankError(&wire.Failure{Code: wire.CodeMismatch, By: -1, Reason: reason}, err)
}

// noTensor is the error of a pickle under the key of a tensor which is none: no verb could ever take it.
type noTensor struct{ error }

func (e noTensor) Unwrap() error { return e.error }

// passes reports whether what was waited for is done with: it was read, or it never can be.
func passes(err error) bool {
	if err == nil || errors.Is(err, store.ErrExpired) {
		return true
	}
	_, unreadable := errors.AsType[*pickle.Error](err)
	_, misplaced := errors.AsType[noTensor](err)
	return unreadable || misplaced
}

// mostID is more bytes than a barrier's ID has as a pickle, whatever the protocol.
const mostID = 256

// checkObject refuses the ID of a barrier, which is broadcast too, and waits for this rank's Barrier.
func (c *call) checkObject(b []byte, n need) error {
	if !n.cast || n.m != object || len(b) > mostID {
		return nil
	}
	v, err := pickle.Parse(b)
	if id, ok := v.(string); err == nil && ok && isBarrierID(id) {
		return c.rankError(&wire.Failure{Code: wire.CodeMismatch, By: -1, Reason: fmt.Sprintf("rank %d called barrier, this rank %s", n.from, c.op)}, nil)
	}
	return nil
}

// closed is the error of every verb after Close.
func (c *call) closed() error {
	return c.rankError(&wire.Failure{Code: wire.CodeClosed, By: -1, Reason: "by this rank"}, nil)
}

// fault is what the store's error means to a rank.
func (c *call) fault(err error) error {
	if c.life.Err() != nil {
		return c.closed()
	}
	e, ok := errors.AsType[*store.Error](err)
	if !ok {
		return fmt.Errorf("vllm: %s of group %q on rank %d: %w", c.op, c.cfg.Name, c.cfg.Rank, err)
	}
	v := &wire.Failure{Code: e.Code, By: -1, Reason: err.Error()}
	switch e.Code {
	case wire.CodeUnavailable:
		v.Reason = "the store is gone, which vLLM's rank 0 hosts: " + v.Reason
	case wire.CodeTimeout, wire.CodeCancelled:
		v.Reason = "before the store answered: " + v.Reason
	}
	return c.rankError(v, err)
}

func (c *call) rankError(v *wire.Failure, err error) *pgroup.RankError {
	return &pgroup.RankError{Op: "vllm." + c.op, Group: c.cfg.Name, Rank: c.cfg.Rank, Size: c.cfg.Size, Seq: c.seq, Failure: v, Err: err}
}
