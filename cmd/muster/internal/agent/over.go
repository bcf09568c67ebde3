package agent

import (
	"context"
	"errors"
	"sync"
)

// overError is the cause for which a node stops to wait for others: the job has ended without it.
type overError struct{ outcome error } // nil: the job has succeeded

func (e *overError) Error() string { return errOver.Error() }

// untilOver returns a context that ends with waits, or when the job of ranks has ended while this node
// was a spare or out of contact. Its cause is an *overError then.
func (r *run) untilOver() (ctx context.Context, end func()) {
	ctx, stop := context.WithCancelCause(r.waits)
	if r.MaxNodes == 1 {
		return ctx, func() { stop(nil) }
	}
	var following sync.WaitGroup
	s := r.shared()
	following.Go(func() {
		s.follow(ctx, func(st *state) {
			if st.Outcome != "" && st.ID != r.before {
				stop(&overError{st.err()})
			}
		})
	})
	return ctx, func() {
		stop(nil)
		following.Wait()
	}
}

// conclude publishes the outcome of a job of ranks for nodes that take no part: err is nil, or an
// *Error. All nodes write the same, with the ID of the last attempt.
func (r *run) conclude(ctx context.Context, err error) {
	e, over := errors.AsType[*Error](err)
	if r.MaxNodes == 1 || r.ending() || err != nil && !over {
		return
	}
	st := state{ID: r.last, Outcome: succeeded}
	if over {
		st.Outcome, st.Code = failed, 1
		all := *e
		all.Err = nil // so that the text names the node
		st.Reason = all.Error()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	s := r.shared()
	_, _ = s.update(ctx, func(now *state) { *now = st })
}
