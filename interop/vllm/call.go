package vllm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

// call is one operation of this rank.
type call struct {
	*Group
	op  string // for errors
	seq uint64 // its number, from 1; 0 if it has none
	// groupFailed returns the error that the Go ranks have decided for the operation, if they have;
	// nil in operations without a common result.
	groupFailed func(ctx context.Context) error
	waitingFor  string // the ranks, after a long wait
	failed      bool   // it failed, and this rank has published it; protected by mu
}

// need is a key that this rank waits for.
type need struct {
	key       string
	from      int    // the rank that sets it
	n         uint64 // number of the message or broadcast
	m         payloadKind
	broadcast bool // of a broadcast
	message   bool // of a message to this rank
}

// other returns the key that from would have set for the other kind of payload.
func (n need) other(me int) string {
	if n.broadcast {
		return n.m.other().broadcastKey(n.from, n.n)
	}
	return n.m.other().messageKey(me, n.n)
}

// checkInterval is how long a rank waits before it checks why a key is missing, and between two
// checks.
const checkInterval = 500 * time.Millisecond

// await returns the values of all needs, in their order.
func (c *call) await(ctx context.Context, needs []need) ([][]byte, error) {
	if len(needs) == 0 {
		return nil, nil
	}
	began := time.Now()
	for {
		values, missing, err := c.wait(ctx, checkInterval, needs)
		switch {
		case err == nil:
			c.waitingFor = ""
			return values, nil
		case ctx.Err() != nil:
			return c.overdueError(ctx, needs, began)
		case !errors.Is(err, store.ErrTimeout):
			return nil, c.asRankError(err)
		}
		if _, err := c.checkMissing(ctx, missing); err != nil {
			return nil, err
		}
		if c.waitingFor == "" {
			c.waitingFor = ", waiting for " + ranks(missing)
			c.setActivity(ctx, "in")
		}
	}
}

// wait waits for all needs, for at most the given time, and returns the missing ones with the
// error.
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

// among returns the needs whose keys are in keys.
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

// overdueError returns the error of an operation whose context has ended, with the missing ranks
// and what they do instead; or the values, if they have come at the last moment.
func (c *call) overdueError(ctx context.Context, needs []need, began time.Time) ([][]byte, error) {
	if c.ctx.Err() != nil {
		return nil, c.closed()
	}
	last, cancel := c.shortContext()
	defer cancel()
	values, missing, err := c.wait(last, time.Millisecond, needs)
	switch {
	case err == nil:
		return values, nil
	case errors.Is(err, store.ErrUnavailable):
		return nil, c.asRankError(err)
	}
	c.waitingFor = ", waiting for " + ranks(missing)
	notes, err := c.checkMissing(last, missing)
	if err != nil {
		return nil, err
	}
	v := &wire.Failure{Code: c.ended(ctx), By: -1, Waited: time.Since(began), Reason: "no key " + quoted(missing)}
	if v.Code == wire.CodeCancelled {
		v.By = c.cfg.Rank
	}
	for _, n := range missing {
		v.Missing = append(v.Missing, n.from)
		v.Doing = append(v.Doing, notes.doing(n.from))
	}
	return nil, c.rankError(v, ctx.Err())
}

// shortContext returns a context for what remains to be done after an operation has failed.
func (c *call) shortContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.ctx, store.ResultGrace)
}

// lingering returns a context that ends shortly after ctx, for what must not be left undecided.
func (c *call) lingering(ctx context.Context) (context.Context, func()) {
	long, cancel := context.WithCancel(c.ctx)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(store.ResultGrace, cancel) })
	return long, func() {
		stop()
		cancel()
	}
}

// ended returns the code for the end of ctx.
func (c *call) ended(ctx context.Context) wire.Code {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return wire.CodeTimeout
	}
	return wire.CodeCancelled
}

// setActivity publishes what this rank does. An error is ignored.
func (c *call) setActivity(ctx context.Context, what string) {
	what += " " + c.op
	if c.seq > 0 {
		what += fmt.Sprintf(" #%d", c.seq)
	}
	c.mu.Lock()
	c.lastActivity = c
	c.mu.Unlock()
	_ = c.store.Set(ctx, note(doing, c.cfg.Rank), []byte(what+c.waitingFor), nil)
}

