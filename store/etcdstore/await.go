package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// await waits for the verdict. Now and then it looks at the votes again: who was to create it may be gone.
func (r *record) await(ctx context.Context) (*wire.Reply, error) {
	pause := lookFirst
	look := time.NewTimer(jitter(pause))
	defer look.Stop()
	done := func() {}
	defer func() { done() }()
	for {
		s := r.g.state()
		if verdict := r.told(); verdict != nil {
			return verdict, nil
		}
		if r.hopeless() {
			if verdict, err := r.inTurn(ctx, nil); verdict != nil || err != nil && ctx.Err() == nil {
				return verdict, err
			}
		}
		select {
		case <-s.changed:
		case <-look.C:
			if pause == lookFirst { // others may want to know for how long
				done = r.says(fmt.Sprintf("%s #%d", core.Describe(&r.c), r.c.Seq), r.began)
			}
			verdict, err := r.recount(ctx)
			if verdict != nil || err != nil && ctx.Err() == nil {
				return verdict, err
			}
			pause = min(2*pause, lookMost)
			look.Reset(jitter(pause))
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// recount looks at the record again, and brings little along while nothing has happened.
func (r *record) recount(ctx context.Context) (*wire.Reply, error) {
	k := r.g.keys
	all := valueIs(r.votes, r.ballot(), prefixed)
	gets := []op{
		opGet(r.verdict()), opGet(k.all()), opGet(k.over()),
		opTxn(r.isPlain(true), nil, nil), opTxn([]cond{all}, nil, nil),
	}
	resp, err := r.g.e.txn(ctx, nil, gets, nil)
	if err != nil {
		return nil, err
	}
	for _, x := range resp.Responses[:2] {
		if kv := found(x); kv != nil {
			r.g.learn(kv)
			return r.told(), nil
		}
	}
	if kv := found(resp.Responses[2]); kv != nil { // nobody may have heard who is lost
		r.g.learn(kv)
		if _, err := r.g.lookAtSeats(ctx); err != nil {
			return nil, err
		}
	}
	switch {
	case !resp.Responses[3].GetResponseTxn().Succeeded:
		return r.settle(ctx, nil)
	case !r.c.RootOnly && resp.Responses[4].GetResponseTxn().Succeeded:
		return r.succeedIfAll(ctx)
	}
	return nil, nil
}

// hopeless reports whether somebody is gone, so that the record may not be decided by a yes any more.
func (r *record) hopeless() bool {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	return len(r.g.gone) > 0 && (!r.c.RootOnly || r.g.gone[r.c.Root] != wire.CodeOK)
}

// inTurn settles the record, unless somebody else does so first.
func (r *record) inTurn(ctx context.Context, why *wire.Verdict) (*wire.Reply, error) {
	turn := time.NewTimer(r.g.turn())
	defer turn.Stop()
	for {
		s := r.g.state()
		if verdict := r.told(); verdict != nil {
			return verdict, nil
		}
		select {
		case <-s.changed:
		case <-turn.C:
			return r.settle(ctx, why)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// giveUp is the end of a rank's time: it decides the record, if that is open, and waits a moment for its verdict.
func (r *record) giveUp(ctx context.Context, cause error) (*wire.Reply, error) {
	why := &wire.Verdict{Code: wire.CodeTimeout, By: -1}
	switch {
	case r.ctx.Err() != nil, errors.Is(cause, store.ErrClosed), errors.Is(cause, store.ErrSession):
		return nil, cause
	case errors.Is(cause, context.DeadlineExceeded):
	case errors.Is(cause, context.Canceled):
		why = &wire.Verdict{Code: wire.CodeCancelled, By: r.rank}
	default:
		return nil, cause
	}
	last, cancel := r.afterwards(ctx)
	defer cancel()
	settle := r.settle
	if why.By < 0 {
		settle = r.inTurn
	}
	verdict, err := settle(last, why)
	if err != nil || verdict == nil {
		return nil, cause
	}
	return verdict, nil
}

// afterwards is ctx for what belongs to a call whose record is, or is being, decided: it has a moment more than its caller gave it. What all
// others have heard it is not to miss for a millisecond.
func (st *seat) afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline := time.Now().Add(store.Grace)
	if own, ok := ctx.Deadline(); ok && own.After(deadline) {
		deadline = own
	}
	last, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	last, stop := st.within(last)
	return last, func() {
		stop()
		cancel()
	}
}
