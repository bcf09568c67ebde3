package gather

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Failure detection of a rank that waits for data. The data will not arrive if the connection
// breaks, if the store reports that a rank has failed, if the sender has already ended the verb
// with a failure, or if the deadline has passed.

// whileAlive runs f. It cancels f if a rank of the list fails, and early enough before the deadline
// to send the result to the others.
func (v *verb) whileAlive(ctx context.Context, f func(ctx context.Context) error) error {
	if deadline, ok := ctx.Deadline(); ok {
		early, stop := context.WithDeadlineCause(ctx, deadline.Add(-reportTime(time.Until(deadline))), errTooLong)
		defer stop()
		ctx = early
	}
	over := v.group.Context()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(over, func() { cancel(context.Cause(over)) })()
	if v.ga.files != nil { // a missing file breaks no connection
		var watch sync.WaitGroup
		watch.Go(func() { v.awaitWithdrawal(ctx, cancel) })
		defer watch.Wait()
		defer cancel(nil)
	}
	err := f(ctx)
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	v.awaitFailure(ctx, err)
	switch {
	case over.Err() != nil:
		return context.Cause(over)
	case cause == nil:
		return err
	case errors.Is(cause, errTooLong):
		return timedOut(err)
	default:
		return &fault{Code: wire.CodeCancelled, By: 0, Reason: cause.Error(), err: cause}
	}
}

// reportTime returns the part of the time left that the first rank keeps for sending the others the
// names of the ranks that it waited for. Ranks that called earlier need the result before their own
// deadlines.
func reportTime(left time.Duration) time.Duration {
	return min(max(left/10, 50*time.Millisecond), 5*time.Second)
}

// lossTime is longer than the store takes to report the failure of a rank whose process has ended.
const lossTime = time.Second

// awaitFailure waits, if err is that of a broken connection, until the store reports why: usually
// the rank at its other end has failed, or has ended the verb with a failure, and all ranks should
// get that as the reason.
func (v *verb) awaitFailure(ctx context.Context, err error) {
	if _, broken := errors.AsType[linkError](err); !broken {
		return
	}
	ctx, stop := context.WithTimeout(ctx, lossTime)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := v.group.Context()
	defer context.AfterFunc(over, func() { cancel(context.Cause(over)) })()
	defer context.AfterFunc(v.ga.life, func() { cancel(pgroup.ErrClosed) })()
	v.awaitWithdrawal(ctx, cancel)
}

// A rank that gets a failure before the first rank has sent its result withdraws its offer. It sets
// a key, for a first rank that waits for the data.

func (v *verb) withdrawalKey() string {
	return fmt.Sprintf("\x00gather withdrawn/%d/%d", v.group.Generation(), v.calls)
}

func (v *verb) withdraw() {
	if v.first() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lossTime)
	defer cancel()
	// without the key, the first rank waits longer
	_ = v.ga.group.Store().Set(ctx, v.withdrawalKey(), nil, &store.SetOptions{TTL: time.Minute})
}

// awaitWithdrawal cancels ctx when a rank has withdrawn its offer. It returns when ctx has ended.
func (v *verb) awaitWithdrawal(ctx context.Context, cancel context.CancelCauseFunc) {
	if _, err := v.ga.group.Store().Wait(ctx, v.withdrawalKey()); err == nil {
		cancel(errWithdrawn)
	}
	<-ctx.Done()
}

var errWithdrawn = errors.New("a rank has already failed in this verb")

// faultOf returns the failure that a rank sends to the others instead of an offer.
func (v *verb) faultOf(ctx context.Context, err error) *fault {
	v.awaitFailure(ctx, err)
	if over := v.group.Context(); over.Err() != nil {
		return asFault(context.Cause(over))
	}
	// receivers set By to the rank of the offer
	return &fault{Code: wire.CodeFailed, Reason: err.Error()}
}