// report publishes that the operation has failed. If it succeeded, report deletes what this rank
// has published about it, or about an earlier operation that failed.
func (c *call) report(err error) {
	ctx, cancel := c.shortContext()
	defer cancel()
	if e, ok := errors.AsType[*pgroup.RankError](err); ok {
		if e.Code != wire.CodeClosed && e.Code != wire.CodeUnavailable {
			c.mu.Lock()
			c.failed = true
			c.mu.Unlock()
			c.setActivity(ctx, "failed in")
		}
		return
	}
	c.mu.Lock()
	stale := c.lastActivity == c || c.lastActivity != nil && c.lastActivity.failed
	if stale {
		c.lastActivity = nil
	}
	c.mu.Unlock()
	if stale {
		_, _ = c.store.Delete(ctx, note(doing, c.cfg.Rank))
	}
}

// parse decodes what n waits for into *v.
func (c *call) parse(b []byte, n need, v any) error {
	if err := c.checkObject(b, n); err != nil {
		return err
	}
	err := pickle.ParseInto(b, v)
	if t, ok := v.(**tensor.Tensor); ok && err == nil && *t == nil {
		err = errors.New("pickle: it is None")
	}
	if err == nil {
		return nil
	}
	reason := fmt.Sprintf("rank %d sent an object that this rank cannot decode: %v", n.from, err)
	if n.m == array {
		reason = fmt.Sprintf("rank %d set %q to an object that is not a tensor; it is skipped: %v", n.from, n.key, err)
		err = noTensorError{err}
	}
	return c.rankError(&wire.Failure{Code: wire.CodeMismatch, By: -1, Reason: reason}, err)
}

// noTensorError is the error of a pickle under the key of a tensor that is not a tensor: no operation
// can ever receive it.
type noTensorError struct{ error }

func (e noTensorError) Unwrap() error { return e.error }

// consumed reports whether a message is done with: it was read, or can never be read.
func consumed(err error) bool {
	if err == nil || errors.Is(err, store.ErrExpired) {
		return true
	}
	_, unreadable := errors.AsType[*pickle.Error](err)
	_, misplaced := errors.AsType[noTensorError](err)
	return unreadable || misplaced
}

// mostID is more than the size of a pickled barrier ID, in bytes, in any protocol.
const mostID = 256

// checkObject refuses the ID of a barrier. It is broadcast too, and stays for this rank's Barrier.
func (c *call) checkObject(b []byte, n need) error {
	if !n.broadcast || n.m != object || len(b) > mostID {
		return nil
	}
	v, err := pickle.Parse(b)
	if id, ok := v.(string); err == nil && ok && isBarrierID(id) {
		return c.rankError(&wire.Failure{Code: wire.CodeMismatch, By: -1, Reason: fmt.Sprintf("rank %d called barrier, this rank %s", n.from, c.op)}, nil)
	}
	return nil
}

// closed returns the error of operations after Close.
func (c *call) closed() error {
	return c.rankError(&wire.Failure{Code: wire.CodeClosed, By: -1, Reason: "by this rank"}, nil)
}

// asRankError returns the error of an operation for the store's error err.
func (c *call) asRankError(err error) error {
	if c.ctx.Err() != nil {
		return c.closed()
	}
	e, ok := errors.AsType[*store.Error](err)
	if !ok {
		return fmt.Errorf("vllm: %s of group %q on rank %d: %w", c.op, c.cfg.Name, c.cfg.Rank, err)
	}
	v := &wire.Failure{Code: e.Code, By: -1, Reason: err.Error()}
	switch e.Code {
	case wire.CodeUnavailable:
		v.Reason = "the store cannot be reached, which vLLM's rank 0 hosts: " + v.Reason
	case wire.CodeTimeout, wire.CodeCancelled:
		v.Reason = "before the store answered: " + v.Reason
	}
	return c.rankError(v, err)
}

func (c *call) rankError(v *wire.Failure, err error) *pgroup.RankError {
	return &pgroup.RankError{Op: "vllm." + c.op, Group: c.cfg.Name, Rank: c.cfg.Rank, Size: c.cfg.Size, Seq: c.seq, Failure: v, Err: err}
}
