package transport

import (
	"context"
	"time"
)

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
