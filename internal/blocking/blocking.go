// Package blocking calls functions that may block in the kernel without end, as those of a network
// file system whose server is gone.
package blocking

import (
	"context"
	"fmt"
	"time"
)

// grace is the time after the end of a context in which a function that respects it returns.
const grace = time.Second

// Do calls f in a separate goroutine, and returns what f returns, or an error if f has not
// returned shortly after ctx has ended. f then goes on, and its result is dropped: the caller must
// not use again what f writes to.
func Do[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-done:
		return r.v, r.err
	case <-time.After(grace):
		var none T
		return none, fmt.Errorf("the file system does not answer: %w", context.Cause(ctx))
	}
}
