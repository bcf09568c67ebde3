package transport

import (
	"context"
	"time"
)

// graceTicks is how many parts a grace has. However long this process is stopped, on a host with
// too many processes, at most one part of the grace passes meanwhile: an answer that has arrived is
// read before the grace has passed.
const graceTicks = 10

// WaitGrace receives from done once, which is a value or that it is closed, within d of the time in
// which this process runs, and reports whether it has.
func WaitGrace(done <-chan struct{}, d time.Duration) bool {
	ctx, cancel := Grace(context.Background(), d)
	defer cancel()
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	select { // both may be over
	case <-done:
		return true
	default:
		return false
	}
}

// Grace returns a context for what follows the end of ctx. It has the values of ctx, and its deadline
// passes after d of the time in which this process runs. It has no Deadline that could be sent to
// another process.
func Grace(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		for range graceTicks {
			select {
			case <-time.After(d / graceTicks):
			case <-inner.Done():
				return
			}
		}
		cancel(context.DeadlineExceeded)
	}()
	return graceContext{inner}, func() { cancel(context.Canceled) }
}

// graceContext reports the end of its time as a passed deadline.
type graceContext struct{ context.Context }

// Err implements context.Context.
func (c graceContext) Err() error {
	if c.Context.Err() == nil {
		return nil
	}
	return context.Cause(c.Context)
}

// ContextErr is ctx.Err(), but also reports a deadline that has passed before the timer of ctx has
// fired. A dial or read that was bounded by the deadline of ctx can return its timeout in between.
func ContextErr(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if at, ok := ctx.Deadline(); ok && !time.Now().Before(at) {
		return context.DeadlineExceeded
	}
	return nil
}
