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

// How a rank that waits for bytes hears that they will not come: its connection breaks, the store says that a rank is lost, the one that was
// to give them has had its verdict, or the time is over.

// whileThere runs f for as long as all ranks of the list are there, and there is time to tell them how it went.
func (v *verb) whileThere(ctx context.Context, f func(ctx context.Context) error) error {
	if deadline, ok := ctx.Deadline(); ok {
		early, stop := context.WithDeadlineCause(ctx, deadline.Add(-tellTime(time.Until(deadline))), errLate)
		defer stop()
		ctx = early
	}
	over := v.group.Context()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(over, func() { cancel(context.Cause(over)) })()
	if v.ga.files != nil { // nothing breaks when a file goes
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
	v.heed(ctx, err)
	switch {
	case over.Err() != nil:
		return context.Cause(over)
	case cause == nil:
		return err
	case errors.Is(cause, errLate):
		return late(err)
	default:
		return &fault{Code: wire.CodeCancelled, By: 0, Reason: cause.Error(), err: cause}
	}
}

// tellTime is what the first rank keeps, of the time that it has, to tell the others who it has waited for. Those who called before it need
// to hear of it before their own time is over.
func tellTime(left time.Duration) time.Duration {
	return min(max(left/10, 50*time.Millisecond), time.Second)
}

// lossTime is longer than the store takes to declare a rank lost whose process has ended.
const lossTime = time.Second

// heed waits, if err is of a connection that broke, for the store's word on the rank at its other end: mostly that is lost, or has its
// verdict already, and all are to hear that.
func (v *verb) heed(ctx context.Context, err error) {
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

// A rank that has its verdict before the first rank has given its word takes back what it offered. It says so under a key, for a first rank
// that waits for that.

func (v *verb) withdrawal() string {
	return fmt.Sprintf("\x00gather withdrawn/%d/%d", v.group.Generation(), v.calls)
}

func (v *verb) withdraw() {
	if v.first() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lossTime)
	defer cancel()
	_ = v.ga.group.Store().Set(ctx, v.withdrawal(), nil, &store.SetOptions{TTL: time.Minute}) // without it, the first waits longer
}

// awaitWithdrawal cancels ctx when a rank has withdrawn. It returns when ctx has ended.
func (v *verb) awaitWithdrawal(ctx context.Context, cancel context.CancelCauseFunc) {
	if _, err := v.ga.group.Store().Wait(ctx, v.withdrawal()); err == nil {
		cancel(errWithdrawn)
	}
	<-ctx.Done()
}

var errWithdrawn = errors.New("a rank has its verdict already")

// why is what a rank tells the others of why it has nothing to give.
func (v *verb) why(ctx context.Context, err error) *fault {
	v.heed(ctx, err)
	if over := v.group.Context(); over.Err() != nil {
		return asFault(context.Cause(over))
	}
	return &fault{Code: wire.CodeFailed, Reason: err.Error()} // By is whose offer it is
}
